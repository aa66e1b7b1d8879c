//! Targets of the log: the check of `log.level` has the modules that log.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LIST: &str = "src/config/values/log_targets.txt";
const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
/// Targets that lines name themselves.
const NAMED: [&str; 2] = ["forebay::start", "forebay::worker_lines"];

/// M1: a filter for a module that is renamed is no longer silent.
#[test]
fn the_check_of_filters_has_the_modules_that_log() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut targets: BTreeSet<String> = NAMED.map(str::to_owned).into();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_code = path.extension().is_some_and(|extension| extension == "rs");
            if path.is_dir() {
                folders.push(path);
            } else if is_code && logs(&fs::read_to_string(&path).unwrap()) {
                targets.insert(target_of(path.strip_prefix(root.join("src")).unwrap()));
            }
        }
    }
    targets.retain(|target| !target.contains("test"));
    let text: String = targets.iter().map(|target| format!("{target}\n")).collect();
    let listed = fs::read_to_string(root.join(LIST)).unwrap();
    // A write of the same text would build everything again.
    if listed != text && std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
        fs::write(root.join(LIST), &text).unwrap();
        return;
    }
    assert_eq!(listed, text, "FOREBAY_WRITE_DOCS=1 cargo test --test docs renews {LIST}");
    assert!(targets.contains("forebay_control::membership::sources"), "{targets:?}");
    assert!(targets.contains("forebay::cli::commands::serve"), "{targets:?}");
}

fn logs(text: &str) -> bool {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    MACROS.iter().any(|name| {
        code.match_indices(name).any(|(at, _)| {
            let before = code.as_bytes().get(at.wrapping_sub(1));
            before.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
        })
    })
}

/// Module path of a file below `src`: a room with a manifest is a crate.
fn target_of(file: &Path) -> String {
    let file = file.with_extension("");
    let mut names: Vec<String> =
        file.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    let room: PathBuf = ["src", names.first().map_or("", |name| name)].iter().collect();
    let before = if room.join("Cargo.toml").is_file() { "forebay_" } else { "forebay::" };
    match names.as_slice() {
        [] => "forebay".to_owned(),
        names => format!("{before}{}", names.join("::")),
    }
}
