//! The TOML file as a [`Config`]. One line per key: name, place, form.

use super::finding::{Finding, Origins};
use super::reader::{
    Reader, Section, address, count, counts, duration, parse_word, size, some_count, some_path,
    some_text, switch, text, texts, word,
};
use super::schema::{Config, EngineKind, LoadSource, Policy, WorkerConfig};
use toml_edit::{Document, Item};

/// A reading of a file: what was understood, what was not, and where each key stood.
pub(super) struct FileReading {
    pub(super) config: Config,
    pub(super) findings: Vec<Finding>,
    pub(super) origins: Origins,
}

/// Reads a whole file. A text that is no TOML gives one finding, else every fault gives its own.
pub(super) fn read_file(file: &str, text: &str) -> FileReading {
    let mut reader = Reader::new(file, text);
    let mut config = Config::default();
    match Document::parse(text) {
        Ok(document) => read_root(&mut reader, &Section::root(document.as_table()), &mut config),
        Err(error) => {
            let origin = reader.place(error.span());
            let what = error.message().trim_end().replace('\n', "; ");
            let help = "the rest of the file was not looked at";
            reader.findings.push(Finding::error(origin, what, help));
        }
    }
    let (findings, origins) = reader.finish();
    FileReading { config, findings, origins }
}

fn read_root(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    root.read(reader, "listen", &mut config.listen, address);
    root.read(reader, "admin", &mut config.admin, address);
    root.read(reader, "cores", &mut config.cores, counts);
    root.read(reader, "engine", &mut config.engine, word);
    root.read(reader, "model_dir", &mut config.model_dir, some_path);
    root.read(reader, "policy", &mut config.policy, policy);
    root.read(reader, "rank_concurrency_max", &mut config.rank_concurrency_max, count);
    root.unavailable(reader, "rejection_window");
    root.unavailable(reader, "nats");
    read_queue(reader, root);
    read_health(reader, root, config);
    read_kv(reader, root, config);
    read_approximate(reader, root, config);
    read_index(reader, root, config);
    read_load(reader, root, config);
    read_limits(reader, root, config);
    read_timeouts(reader, root, config);
    read_small(reader, root, config);
    let workers = root.sections(reader, "worker");
    config.workers = workers.iter().map(|section| read_worker(reader, section)).collect();
    if workers.is_empty() {
        let _ = read_worker(reader, &Section::absent("worker"));
    }
    root.finish(reader);
}

/// The words of the `session` policy and the queue are in the contract but not in this version.
fn policy(item: &Item) -> Result<Policy, String> {
    parse_policy(item.as_str().unwrap_or_default())
}

/// A policy from a flag or the file.
pub(super) fn parse_policy(text: &str) -> Result<Policy, String> {
    if text == "session" {
        return Err("\"session\" is not available in this version".to_owned());
    }
    parse_word(text)
}

/// `queue.mode` from a flag or the file.
pub(super) fn parse_queue_mode(text: &str) -> Result<(), String> {
    match text {
        "off" => Ok(()),
        "pool" | "endpoint" => {
            Err(format!("{text:?} is not available in this version; use \"off\""))
        }
        _ => Err(format!("{text:?} is not one of pool, endpoint, off")),
    }
}

fn read_queue(reader: &mut Reader<'_>, root: &Section<'_>) {
    let queue = root.section(reader, "queue");
    let mode = |item: &Item| parse_queue_mode(item.as_str().unwrap_or_default());
    queue.read(reader, "mode", &mut (), mode);
    queue.unavailable(reader, "depth_max");
    queue.unavailable(reader, "wait_max");
    queue.finish(reader);
}

fn read_health(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "health");
    let health = &mut config.health;
    section.read(reader, "enabled", &mut health.enabled, switch);
    section.read(reader, "interval", &mut health.interval, duration);
    section.read(reader, "timeout", &mut health.timeout, duration);
    section.read(reader, "unhealthy_after", &mut health.unhealthy_after, count);
    section.read(reader, "healthy_after", &mut health.healthy_after, count);
    section.finish(reader);
}

fn read_kv(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "kv");
    section.read(reader, "host_credit_percent", &mut config.kv.host_credit_percent, count);
    section.read(reader, "disk_credit_percent", &mut config.kv.disk_credit_percent, count);
    section.finish(reader);
}

