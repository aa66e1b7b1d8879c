//! The keys of back pressure in the TOML file.

use super::flow::{FlowConfig, NatsConfig, TenantConfig};
use super::reader::{
    Reader, Section, count, duration, size, some_count, some_text, switch, text, word,
};
use super::schema::Config;
use std::time::Duration;
use toml_edit::Item;

pub(super) fn read_flow(reader: &mut Reader<'_>, root: &Section<'_>, config: &mut Config) {
    let flow = &mut config.flow;
    root.read(reader, "rank_concurrency_max", &mut flow.rank_concurrency_max, some_count);
    root.read(reader, "rejection_window", &mut flow.rejection_window, duration);
    read_queue(reader, root, flow);
    let rejection = root.section(reader, "rejection");
    rejection.read(reader, "share_percent", &mut flow.rejection.share_percent, count);
    rejection.read(reader, "low_water_percent", &mut flow.rejection.low_water_percent, count);
    rejection.finish(reader);
    read_disaggregation(reader, root, flow);
    let tenants = root.sections(reader, "tenant");
    flow.tenants = tenants.iter().map(|section| read_tenant(reader, section)).collect();
    if tenants.is_empty() {
        let _ = read_tenant(reader, &Section::absent("tenant"));
    }
    read_nats(reader, root, &mut config.nats);
}

fn read_queue(reader: &mut Reader<'_>, root: &Section<'_>, flow: &mut FlowConfig) {
    let section = root.section(reader, "queue");
    let queue = &mut flow.queue;
    section.read(reader, "mode", &mut queue.mode, word);
    section.read(reader, "depth_max", &mut queue.depth_max, count);
    section.read(reader, "bytes_max", &mut queue.bytes_max, size);
    section.read(reader, "wait_max", &mut queue.wait_max, some_duration);
    section.read(reader, "stale_after", &mut queue.stale_after, duration);
    section.read(reader, "hops_max", &mut queue.hops_max, count);
    section.read(reader, "promote_after", &mut queue.promote_after, duration);
    section.read(reader, "overtaken_max", &mut queue.overtaken_max, count);
    section.read(reader, "class_default", &mut queue.class_default, count);
    section.read(reader, "tenant_header", &mut queue.tenant_header, text);
    section.read(reader, "kv_use_percent", &mut queue.kv_use_percent, count);
    section.read(reader, "prefill_tokens_max", &mut queue.prefill_tokens_max, count);
    section.read(reader, "sse_comments", &mut queue.sse_comments, switch);
    section.finish(reader);
}

fn read_disaggregation(reader: &mut Reader<'_>, root: &Section<'_>, flow: &mut FlowConfig) {
    let section = root.section(reader, "disaggregation");
    let split = &mut flow.disaggregation;
    section.read(reader, "fallback", &mut split.fallback, word);
    section.read(reader, "uncached_tokens_min", &mut split.uncached_tokens_min, count);
    section.read(reader, "prefill_timeout", &mut split.prefill_timeout, some_duration);
    section.read(reader, "prefill_concurrency_max", &mut split.prefill_concurrency_max, some_count);
    section.read(reader, "decode_concurrency_max", &mut split.decode_concurrency_max, some_count);
    section.read(reader, "prefill_tokens_max", &mut split.prefill_tokens_max, some_count);
    section.read(reader, "prefill_kv_use_percent", &mut split.prefill_kv_use_percent, some_count);
    section.read(reader, "decode_kv_use_percent", &mut split.decode_kv_use_percent, some_count);
    section.finish(reader);
}

fn some_duration(item: &Item) -> Result<Option<Duration>, String> {
    duration(item).map(Some)
}

fn read_tenant(reader: &mut Reader<'_>, section: &Section<'_>) -> TenantConfig {
    let mut tenant = TenantConfig { weight: 1, ..TenantConfig::default() };
    section.read(reader, "name", &mut tenant.name, text);
    section.read(reader, "key", &mut tenant.key, text);
    section.read(reader, "class_best", &mut tenant.class_best, count);
    section.read(reader, "weight", &mut tenant.weight, count);
    section.finish(reader);
    tenant
}

fn read_nats(reader: &mut Reader<'_>, root: &Section<'_>, nats: &mut NatsConfig) {
    // The flag's word alone means the URL.
    if root.is_text("nats") {
        return root.read(reader, "nats", &mut nats.url, some_text);
    }
    let section = root.section(reader, "nats");
    section.read(reader, "url", &mut nats.url, some_text);
    section.read(reader, "prefix", &mut nats.prefix, text);
    section.read(reader, "name", &mut nats.name, some_text);
    section.finish(reader);
}
