//! What a worker's answers say about it. Sans-IO: bodies in, a [`Description`] out; [`super::discovery`] fetches them.

use super::exposition::samples;
use super::zmq::Endpoint;
use crate::worker::Dialect;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Most models of one worker that are served; further ones are left out.
const MODELS_PER_WORKER_MAX: usize = 256;

/// A worker as its own answers and the configuration describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) dialect: Dialect,
    /// Empty when any model name is to be accepted.
    pub(super) models: Vec<ServedModel>,
    /// At least one; the position is the dp_rank.
    pub(super) ranks: Vec<DescribedRank>,
    /// True when every rank listens on its own port (SGLang's Rust server).
    pub(super) port_per_rank: bool,
}

/// One model name of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedModel {
    pub(super) name: Arc<str>,
    pub(super) card_json: Arc<str>,
    /// Path or repository of its files.
    pub(super) root: Option<String>,
    /// The base model, for an adapter.
    pub(super) parent: Option<String>,
}

/// One rank of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DescribedRank {
    pub(super) block_size_tokens: u32,
    pub(super) kv_block_count: u32,
    pub(super) events: Option<Announced>,
    /// Known to keep blocks in tiers behind the device.
    pub(super) expects_tiers: bool,
    pub(super) load: Option<AnnouncedLoad>,
}

/// Where a rank publishes its load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedLoad {
    pub(super) endpoint: Endpoint,
    pub(super) topic: String,
}

/// A rank's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) endpoint: Endpoint,
    /// Where missed batches can be asked for.
    pub(super) replay: Option<Endpoint>,
    pub(super) topic: String,
}

/// The answer of `GET /v1/models`.
#[derive(Debug, Default)]
pub(super) struct ModelList {
    pub(super) models: Vec<ServedModel>,
    pub(super) owned_by: String,
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    #[serde(default)]
    owned_by: Option<String>,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    parent: Option<String>,
}

/// Reads `GET /v1/models`; cards that are no cards are left out.
pub(super) fn read_models(body: &str) -> Option<ModelList> {
    let raw: RawList<'_> = serde_json::from_str(body).ok()?;
    let mut list = ModelList::default();
    for card_json in raw.data.into_iter().take(MODELS_PER_WORKER_MAX) {
        let Ok(card) = serde_json::from_str::<Card>(card_json.get()) else { continue };
        if list.owned_by.is_empty() {
            list.owned_by = card.owned_by.unwrap_or_default();
        }
        list.models.push(ServedModel {
            name: card.id.into(),
            card_json: card_json.get().into(),
            root: card.root,
            parent: card.parent,
        });
    }
    Some(list)
}

/// A model that is only configured.
pub(super) fn configured_model(name: &str) -> ServedModel {
    let card = serde_json::json!({ "id": name, "object": "model", "owned_by": "forebay" });
    let card_json = card.to_string().into();
    ServedModel { name: name.into(), card_json, root: None, parent: None }
}

/// vLLM: `/metrics` tells ranks (label `engine`), block size and capacity. Without any, one rank.
pub(super) fn ranks_of_vllm_metrics(text: &str) -> Vec<DescribedRank> {
    let mut ranks = vec![DescribedRank::default()];
    let mut at = |engine: u32| -> Option<usize> {
        let position = usize::try_from(engine).ok()?;
        if position >= crate::base::limits::RANKS_MAX {
            return None;
        }
        if position >= ranks.len() {
            ranks.resize(position + 1, DescribedRank::default());
        }
        Some(position)
    };
    let mut configs = Vec::new();
    for sample in samples(text, "vllm:num_requests_running") {
        at(sample.number("engine").unwrap_or(0));
    }
    for sample in samples(text, "vllm:cache_config_info") {
        if let Some(position) = at(sample.number("engine").unwrap_or(0)) {
            configs.push((position, sample));
        }
    }
    for (position, sample) in configs {
        if let Some(rank) = ranks.get_mut(position) {
            rank.block_size_tokens = sample.number("block_size").unwrap_or(0);
            rank.kv_block_count = sample.number("num_gpu_blocks").unwrap_or(0);
        }
    }
    // Every engine of one server is configured alike; some versions report the configuration once.
    let first = ranks.first().cloned().unwrap_or_default();
    for rank in &mut ranks {
        if rank.block_size_tokens == 0 {
            *rank = first.clone();
        }
    }
    ranks
}

#[derive(Deserialize)]
struct EventSource {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
}

