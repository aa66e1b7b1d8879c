//! What a worker's answers say about it. Sans-IO: bodies in, a [`Description`] out;
//! [`super::describe`] fetches them.

use super::capacity::of_sglang_info;
use super::kv_source::{KvSource, SglangPlace};
use forebay_base::limits::RANKS_MAX;
use forebay_config::LoadSource;
use forebay_fleet::worker::{ANY_MODEL, Dialect, Role};
use forebay_load::{AnnouncedLoad, ReportSource, Sample, samples};
use forebay_zmq::ZmqEndpoint;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Most models of one worker that are served; further ones are left out.
const MODELS_PER_WORKER_MAX: usize = 256;
/// Models of one worker that a line for people names.
const MODELS_IN_WORDS_MAX: usize = 4;
/// Ranks of one deployment are numbered below this.
const RANK_NUMBER_MAX: u32 = 1 << 16;

/// A worker as its own answers and the configuration describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Which engine answers there.
    pub dialect: Dialect,
    /// Its names, as far as the configuration or the engine lists any.
    pub models: Vec<ServedModel>,
    /// Where the names come from, or why there is none.
    pub listing: Listing,
    /// At least one; behind one port the position is the number that requests are pinned by.
    pub ranks: Vec<DescribedRank>,
    /// True when every rank listens on its own port: that of the URL plus its position.
    pub port_per_rank: bool,
    /// Legs that the worker serves.
    pub role: Role,
    /// Where its KV comes from, if it prefills for others.
    pub source: Option<KvSource>,
    /// It has freed its GPU memory, and serves nothing until it is woken.
    pub is_asleep: bool,
}

/// What is known of the names that a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The engine lists them.
    Listed,
    /// The configuration lists them.
    Configured,
    /// By the configuration the worker takes any name that no worker lists: `models` has `*`, or
    /// health checks are off and `models` is empty.
    Any,
    /// The engine lists no name.
    Nothing {
        /// It has no list: 404, 405 or 501. `None`: its list has no name but `*` or an empty one.
        status: Option<u16>,
        /// It passes its health check all the same.
        is_well: bool,
    },
}

impl Listing {
    /// Is nothing known that the worker serves?
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing { .. })
    }

    /// What was wrong with the list, for people.
    #[must_use]
    pub fn fault(self) -> Option<String> {
        let Self::Nothing { status, .. } = self else { return None };
        Some(status.map_or_else(
            || "GET /v1/models lists no model".to_owned(),
            |status| format!("GET /v1/models answers {status}"),
        ))
    }

    /// What to do about it.
    pub const HELP: &str = concat!(
        "is this the engine's port? set `models` of the worker if it serves models ",
        "that it does not list"
    );
}

/// One model name of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name that clients ask for.
    pub name: Arc<str>,
    /// Its entry of `GET /v1/models`, for clients.
    pub card_json: Arc<str>,
    /// Path or repository of its files.
    pub root: Option<String>,
    /// The base model, for an adapter.
    pub parent: Option<String>,
}

/// One rank of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedRank {
    /// Its number within the deployment, as engines count; that of the first rank is not 0 where a
    /// URL is one of several of a deployment.
    pub number: u32,
    /// Tokens of one block; 0 while unknown.
    pub block_size_tokens: u32,
    /// Blocks that the cache holds; 0 while unknown.
    pub kv_block_count: u32,
    /// Requests that it runs at once; further ones wait inside the engine.
    pub running_max: Option<u32>,
    /// Where it publishes KV events.
    pub events: Option<Announced>,
    /// Computed prompts stay in its cache for later ones, as far as it tells.
    pub reuses_prefixes: Option<bool>,
    /// Known to keep blocks in tiers behind the device.
    pub expects_tiers: bool,
    /// Where it publishes its load.
    pub load: Option<AnnouncedLoad>,
}

/// Where a rank publishes its KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Socket that the rank publishes on.
    pub endpoint: ZmqEndpoint,
    /// Where missed batches can be asked for.
    pub replay: Option<ZmqEndpoint>,
    /// First part of each message.
    pub topic: String,
}

