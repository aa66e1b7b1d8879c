//! Lock files of packages outside of the workspace. Cargo renews a stale lock without a word unless
//! a command has `--locked`, and needs the network for that. This check needs only the manifests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use toml_edit::{DocumentMut, Item, Table};

/// Packages with a lock of their own.
pub(crate) const PACKAGES: [&str; 2] = ["benches/rivals", "benches/floor"];

/// A dependency as a manifest wants it.
pub(crate) struct Wanted {
    /// Empty for a path.
    pub version: String,
    is_optional: bool,
}

/// Dependencies by package and name.
pub(crate) type Manifests = BTreeMap<String, BTreeMap<String, Wanted>>;

fn document(path: &Path) -> DocumentMut {
    let text = fs::read_to_string(path).unwrap();
    text.parse().unwrap()
}

fn text(item: &Item, key: &str) -> String {
    item.get(key).and_then(Item::as_str).unwrap_or_default().to_owned()
}

/// Dependencies of a package. Of a package that is used by path, Cargo locks no dev-dependencies.
fn dependencies(manifest: &Table, workspace: &Item, with_dev: bool) -> BTreeMap<String, Wanted> {
    let mut kinds = vec!["dependencies", "build-dependencies"];
    if with_dev {
        kinds.push("dev-dependencies");
    }
    let mut targets = vec![manifest];
    if let Some(own) = manifest.get("target").and_then(Item::as_table) {
        targets.extend(own.iter().filter_map(|(_, of)| of.as_table()));
    }
    let tables = targets.iter().flat_map(|of| kinds.iter().filter_map(|kind| of.get(kind)));
    let entries = tables.filter_map(Item::as_table).flat_map(Table::iter);
    let of = entries.map(|(name, own)| {
        let shared = if own.get("workspace").is_some() { &workspace[name] } else { own };
        let version = shared.as_str().map_or_else(|| text(shared, "version"), str::to_owned);
        let renamed = text(shared, "package");
        let name = if renamed.is_empty() { name.to_owned() } else { renamed };
        let is_optional = own.get("optional").and_then(Item::as_bool) == Some(true);
        (name, Wanted { version, is_optional })
    });
    of.collect()
}

/// Manifests of the workspace's crates, and of the package at `folder`.
pub(crate) fn manifests(root: &Path, folder: &str) -> Manifests {
    let own = document(&root.join("Cargo.toml"));
    let workspace = &own["workspace"]["dependencies"];
    let mut all = Manifests::new();
    for folder in ["src", "tools"] {
        let crates = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        for path in crates.map(|of| of.join("Cargo.toml")).filter(|path| path.is_file()) {
            let manifest = document(&path);
            let name = text(&manifest["package"], "name");
            all.insert(name, dependencies(&manifest, workspace, false));
        }
    }
    all.insert(text(&own["package"], "name"), dependencies(&own, workspace, false));
    let beside = document(&root.join(folder).join("Cargo.toml"));
    all.insert(text(&beside["package"], "name"), dependencies(&beside, &Item::None, true));
    all
}

fn numbers(version: &str) -> Vec<u64> {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Does a locked version fit a requirement, by Cargo's rules for `1.2` and `=1.2`?
fn fits(locked: &str, wanted: &str) -> bool {
    let locked = numbers(locked);
    let least = numbers(wanted.trim_start_matches(['=', '^', '~']));
    let leading = if wanted.starts_with('=') {
        least.len()
    } else {
        (least.iter().take_while(|part| **part == 0).count() + 1).min(least.len())
    };
    locked.starts_with(&least[..leading]) && locked >= least
}

/// What a lock has otherwise than the manifests.
pub(crate) fn faults(lock: &str, manifests: &Manifests) -> Vec<String> {
    let lock: DocumentMut = lock.parse().unwrap();
    let packages: Vec<&Table> = lock["package"].as_array_of_tables().unwrap().iter().collect();
    let of = |package: &Table, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let mut faults = Vec::new();
    for package in packages.iter().filter(|package| package.get("source").is_none()) {
        let name = of(package, "name");
        let Some(wanted) = manifests.get(&name) else {
            faults.push(format!("{name} is no crate any more"));
            continue;
        };
        let entries = package.get("dependencies").and_then(Item::as_array);
        let entries = entries.into_iter().flatten().filter_map(|entry| entry.as_str());
        // An entry is a name, with a version behind it where the lock has several.
        let locked: BTreeMap<&str, Option<&str>> = entries
            .map(|entry| (entry.split(' ').next().unwrap(), entry.split(' ').nth(1)))
            .collect();
        for (dependency, wanted) in wanted {
            match locked.get(&**dependency) {
                None if wanted.is_optional => {}
                None => faults.push(format!("{name} lacks {dependency}")),
                Some(version) => {
                    let only = packages.iter().find(|of| of["name"].as_str() == Some(dependency));
                    let version =
                        version.map_or_else(|| of(only.unwrap(), "version"), str::to_owned);
                    if !wanted.version.is_empty() && !fits(&version, &wanted.version) {
                        let wanted = &wanted.version;
                        faults.push(format!("{name} has {dependency} {version}, not {wanted}"));
                    }
                }
            }
        }
        let gone = locked.keys().filter(|dependency| !wanted.contains_key(**dependency));
        faults.extend(gone.map(|dependency| format!("{name} needs no {dependency}")));
    }
    faults
}
