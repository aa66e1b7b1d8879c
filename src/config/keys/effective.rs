//! Prints the effective configuration: as a JSON object for the log and as a TOML file that parses
//! to the same configuration. Secrets are masked in both.

use super::key::Key;
use super::setting::Kind;
use super::table::KeyTable;
use crate::AdapterConfig;
use crate::CertificateConfig;
use crate::ListenerConfig;
use crate::ModelConfig;
use crate::TenantConfig;
use crate::WorkerConfig;
use crate::checks::unused::unused_keys::unused_reasons;
use crate::sections::schema::Config;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// A key with its type and its default, for the reference page.
#[derive(Debug)]
pub struct KeyEntry {
    /// The entry in the table of keys.
    pub key: &'static Key,
    pub kind: Kind,
    /// Default value, if any.
    pub default: Option<Value>,
}

/// All keys, in table order.
#[must_use]
pub fn all_keys() -> Vec<KeyEntry> {
    let mut entries = Vec::new();
    let mut add = |key, setting: &dyn super::setting::Setting| {
        let default = setting.show(key).filter(|value| !is_empty(value));
        entries.push(KeyEntry { key, kind: setting.kind(key), default });
    };
    Config::default().each(&mut add);
    WorkerConfig::default().each(&mut add);
    TenantConfig::default().each(&mut add);
    CertificateConfig::default().each(&mut add);
    ListenerConfig::default().each(&mut add);
    ModelConfig::default().each(&mut add);
    AdapterConfig::default().each(&mut add);
    entries
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("")
}

/// The configuration as a JSON object with the keys of the file.
#[must_use]
pub fn to_json(config: &Config) -> Value {
    let mut root = Map::new();
    config.each(|key, setting| {
        let Some(value) = setting.show(key) else { return };
        match key.path.split_once('.') {
            None => {
                root.insert(key.path.to_owned(), value);
            }
            Some((section, name)) => {
                let section = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
                section.as_object_mut().map(|table| table.insert(name.to_owned(), value));
            }
        }
    });
    let lists = [
        ("worker", config.workers.iter().map(table_to_json).collect::<Vec<_>>()),
        ("tenant", config.flow.tenants.iter().map(table_to_json).collect()),
        ("certificate", config.certificates.iter().map(table_to_json).collect()),
        ("listener", config.listeners.iter().map(table_to_json).collect()),
        ("model", config.models.iter().map(table_to_json).collect()),
        ("adapter", config.adapters.iter().map(table_to_json).collect()),
    ];
    // An empty list of tables looks like a list of values, and carries no information.
    let named = lists.into_iter().filter(|(_, tables)| !tables.is_empty());
    root.extend(named.map(|(name, tables)| (name.to_owned(), Value::Array(tables))));
    Value::Object(root)
}

/// Keys that differ from their defaults, and the policy: a JSON object with the keys of the file.
#[must_use]
pub fn changed_json(config: &Config) -> Value {
    let mut shown = to_json(config);
    let defaults = to_json(&Config::default());
    if let Some(root) = shown.as_object_mut() {
        root.retain(|name, value| match (value, defaults.get(name)) {
            (Value::Object(table), Some(Value::Object(usual))) => {
                table.retain(|key, value| usual.get(key) != Some(value));
                !table.is_empty()
            }
            (value, usual) => name == "policy" || usual != Some(value),
        });
    }
    shown
}

/// A table of a list, without empty values.
fn table_to_json<T: KeyTable + Clone>(values: &T) -> Value {
    let mut table = Map::new();
    values.each(|key, setting| {
        if let Some(value) = setting.show(key).filter(|value| !is_empty(value)) {
            let name = key.path.rsplit('.').next().unwrap_or(key.path);
            table.insert(name.to_owned(), value);
        }
    });
    Value::Object(table)
}

/// The configuration as a TOML file. A default that nothing reads is a comment with the reason, so
/// that the file has no warning of its own.
#[must_use]
pub fn to_toml(config: &Config) -> String {
    let mut out = String::new();
    let Value::Object(root) = to_json(config) else { return out };
    let usual = to_json(&Config::default());
    let unused = unused_reasons(config);
    let reason = |path: &str| unused.get(path).map(String::as_str);
    // TOML requires plain keys before the first section. JSON scalars and lists of scalars are
    // valid TOML.
    let is_plain = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => !items.iter().any(Value::is_object),
        _ => true,
    };
    for (key, value) in root.iter().filter(|(_, value)| is_plain(value)) {
        let unused = reason(key).filter(|_| usual.get(key) == Some(value));
        write_key(&mut out, key, value, unused);
    }
    for (section, value) in &root {
        match value {
            Value::Object(table) => {
                let _ = writeln!(out, "\n[{section}]");
                for (key, value) in table {
                    let is_usual =
                        usual.get(section).and_then(|usual| usual.get(key)) == Some(value);
                    let unused = reason(&format!("{section}.{key}")).filter(|_| is_usual);
                    write_key(&mut out, key, value, unused);
                }
            }
            Value::Array(tables) => {
                for table in tables.iter().filter_map(Value::as_object) {
                    let _ = writeln!(out, "\n[[{section}]]");
                    for (key, value) in table {
                        write_key(&mut out, key, value, None);
                    }
                }
            }
            _ => {}
        }
    }
    out
}

fn write_key(out: &mut String, key: &str, value: &Value, unused: Option<&str>) {
    let _ = match unused {
        None => writeln!(out, "{key} = {value}"),
        Some(why) => writeln!(out, "# {key} = {value} # not used: {why}"),
    };
}
