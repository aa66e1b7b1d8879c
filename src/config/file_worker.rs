//! One `[[worker]]` table of the TOML file.

use super::reader::{Reader, Section, some_count, some_path, some_text, switch, text, texts, word};
use super::schema::{EngineKind, LoadSource};
use super::worker::{HandoffConfig, KvFlow, WorkerConfig};
use toml_edit::Item;

pub(super) fn read_worker(reader: &mut Reader<'_>, section: &Section<'_>) -> WorkerConfig {
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
    section.read(reader, "health_path", &mut worker.health_path, some_text);
    let source = |item: &Item| word::<LoadSource>(item).map(Some);
    section.read(reader, "load_source", &mut worker.load_source, source);
    let switch = |item: &Item| switch(item).map(Some);
    section.read(reader, "port_per_rank", &mut worker.port_per_rank, switch);
    section.read(reader, "role", &mut worker.role, word);
    section.read(reader, "topology", &mut worker.topology, some_text);
    read_handoff(reader, section, &mut worker.handoff);
    section.finish(reader);
    worker
}

fn read_handoff(reader: &mut Reader<'_>, section: &Section<'_>, handoff: &mut HandoffConfig) {
    section.read(reader, "bootstrap_host", &mut handoff.bootstrap_host, some_text);
    section.read(reader, "bootstrap_port", &mut handoff.bootstrap_port, some_count);
    section.read(reader, "kv_flow", &mut handoff.kv_flow, |item| word::<KvFlow>(item).map(Some));
    section.read(reader, "kv_engine_id", &mut handoff.kv_engine_id, some_text);
    section.read(reader, "kv_host", &mut handoff.kv_host, some_text);
    section.read(reader, "kv_port", &mut handoff.kv_port, some_count);
    section.read(reader, "kv_tp_size", &mut handoff.kv_tp_size, some_count);
    section.read(reader, "kv_pp_size", &mut handoff.kv_pp_size, some_count);
}
