//! The generated parts of the reference pages. Each part stands between two comments of its page.

use super::{limits, rooms};
use clap::{Arg, Command};
use forebay::account::MetricKind;
use forebay::admin::{admin_routes, all_metrics};
use forebay::config::{Config, KeyEntry, Kind, all_keys};
use forebay::http1::header;
use forebay::parse::{CLIENT_ROUTES, ENGINE_CALLS, Reason};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// Writes the parts instead of comparing them.
const WRITE: &str = "FOREBAY_WRITE_DOCS=1 cargo test --test docs";

/// Page of `docs`, name of the part, and what the code says.
fn parts() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("internals/architecture.md", "crates", rooms::crates()),
        ("internals/architecture.md", "dataplane", rooms::modules("src/dataplane")),
        ("reference/configuration.md", "keys", keys()),
        ("reference/limits.md", "limits by key", limits::keys()),
        ("reference/limits.md", "fixed limits", limits::constants()),
        ("reference/cli.md", "commands", commands()),
        ("reference/metrics.md", "metrics", metrics()),
        ("reference/errors.md", "reasons", reasons()),
        ("reference/admin-api.md", "calls", calls()),
        ("reference/api.md", "endpoints", endpoints()),
        ("reference/api.md", "engine calls", engine_calls()),
        ("reference/headers.md", "answers", headers(header::OF_ANSWERS)),
        ("reference/headers.md", "requests", headers(header::OF_REQUESTS)),
    ]
}

#[test]
fn reference_pages_say_what_the_code_says() {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "docs"].iter().collect();
    for (page, name, text) in parts() {
        let path = folder.join(page);
        let before = fs::read_to_string(&path).unwrap();
        let after = with_part(&before, name, &text);
        let after = after.unwrap_or_else(|| panic!("{page} lacks the comments of `{name}`"));
        if env::var_os("FOREBAY_WRITE_DOCS").is_some() {
            fs::write(&path, after).unwrap();
        } else {
            assert!(before == after, "{page}, part `{name}`, is out of date. Run: {WRITE}");
        }
    }
}

/// The page with the part between its two comments replaced.
fn with_part(page: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- {name}: written by {WRITE} -->\n");
    let end = format!("<!-- end of {name} -->\n");
    let (head, rest) = page.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{}\n\n{end}{tail}", text.trim()))
}

#[test]
fn a_change_of_a_part_is_seen() {
    let page = with_part("a\n<!-- x: written by FOREBAY_WRITE_DOCS=1 cargo test --test docs -->\nold\n<!-- end of x -->\nb\n", "x", "new").unwrap();
    assert!(page.contains("\n\nnew\n\n") && !page.contains("old") && page.ends_with("\nb\n"));
    assert_eq!(with_part(&page, "x", "new").as_ref(), Some(&page));
    assert_eq!(with_part(&page, "y", "new"), None);
}

/// A text in the cell of a table.
pub(super) fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

/// Each section of the configuration with a table of its keys.
fn keys() -> String {
    let all = all_keys();
    let section_of =
        |entry: &KeyEntry| entry.key.path.split_once('.').map_or("", |(section, _)| section);
    let mut sections: Vec<&str> = Vec::new();
    for entry in &all {
        if !sections.contains(&section_of(entry)) {
            sections.push(section_of(entry));
        }
    }
    let mut text = String::new();
    for section in sections {
        let of_section: Vec<&KeyEntry> =
            all.iter().filter(|entry| section_of(entry) == section).collect();
        match section {
            "" => text.push_str("## Top level\n"),
            _ if is_list(section) => writeln!(text, "## `[[{section}]]`").unwrap(),
            _ => writeln!(text, "## `[{section}]`").unwrap(),
        }
        let about = of_section.first().unwrap().key.about.trim();
        writeln!(text, "\n{about}\n").unwrap();
        text.push_str("| key | type | default | reload | meaning |\n|---|---|---|---|---|\n");
        for entry in &of_section {
            text.push_str(&key_row(entry));
        }
        text.push('\n');
        for entry in &of_section {
            words(&mut text, entry);
        }
    }
    text
}

