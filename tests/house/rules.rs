//! Rules without exceptions: import order, planes, atomics, unsafe code, clocks, chance, shape.

use super::source::{Name, Source};
use super::tree::{Tree, first, scope};
use std::collections::BTreeMap;

/// Lines of a file, its unit tests aside.
pub(crate) const FILE_LINES_MAX: usize = 500;
/// Files of code on one level of a folder.
const FOLDER_FILES_MAX: usize = 20;
/// Lines of a file of tests.
pub(crate) const TEST_LINES_MAX: usize = 820;
/// An `ordering:` comment stands at most so many lines above what it explains.
const COMMENT_REACH_LINES: usize = 8;
/// Only the I/O layer knows how its shard waits.
const IO_URING: &[&str] = &["net"];
/// What threads hand over, and what the kernel reads and writes.
const UNSAFE: &[&str] = &["heap", "net", "ring", "wide"];
const TOKIO: &[&str] = &[
    "admin",
    "cli",
    "control",
    "demo",
    "discovery",
    "kv_events",
    "record",
    "replicas",
    "server",
    "shadow",
    "sim_engine",
    "zmq",
];
/// Files, or folders with a slash at the end.
const ATOMICS: &[&str] = &[
    "ring/",
    "net/drivers/provided.rs",
    "index/table/",
    "board/rank_load.rs",
    "board/faults/breaker/",
    "board/faults/comparison_turn.rs",
    "board/faults/ejection.rs",
    "board/counts/prompt_counts.rs",
    "board/queues/queue_cell.rs",
    "board/queues/queue_tenants.rs",
    "board/counts/rank_past/",
    "board/counts/foreign_requests.rs",
    "board/counts/kv_report.rs",
    "board/counts/pinned_prefixes.rs",
    "board/counts/rank_signs.rs",
    "board/counts/unstreamed_prompts.rs",
    "board/queues/window.rs",
    "board/account/counters.rs",
    "board/account/rows.rs",
    "board/tenant_board.rs",
    "identity/per_address.rs",
    "keys/token/mod.rs",
    "base/invariant.rs",
    "log.rs",
];
const ORDERINGS: &[&str] = &["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
/// Words that say nothing about what is in a module or type.
const EMPTY_WORDS: &[&str] = &[
    "manager", "handler", "helper", "util", "common", "misc", "core", "service", "context", "desk",
];

/// Sleeps of tests that last longer than a second, as far as the line says for how long.
pub(crate) fn long_sleeps(source: &Source) -> Vec<String> {
    let number = |text: &str, unit: &str| {
        let (_, rest) = text.split_once("sleep(")?.1.split_once(unit)?;
        let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '_').collect();
        digits.replace('_', "").parse::<u64>().ok()
    };
    let is_long = |text: &str| {
        number(text, "from_secs(").is_some_and(|seconds| seconds > 1)
            || number(text, "from_millis(").is_some_and(|millis| millis > 1_000)
    };
    let lines = source.lines.iter().enumerate().filter(|(_, line)| is_long(&line.text));
    let says = "a test sleeps longer than a second; wait for an event, or hand in a shorter time";
    lines.map(|(at, _)| format!("{}:{}: {says}", source.path, at + 1)).collect()
}

/// All faults of the workspace.
pub(crate) fn faults(tree: &Tree) -> Vec<String> {
    let lost = tree.lost.iter().map(|source| format!("{}: no module names this file", source.path));
    (0..tree.sources.len()).flat_map(|file| of_file(tree, file)).chain(lost).collect()
}

/// Folders with more files on one level than a reader can look over.
pub(crate) fn full_folders(tree: &Tree) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let paths = tree.sources.iter().filter_map(|source| source.path.rsplit_once('/'));
    paths.for_each(|(folder, _)| *counts.entry(folder).or_default() += 1);
    let full = counts.into_iter().filter(|(_, count)| *count > FOLDER_FILES_MAX);
    full.map(|(folder, count)| format!("{folder}: {count} files, at most {FOLDER_FILES_MAX}"))
        .collect()
}

