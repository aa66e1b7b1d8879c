//! The TOML file as a [`Config`]. One line per key: name, place, form.

use super::file_flow::read_flow;
use super::file_worker::read_worker;
use super::finding::{Finding, Origins};
use super::reader::{
    Reader, Section, address, count, counts, duration, parse_word, size, some_path, switch, text,
    texts, word,
};
use super::schema::{Config, Policy};
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
    root.read(reader, "listen_shared", &mut config.listen_shared, switch);
    root.read(reader, "admin", &mut config.admin, address);
    root.read(reader, "admin_hosts", &mut config.admin_hosts, texts);
    root.read(reader, "admin_token_file", &mut config.admin_token_file, some_path);
    root.read(reader, "cores", &mut config.cores, counts);
    root.read(reader, "engine", &mut config.engine, word);
    root.read(reader, "model_dir", &mut config.model_dir, some_path);
    root.read(reader, "policy", &mut config.policy, policy);
    read_flow(reader, root, config);
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

/// The word of the `session` policy is in the contract but not in this version.
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
    section.read(reader, "tier_ttl", &mut config.kv.tier_ttl, duration);
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
    let flow = &mut config.flow;
    section.read(reader, "router_in_flight_max", &mut flow.router_in_flight_max, count);
    section.read(reader, "kv_demand_percent", &mut flow.kv_demand_percent, count);
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
    section.read(reader, "stall_abort", &mut timeouts.stall_abort, duration);
    section.finish(reader);
}

fn read_small(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let retry = root.section(reader, "retry");
    retry.read(reader, "after_send", &mut config.retry.after_send, switch);
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