/// A list of tables, by the reader of the file: as a single table it is an error.
fn is_list(section: &str) -> bool {
    let Err(findings) = Config::from_toml(&format!("[{section}]\n")) else { return false };
    findings.iter().any(|finding| finding.to_string().contains("not a list of tables"))
}

#[test]
fn tables_that_come_in_lists_have_two_brackets() {
    let shown = keys();
    for list in ["worker", "tenant", "certificate", "listener", "model", "adapter"] {
        assert!(shown.contains(&format!("## `[[{list}]]`\n")), "{list}");
    }
    assert!(shown.contains("## `[queue]`\n") && shown.contains("## `[tls]`\n"), "{shown}");
}

/// The default of a key, or what counts without the key.
pub(super) fn default_text(entry: &KeyEntry) -> String {
    match &entry.default {
        Some(value) => format!("`{value}`"),
        None => entry.key.absent.to_owned(),
    }
}

/// The type of a key with its range.
pub(super) fn kind_text(entry: &KeyEntry) -> String {
    let range = entry.kind.format_range(entry.key);
    let parts = [kind(&entry.kind), &range].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

fn key_row(entry: &KeyEntry) -> String {
    let key = entry.key;
    let name = key.path.rsplit('.').next().unwrap();
    let default = default_text(entry);
    let kind = kind_text(entry);
    let reload = if key.reloadable { "yes" } else { "" };
    format!("| `{name}` | {kind} | {} | {reload} | {} |\n", cell(&default), cell(key.doc))
}

fn kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Switch => "true or false",
        Kind::Count => "number",
        Kind::Size => "size",
        Kind::Duration => "duration",
        Kind::Address => "address",
        Kind::Text => "text",
        Kind::Texts => "list of texts",
        Kind::Cores => "list of cores",
        Kind::Words(_) => "word",
    }
}

fn words(text: &mut String, entry: &KeyEntry) {
    let Kind::Words(words) = &entry.kind else { return };
    // The worker's own `engine` and `load_source` take the words of the general keys.
    if ["worker.engine", "worker.load_source"].contains(&entry.key.path) {
        return;
    }
    let name = entry.key.path.rsplit('.').next().unwrap();
    writeln!(text, "| `{name}` | meaning |\n|---|---|").unwrap();
    for (word, doc) in words {
        writeln!(text, "| `{word}` | {} |", cell(doc)).unwrap();
    }
    text.push('\n');
}

/// Each command with its usage, flags and examples.
fn commands() -> String {
    let mut root = forebay::cli::definition();
    root.build();
    let mut text = String::new();
    for command in root.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let about = command.get_about().unwrap().to_string();
        let usage = command.render_usage().to_string();
        writeln!(text, "## `forebay {}`\n\n{about}.\n", command.get_name()).unwrap();
        writeln!(text, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ")).unwrap();
        flags(&mut text, command);
        if let Some(after) = command.get_after_help() {
            writeln!(text, "```text\n{}\n```\n", after.to_string().trim_end()).unwrap();
        }
    }
    text
}

fn flags(text: &mut String, command: &Command) {
    let shown = |arg: &&Arg| arg.get_id() != "help" && !arg.is_hide_set();
    let args: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        writeln!(text, "| {} | meaning |\n|---|---|", heading.unwrap_or("argument")).unwrap();
        for arg in args.iter().filter(|arg| arg.get_help_heading() == heading) {
            writeln!(text, "| {} | {} |", cell(&flag_name(arg)), cell(&flag_help(arg))).unwrap();
        }
        text.push('\n');
    }
}

fn flag_name(arg: &Arg) -> String {
    let value =
        arg.get_value_names().and_then(<[_]>::first).filter(|_| arg.get_action().takes_values());
    let names = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match value {
        Some(value) if names.is_empty() => format!("`{value}`"),
        Some(value) => format!("`{names} {value}`"),
        None => format!("`{names}`"),
    }
}

fn flag_help(arg: &Arg) -> String {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if !arg.get_action().takes_values() {
        return help;
    }
    let values: Vec<_> = arg.get_possible_values();
    let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !values.is_empty() {
        write!(help, " [one of {}]", values.join(", ")).unwrap();
    }
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy());
    if let Some(default) = default.filter(|default| !default.is_empty()) {
        write!(help, " [default: {default}]").unwrap();
    }
    help
}

