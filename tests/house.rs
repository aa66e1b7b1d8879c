//! House rules that neither rustc nor clippy knows, read off the sources:
//!
//! 1. Import order: a module uses only modules that stand above it in `src/lib.rs`.
//! 2. Planes: `monoio` and `tokio` are named only in the modules of their plane.
//! 3. Atomics: every `Ordering::…` stands in a file listed here, under a comment that says what it
//!    pairs with.
//! 4. Unsafe code is in `ring` only.
//! 5. Every file has a module doc and stays below the size limit; no module has a name that says
//!    nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails must stop")]

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file up to its unit tests.
const FILE_LINES_MAX: usize = 500;
/// The same for files of tests.
const TEST_LINES_MAX: usize = 800;
/// An `ordering:` comment stands at most so many lines above what it explains.
const COMMENT_REACH_LINES: usize = 8;
/// `ring` lends the descriptor of a socket: the only unsafe code that knows one.
const MONOIO: &[&str] = &["ingress", "relay", "ring", "shard"];
const TOKIO: &[&str] = &["control", "record", "server", "engine", "demo", "cli"];
/// Files, or folders with a slash at the end.
const ATOMICS: &[&str] = &[
    "ring/",
    "index/table/",
    "worker/load.rs",
    "worker/breaker.rs",
    "worker/queue_cell.rs",
    "worker/window.rs",
    "account/counters.rs",
    "base/invariant.rs",
    "log.rs",
];
/// Pairs (user, used) that the order alone would allow.
const NEVER: &[(&str, &str)] = &[("shard", "control"), ("control", "shard"), ("record", "shard")];
const EMPTY_NAMES: &[&str] = &["util", "helper", "manager", "common", "misc"];

/// One source file, up to its unit tests.
struct Source {
    /// Relative to `src`, with `/`.
    path: String,
    lines: Vec<String>,
}

#[test]
fn the_house_rules_hold() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let order = declared_modules(&fs::read_to_string(root.join("lib.rs")).unwrap());
    assert!(order.len() > 10, "lib.rs lists the modules: {order:?}");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    let faults: Vec<String> = paths
        .iter()
        .map(|path| {
            let relative = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
            Source::new(relative, &fs::read_to_string(path).unwrap())
        })
        .flat_map(|source| source.faults(&order))
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

impl Source {
    fn new(path: String, text: &str) -> Self {
        let before_tests = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        Self { path, lines: before_tests.map(str::to_owned).collect() }
    }

    fn faults(&self, order: &[String]) -> Vec<String> {
        let mut faults = self.shape_faults();
        for (index, line) in self.lines.iter().enumerate() {
            let code = code_of(line);
            let found = import_faults(self.module(), code, order)
                .into_iter()
                .chain(self.plane_fault(code))
                .chain(self.ordering_fault(index, code))
                .chain(self.unsafe_fault(code));
            faults.extend(found.map(|fault| format!("{}:{}: {fault}", self.path, index + 1)));
        }
        faults
    }

    /// Name of the top module that the file belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn shape_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let line_count = self.lines.len();
        let lines_max =
            if self.path.ends_with("tests.rs") { TEST_LINES_MAX } else { FILE_LINES_MAX };
        if line_count > lines_max {
            faults.push(format!("{}: {line_count} lines, at most {lines_max}", self.path));
        }
        if self.path != "main.rs" && !self.lines.iter().any(|line| line.starts_with("//!")) {
            faults.push(format!("{}: no module doc", self.path));
        }
        let parts = self.path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
        let words = parts.flat_map(|part| part.split('_'));
        for word in words.filter(|word| EMPTY_NAMES.contains(&word.trim_end_matches('s'))) {
            faults.push(format!("{}: `{word}` says nothing about what is in it", self.path));
        }
        faults
    }

    fn plane_fault(&self, code: &str) -> Option<String> {
        let planes = [("monoio", MONOIO), ("tokio", TOKIO)];
        let named = planes.iter().find(|(runtime, modules)| {
            names_crate(code, runtime) && !modules.contains(&self.module())
        })?;
        Some(format!("`{}` outside of {:?}", named.0, named.1))
    }

    fn ordering_fault(&self, index: usize, code: &str) -> Option<String> {
        let variants = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
        if !variants.iter().any(|variant| code.contains(&format!("Ordering::{variant}"))) {
            return None;
        }
        if !ATOMICS.iter().any(|place| {
            self.path == *place || place.ends_with('/') && self.path.starts_with(place)
        }) {
            return Some(format!("an atomic outside of {ATOMICS:?}"));
        }
        let first = index.saturating_sub(COMMENT_REACH_LINES);
        let mut reach = self.lines.iter().take(index + 1).skip(first);
        let explained = reach.any(|line| line.contains("// ordering:"));
        (!explained).then(|| "no `// ordering:` comment above".to_owned())
    }

    fn unsafe_fault(&self, code: &str) -> Option<String> {
        let is_unsafe =
            code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        (is_unsafe && self.module() != "ring").then(|| "unsafe outside of ring".to_owned())
    }
}

