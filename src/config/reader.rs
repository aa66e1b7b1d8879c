//! Parses the TOML file into a [`Config`]. Walks the file, not the table of keys: each entry sets
//! its key, or becomes a finding. Does not stop at the first fault: a bad value leaves the default
//! in place.

use super::AdapterConfig;
use super::CertificateConfig;
use super::ListenerConfig;
use super::ModelConfig;
use super::TenantConfig;
use super::WorkerConfig;
use super::keys::finding::{Finding, Origin, Origins};
use super::keys::nearest::{alternatives, by_edits, by_words, is_in};
use super::keys::other_programs::{advice_for, keys_for};
use super::keys::table::KeyTable;
use super::sections::schema::Config;
use forebay_base::{TomlFault, foreign_format};
use std::ops::Range;
use toml_edit::{Document, Item, TableLike};

/// Removed keys, and their replacements.
const RETIRED: &[(&str, &str)] = &[
    (
        "tenant.key",
        "put the client's key into the file of `api_keys`: `forebay key add --tenant NAME`; the \
         value of `queue.tenant_header` is now the tenant's `name`",
    ),
    (
        "tenant.class_best",
        "a key has it now, in the file of `api_keys`: `forebay key add --class-best N`",
    ),
];

/// Lists of tables, `[[worker]]`.
const LISTS: &[&str] = &["worker", "tenant", "certificate", "listener", "model", "adapter"];

const FOREIGN_HELP: &str =
    "write KEY = VALUE and [TABLE] lines, as `forebay check --print` shows them";

/// Result of parsing a file: values, findings, and the origin of each key.
pub(super) struct FileReading {
    pub(super) config: Config,
    pub(super) findings: Vec<Finding>,
    pub(super) origins: Origins,
    /// The file is no TOML: no key was read.
    pub(super) is_unread: bool,
}

struct ConfigReader<'a> {
    text: &'a str,
    /// Byte offset of each line: every key needs its line number, and files of workers are long.
    line_starts: Vec<usize>,
    file: &'a str,
    /// Paths of all known keys and sections.
    known: Vec<&'static str>,
    findings: Vec<Finding>,
    origins: Origins,
}

/// A table being parsed, and the prefix of its keys.
#[derive(Clone, Copy)]
struct TablePath<'p> {
    /// Prefix for origins, with the position in a list: `worker.0.`.
    path: &'p str,
    /// Prefix for messages: `worker.`.
    shown: &'p str,
}

/// Parses a whole file. Invalid TOML gives a single finding; else each fault gives its own.
pub(super) fn read_file(file: &str, text: &str) -> FileReading {
    let mut config = Config::default();
    let known = known_paths();
    let findings = Vec::new();
    let behind_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
    let line_starts = std::iter::once(0).chain(behind_breaks).collect();
    let origins = Origins::default();
    let mut reader = ConfigReader { text, line_starts, file, known, findings, origins };
    let document = Document::parse(text);
    let is_unread = document.is_err();
    match document {
        Ok(document) => reader.root(&mut config, document.as_table()),
        Err(error) => {
            let fault = TomlFault::of(text, error.message(), error.span(), LISTS);
            let (at, what, help) = match foreign_format(text) {
                Some(format) => (
                    error.span(),
                    format!("the file looks like {format}, and has to be TOML: {}", fault.what),
                    FOREIGN_HELP.to_owned(),
                ),
                None => (Some(fault.at..fault.at), fault.what, fault.help),
            };
            reader.findings.push(Finding::error(reader.place(at), what, help));
        }
    }
    let ConfigReader { findings, origins, .. } = reader;
    FileReading { config, findings, origins, is_unread }
}

fn known_paths() -> Vec<&'static str> {
    let mut known = LISTS.to_vec();
    let mut add = |path: &'static str| {
        let section = path.split_once('.').map(|(section, _)| section);
        for path in section.into_iter().chain([path]) {
            if !known.contains(&path) {
                known.push(path);
            }
        }
    };
    Config::default().visit(&mut |key, _| add(key.path));
    WorkerConfig::default().visit(&mut |key, _| add(key.path));
    TenantConfig::default().visit(&mut |key, _| add(key.path));
    CertificateConfig::default().visit(&mut |key, _| add(key.path));
    ListenerConfig::default().visit(&mut |key, _| add(key.path));
    ModelConfig::default().visit(&mut |key, _| add(key.path));
    AdapterConfig::default().visit(&mut |key, _| add(key.path));
    known
}

