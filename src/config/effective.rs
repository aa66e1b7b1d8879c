//! The effective configuration in words: as one JSON object for the log and as a TOML file that reads back to the
//! same configuration. Secrets are masked in both.

use super::disaggregation::DisaggregationConfig;
use super::flow::{NatsConfig, QueueConfig, RejectionConfig, TenantConfig};
use super::quantity::{format_duration, format_size};
use super::schema::{BreakerConfig, Config, IndexConfig, LoadConfig, TimeoutsConfig, Word};
use super::worker::{WorkerConfig, WorkerRole};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// What stands in place of a secret.
const MASK: &str = "***";

/// The configuration as one JSON object with the keys of the file.
#[must_use]
pub fn to_json(config: &Config) -> Value {
    let mut root = Map::new();
    root.insert("listen".to_owned(), json!(config.listen.to_string()));
    root.insert("listen_shared".to_owned(), json!(config.listen_shared));
    root.insert("admin".to_owned(), json!(config.admin.to_string()));
    root.insert("admin_hosts".to_owned(), json!(config.admin_hosts));
    if let Some(file) = &config.admin_token_file {
        root.insert("admin_token_file".to_owned(), json!(file.display().to_string()));
    }
    root.insert("cores".to_owned(), json!(config.cores));
    root.insert("engine".to_owned(), json!(config.engine.word()));
    if let Some(dir) = &config.model_dir {
        root.insert("model_dir".to_owned(), json!(dir.display().to_string()));
    }
    root.insert("policy".to_owned(), json!(config.policy.word()));
    if let Some(max) = config.flow.rank_concurrency_max {
        root.insert("rank_concurrency_max".to_owned(), json!(max));
    }
    let window = format_duration(config.flow.rejection_window);
    root.insert("rejection_window".to_owned(), json!(window));
    let sections = json!({
        "queue": queue_to_json(&config.flow.queue),
        "rejection": rejection_to_json(config.flow.rejection),
        "disaggregation": disaggregation_to_json(&config.flow.disaggregation),
        "nats": nats_to_json(&config.nats),
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
            "tier_ttl": format_duration(config.kv.tier_ttl),
        },
        "approximate": {
            "ttl": format_duration(config.approximate.ttl),
            "speculative_ttl": format_duration(config.approximate.speculative_ttl),
            "rank_bytes_max": format_size(config.approximate.rank_bytes_max),
        },
        "index": index_to_json(&config.index),
        "load": load_to_json(&config.load),
        "limits": limits_to_json(config),
        "timeouts": timeouts_to_json(&config.timeouts),
        "retry": {
            "after_send": config.retry.after_send,
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
    let tenants: Vec<Value> = config.flow.tenants.iter().map(tenant_to_json).collect();
    root.insert("tenant".to_owned(), Value::Array(tenants));
    Value::Object(root)
}

fn limits_to_json(config: &Config) -> Value {
    let limits = &config.limits;
    json!({
        "head_bytes_max": format_size(limits.head_bytes_max),
        "head_fields_max": limits.head_fields_max,
        "body_bytes_max": format_size(limits.body_bytes_max),
        "in_flight_max": limits.in_flight_max,
        "connections_max": limits.connections_max,
        "buffered_bytes_max": format_size(limits.buffered_bytes_max),
        "index_bytes_max": format_size(limits.index_bytes_max),
        "router_in_flight_max": config.flow.router_in_flight_max,
        "kv_demand_percent": config.flow.kv_demand_percent,
    })
}

fn timeouts_to_json(times: &TimeoutsConfig) -> Value {
    json!({
        "head": format_duration(times.head),
        "body": format_duration(times.body),
        "idle": format_duration(times.idle),
        "connect": format_duration(times.connect),
        "first_byte": format_duration(times.first_byte),
        "stream_idle": format_duration(times.stream_idle),
        "write": format_duration(times.write),
        "upstream_idle": format_duration(times.upstream_idle),
        "drain": format_duration(times.drain),
        "stall_abort": format_duration(times.stall_abort),
    })
}

fn rejection_to_json(rejection: RejectionConfig) -> Value {
    json!({
        "share_percent": rejection.share_percent,
        "low_water_percent": rejection.low_water_percent,
    })
}

fn disaggregation_to_json(split: &DisaggregationConfig) -> Value {
    let mut table = Map::new();
    let mut put = |key: &str, value: Option<Value>| table.extend(value.map(|v| (key.into(), v)));
    put("fallback", Some(json!(split.fallback.word())));
    put("uncached_tokens_min", Some(json!(split.uncached_tokens_min)));
    put("prefill_timeout", split.prefill_timeout.map(|time| json!(format_duration(time))));
    for (key, value) in [
        ("prefill_concurrency_max", split.prefill_concurrency_max),
        ("decode_concurrency_max", split.decode_concurrency_max),
        ("prefill_tokens_max", split.prefill_tokens_max),
        ("prefill_kv_use_percent", split.prefill_kv_use_percent),
        ("decode_kv_use_percent", split.decode_kv_use_percent),
    ] {
        put(key, value.map(|value| json!(value)));
    }
    Value::Object(table)
}

fn queue_to_json(queue: &QueueConfig) -> Value {
    let mut table = json!({
        "mode": queue.mode.word(),
        "depth_max": queue.depth_max,
        "bytes_max": format_size(queue.bytes_max),
        "stale_after": format_duration(queue.stale_after),
        "hops_max": queue.hops_max,
        "promote_after": format_duration(queue.promote_after),
        "overtaken_max": queue.overtaken_max,
        "class_default": queue.class_default,
        "tenant_header": queue.tenant_header,
        "kv_use_percent": queue.kv_use_percent,
        "prefill_tokens_max": queue.prefill_tokens_max,
        "sse_comments": queue.sse_comments,
    });
    if let (Some(wait), Some(table)) = (queue.wait_max, table.as_object_mut()) {
        table.insert("wait_max".to_owned(), json!(format_duration(wait)));
    }
    table
}

/// The URL may hold a password.
fn nats_to_json(nats: &NatsConfig) -> Value {
    let mut table = json!({ "prefix": nats.prefix });
    if let Some(table) = table.as_object_mut() {
        for (key, value) in
            [("url", nats.url.as_deref().map(without_password)), ("name", nats.name.clone())]
        {
            table.extend(value.map(|value| (key.to_owned(), json!(value))));
        }
    }
    table
}

/// `scheme://user:password@host` with the user masked.
fn without_password(urls: &str) -> String {
    let mask = |url: &str| match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            let (start, host) = (url.get(..scheme + 3), url.get(at..));
            format!("{}{MASK}{}", start.unwrap_or_default(), host.unwrap_or_default())
        }
        _ => url.to_owned(),
    };
    urls.split(',').map(mask).collect::<Vec<_>>().join(",")
}