fn import_faults(module: &str, code: &str, order: &[String]) -> Vec<String> {
    let place = |name: &str| order.iter().position(|declared| declared == name);
    let mut faults = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let used = identifier(rest);
        if used.is_empty() && rest.starts_with('{') {
            faults.push("one `use` per module: `crate::{` hides what is used".to_owned());
        }
        let (Some(user_place), Some(used_place)) = (place(module), place(used)) else { continue };
        if used_place > user_place || NEVER.contains(&(module, used)) {
            faults.push(format!("{module} may not use {used}"));
        }
    }
    faults
}

/// True when a path in the code starts at that crate.
fn names_crate(code: &str, name: &str) -> bool {
    let needle = format!("{name}::");
    code.match_indices(&needle).any(|(at, _)| {
        let before = code.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The line without its comment. A `//` in a string counts as one too, which may hide a fault but
/// makes up none.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// Modules in the order in which `lib.rs` declares them.
fn declared_modules(lib: &str) -> Vec<String> {
    let declared = |line: &str| {
        let line = code_of(line).trim();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.strip_prefix("mod ").map(|name| identifier(name).to_owned())
    };
    lib.lines().filter_map(declared).collect()
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// The rules find what they are for: each line is one planted fault, or none.
#[test]
fn planted_faults_are_found() {
    let order: Vec<String> =
        ["base", "block", "ring", "index", "select", "control", "shard"].map(str::to_owned).into();
    let faults = |path: &str, text: &str| {
        let text = format!("//! Doc.\n{text}");
        Source::new(path.to_owned(), &text).faults(&order).len()
    };
    assert_eq!(faults("index/mod.rs", "use crate::base::RankIndex;"), 0);
    assert_eq!(faults("index/mod.rs", "use crate::select::Choice;"), 1);
    assert_eq!(faults("index/mod.rs", "let x = crate::select::choose();"), 1);
    assert_eq!(faults("shard/run.rs", "use crate::control::Feed;"), 1);
    assert_eq!(faults("index/mod.rs", "use crate::{base::RankIndex};"), 1);
    assert_eq!(faults("select/mod.rs", "use tokio::time::sleep;"), 1);
    assert_eq!(faults("control/mod.rs", "use tokio::time::sleep;"), 0);
    assert_eq!(faults("control/mod.rs", "monoio::spawn(task);"), 1);
    assert_eq!(faults("select/mod.rs", "mytokio::time();  // tokio::time"), 0);
    assert_eq!(faults("select/mod.rs", "// ordering: x\na.load(Ordering::Relaxed);"), 1);
    assert_eq!(faults("ring/spsc.rs", "// ordering: x\na.load(Ordering::Relaxed);"), 0);
    assert_eq!(faults("ring/spsc.rs", "a.load(Ordering::Relaxed);"), 1);
    assert_eq!(faults("select/mod.rs", "a.cmp(b) == Ordering::Less"), 0);
    assert_eq!(faults("select/mod.rs", "unsafe { read() }"), 1);
    assert_eq!(faults("ring/spsc.rs", "unsafe { read() }"), 0);
    assert_eq!(faults("select/mod.rs", "#![forbid(unsafe_code)]"), 0);
    assert_eq!(faults("select/helpers.rs", ""), 1);
    assert_eq!(faults("select/string_util.rs", ""), 1);
    assert_eq!(faults("select/mod.rs", "#[cfg(test)]\nuse tokio::time;"), 0);
    assert_eq!(faults("select/long.rs", &"\n".repeat(FILE_LINES_MAX)), 1);
    assert_eq!(Source::new("select/mod.rs".to_owned(), "fn f() {}").faults(&order).len(), 1);
}
