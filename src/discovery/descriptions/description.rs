//! Parses a worker's responses. Sans-IO: bodies in, a [`Description`] out; [`super::describe`]
//! fetches them.

use super::capacity::of_sglang_info;
use super::engine_report::EngineReport;
use super::event_announcement::EventAnnouncement;
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

/// Most models of a worker that are served; further models are omitted.
const MODELS_PER_WORKER_MAX: usize = 256;
/// Models of a worker that a log line names.
const MODELS_IN_WORDS_MAX: usize = 4;
/// Upper bound of rank numbers in a deployment.
const RANK_NUMBER_MAX: u32 = 1 << 16;

/// A worker as its responses and the configuration describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Engine of the worker.
    pub dialect: Dialect,
    /// Model names that the configuration or the engine lists.
    pub models: Vec<ServedModel>,
    /// Source of the names, or why they are missing.
    pub listing: Listing,
    /// The ranks, never empty; behind a shared port the position is the number that pins a request.
    pub ranks: Vec<DescribedRank>,
    /// Legs that the worker serves.
    pub role: Role,
    /// Source of its KV, for a prefill worker.
    pub source: Option<KvSource>,
    /// Properties of its server.
    pub server: ServerTraits,
    /// Values of the engine that keys of the worker replace.
    pub reported: EngineReport,
}

/// Properties of a worker's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTraits {
    /// Every rank listens on its own port: the URL's port plus the rank's position.
    pub port_per_rank: bool,
    /// The engine has freed its GPU memory, and serves nothing until it wakes.
    pub is_asleep: bool,
    /// The engine's frontend in Rust serves requests, which renders chats by its own rules.
    pub is_rust: bool,
    /// Tokens of a page of SGLang's KV, of which an event's block may have several; 0: unknown.
    pub page_tokens: u32,
}

/// Origin of a worker's model names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The engine lists them.
    Listed,
    /// The configuration lists them.
    Configured,
    /// By configuration the worker takes any name that no worker lists: `models` has `*`, or health
    /// checks are off and `models` is empty.
    Any,
    /// The engine lists no name.
    Nothing {
        /// Status of a server without the route: 404, 405 or 501. `None`: the list is empty but for
        /// `*` or empty names.
        status: Option<u16>,
        /// The worker passes its health check all the same.
        is_well: bool,
    },
}

impl Listing {
    /// True if no served model is known.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing { .. })
    }

    /// Fault of the list, in the words of a failed health check.
    #[must_use]
    pub fn fault(self) -> Option<String> {
        let Self::Nothing { status, .. } = self else { return None };
        Some(status.map_or_else(
            || "/v1/models: lists no model".to_owned(),
            |status| format!("/v1/models: status {status}"),
        ))
    }

    /// As [`Self::fault`], for a worker that fails its health check too: perhaps no engine at all.
    #[must_use]
    pub fn unwell(self) -> Option<String> {
        let is_well = matches!(self, Self::Nothing { is_well: true, .. });
        self.fault().filter(|_| !is_well)
    }

    /// Advice for the operator.
    pub const HELP: &str = concat!(
        "is this the engine's port? correct `url`, or set `models` of a worker that serves models ",
        "without a list"
    );
}

/// A model name of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name that clients send.
    pub name: Arc<str>,
    /// Its entry of `GET /v1/models`, sent to clients.
    pub card_json: Arc<str>,
    /// Path or repository of its files.
    pub root: Option<String>,
    /// The base model, for an adapter.
    pub parent: Option<String>,
}

/// A rank of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedRank {
    /// Its number within the deployment, as engines count. The first rank's number is not 0 if the
    /// deployment has several URLs.
    pub number: u32,
    /// Tokens per block; 0 while unknown.
    pub block_size_tokens: u32,
    /// Blocks that the cache holds; 0 while unknown.
    pub kv_block_count: u32,
    /// Requests that it runs at once; further requests wait inside the engine.
    pub running_max: Option<u32>,
    /// Its KV event stream.
    pub events: Option<EventAnnouncement>,
    /// The rank reuses cached prefixes; `None` if not reported.
    pub reuses_prefixes: Option<bool>,
    /// Known to hold blocks in tiers behind the device.
    pub expects_tiers: bool,
    /// Publisher of its load.
    pub load: Option<AnnouncedLoad>,
}

impl Description {
    /// The model name that roots the worker's blocks: its first base model. Other names of the same
    /// model share the engine's cache, so they share the root.
    #[must_use]
    pub fn root_model(&self) -> Arc<str> {
        let base = self.models.iter().find(|model| model.parent.is_none());
        base.map_or_else(|| ANY_MODEL.into(), |model| Arc::clone(&model.name))
    }

