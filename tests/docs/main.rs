//! The documentation against the code: the reference pages say what the code says, examples work,
//! names and lines of the log exist, every flag of `serve` has help.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails must stop")]

mod boards;
mod limits;
mod log_states;
mod log_targets;
mod quoted;
mod reference;
mod rooms;
mod shown_files;

use forebay::admin::all_metrics;
use forebay::config::{Config, Kind, all_keys};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// What users read: README.md and the book.
static PAGES: LazyLock<String> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("README.md")).unwrap() + &texts_below("docs", "md")
});

/// All files of a folder of the tree with that extension, as one text.
fn texts_below(folder: &str, extension: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

/// Who takes the `#` away from a line of the packaged file gets a file that works.
#[test]
fn the_packaged_file_can_be_used_with_all_of_its_lines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/package/forebay.toml");
    let file = fs::read_to_string(path).unwrap();
    let is_line = |line: &str| line.starts_with('[') || line.contains(" = ");
    let lines = file.lines().map(|line| match line.strip_prefix("# ") {
        Some(line) if is_line(line) => line,
        _ => line,
    });
    let whole = lines.collect::<Vec<_>>().join("\n");
    assert!(whole.contains("\nsnapshot = ") && whole.contains("\nmodel_dir = "), "{whole}");
    let whole = whole.replace("/var/lib/models/Qwen3-8B", "tests/data/tokenizer");
    let whole = whole.replace("/var/lib/forebay", "/tmp");
    let used = Config::from_toml(&whole).map_err(|findings| findings.first().unwrap().to_string());
    assert!(used.is_ok(), "{used:?}");
}

/// A renamed key or metric leaves no page behind. Metrics of the simulated engine are its own.
#[test]
fn keys_and_metrics_that_the_pages_name_exist() {
    let unknown = unknown_names(&PAGES);
    assert!(unknown.is_empty(), "no such key or metric: {unknown:?}");
    let planted = "`forebay_gone_total{a}`, `queue.gone`, `forebay_engine_open`, `queue.mode = 1`.";
    assert_eq!(unknown_names(planted), ["forebay_gone_total", "queue.gone"]);
}

/// Words in code that look like a key or a metric and are none.
fn unknown_names(text: &str) -> Vec<&str> {
    let keys: Vec<&str> = all_keys().iter().map(|entry| entry.key.path).collect();
    let metrics: Vec<&str> = all_metrics().map(|metric| metric.name).collect();
    let is_word = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
    let spans = text.split('`').skip(1).step_by(2);
    let names = spans.filter_map(|span| span.split(|c| !is_word(c)).next());
    let is_unknown = |name: &&str| {
        if let Some(metric) = name.strip_prefix("forebay_") {
            let is_pattern = name.ends_with('_');
            return !is_pattern && !metric.starts_with("engine_") && !metrics.contains(&metric);
        }
        let Some((section, key)) = name.split_once('.') else { return false };
        let is_section = keys.iter().any(|key| key.starts_with(&format!("{section}.")));
        is_section && !key.is_empty() && key != "rs" && !keys.contains(name)
    };
    names.filter(is_unknown).collect()
}

/// An operator who searches for a line of the log finds its page by the words of that line.
#[test]
fn log_lines_that_the_pages_quote_are_in_the_code() {
    let code = texts_below("src", "rs");
    let quoted = PAGES.split("log: `").skip(1).filter_map(|rest| rest.split('`').next());
    let unknown: Vec<&str> = quoted.filter(|line| !code.contains(line)).collect();
    assert!(unknown.is_empty(), "no code writes {unknown:?}");
    assert!(PAGES.contains("log: `worker is down`"), "lines are quoted in another form now");
}

/// Flags are keys under the same words: what the one says in help the other says in the file.
#[test]
fn every_flag_of_serve_has_help() {
    let binary = env!("CARGO_BIN_EXE_forebay");
    let help = Command::new(binary).args(["serve", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let flags = help.lines().filter(|line| line.trim_start().starts_with('-'));
    for line in flags.map(str::trim) {
        let says_more = line.split("  ").filter(|part| !part.trim().is_empty()).count() > 1;
        assert!(says_more, "no help: {line}");
    }
    assert!(help.contains("SIGHUP"), "how to reload");
}

/// Where each policy is listed by hand: a file, and the text before and behind the list.
const LISTS_OF_POLICIES: [(&str, &str, &str); 4] = [
    ("docs/concepts/kv-routing.md", "| policy | a request goes to |", "\n\n"),
    ("docs/reference/configuration-examples.md", "\npolicy = \"kv\"", "\n"),
    ("src/cli/commands/simulate.rs", "Policies of `forebay serve`:", "Rules of others:"),
    ("tools/policies_tables.py", "\nOWN = (", ")"),
];

#[test]
fn each_policy_is_on_every_list_of_policies() {
    let keys = all_keys();
    let policy = keys.iter().find(|entry| entry.key.path == "policy").unwrap();
    let Kind::Words(policies) = &policy.kind else { panic!("no words") };
    for (file, before, behind) in LISTS_OF_POLICIES {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), file].iter().collect();
        let text = fs::read_to_string(path).unwrap();
        let (_, list) = text.split_once(before).unwrap_or_else(|| panic!("no list in {file}"));
        let (list, _) = list.split_once(behind).unwrap();
        // Of a table, the first column.
        let names = list.lines().filter_map(|line| line.split("` |").next());
        let listed: Vec<&str> =
            names.flat_map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
        for (word, _) in policies {
            assert!(listed.contains(word), "policy `{word}` is missing in {file}: {list}");
        }
    }
}