fn of_file(tree: &Tree, file: usize) -> Vec<String> {
    let source = &tree.sources[file];
    let mut faults = shape(source, tree.is_test[file]);
    let mut note = |line: usize, found: Option<String>| {
        faults.extend(found.map(|fault| format!("{}:{line}: {fault}", source.path)));
    };
    for one in &source.uses {
        note(one.line, import(tree, file, &one.path, &one.inside));
        note(one.line, plane(tree.room(file), &one.path));
        note(one.line, bare_ordering(&one.path));
    }
    for name in source.names.iter().filter(|name| !name.is_member) {
        note(name.line, import(tree, file, &name.path, &name.inside));
        note(name.line, plane(tree.room(file), &name.path));
        if !tree.is_test[file] {
            note(name.line, ordering(source, name));
        }
        let is_unsafe = name.path == "unsafe" && !UNSAFE.contains(&tree.room(file));
        note(name.line, is_unsafe.then(|| format!("unsafe outside of {UNSAFE:?}")));
    }
    faults
}

fn import(tree: &Tree, file: usize, path: &str, inside: &[String]) -> Option<String> {
    if !path.contains("::") && tree.modules[file].len() > 2 {
        return None;
    }
    let [user_crate, user, ..] = tree.modules[file].as_slice() else { return None };
    let there = tree.absolute(&scope(&tree.modules[file], inside), path)?;
    let [used_crate, used, ..] = there.as_slice() else { return None };
    // Between crates the compiler holds the order.
    if user_crate != used_crate {
        return None;
    }
    let order = tree.orders.get(user_crate)?;
    let place = |room: &str| order.iter().position(|declared| declared == room);
    (place(used)? > place(user)?).then(|| format!("{user} may not use {used}"))
}

fn plane(room: &str, path: &str) -> Option<String> {
    let planes = [("io_uring", IO_URING), ("tokio", TOKIO)];
    let is_foreign = |(runtime, rooms): &&(&str, &[&str])| {
        first(path) == *runtime && path.contains("::") && !rooms.contains(&room)
    };
    let (runtime, rooms) = planes.iter().find(is_foreign)?;
    Some(format!("`{runtime}` outside of {rooms:?}"))
}

fn bare_ordering(path: &str) -> Option<String> {
    let is_bare = ORDERINGS.iter().any(|one| path.ends_with(&format!("Ordering::{one}")));
    is_bare.then(|| "say `Ordering::…` where it is used, under its comment".to_owned())
}

fn ordering(source: &Source, name: &Name) -> Option<String> {
    let (before, variant) = name.path.rsplit_once("::")?;
    let is_atomic = before.rsplit("::").next() == Some("Ordering") && ORDERINGS.contains(&variant);
    if !is_atomic || source.is_test_line(name.line) {
        return None;
    }
    let path = source.path.strip_prefix("src/").unwrap_or(&source.path);
    let is_in = |place: &&str| path == *place || place.ends_with('/') && path.starts_with(*place);
    if !ATOMICS.iter().any(is_in) {
        return Some(format!("an atomic outside of {ATOMICS:?}"));
    }
    let above = source.lines.get(name.line.saturating_sub(COMMENT_REACH_LINES + 1)..name.line)?;
    let explains = |text: &String| text.trim_start().starts_with("ordering:");
    let is_explained = above.iter().any(|line| line.comment.as_ref().is_some_and(explains));
    (!is_explained).then(|| "no `// ordering:` comment above".to_owned())
}

fn shape(source: &Source, is_test: bool) -> Vec<String> {
    let path = &source.path;
    let mut faults = Vec::new();
    let lines_max = if is_test { TEST_LINES_MAX } else { FILE_LINES_MAX };
    let line_count = source.lines.iter().filter(|line| is_test || !line.is_test).count();
    if line_count > lines_max {
        faults.push(format!("{path}: {line_count} lines, at most {lines_max}"));
    }
    for line in &source.tuple_bindings {
        faults.push(format!("{path}:{line}: one `let`, one name: two values bound as tuples"));
    }
    if !source.has_module_doc {
        faults.push(format!("{path}: no module doc"));
    }
    faults
}

/// The word of a module's or a type's name that says nothing. `core` is a core of the processor
/// where another word follows, as are `cores`.
pub(crate) fn empty_word(name: &str) -> Option<&'static str> {
    let mut spaced = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            spaced.push('_');
        }
        spaced.extend(letter.to_lowercase());
    }
    let mut words = spaced.split('_').peekable();
    while let Some(word) = words.next() {
        let is_processor = word == "cores" || word == "core" && words.peek().is_some();
        let is_empty = |empty: &&&str| word == **empty || word.strip_suffix('s') == Some(**empty);
        if let Some(empty) = EMPTY_WORDS.iter().find(is_empty).filter(|_| !is_processor) {
            return Some(empty);
        }
    }
    None
}
