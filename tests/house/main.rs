//! House rules that neither rustc nor clippy knows, read off the sources.
//!
//! Without exception (`rules`):
//! 1. Import order: a module of the crate at the root, or of `dataplane`, uses only modules that
//!    stand above it in `lib.rs`. Between crates the manifests hold the order.
//! 2. Planes: `io_uring` and `tokio` are named only in the modules of their plane.
//! 3. Atomics: every `Ordering::…` stands in a file listed in `rules`, under a comment that says
//!    what it pairs with.
//! 4. Unsafe code is only in the rooms of `rules::UNSAFE`.
//! 5. Every file has a module doc, belongs to a module, and stays below the size limit.
//! 6. No test sleeps longer than a second.
//! 7. `let (a, b) = (x, y)` is two statements, in tests as well.
//!
//! With the exceptions in `tests/data/house_baseline.toml` (`ratchet`): see `ratchet::RULES`. That
//! list may only become shorter. `tools/figures --lower` removes what is no exception any more.
//!
//! The page of the walk names functions that exist (`walk`).
//!
//! Locks of packages outside of the workspace fit the manifests (`locks`).
//!
//! `tools/figures` prints the figures of the house (`figures`).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails must stop")]
#![allow(clippy::indexing_slicing, reason = "places in the list of files come from that list")]

mod figures;
mod lists;
mod locks;
mod planted;
mod ratchet;
mod rules;
mod source;
mod tree;
mod walk;
mod words;

use ratchet::Finding;
use source::Source;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use tree::Tree;

/// Folders beside `src` whose sources are held to the width.
const BESIDE: &[&str] = &["benches", "fuzz", "tests"];
/// Folders whose sources are crates of the workspace.
const CRATES: &[&str] = &["src", "tools"];
/// Set to `lower`: the baseline is written again.
const MODE: &str = "FOREBAY_HOUSE";

/// What the rules look at.
struct House {
    tree: Tree,
    beside: Vec<Source>,
    findings: Vec<Finding>,
}

static HOUSE: LazyLock<House> = LazyLock::new(|| {
    let tree = Tree::new(parsed(CRATES));
    let beside = parsed(BESIDE);
    let findings = ratchet::findings(&tree, &beside);
    House { tree, beside, findings }
});

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All sources below the folders. Half of them are read by another thread.
fn parsed(folders: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root().join(folder), &mut paths);
    }
    let parse = |path: &PathBuf| {
        let relative = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
        Source::parse(&relative, &fs::read_to_string(path).unwrap()).unwrap()
    };
    let (here, there) = paths.split_at(paths.len() / 2);
    thread::scope(|scope| {
        let there = scope.spawn(|| there.iter().map(parse).collect::<Vec<_>>());
        let mut sources: Vec<Source> = here.iter().map(parse).collect();
        sources.extend(there.join().unwrap());
        sources
    })
}

/// Sources below the folder; what is built or fetched there is none.
fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

fn baseline_file() -> PathBuf {
    root().join("tests/data/house_baseline.toml")
}

#[test]
fn the_house_rules_hold() {
    assert!(HOUSE.tree.sources.len() > 100 && HOUSE.beside.len() > 50, "the sources are found");
    for (name, order) in &HOUSE.tree.orders {
        assert!(order.len() > 3, "{name} lists its modules: {order:?}");
    }
    let crates = HOUSE.tree.modules.iter().filter(|module| module.len() == 1).count();
    assert!(crates > 10, "{crates} crates are found");
    let mut faults = rules::faults(&HOUSE.tree);
    faults.extend(rules::full_folders(&HOUSE.tree));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn lists_of_all_variants_are_whole() {
    let mut paths = Vec::new();
    collect(&root().join("src"), &mut paths);
    let faults = |path: &PathBuf| {
        let shown = path.strip_prefix(root()).unwrap().to_string_lossy();
        lists::incomplete_lists(&shown, &fs::read_to_string(path).unwrap())
    };
    let faults: Vec<String> = paths.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_test_sleeps_longer_than_a_second() {
    let tests = HOUSE.beside.iter().filter(|source| {
        source.path.starts_with("tests/") && !source.path.ends_with("house/planted.rs")
    });
    let faults: Vec<String> = tests.flat_map(rules::long_sleeps).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn exceptions_become_fewer() {
    let counts = ratchet::count(&HOUSE.findings);
    let baseline = fs::read_to_string(baseline_file()).map(|text| ratchet::read(&text).unwrap());
    if std::env::var(MODE).is_ok_and(|mode| mode == "lower") {
        let grown = baseline.map_or_else(|_| Vec::new(), |then| ratchet::grown(&counts, &then));
        assert!(grown.is_empty(), "not written:\n{}", grown.join("\n"));
        fs::write(baseline_file(), ratchet::write(&counts)).unwrap();
        return;
    }
    let faults = ratchet::compare(&HOUSE.findings, &baseline.unwrap());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn page_of_the_walk() -> String {
    fs::read_to_string(root().join(walk::PAGE)).unwrap()
}

#[test]
fn the_walk_of_a_request_is_that_of_the_page() {
    let page = page_of_the_walk();
    let sources = &HOUSE.tree.sources;
    let faults = walk::faults(&page, sources);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (planted, fault) in [
        (page.replacen("`parse_request`", "`parse_requests`", 1), "has no function"),
        (
            page.replacen("src/dataplane/intake/body.rs", "src/dataplane/intake/bodies.rs", 1),
            "is no file",
        ),
        (page.replacen("| own |", "| |", 1), "are marked"),
        (page.replace("| `src/", "| src/"), "no walk"),
        (page.repeat(2), "at most"),
    ] {
        let found = walk::faults(&planted, sources);
        assert!(found.iter().any(|found| found.contains(fault)), "{fault}: {found:?}");
    }
}

#[test]
#[ignore = "prints, checks nothing: tools/figures"]
fn figures() {
    print!("{}", figures::all(&HOUSE.tree, &HOUSE.findings));
    println!("| returns on the walk of a request | {} |", walk::returns(&page_of_the_walk()));
}

#[test]
fn locks_beside_the_workspace_fit_the_manifests() {
    for folder in locks::PACKAGES {
        let mut manifests = locks::manifests(root(), folder);
        let lock = fs::read_to_string(root().join(folder).join("Cargo.lock")).unwrap();
        let found = locks::faults(&lock, &manifests);
        let help = format!("cargo update --workspace --manifest-path {folder}/Cargo.toml");
        assert!(
            found.is_empty(),
            "{folder}/Cargo.lock is stale, renew: {help}\n{}",
            found.join("\n")
        );
        // Planted: the lock lacks a dependency, has one too many, or another version.
        let own = folder.rsplit('/').next().unwrap();
        let dependencies = manifests.get_mut(own).unwrap();
        let (name, mut wanted) = dependencies.pop_last().unwrap();
        let fault = |manifests: &locks::Manifests| locks::faults(&lock, manifests).join("\n");
        assert_eq!(fault(&manifests), format!("{own} needs no {name}"));
        wanted.version = "99".to_owned();
        manifests.get_mut(own).unwrap().insert(name.clone(), wanted);
        assert!(
            fault(&manifests).starts_with(&format!("{own} has {name} ")),
            "{}",
            fault(&manifests)
        );
        let wanted = manifests.get_mut(own).unwrap().remove(&name).unwrap();
        manifests.get_mut(own).unwrap().insert("planted".to_owned(), wanted);
        assert!(fault(&manifests).contains(&format!("{own} lacks planted")));
    }
}
