//! The effective configuration in words: as one JSON object for the log and as a TOML file that reads back to the
//! same configuration. Secrets are masked in both.

use super::quantity::{format_duration, format_size};
use super::schema::{BreakerConfig, Config, IndexConfig, LoadConfig, Word, WorkerConfig};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// What stands in place of a secret.
const MASK: &str = "***";

/// The configuration as one JSON object with the keys of the file.
#[must_use]
pub fn to_json(config: &Config) -> Value {
    let limits = &config.limits;
    let times = &config.timeouts;
    let mut root = Map::new();
    root.insert("listen".to_owned(), json!(config.listen.to_string()));
    root.insert("admin".to_owned(), json!(config.admin.to_string()));
    root.insert("cores".to_owned(), json!(config.cores));
    root.insert("engine".to_owned(), json!(config.engine.word()));
    if let Some(dir) = &config.model_dir {
        root.insert("model_dir".to_owned(), json!(dir.display().to_string()));
    }
    root.insert("policy".to_owned(), json!(config.policy.word()));
    root.insert("rank_concurrency_max".to_owned(), json!(config.rank_concurrency_max));
    let sections = json!({
        "health": {
            "enabled": config.health.enabled,
            "interval": format_duration(config.health.interval),
            "timeout": format_duration(config.health.timeout),
            "unhealthy_after": config.health.unhealthy_after,
            "healthy_after": config.health.healthy_after,
        },
        "kv": {
            "host_credit_percent": config.kv.host_credit_percent,
            "disk_credit_percent": config.kv.disk_credit_percent,
        },
        "approximate": {
            "ttl": format_duration(config.approximate.ttl),
            "speculative_ttl": format_duration(config.approximate.speculative_ttl),
            "rank_bytes_max": format_size(config.approximate.rank_bytes_max),
        },
        "index": index_to_json(&config.index),
        "load": load_to_json(&config.load),
        "limits": {
            "head_bytes_max": format_size(limits.head_bytes_max),
            "head_fields_max": limits.head_fields_max,
            "body_bytes_max": format_size(limits.body_bytes_max),
            "in_flight_max": limits.in_flight_max,
            "connections_max": limits.connections_max,
            "buffered_bytes_max": format_size(limits.buffered_bytes_max),
            "index_bytes_max": format_size(limits.index_bytes_max),
        },
        "timeouts": {
            "head": format_duration(times.head),
            "body": format_duration(times.body),
            "idle": format_duration(times.idle),
            "connect": format_duration(times.connect),
            "first_byte": format_duration(times.first_byte),
            "stream_idle": format_duration(times.stream_idle),
            "write": format_duration(times.write),
            "upstream_idle": format_duration(times.upstream_idle),
            "drain": format_duration(times.drain),
        },
        "retry": {
            "attempts_max": config.retry.attempts_max,
            "budget_percent": config.retry.budget_percent,
        },
        "breaker": breaker_to_json(config.breaker),
        "log": {
            "json": config.log.json,
            "requests": config.log.requests,
            "level": config.log.level,
        },
    });
    if let Value::Object(sections) = sections {
        root.extend(sections);
    }
    let workers: Vec<Value> = config.workers.iter().map(worker_to_json).collect();
    root.insert("worker".to_owned(), Value::Array(workers));
    Value::Object(root)
}

fn breaker_to_json(breaker: BreakerConfig) -> Value {
    json!({ "failures": breaker.failures, "open": format_duration(breaker.open) })
}

fn index_to_json(index: &IndexConfig) -> Value {
    let mut table = json!({ "snapshot_every": format_duration(index.snapshot_every) });
    if let (Some(path), Some(table)) = (&index.snapshot, table.as_object_mut()) {
        table.insert("snapshot".to_owned(), json!(path.display().to_string()));
    }
    table
}

fn load_to_json(load: &LoadConfig) -> Value {
    json!({
        "source": load.source.word(),
        "interval": format_duration(load.interval),
        "back_off": load.back_off,
        "age_max": format_duration(load.age_max),
    })
}

fn worker_to_json(worker: &WorkerConfig) -> Value {
    let mut table = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            table.insert(key.to_owned(), value);
        }
    };
    let texts = |list: &[String]| (!list.is_empty()).then(|| json!(list));
    put("url", Some(json!(worker.url)));
    put("name", worker.name.as_ref().map(|name| json!(name)));
    put("model_dir", worker.model_dir.as_ref().map(|dir| json!(dir.display().to_string())));
    put("kv_events", texts(&worker.kv_events));
    put("replay", texts(&worker.replay));
    put("kv_topic", (!worker.kv_topic.is_empty()).then(|| json!(worker.kv_topic)));
    put("engine", worker.engine.map(|engine| json!(engine.word())));
    put("api_key", worker.api_key.as_ref().map(|_| json!(MASK)));
    put("concurrency_max", worker.concurrency_max.map(|max| json!(max)));
    put("ranks", worker.ranks.map(|ranks| json!(ranks)));
    put("models", texts(&worker.models));
    put("block_size", worker.block_size_tokens.map(|tokens| json!(tokens)));
    put("load_source", worker.load_source.map(|source| json!(source.word())));
    Value::Object(table)
}

/// The configuration as a file.
#[must_use]
pub fn to_toml(config: &Config) -> String {
    let mut out = String::new();
    let Value::Object(root) = to_json(config) else { return out };
    // TOML wants plain keys before the first section. JSON's scalars and lists of scalars are TOML as they stand.
    let is_plain = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => !items.iter().any(Value::is_object),
        _ => true,
    };
    write_keys(&mut out, root.iter().filter(|(_, value)| is_plain(value)));
    for (section, value) in &root {
        match value {
            Value::Object(table) => {
                let _ = writeln!(out, "\n[{section}]");
                write_keys(&mut out, table.iter());
            }
            Value::Array(tables) => {
                for table in tables.iter().filter_map(Value::as_object) {
                    let _ = writeln!(out, "\n[[{section}]]");
                    write_keys(&mut out, table.iter());
                }
            }
            _ => {}
        }
    }
    out
}

fn write_keys<'a>(out: &mut String, keys: impl Iterator<Item = (&'a String, &'a Value)>) {
    for (key, value) in keys {
        let _ = writeln!(out, "{key} = {value}");
    }
}