fn read_approximate(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "approximate");
    let approximate = &mut config.approximate;
    section.read(reader, "ttl", &mut approximate.ttl, duration);
    section.read(reader, "speculative_ttl", &mut approximate.speculative_ttl, duration);
    section.read(reader, "rank_bytes_max", &mut approximate.rank_bytes_max, size);
    section.finish(reader);
}

fn read_index(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "index");
    section.read(reader, "snapshot", &mut config.index.snapshot, some_path);
    section.read(reader, "snapshot_every", &mut config.index.snapshot_every, duration);
    section.finish(reader);
}

fn read_load(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "load");
    section.read(reader, "source", &mut config.load.source, word);
    section.read(reader, "interval", &mut config.load.interval, duration);
    section.read(reader, "back_off", &mut config.load.back_off, switch);
    section.read(reader, "age_max", &mut config.load.age_max, duration);
    section.finish(reader);
}

fn read_limits(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "limits");
    let limits = &mut config.limits;
    section.read(reader, "head_bytes_max", &mut limits.head_bytes_max, size);
    section.read(reader, "head_fields_max", &mut limits.head_fields_max, count);
    section.read(reader, "body_bytes_max", &mut limits.body_bytes_max, size);
    section.read(reader, "in_flight_max", &mut limits.in_flight_max, count);
    section.read(reader, "connections_max", &mut limits.connections_max, count);
    section.read(reader, "buffered_bytes_max", &mut limits.buffered_bytes_max, size);
    section.read(reader, "index_bytes_max", &mut limits.index_bytes_max, size);
    section.finish(reader);
}

fn read_timeouts(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let section = root.section(reader, "timeouts");
    let timeouts = &mut config.timeouts;
    section.read(reader, "head", &mut timeouts.head, duration);
    section.read(reader, "body", &mut timeouts.body, duration);
    section.read(reader, "idle", &mut timeouts.idle, duration);
    section.read(reader, "connect", &mut timeouts.connect, duration);
    section.read(reader, "first_byte", &mut timeouts.first_byte, duration);
    section.read(reader, "stream_idle", &mut timeouts.stream_idle, duration);
    section.read(reader, "write", &mut timeouts.write, duration);
    section.read(reader, "upstream_idle", &mut timeouts.upstream_idle, duration);
    section.read(reader, "drain", &mut timeouts.drain, duration);
    section.finish(reader);
}

fn read_small(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let retry = root.section(reader, "retry");
    retry.read(reader, "attempts_max", &mut config.retry.attempts_max, count);
    retry.read(reader, "budget_percent", &mut config.retry.budget_percent, count);
    retry.finish(reader);
    let breaker = root.section(reader, "breaker");
    breaker.read(reader, "failures", &mut config.breaker.failures, count);
    breaker.read(reader, "open", &mut config.breaker.open, duration);
    breaker.finish(reader);
    let log = root.section(reader, "log");
    log.read(reader, "json", &mut config.log.json, switch);
    log.read(reader, "requests", &mut config.log.requests, switch);
    log.read(reader, "level", &mut config.log.level, text);
    log.finish(reader);
}

fn read_worker(reader: &mut Reader<'_>, section: &Section<'_>) -> WorkerConfig {
    let mut worker = WorkerConfig::default();
    section.read(reader, "url", &mut worker.url, text);
    section.read(reader, "name", &mut worker.name, some_text);
    section.read(reader, "model_dir", &mut worker.model_dir, some_path);
    section.read(reader, "kv_events", &mut worker.kv_events, texts);
    section.read(reader, "replay", &mut worker.replay, texts);
    section.read(reader, "kv_topic", &mut worker.kv_topic, text);
    section.read(reader, "engine", &mut worker.engine, |item| word::<EngineKind>(item).map(Some));
    section.read(reader, "api_key", &mut worker.api_key, some_text);
    section.read(reader, "concurrency_max", &mut worker.concurrency_max, some_count);
    section.read(reader, "ranks", &mut worker.ranks, some_count);
    section.read(reader, "models", &mut worker.models, texts);
    section.read(reader, "block_size", &mut worker.block_size_tokens, some_count);
    let source = |item: &Item| word::<LoadSource>(item).map(Some);
    section.read(reader, "load_source", &mut worker.load_source, source);
    section.finish(reader);
    worker
}