/// Headings of the page about metrics, in their order.
const METRIC_SECTIONS: [&str; 13] = [
    "Requests",
    "Connections",
    "TLS",
    "Prompts and matches",
    "KV events",
    "Index and snapshot",
    "Ranks and workers",
    "Load reports",
    "Queues and windows",
    "Prefill and decode",
    "Replicas",
    "Traces",
    "The process",
];

/// Each section of the metrics with its table.
fn metrics() -> String {
    let mut text = String::new();
    let mut shown = 0;
    for section in METRIC_SECTIONS {
        writeln!(text, "## {section}\n").unwrap();
        text.push_str("| metric | type | labels | meaning |\n|---|---|---|---|\n");
        for metric in all_metrics().filter(|metric| metric.section == section) {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let name = metric.name;
            let labels = labels.join(", ");
            let help = cell(metric.help);
            writeln!(text, "| `forebay_{name}` | {kind} | {labels} | {help} |").unwrap();
            shown += 1;
        }
        text.push('\n');
    }
    assert_eq!(shown, all_metrics().count(), "a section is not in the list");
    text
}

/// Each reason with its status, from the lowest to the highest.
fn reasons() -> String {
    let mut reasons = Reason::ALL;
    reasons.sort_by_key(|reason| reason.status());
    let mut text =
        "| status | `x-forebay-reason` | when | message |\n|---|---|---|---|\n".to_owned();
    for reason in reasons {
        let status = reason.status();
        let name = reason.as_str();
        let when = cell(reason.when());
        let message = cell(reason.message());
        writeln!(text, "| {status} | `{name}` | {when} | {message} |").unwrap();
    }
    text
}

/// The page of errors sends its reader there for each reason.
#[test]
fn troubleshooting_has_each_reason() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/operate/troubleshooting.md")).unwrap();
    let is_missing = |reason: &&str| !page.contains(&format!("`{reason}`"));
    let reasons = Reason::ALL.map(Reason::as_str);
    let missing: Vec<&str> = reasons.into_iter().filter(|reason| is_missing(reason)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The header fields of one direction.
fn headers(fields: &[header::HeaderField]) -> String {
    let mut text = "| header | on | meaning |\n|---|---|---|\n".to_owned();
    for field in fields {
        let name = field.name;
        let on = cell(field.on);
        let meaning = cell(field.meaning);
        writeln!(text, "| `{name}` | {on} | {meaning} |").unwrap();
    }
    text
}

/// A field that is named elsewhere would be missing in the list, and so on the page.
#[test]
fn fields_of_the_router_are_named_in_the_list_alone() {
    let src: PathBuf = [env!("CARGO_MANIFEST_DIR"), "src"].iter().collect();
    let mut folders = vec![src];
    let mut named = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let literals = text.split('"').filter(|word| {
                let name = word.strip_prefix("x-forebay-").unwrap_or_default();
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
            });
            named.extend(literals.map(|name| (name.to_owned(), path.clone())));
        }
    }
    let of_router = |field: &&header::HeaderField| field.name.starts_with("x-forebay-");
    let listed = header::OF_ANSWERS.iter().chain(header::OF_REQUESTS).filter(of_router).count();
    assert_eq!(named.len(), listed, "{named:?}");
}

/// Each call of the admin API.
fn calls() -> String {
    let mut text = "| call | answer |\n|---|---|\n".to_owned();
    for route in admin_routes() {
        writeln!(text, "| `{} {}` | {} |", route.method, route.path, route.meaning).unwrap();
    }
    text
}

/// Each part of a path that is not forwarded.
fn engine_calls() -> String {
    let calls = ENGINE_CALLS.map(|call| format!("- `{call}`"));
    calls.join("\n")
}

/// Each call of the client port.
fn endpoints() -> String {
    let mut text = "| path | methods | answered by | answer |\n|---|---|---|---|\n".to_owned();
    for call in CLIENT_ROUTES {
        let by = if call.endpoint.is_local() { "the router" } else { "a worker" };
        writeln!(text, "| `{}` | {} | {by} | {} |", call.path, call.methods(), call.meaning)
            .unwrap();
    }
    text
}
