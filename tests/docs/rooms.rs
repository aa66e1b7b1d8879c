//! Tables of crates and modules, from manifests and module docs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

struct Manifest {
    folder: String,
    description: String,
    /// Crates of the workspace that it depends on, without tests.
    uses: Vec<String>,
    has_unsafe: bool,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Crates of the workspace by package name: those below `src`, and the simulated engine.
fn manifests() -> BTreeMap<String, Manifest> {
    let folders = fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.chain([root().join("tools/sim_engine")]);
    let found = folders.filter(|folder| folder.join("Cargo.toml").exists());
    found.map(|folder| manifest(&folder)).collect()
}

fn manifest(folder: &Path) -> (String, Manifest) {
    let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let parsed: toml_edit::DocumentMut = text.parse().unwrap();
    let package = parsed.get("package").unwrap();
    let dependencies = parsed.get("dependencies").unwrap().as_table().unwrap().iter();
    let names = dependencies.map(|(name, _)| name.to_owned());
    let manifest = Manifest {
        folder: folder.strip_prefix(root()).unwrap().to_string_lossy().into_owned(),
        description: package.get("description").unwrap().as_str().unwrap().to_owned(),
        uses: names.filter(|name| name.starts_with("forebay-")).collect(),
        has_unsafe: has_unsafe(folder),
    };
    (package.get("name").unwrap().as_str().unwrap().to_owned(), manifest)
}

/// Does a source of the folder have an `unsafe` block or item?
fn has_unsafe(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return has_unsafe(&path);
        }
        path.extension().is_some_and(|ending| ending == "rs")
            && fs::read_to_string(&path).unwrap().lines().any(|line| {
                let code = line.split("//").next().unwrap_or_default();
                ["unsafe {", "unsafe fn ", "unsafe impl "].iter().any(|word| code.contains(word))
            })
    })
}

/// Length of the longest chain of crates below this crate.
fn level(name: &str, manifests: &BTreeMap<String, Manifest>) -> usize {
    let below = manifests[name].uses.iter().map(|used| level(used, manifests) + 1);
    below.max().unwrap_or(0)
}

/// Each crate with its description. A crate uses only crates of lower levels.
pub(crate) fn crates() -> String {
    let manifests = manifests();
    let mut rows: Vec<(usize, &Manifest)> =
        manifests.iter().map(|(name, found)| (level(name, &manifests), found)).collect();
    rows.sort_by_key(|(level, found)| (*level, &found.folder));
    let mut text = "| level | crate | holds | unsafe code |\n|---|---|---|---|\n".to_owned();
    for (level, found) in rows {
        let mark = if found.has_unsafe { "yes" } else { "" };
        writeln!(text, "| {level} | `{}` | {} | {mark} |", found.folder, found.description)
            .unwrap();
    }
    text
}

/// Modules of a crate in the order of its `lib.rs`, each with the first sentence of its doc.
pub(crate) fn modules(folder: &str) -> String {
    let folder: PathBuf = root().join(folder);
    let library = fs::read_to_string(folder.join("lib.rs")).unwrap();
    let declared = library.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let names = declared.filter_map(|line| line.rsplit_once("mod ")).map(|(_, name)| name);
    let mut text = "| module | holds |\n|---|---|\n".to_owned();
    for name in names {
        let module = fs::read_to_string(folder.join(name).join("mod.rs")).unwrap();
        let docs = module.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
        let doc = docs.collect::<Vec<_>>().join(" ");
        let sentence = doc.split_inclusive(". ").next().unwrap().trim().trim_end_matches('.');
        writeln!(text, "| `{name}` | {sentence} |").unwrap();
    }
    text
}