    /// All listed or configured names.
    #[must_use]
    pub fn model_names(&self) -> Vec<Arc<str>> {
        self.models.iter().map(|model| Arc::clone(&model.name)).collect()
    }

    /// True if the worker reports its load under this setting.
    #[must_use]
    pub fn reports_load(&self, wanted: LoadSource) -> bool {
        let publish = !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.load.is_some());
        ReportSource::of(wanted, self.dialect, publish).is_some()
    }

    /// Summary for the log: engine, models, ranks, and features that routing uses.
    #[must_use]
    pub fn in_words(&self) -> String {
        let engine = match (self.dialect, self.server.is_rust) {
            (Dialect::Vllm, false) => "vLLM",
            (Dialect::Vllm, true) => "vLLM with its Rust frontend",
            (Dialect::Sglang, false) => "SGLang",
            (Dialect::Sglang, true) => "SGLang with its Rust server",
            (Dialect::Openai, _) => "OpenAI's API",
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
            has(all(|rank| rank.events.is_some()), ", endpoint of KV events"),
            has(all(|rank| rank.reuses_prefixes == Some(true)), ", prefix caching"),
        )
    }

    /// The leg of a request that the worker serves; `None`: whole requests.
    #[must_use]
    pub const fn leg(&self) -> Option<&'static str> {
        match self.role {
            Role::Both => None,
            role => Some(role.name()),
        }
    }

    /// The model with that name, if the worker serves it.
    #[must_use]
    pub fn served(&self, name: &str) -> Option<&ServedModel> {
        self.models.iter().find(|model| &*model.name == name)
    }
}

impl ServedModel {
    /// Base model, which determines the tokenizer.
    #[must_use]
    pub fn base_name(&self) -> Arc<str> {
        self.parent.as_deref().map_or_else(|| Arc::clone(&self.name), Into::into)
    }
}

/// The response to `GET /v1/models`.
#[derive(Debug, Default)]
pub struct ModelList {
    /// The models, each with its card.
    pub models: Vec<ServedModel>,
    /// `owned_by` of the first card.
    pub owned_by: String,
    /// The status of a server without the route.
    pub missing: Option<u16>,
}

impl ModelList {
    /// The engine, if the owner of the models names it.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        let is_of = |engine| self.owned_by.starts_with(engine);
        let sglang = || is_of("sglang").then_some(Dialect::Sglang);
        is_of("vllm").then_some(Dialect::Vllm).or_else(sglang)
    }

    /// Listing state of this response.
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

/// Parses `GET /v1/models`. Invalid cards are skipped, and so are names that no request can use:
/// the empty name, and `*`, which means all names here.
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

/// Consecutively numbered ranks from `first`, otherwise alike.
#[must_use]
pub fn numbered(first: u32, count: usize, like: &DescribedRank) -> Vec<DescribedRank> {
    let numbers = (first..).take(count);
    numbers.map(|number| DescribedRank { number, ..like.clone() }).collect()
}

/// vLLM: `/metrics` reports ranks (label `engine`), block size and capacity. Without ranks, a
/// single rank. If a deployment has several URLs, each reports only its own ranks: they are
/// numbered from the smallest.
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
    // All engines of a server are configured alike; some versions report the configuration once.
    let reported =
        ranks.iter().find(|rank| rank.block_size_tokens > 0).cloned().unwrap_or_default();
    for rank in &mut ranks {
        if rank.block_size_tokens == 0 {
            *rank = DescribedRank { number: rank.number, ..reported.clone() };
        }
    }
    ranks
}

/// True if the metrics number the ranks: older versions report all ranks as a single engine.
pub(crate) fn numbers_ranks(text: &str) -> bool {
    samples(text, "vllm:num_requests_running").any(|sample| sample.label("engine").is_some())
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

/// vLLM (0.31): `/kv_event_sources` lists the stream of each rank by number.
pub(crate) fn events_of_vllm(
    body: &str,
    host: &str,
    ip: IpAddr,
) -> BTreeMap<u32, Option<EventAnnouncement>> {
    let sources: BTreeMap<String, EventSource> = serde_json::from_str(body).unwrap_or_default();
    let read = |(rank, source): (String, EventSource)| {
        let number = rank.parse::<u32>().ok().filter(|number| *number < RANK_NUMBER_MAX)?;
        let is_zmq = source.publisher.as_deref().is_none_or(|publisher| publisher == "zmq");
        let endpoint = source.endpoint.filter(|_| source.enable_kv_cache_events && is_zmq);
        let announced = endpoint.and_then(|text| ZmqEndpoint::announced(&text, host, ip).ok());
        let topic = source.topic.unwrap_or_default();
        let replay = source.replay_endpoint;
        let replay = replay.and_then(|text| ZmqEndpoint::parse(&text, host).ok());
        Some((
            number,
            announced.map(|at| EventAnnouncement { replay, topic, ..EventAnnouncement::at(at) }),
        ))
    };
    sources.into_iter().filter_map(read).take(RANKS_MAX).collect()
}

/// SGLang: `/server_info` reports ranks, page size, capacity and (0.5.13) the event streams.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SglangInfo {
    /// Ranks behind this URL's port and, with a port per rank, the following ports.
    pub(crate) ranks: Vec<DescribedRank>,
    pub(crate) server: ServerTraits,
    pub(crate) files: Option<String>,
    pub(crate) place: SglangPlace,
    /// Number of ranks in the response.
    pub(crate) rank_count: Option<usize>,
}