/// vLLM (0.31): `/kv_event_sources` tells the stream of every rank.
pub(super) fn events_of_vllm(body: &str, host: &str, ip: IpAddr) -> Vec<Option<Announced>> {
    let sources: BTreeMap<String, EventSource> = serde_json::from_str(body).unwrap_or_default();
    let mut events = Vec::new();
    for (rank, source) in sources {
        let Some(position) = rank.parse::<usize>().ok() else { continue };
        if position >= crate::base::limits::RANKS_MAX {
            continue;
        }
        if position >= events.len() {
            events.resize(position + 1, None);
        }
        let is_zmq = source.publisher.as_deref().is_none_or(|publisher| publisher == "zmq");
        let endpoint = source.endpoint.filter(|_| source.enable_kv_cache_events && is_zmq);
        let announced = endpoint.and_then(|text| Endpoint::announced(&text, host, ip).ok());
        if let Some(slot) = events.get_mut(position) {
            let topic = source.topic.unwrap_or_default();
            let replay = source.replay_endpoint;
            let replay = replay.and_then(|text| Endpoint::parse(&text, host).ok());
            *slot = announced.map(|endpoint| Announced { endpoint, replay, topic });
        }
    }
    events
}

/// SGLang: `/server_info` tells ranks, page size, capacity and (0.5.13) the event streams.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SglangInfo {
    pub(super) ranks: Vec<DescribedRank>,
    pub(super) port_per_rank: bool,
    pub(super) files: Option<String>,
}

/// Reads `/server_info` or `/get_server_info`, worker host known.
pub(super) fn read_sglang_info(body: &str, host: &str) -> Option<SglangInfo> {
    let info: Value = serde_json::from_str(body).ok()?;
    let number = |value: &Value, key: &str| -> u32 {
        value.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    };
    let text = |key: &str| info.get(key).and_then(Value::as_str).map(str::to_owned);
    let page = number(&info, "page_size");
    let dp_size = number(&info, "dp_size").max(1);
    let tokens = number(&info, "max_total_num_tokens");
    let events = info.get("kv_events").filter(|events| events.is_object());
    let block = events.map(|events| number(events, "block_size")).filter(|&size| size > 0);
    let block_size_tokens = block.unwrap_or(page);
    let kv_block_count = tokens.checked_div(block_size_tokens).unwrap_or(0);
    let expects_tiers =
        info.get("enable_hierarchical_cache").and_then(Value::as_bool).unwrap_or(false);
    let mut ranks = Vec::new();
    for rank in 0..dp_size.min(u32::try_from(crate::base::limits::RANKS_MAX).unwrap_or(u32::MAX)) {
        let load = events.and_then(|events| sglang_load(events, rank, host));
        let events = events.and_then(|events| sglang_events(events, rank, host));
        ranks.push(DescribedRank {
            block_size_tokens,
            kv_block_count,
            events,
            expects_tiers,
            load,
        });
    }
    let port_per_rank = dp_size > 1 && text("frontend").as_deref() == Some("rust");
    let files = text("tokenizer_path").or_else(|| text("model_path"));
    Some(SglangInfo { ranks, port_per_rank, files })
}

fn sglang_events(events: &Value, rank: u32, host: &str) -> Option<Announced> {
    if events.get("publisher")?.as_str()? != "zmq" {
        return None;
    }
    let endpoint = of_base(events, "endpoint_port_base", rank, host)?;
    let topic = events.get("topic").and_then(Value::as_str).unwrap_or("").to_owned();
    let replay = of_base(events, "replay_endpoint_port_base", rank, host);
    Some(Announced { endpoint, replay, topic })
}

/// SGLang (0.5.19): the load publisher's ports are told beside those of the events, and must not be derived from them.
fn sglang_load(events: &Value, rank: u32, host: &str) -> Option<AnnouncedLoad> {
    let endpoint = of_base(events, "load_endpoint_port_base", rank, host)?;
    let topic = events.get("load_topic").and_then(Value::as_str).unwrap_or("load").to_owned();
    Some(AnnouncedLoad { endpoint, topic })
}

/// A rank's own endpoint from the key of a port base.
fn of_base(events: &Value, key: &str, rank: u32, host: &str) -> Option<Endpoint> {
    let place = events.get("endpoint_host").and_then(Value::as_str).unwrap_or("*");
    let port = events.get(key)?.as_u64()?;
    Endpoint::parse(&format!("tcp://{place}:{port}"), host).ok()?.of_rank(rank).ok()
}