fn did_you_mean(keys: &[&str]) -> String {
    match &*alternatives(keys, |key| format!("`{key}`")) {
        "" => "remove it; `forebay check --print` lists the keys".to_owned(),
        keys => format!("did you mean {keys}?"),
    }
}

impl ConfigReader<'_> {
    fn root(&mut self, config: &mut Config, table: &dyn TableLike) {
        let root = TablePath { path: "", shown: "" };
        for (name, item) in table.iter() {
            let key_span = table.key(name).and_then(toml_edit::Key::span);
            let origin = self.place(item.span().or_else(|| key_span.clone()));
            match name {
                "worker" => config.workers = self.list(name, item, origin),
                "certificate" => config.certificates = self.list(name, item, origin),
                "listener" => config.listeners = self.list(name, item, origin),
                "model" => config.models = self.list(name, item, origin),
                "adapter" => config.adapters = self.list(name, item, origin),
                "tenant" => config.flow.tenants = self.list(name, item, origin),
                _ if self.known.iter().any(|path| is_in(path, name)) => {
                    self.section(config, name, item, origin);
                }
                _ => self.entry(config, root, name, item, key_span),
            }
        }
    }

    fn section(&mut self, config: &mut Config, name: &str, item: &Item, origin: Origin) {
        let shown = format!("{name}.");
        if let Some(table) = item.as_table_like() {
            self.origins.set(name.to_owned(), origin);
            return self.table(config, TablePath { path: &shown, shown: &shown }, table);
        }
        // The name of a flag in place of a section sets the flag's key: `nats = "nats://…"`.
        let mut of_flag = None;
        config.visit(&mut |key, _| {
            if item.is_str() && key.flag.is_some_and(|flag| flag.name == name) {
                of_flag = key.path.strip_prefix(&shown);
            }
        });
        if let Some(key) = of_flag {
            return self.entry(config, TablePath { path: &shown, shown: &shown }, key, item, None);
        }
        let what = format!("`{name}` has type {}, not a section", item.type_name());
        let help = format!("write [{name}] on its own line and the keys below it");
        self.findings.push(Finding::error(origin, what, help));
    }

    fn table(&mut self, target: &mut dyn KeyTable, place: TablePath<'_>, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let key_span = table.key(name).and_then(toml_edit::Key::span);
            self.entry(target, place, name, item, key_span);
        }
    }

    /// Reads the tables of `[[name]]`.
    fn list<'t, T: KeyTable + Default>(
        &mut self,
        name: &str,
        item: &'t Item,
        origin: Origin,
    ) -> Vec<T> {
        let tables: Vec<(&dyn TableLike, Option<Range<usize>>)> = match item {
            Item::ArrayOfTables(tables) => {
                tables.iter().map(|table| (table as &dyn TableLike, table.span())).collect()
            }
            _ => {
                let inline = |value: &'t toml_edit::Value| {
                    value.as_inline_table().map(|table| (table as &dyn TableLike, value.span()))
                };
                item.as_array()
                    .map(|values| values.iter().filter_map(inline).collect())
                    .unwrap_or_default()
            }
        };
        let is_none = item.as_array().is_some_and(toml_edit::Array::is_empty);
        if tables.is_empty() && !is_none {
            let what = format!("`{name}` has type {}, not a list of tables", item.type_name());
            let help = format!("write [[{name}]] on its own line and the keys below it");
            self.findings.push(Finding::error(origin.clone(), what, help));
        }
        self.origins.set(name.to_owned(), origin);
        let mut list = Vec::new();
        for (position, (table, span)) in tables.into_iter().enumerate() {
            let path = format!("{name}.{position}");
            let mut values = T::default();
            self.origins.set(path.clone(), self.place(span));
            let place = TablePath { path: &format!("{path}."), shown: &format!("{name}.") };
            self.table(&mut values, place, table);
            list.push(values);
        }
        list
    }

    /// Reads a single key.
    fn entry(
        &mut self,
        target: &mut dyn KeyTable,
        place: TablePath<'_>,
        name: &str,
        item: &Item,
        key_span: Option<Range<usize>>,
    ) {
        let shown = format!("{}{name}", place.shown);
        let mut read = None;
        target.visit(&mut |key, setting| {
            if key.path == shown {
                read = Some(setting.read(key, item));
            }
        });
        let Some(read) = read else {
            let origin = self.place(key_span.or_else(|| item.span()));
            self.findings.push(self.unknown(&shown, origin));
            return;
        };
        let origin = self.place(item.span().or(key_span));
        self.origins.set(format!("{}{name}", place.path), origin.clone());
        if let Err(what) = read {
            self.findings.push(Finding::error(origin, format!("`{shown}`: {what}"), ""));
        }
    }

    /// Finding for an unknown key. Suggests the keys that other programs call so, else the keys of
    /// all tables that share most words with it, else keys of its name, else the nearest of its
    /// section.
    fn unknown(&self, path: &str, origin: Origin) -> Finding {
        if let Some((_, help)) = RETIRED.iter().find(|(retired, _)| *retired == path) {
            return Finding::error(origin, format!("`{path}` has retired"), *help);
        }
        let help = self.of_other_programs(path).unwrap_or_else(|| self.nearest_keys(path));
        Finding::error(origin, format!("unknown key `{path}`"), help)
    }

    /// Advice for a key of another program.
    fn of_other_programs(&self, path: &str) -> Option<String> {
        let Some(name) = path.strip_prefix("worker_defaults.") else {
            let own = keys_for(path);
            let advice = advice_for(path).map(str::to_owned);
            return advice.or_else(|| (!own.is_empty()).then(|| did_you_mean(own)));
        };
        let of_worker = format!("worker.{name}");
        if self.known.contains(&&*of_worker) {
            return None;
        }
        let own = keys_for(&of_worker).first()?.strip_prefix("worker.")?;
        let default = format!("worker_defaults.{own}");
        let default = self.known.iter().copied().find(|known| *known == default);
        default.map(|default| did_you_mean(&[default])).or_else(|| self.not_of_all(own))
    }

    /// Advice for a key with a slip, or in a wrong table.
    fn nearest_keys(&self, path: &str) -> String {
        if let Some(help) =
            path.strip_prefix("worker_defaults.").and_then(|name| self.not_of_all(name))
        {
            return help;
        }
        let split = |path: &'static str| path.rsplit_once('.').unwrap_or(("", path));
        let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
        let known = || self.known.iter().copied();
        // TOML counts a line to the table above it. Defaults of workers have keys of such names.
        let is_of_table = !matches!(section, "" | "worker_defaults");
        if is_of_table && self.known.contains(&name) {
            return format!("`{name}` belongs to no table: write it above the first table");
        }
        let mut near = by_words(path, &self.known);
        if near.is_empty() {
            near.extend(known().filter(|known| split(known).1 == name));
        }
        if near.is_empty() {
            let in_section = || known().filter(|known| split(known).0 == section);
            let nearest = by_edits(name, in_section().map(|known| split(known).1));
            near.extend(in_section().find(|known| Some(split(known).1) == nearest));
        }
        did_you_mean(&near)
    }

    /// Where a key of a worker belongs that is no default of workers.
    fn not_of_all(&self, name: &str) -> Option<String> {
        let of_worker = format!("worker.{name}");
        let of_tls = name.strip_prefix("tls_").map(|name| format!("upstream_tls.{name}"));
        let knows = |path: &str| self.known.contains(&path);
        if let Some(path) = of_tls.filter(|path| knows(path)) {
            return Some(format!("`{path}` holds for all workers"));
        }
        knows(&of_worker).then(|| format!("`{of_worker}` is a key of a single worker"))
    }

    /// Converts a byte range to line and column.
    fn place(&self, span: Option<Range<usize>>) -> Origin {
        let at = span.map_or(0, |span| span.start);
        let line = self.line_starts.partition_point(|start| *start <= at);
        let line_start = line.checked_sub(1).and_then(|line| self.line_starts.get(line));
        let before = self.text.get(line_start.copied().unwrap_or(0)..at).unwrap_or("");
        Origin::File {
            name: self.file.to_owned(),
            line: line.max(1),
            column: before.chars().count() + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::known_paths;
    use crate::keys::other_programs::all_keys;

    #[test]
    fn hints_for_keys_of_other_programs_name_keys_that_exist() {
        let known = known_paths();
        for (own, other) in all_keys() {
            assert!(known.contains(&own), "{own} is no key");
            assert!(!known.contains(&other), "{other} is a key, and needs no hint");
        }
    }
}