impl Description {
    /// The name under which the worker's blocks are rooted: its first base model's. Other names of
    /// the same model share the engine's cache, so they share the root.
    #[must_use]
    pub fn root_model(&self) -> Arc<str> {
        let base = self.models.iter().find(|model| model.parent.is_none());
        base.map_or_else(|| ANY_MODEL.into(), |model| Arc::clone(&model.name))
    }

    /// All names that it lists or is configured with.
    #[must_use]
    pub fn model_names(&self) -> Vec<Arc<str>> {
        self.models.iter().map(|model| Arc::clone(&model.name)).collect()
    }

    /// Does it report its load, if reports are to come from there?
    #[must_use]
    pub fn reports_load(&self, wanted: LoadSource) -> bool {
        let publish = !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.load.is_some());
        ReportSource::of(wanted, self.dialect, publish).is_some()
    }

    /// A line for people: engine, models, ranks, and what routing can use.
    #[must_use]
    pub fn in_words(&self) -> String {
        let engine = match self.dialect {
            Dialect::Vllm => "vLLM",
            Dialect::Sglang => "SGLang",
            Dialect::Openai => "OpenAI's API",
        };
        let names: Vec<&str> = self.models.iter().map(|model| &*model.name).collect();
        let shown = names.get(..MODELS_IN_WORDS_MAX).unwrap_or(&names).join(", ");
        let models = match names.len().saturating_sub(MODELS_IN_WORDS_MAX) {
            0 if names.is_empty() && self.listing.is_nothing() => "no model listed".to_owned(),
            0 if names.is_empty() => "any model".to_owned(),
            0 => shown,
            more => format!("{shown} and {more} more"),
        };
        let all = |is: fn(&DescribedRank) -> bool| self.ranks.iter().all(is);
        let has = |is: bool, what: &'static str| if is { what } else { "" };
        format!(
            "{engine}, {models}, {} rank{}{}{}",
            self.ranks.len(),
            has(self.ranks.len() != 1, "s"),
            has(all(|rank| rank.events.is_some()), ", KV events"),
            has(all(|rank| rank.reuses_prefixes == Some(true)), ", prefix caching"),
        )
    }

    /// The model of that name, if the worker serves it.
    #[must_use]
    pub fn served(&self, name: &str) -> Option<&ServedModel> {
        self.models.iter().find(|model| &*model.name == name)
    }
}

impl ServedModel {
    /// The model whose text the name uses.
    #[must_use]
    pub fn base_name(&self) -> Arc<str> {
        self.parent.as_deref().map_or_else(|| Arc::clone(&self.name), Into::into)
    }
}

/// The answer of `GET /v1/models`.
#[derive(Debug, Default)]
pub struct ModelList {
    /// The models, each with its card.
    pub models: Vec<ServedModel>,
    /// What the first card names as the owner.
    pub owned_by: String,
    /// The status of a server without the route.
    pub missing: Option<u16>,
}