fn tenant_to_json(tenant: &TenantConfig) -> Value {
    json!({
        "name": tenant.name,
        "key": MASK,
        "class_best": tenant.class_best,
        "weight": tenant.weight,
    })
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
    put("health_path", worker.health_path.as_ref().map(|path| json!(path)));
    put("load_source", worker.load_source.map(|source| json!(source.word())));
    put("port_per_rank", worker.port_per_rank.map(|own| json!(own)));
    put("role", (worker.role != WorkerRole::Auto).then(|| json!(worker.role.word())));
    put("topology", worker.topology.as_ref().map(|label| json!(label)));
    let handoff = &worker.handoff;
    put("bootstrap_host", handoff.bootstrap_host.as_ref().map(|host| json!(host)));
    put("bootstrap_port", handoff.bootstrap_port.map(|port| json!(port)));
    put("kv_flow", handoff.kv_flow.map(|flow| json!(flow.word())));
    put("kv_engine_id", handoff.kv_engine_id.as_ref().map(|id| json!(id)));
    put("kv_host", handoff.kv_host.as_ref().map(|host| json!(host)));
    put("kv_port", handoff.kv_port.map(|port| json!(port)));
    put("kv_tp_size", handoff.kv_tp_size.map(|size| json!(size)));
    put("kv_pp_size", handoff.kv_pp_size.map(|size| json!(size)));
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
