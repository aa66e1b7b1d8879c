//! The files of the workspace as modules of its crates: which file a path leads to, and which files
//! use which. The first part of each path is the crate, as Rust names it.

use super::source::{Source, Use};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Aliases of aliases that are followed.
const ALIASES_MAX: usize = 16;

/// The crate at the root, by its name in Rust.
pub(crate) const ROOT: &str = "forebay";
/// Crates whose `lib.rs` lists their modules in import order.
const ORDERED: &[&str] = &[ROOT, "forebay_control", "forebay_dataplane"];

/// The workspace. Files are named by their place in `sources`.
pub(crate) struct Tree {
    /// Files that the crates consist of; those of one crate follow each other, its `lib.rs` first.
    pub sources: Vec<Source>,
    /// Module of each file, its crate first.
    pub modules: Vec<Vec<String>>,
    /// Files that exist for tests only.
    pub is_test: Vec<bool>,
    /// Files that no module names.
    pub lost: Vec<Source>,
    /// Modules of each crate with an import order, as its `lib.rs` lists them.
    pub orders: HashMap<String, Vec<String>>,
    file_of: HashMap<Vec<String>, usize>,
    /// By module and alias: the path, as it is written there.
    aliases: HashMap<(Vec<String>, String), String>,
}

/// One file uses another.
pub(crate) struct Edge {
    pub line: usize,
    pub path: String,
}

impl Tree {
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let mut rest: BTreeMap<String, Source> =
            sources.into_iter().map(|source| (source.path.clone(), source)).collect();
        let mut tree = Self {
            sources: Vec::new(),
            modules: Vec::new(),
            is_test: Vec::new(),
            lost: Vec::new(),
            orders: HashMap::new(),
            file_of: HashMap::new(),
            aliases: HashMap::new(),
        };
        let roots: Vec<String> =
            rest.keys().filter(|path| path.ends_with("/lib.rs")).cloned().collect();
        for path in roots {
            let Some(root) = rest.remove(&path) else { continue };
            let name = crate_name(&path);
            if ORDERED.contains(&name.as_str()) {
                let declared = root.modules.iter().filter(|module| module.inside.is_empty());
                let order = declared.map(|module| module.name.clone()).collect();
                tree.orders.insert(name.clone(), order);
            }
            tree.add(root, vec![name], false, &mut rest);
        }
        tree.lost = rest.into_values().filter(|source| source.path != "src/main.rs").collect();
        tree
    }

    /// Adds the file and all that its `mod` items name.
    fn add(
        &mut self,
        source: Source,
        module: Vec<String>,
        is_test: bool,
        rest: &mut BTreeMap<String, Source>,
    ) {
        let index = self.sources.len();
        self.file_of.insert(module.clone(), index);
        let mut children = Vec::new();
        for child in &source.modules {
            let mut name = module.clone();
            name.extend(child.inside.iter().cloned().chain([child.name.clone()]));
            if child.is_inline {
                self.file_of.insert(name, index);
                continue;
            }
            let is_test = is_test || child.is_test || source.is_test_line(child.line);
            let files = child_files(&source.path, child.file.as_deref(), &child.name);
            let found = files.iter().find_map(|file| rest.remove(file));
            children.extend(found.map(|file| (file, name, is_test)));
        }
        for one in source.uses.iter().filter(|one| one.alias != "*") {
            let scope = scope(&module, &one.inside);
            self.aliases.insert((scope, one.alias.clone()), one.path.clone());
        }
        self.sources.push(source);
        self.modules.push(module);
        self.is_test.push(is_test);
        for (file, name, is_test) in children {
            self.add(file, name, is_test, rest);
        }
    }

    /// Where the file belongs to: a module of the crate at the root, `lib` for that crate's own
    /// file, else the folder of the crate.
    pub(crate) fn room(&self, file: usize) -> &str {
        let module = &self.modules[file];
        if module[0] == ROOT {
            return module.get(1).map_or("lib", String::as_str);
        }
        module[0].strip_prefix(ROOT).map_or(&module[0], |name| name.trim_start_matches('_'))
    }

    /// The path from its crate on, unless it leads out of the workspace.
    pub(crate) fn absolute(&self, scope: &[String], path: &str) -> Option<Vec<String>> {
        self.absolute_from(scope, path, ALIASES_MAX)
    }

    fn absolute_from(&self, scope: &[String], path: &str, steps: usize) -> Option<Vec<String>> {
        let mut parts = path.split("::").peekable();
        let mut at = match parts.next()? {
            "crate" | "$crate" => scope[..1].to_vec(),
            name if self.file_of.contains_key(&[name.to_owned()][..]) => vec![name.to_owned()],
            "self" => scope.to_vec(),
            "super" => {
                let mut at = scope.to_vec();
                at.pop();
                while parts.next_if_eq(&"super").is_some() {
                    at.pop();
                }
                at
            }
            name => {
                let mut child = scope.to_vec();
                child.push(name.to_owned());
                if !self.file_of.contains_key(&child) {
                    let alias = self.aliases.get(&(scope.to_vec(), name.to_owned()))?;
                    if alias == name || steps == 0 {
                        return None;
                    }
                    child = self.absolute_from(scope, alias, steps - 1)?;
                }
                child
            }
        };
        at.extend(parts.map(str::to_owned));
        Some(at)
    }

    /// The file that defines what the path from the root names; re-exports are followed.
    pub(crate) fn file(&self, path: &[String]) -> Option<usize> {
        self.file_from(path, ALIASES_MAX)
    }

    fn file_from(&self, path: &[String], steps: usize) -> Option<usize> {
        let mut known = 0;
        while known < path.len() && self.file_of.contains_key(&path[..=known]) {
            known += 1;
        }
        let module = &path[..known];
        let alias = path.get(known).and_then(|name| {
            let alias = self.aliases.get(&(module.to_vec(), name.clone()))?;
            let mut there = self.absolute(module, alias)?;
            there.extend(path[known + 1..].iter().cloned());
            (steps > 0 && there != path).then(|| self.file_from(&there, steps - 1))?
        });
        alias.or_else(|| self.file_of.get(module).copied())
    }

    pub(crate) fn is_module(&self, path: &[String]) -> bool {
        self.file_of.contains_key(path)
    }

    /// Which files each file uses, tests aside. A `mod` item is no use; neither is a re-export of a
    /// name that the file itself does not need.
    pub(crate) fn edges(&self) -> Vec<BTreeMap<usize, Edge>> {
        (0..self.sources.len()).map(|file| self.edges_of(file)).collect()
    }

    fn edges_of(&self, file: usize) -> BTreeMap<usize, Edge> {
        let source = &self.sources[file];
        let module = &self.modules[file];
        let mut edges = BTreeMap::new();
        if self.is_test[file] {
            return edges;
        }
        let own: BTreeSet<&str> = source.names.iter().map(|name| first(&name.path)).collect();
        let is_needed = |one: &&Use| !one.is_public || own.contains(one.alias.as_str());
        let uses =
            source.uses.iter().filter(is_needed).map(|one| (&one.path, one.line, &one.inside));
        let is_path = |name: &&super::source::Name| !name.is_member && name.path.contains("::");
        let names = source.names.iter().filter(is_path);
        let names = names.map(|name| (&name.path, name.line, &name.inside));
        for (path, line, inside) in uses.chain(names) {
            if source.is_test_line(line) {
                continue;
            }
            let Some(there) = self.absolute(&scope(module, inside), path) else { continue };
            if self.is_module(&there) {
                continue;
            }
            let is_other = |target: &usize| *target != file && !self.is_test[*target];
            let target = self.file(&there).filter(is_other);
            if let Some(target) = target {
                edges.entry(target).or_insert_with(|| Edge { line, path: path.clone() });
            }
        }
        edges
    }
}