/// Parses `/server_info` or `/get_server_info` of a worker at `host`.
pub(crate) fn read_sglang_info(body: &str, host: &str) -> Option<SglangInfo> {
    let info: Value = serde_json::from_str(body).ok()?;
    let number = |value: &Value, key: &str| -> u32 {
        value.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    };
    let text = |key: &str| info.get(key).and_then(Value::as_str).map(str::to_owned);
    let flag = |key: &str| info.get(key).and_then(Value::as_bool);
    let page_tokens = number(&info, "page_size");
    let dp_size = number(&info, "dp_size").max(1);
    let tokens = number(&info, "max_total_num_tokens");
    let events = info.get("kv_events").filter(|events| events.is_object());
    let block = events.map(|events| number(events, "block_size")).filter(|&size| size > 0);
    let block_size_tokens = block.unwrap_or(page_tokens);
    let kv_block_count = tokens.checked_div(block_size_tokens).unwrap_or(0);
    let expects_tiers = flag("enable_hierarchical_cache").unwrap_or(false);
    let deployment = info.get("deployment_info").filter(|value| value.is_object());
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
        reuses_prefixes: flag("disable_radix_cache").map(|is_off| !is_off),
        expects_tiers,
        load: events.and_then(|events| sglang_load(events, rank, host)),
    };
    let ranks = (first..).take(usize::try_from(count).unwrap_or(usize::MAX).min(RANKS_MAX));
    let ranks: Vec<DescribedRank> = ranks.map(of_rank).collect();
    let rank_count = info.get("dp_size").map(|_| ranks.len());
    let files = text("tokenizer_path").or_else(|| text("model_path"));
    let place = sglang_place(&info, deployment.filter(|_| is_rust));
    let port_per_rank = dp_size > 1 && is_rust;
    let server = ServerTraits { port_per_rank, is_rust, page_tokens, ..ServerTraits::default() };
    Some(SglangInfo { ranks, server, files, place, rank_count })
}

/// The Rust server has a port for each rank of its machine, starting with the first rank's port,
/// and each port reports its rank (SGLang 0.5.23, `rust_server/server.py`). A URL with a later port
/// addresses that rank alone.
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
        Some("null") => Some(Role::Both),
        _ => None,
    };
    let port = |place: &Value| {
        let port = place.get("disaggregation_bootstrap_port").and_then(Value::as_u64)?;
        u16::try_from(port).ok().filter(|port| *port > 0)
    };
    let bootstrap_port = listener.and_then(port).or_else(|| port(info));
    SglangPlace { role, bootstrap_port: bootstrap_port.filter(|_| role != Some(Role::Decode)) }
}

fn sglang_events(events: &Value, rank: u32, host: &str) -> Option<EventAnnouncement> {
    if events.get("publisher")?.as_str()? != "zmq" {
        return None;
    }
    let endpoint = of_base(events, "endpoint_port_base", rank, host)?;
    let topic = events.get("topic").and_then(Value::as_str).unwrap_or("").to_owned();
    let replay = of_base(events, "replay_endpoint_port_base", rank, host);
    Some(EventAnnouncement { replay, topic, ..EventAnnouncement::at(endpoint) })
}

/// SGLang (0.5.19): the load publisher's ports are reported beside the event ports, and must not be
/// derived from them.
fn sglang_load(events: &Value, rank: u32, host: &str) -> Option<AnnouncedLoad> {
    let endpoint = of_base(events, "load_endpoint_port_base", rank, host)?;
    let topic = events.get("load_topic").and_then(Value::as_str).unwrap_or("load").to_owned();
    Some(AnnouncedLoad { endpoint, topic })
}

/// A rank's endpoint from the key of a port base.
fn of_base(events: &Value, key: &str, rank: u32, host: &str) -> Option<ZmqEndpoint> {
    let place = events.get("endpoint_host").and_then(Value::as_str).unwrap_or("*");
    let port = events.get(key)?.as_u64()?;
    ZmqEndpoint::parse(&format!("tcp://{place}:{port}"), host).ok()?.of_rank(rank).ok()
}