impl ModelList {
    /// What the answer says of the names.
    pub(crate) fn listing(&self) -> Listing {
        match self.missing {
            None if !self.models.is_empty() => Listing::Listed,
            status => Listing::Nothing { status, is_well: false },
        }
    }
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

/// Reads `GET /v1/models`; cards that are no cards are left out, and so are names that no request
/// can mean: the empty one, and `*`, which stands for all names here.
#[must_use]
pub fn read_models(body: &str) -> Option<ModelList> {
    let raw: RawList<'_> = serde_json::from_str(body).ok()?;
    let mut list = ModelList::default();
    for card_json in raw.data {
        if list.models.len() >= MODELS_PER_WORKER_MAX {
            break;
        }
        let Ok(card) = serde_json::from_str::<Card>(card_json.get()) else { continue };
        if list.owned_by.is_empty() {
            list.owned_by = card.owned_by.unwrap_or_default();
        }
        if card.id.is_empty() || card.id == ANY_MODEL {
            continue;
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

/// A model that is only known by its name.
#[must_use]
pub fn configured_model(name: &str) -> ServedModel {
    let card = serde_json::json!({ "id": name, "object": "model", "owned_by": "forebay" });
    let card_json = card.to_string().into();
    ServedModel { name: name.into(), card_json, root: None, parent: None }
}

/// Ranks with numbers in a row from `first` on, otherwise alike.
#[must_use]
pub fn numbered(first: u32, count: usize, like: &DescribedRank) -> Vec<DescribedRank> {
    let numbers = (first..).take(count);
    numbers.map(|number| DescribedRank { number, ..like.clone() }).collect()
}

/// vLLM: `/metrics` tells ranks (label `engine`), block size and capacity. Without any, one rank.
/// Where a deployment has several URLs, each tells of its own ranks only: they are numbered from
/// the least one on.
pub(crate) fn ranks_of_vllm_metrics(text: &str) -> Vec<DescribedRank> {
    let engine = |sample: &Sample| match sample.label("engine") {
        None => Some(0),
        Some(label) => label.parse().ok().filter(|number| *number < RANK_NUMBER_MAX),
    };
    let seen: Vec<u32> =
        samples(text, "vllm:num_requests_running").filter_map(|sample| engine(&sample)).collect();
    let configs: Vec<(u32, Sample)> = samples(text, "vllm:cache_config_info")
        .filter_map(|sample| Some((engine(&sample)?, sample)))
        .collect();
    let numbers = || seen.iter().copied().chain(configs.iter().map(|(number, _)| *number));
    let first = if seen.is_empty() { numbers().min() } else { seen.iter().copied().min() };
    let first = first.unwrap_or(0);
    let in_reach = |number: &u32| {
        number
            .checked_sub(first)
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|offset| *offset < RANKS_MAX)
    };
    let count = numbers().filter_map(|number| in_reach(&number)).max().map_or(1, |last| last + 1);
    let mut ranks = numbered(first, count, &DescribedRank::default());
    for (number, sample) in configs {
        if let Some(rank) = in_reach(&number).and_then(|offset| ranks.get_mut(offset)) {
            rank.block_size_tokens = sample.number("block_size").unwrap_or(0);
            rank.kv_block_count = sample.number("num_gpu_blocks").unwrap_or(0);
            let caching = sample.label("enable_prefix_caching");
            rank.reuses_prefixes = caching.map(|word| word.eq_ignore_ascii_case("true"));
        }
    }
    // Every engine of one server is configured alike; some versions report the configuration once.
    let told = ranks.iter().find(|rank| rank.block_size_tokens > 0).cloned().unwrap_or_default();
    for rank in &mut ranks {
        if rank.block_size_tokens == 0 {
            *rank = DescribedRank { number: rank.number, ..told.clone() };
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

/// vLLM (0.31): `/kv_event_sources` tells the stream of every rank, by its number.
pub(crate) fn events_of_vllm(
    body: &str,
    host: &str,
    ip: IpAddr,
) -> BTreeMap<u32, Option<Announced>> {
    let sources: BTreeMap<String, EventSource> = serde_json::from_str(body).unwrap_or_default();
    let read = |(rank, source): (String, EventSource)| {
        let number = rank.parse::<u32>().ok().filter(|number| *number < RANK_NUMBER_MAX)?;
        let is_zmq = source.publisher.as_deref().is_none_or(|publisher| publisher == "zmq");
        let endpoint = source.endpoint.filter(|_| source.enable_kv_cache_events && is_zmq);
        let announced = endpoint.and_then(|text| ZmqEndpoint::announced(&text, host, ip).ok());
        let topic = source.topic.unwrap_or_default();
        let replay = source.replay_endpoint;
        let replay = replay.and_then(|text| ZmqEndpoint::parse(&text, host).ok());
        Some((number, announced.map(|endpoint| Announced { endpoint, replay, topic })))
    };
    sources.into_iter().filter_map(read).take(RANKS_MAX).collect()
}

/// SGLang: `/server_info` tells ranks, page size, capacity and (0.5.13) the event streams.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SglangInfo {
    /// Those behind this URL's port and, with ports of their own, the next ones.
    pub(crate) ranks: Vec<DescribedRank>,
    pub(crate) port_per_rank: bool,
    pub(crate) files: Option<String>,
    pub(crate) place: SglangPlace,
}

/// Reads `/server_info` or `/get_server_info`, worker host known.
pub(crate) fn read_sglang_info(body: &str, host: &str) -> Option<SglangInfo> {
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
    let is_off = info.get("disable_radix_cache").and_then(Value::as_bool);
    let deployment = info.get("deployment_info").filter(|told| told.is_object());
    let is_rust = text("frontend").as_deref() == Some("rust");
    let (first, count) = match deployment.filter(|_| is_rust && dp_size > 1) {
        Some(deployment) => {
            behind_rust(number(deployment, "dp_rank"), number(deployment, "nnodes"), dp_size)
        }
        None => (0, dp_size),
    };
    let of_rank = |rank: u32| DescribedRank {
        number: rank,
        block_size_tokens,
        kv_block_count,
        running_max: of_sglang_info(&info, rank, dp_size),
        events: events.and_then(|events| sglang_events(events, rank, host)),
        reuses_prefixes: is_off.map(|is_off| !is_off),
        expects_tiers,
        load: events.and_then(|events| sglang_load(events, rank, host)),
    };
    let ranks = (first..).take(usize::try_from(count).unwrap_or(usize::MAX).min(RANKS_MAX));
    let ranks = ranks.map(of_rank).collect();
    let files = text("tokenizer_path").or_else(|| text("model_path"));
    let place = sglang_place(&info, deployment.filter(|_| is_rust));
    Some(SglangInfo { ranks, port_per_rank: dp_size > 1 && is_rust, files, place })
}

/// The Rust server has a port for each rank of its machine, from that of its first one on, and each
/// says which rank it is (SGLang 0.5.23, `rust_server/server.py`). A URL of a later one stands for
/// that rank alone.
fn behind_rust(dp_rank: u32, machine_count: u32, dp_size: u32) -> (u32, u32) {
    let here = (dp_size / machine_count.max(1)).max(1);
    let is_first = dp_rank.is_multiple_of(here);
    (
        dp_rank.min(RANK_NUMBER_MAX),
        if is_first { here.min(dp_size.saturating_sub(dp_rank).max(1)) } else { 1 },
    )
}

fn sglang_place(info: &Value, listener: Option<&Value>) -> SglangPlace {
    let role = match info.get("disaggregation_mode").and_then(Value::as_str) {
        Some("prefill") => Some(Role::Prefill),
        Some("decode") => Some(Role::Decode),
        _ => None,
    };
    let port = |told: &Value| {
        let port = told.get("disaggregation_bootstrap_port").and_then(Value::as_u64)?;
        u16::try_from(port).ok().filter(|port| *port > 0)
    };
    let bootstrap_port = listener.and_then(port).or_else(|| port(info));
    SglangPlace { role, bootstrap_port: bootstrap_port.filter(|_| role != Some(Role::Decode)) }
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

/// SGLang (0.5.19): the load publisher's ports are told beside those of the events, and must not be
/// derived from them.
fn sglang_load(events: &Value, rank: u32, host: &str) -> Option<AnnouncedLoad> {
    let endpoint = of_base(events, "load_endpoint_port_base", rank, host)?;
    let topic = events.get("load_topic").and_then(Value::as_str).unwrap_or("load").to_owned();
    Some(AnnouncedLoad { endpoint, topic })
}

/// A rank's own endpoint from the key of a port base.
fn of_base(events: &Value, key: &str, rank: u32, host: &str) -> Option<ZmqEndpoint> {
    let place = events.get("endpoint_host").and_then(Value::as_str).unwrap_or("*");
    let port = events.get(key)?.as_u64()?;
    ZmqEndpoint::parse(&format!("tcp://{place}:{port}"), host).ok()?.of_rank(rank).ok()
}