/// The module in which a name of the file is looked up.
pub(crate) fn scope(module: &[String], inside: &[String]) -> Vec<String> {
    module.iter().chain(inside).cloned().collect()
}

pub(crate) fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// What Rust calls the crate whose `lib.rs` this is.
fn crate_name(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        [.., folder, _] if *folder != "src" => format!("{ROOT}_{folder}"),
        _ => ROOT.to_owned(),
    }
}

/// Where the file of a child module may be.
fn child_files(parent: &str, attribute: Option<&str>, name: &str) -> Vec<String> {
    let (folder, file) = parent.rsplit_once('/').unwrap_or(("", parent));
    if let Some(attribute) = attribute {
        return vec![format!("{folder}/{attribute}")];
    }
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let folder = match stem {
        "lib" | "main" | "mod" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    vec![format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
}

/// Groups of files each of which uses all others, directly or not. Largest first.
pub(crate) fn circles(edges: &[BTreeMap<usize, Edge>]) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..edges.len())
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut open = vec![from];
            while let Some(file) = open.pop() {
                open.extend(edges[file].keys().filter(|next| seen.insert(**next)));
            }
            seen
        })
        .collect();
    let mut circles: Vec<Vec<usize>> = Vec::new();
    for (file, from_here) in reach.iter().enumerate() {
        if from_here.contains(&file) && !circles.iter().any(|circle| circle.contains(&file)) {
            let back = |other: &&usize| reach[**other].contains(&file);
            circles.push(from_here.iter().filter(back).copied().collect());
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}
