//! Queries a worker for its engine, models, ranks, block size and event streams. Called by the
//! worker's task; each query is bounded, each response may be missing.

use super::capacity::{of_llama_props, of_sglang_loads, of_vllm_info};
use super::description::{
    DescribedRank, Description, Listing, ModelList, ServedModel, ServerTraits, SglangInfo,
    configured_model, events_of_vllm, numbered, numbers_ranks, ranks_of_vllm_metrics, read_models,
    read_sglang_info,
};
use super::engine_report::EngineReport;
use super::event_announcement::EventAnnouncement;
use super::kv_source::{self, SglangPlace};
use crate::http::{AskError, WorkerClient};
use forebay_base::limits::RANKS_MAX;
use forebay_config::{EngineKind, WorkerConfig, WorkerRole, WorkerUrl};
use forebay_fleet::worker::{ANY_MODEL, Dialect, Role};
use forebay_zmq::{EndpointError, ZmqEndpoint};
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;

/// Reason why a worker cannot be described.
#[derive(Debug, Error)]
pub(crate) enum DiscoveryError {
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The worker answers 401 or 403 to a query without a key.
    #[error("it refuses the question ({0})")]
    Forbidden(u16),
    /// The worker answers 401 or 403 to the configured key.
    #[error("it refuses the key of the router ({0})")]
    WrongKey(u16),
    /// The server is not a model server.
    #[error("its answer to GET /v1/models is no list of models: is this a model server?")]
    Models,
    /// SGLang did not report its disaggregation role.
    #[error(
        "GET /server_info does not have its role, prefill, decode or both (missing, refused or \
         unreadable)"
    )]
    Role,
    /// The configured engine has no description, and the models are of another engine.
    #[error("`engine` is {configured:?}, and the models of the worker are of {reported:?}")]
    Engine { configured: &'static str, reported: &'static str },
    /// The configured endpoints are invalid.
    #[error("`kv_events`: {0}")]
    Endpoint(#[from] EndpointError),
}

impl DiscoveryError {
    /// True if another address of the name may respond.
    pub(crate) const fn is_unreached(&self) -> bool {
        matches!(self, Self::Ask(error) if error.is_unreached())
    }
}

/// Inputs of a description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) config: &'a WorkerConfig,
    /// The worker's own setting, or the global setting.
    pub(crate) engine: EngineKind,
    pub(crate) url: &'a WorkerUrl,
    pub(crate) ip: IpAddr,
    /// Ports of other configured workers on the same host.
    pub(crate) taken_ports: &'a [u16],
}

/// Describes a worker from its responses.
pub(crate) async fn discover(
    asker: &WorkerClient,
    subject: Subject<'_>,
) -> Result<Description, DiscoveryError> {
    let list = ask_models(asker).await?;
    let dialect = match subject.engine {
        EngineKind::Vllm => Dialect::Vllm,
        EngineKind::Sglang => Dialect::Sglang,
        EngineKind::Openai => Dialect::Openai,
        EngineKind::Auto => detect(asker, &list).await?,
    };
    let one = || vec![DescribedRank::default()];
    let SglangInfo { ranks, server, files, place, rank_count } = match dialect {
        Dialect::Vllm => {
            let is_rust = is_vllm_rust(asker, &list).await?;
            let server = ServerTraits { is_rust, ..ServerTraits::default() };
            SglangInfo { server, ..vllm_ranks(asker, subject).await? }
        }
        Dialect::Sglang => {
            let body = sglang_info(asker).await?.unwrap_or_default();
            match read_sglang_info(&body, &subject.url.host) {
                Some(info) => info,
                // A worker with a disaggregation role serves no whole request; some fail
                // permanently on a whole request.
                None if subject.config.role == WorkerRole::Auto => {
                    return Err(match list.dialect() {
                        Some(Dialect::Vllm) => {
                            DiscoveryError::Engine { configured: "sglang", reported: "vllm" }
                        }
                        _ => DiscoveryError::Role,
                    });
                }
                None => plain(one()),
            }
        }
        Dialect::Openai => plain(one()),
    };
    let ranks = with_capacity(asker, dialect, &list.owned_by, ranks).await;
    let listing = list.listing();
    let reported = EngineReport {
        dialect: list.dialect(),
        rank_count,
        models: list.models.iter().map(|model| Arc::clone(&model.name)).collect(),
        role: place.role,
        bootstrap_port: place.bootstrap_port,
    };
    let mut models = list.models;
    if let Some(files) = files {
        for model in models.iter_mut().filter(|model| model.parent.is_none()) {
            model.root = Some(files.clone());
        }
    }
    let role = kv_source::role(subject.config, place.role);
    let source = None;
    let described = Description { dialect, models, listing, ranks, role, source, server, reported };
    let mut described = configured(described, subject)?;
    if let Listing::Nothing { is_well, .. } = &mut described.listing {
        let path = subject.config.health_path.as_deref();
        *is_well = check_health(asker, path, dialect).await.is_ok();
    }
    add_source(&mut described, subject, &place, true);
    Ok(described)
}

/// True if a vLLM engine is asleep. vLLM has the route only in development mode, and only then can
/// it sleep. The engine itself responds: a busy engine may take long, and is awake.
pub(crate) async fn is_asleep(asker: &WorkerClient) -> bool {
    let answer = asker.get("/is_sleeping").await.unwrap_or_default();
    let answer = serde_json::from_str(&answer).unwrap_or(serde_json::Value::Null);
    answer.get("is_sleeping").and_then(serde_json::Value::as_bool) == Some(true)
}

/// An SGLang worker without further information.
fn plain(ranks: Vec<DescribedRank>) -> SglangInfo {
    let server = ServerTraits::default();
    let place = SglangPlace::default();
    SglangInfo { ranks, server, files: None, place, rank_count: None }
}

/// Adds the KV source of a prefill worker from its configuration and responses.
fn add_source(described: &mut Description, subject: Subject<'_>, place: &SglangPlace, asks: bool) {
    let numbers: Vec<u32> = described.ranks.iter().map(|rank| rank.number).collect();
    let of = || {
        let Subject { config, url, .. } = subject;
        kv_source::source(config, described.dialect, url, place, &numbers, asks)
    };
    described.source = (described.role == Role::Prefill).then(of);
}

/// Queries the number of requests that each rank runs at once, if the first responses lack it. A
/// missing response leaves it unknown and is no error.
async fn with_capacity(
    asker: &WorkerClient,
    dialect: Dialect,
    owned_by: &str,
    mut ranks: Vec<DescribedRank>,
) -> Vec<DescribedRank> {
    if ranks.iter().all(|rank| rank.running_max.is_some()) {
        return ranks;
    }
    match dialect {
        Dialect::Sglang => {
            let body = asker.get("/v1/loads?include=core").await.unwrap_or_default();
            for (dp_rank, running_max) in of_sglang_loads(&body) {
                if let Some(rank) = ranks.iter_mut().find(|rank| rank.number == dp_rank) {
                    rank.running_max = rank.running_max.or(Some(running_max));
                }
            }
        }
        Dialect::Vllm => {
            let body = asker.get("/server_info?config_format=json").await.unwrap_or_default();
            let running_max = of_vllm_info(&body);
            ranks.iter_mut().for_each(|rank| rank.running_max = running_max);
        }
        Dialect::Openai if owned_by == "llamacpp" => {
            let running_max = of_llama_props(&asker.get("/props").await.unwrap_or_default());
            ranks.iter_mut().for_each(|rank| rank.running_max = running_max);
        }
        Dialect::Openai => {}
    }
    ranks
}

/// Describes a worker from its configuration alone.
pub(crate) fn assume(subject: Subject<'_>) -> Result<Description, EndpointError> {
    let dialect = match subject.engine {
        EngineKind::Vllm => Dialect::Vllm,
        EngineKind::Sglang => Dialect::Sglang,
        EngineKind::Auto | EngineKind::Openai => Dialect::Openai,
    };
    let role = kv_source::role(subject.config, None);
    let ranks = vec![DescribedRank::default()];
    let models = Vec::new();
    let described = Description {
        dialect,
        models,
        listing: Listing::Any,
        ranks,
        role,
        source: None,
        server: ServerTraits::default(),
        reported: EngineReport::default(),
    };
    let mut described = configured(described, subject)?;
    add_source(&mut described, subject, &SglangPlace::default(), false);
    Ok(described)
}

/// Overrides the description with the worker's own settings.
fn configured(
    mut described: Description,
    subject: Subject<'_>,
) -> Result<Description, EndpointError> {
    let config = subject.config;
    let listed = config.kv_events.len();
    let count = config.ranks.map(|ranks| usize::try_from(ranks).unwrap_or(1));
    let count = count.unwrap_or_else(|| described.ranks.len().max(listed)).max(1);
    let first = described.ranks.first().map_or(0, |rank| rank.number);
    let last = described.ranks.last().cloned().unwrap_or_default();
    let template = DescribedRank { events: None, load: None, ..last };
    let known = described.ranks.len().min(count);
    let further = numbered(first, count, &template).into_iter().skip(known);
    described.ranks.truncate(count);
    described.ranks.extend(further);
    if let Some(own_ports) = config.port_per_rank {
        described.server.port_per_rank = own_ports && described.ranks.len() > 1;
    }
    if described.server.port_per_rank {
        leave_to_others(&mut described.ranks, subject);
    }
    for (position, rank) in described.ranks.iter_mut().enumerate() {
        if let Some(tokens) = config.block_size_tokens {
            rank.block_size_tokens = tokens;
        }
        let of_rank = |list| of_rank(list, position, rank.number, &subject.url.host);
        let endpoint = of_rank(&config.kv_events)?;
        let replay = of_rank(&config.replay)?;
        // A key replaces its own part: the engine's announced replay stays beside a configured
        // endpoint.
        let announced = rank.events.take();
        let own_replay = announced.as_ref().and_then(|events| events.replay.clone());
        let replay = replay.or_else(|| own_replay.clone());
        let is_other =
            |own: &ZmqEndpoint| replay.as_ref().is_some_and(|replay| replay.place != own.place);
        let announced_replay = own_replay.filter(is_other);
        rank.events = match (endpoint, announced) {
            (Some(endpoint), announced) => {
                let topic = config.kv_topic.clone();
                let is_own = |events: &EventAnnouncement| events.endpoint.place == endpoint.place;
                let own_topic = announced.as_ref().filter(|events| is_own(events));
                let own_topic = own_topic.map(|events| events.topic.clone());
                Some(EventAnnouncement {
                    // A relay at another endpoint may have topics of its own.
                    announced_topic: own_topic.filter(|own| !own.starts_with(&topic)),
                    announced: announced.filter(|own| !is_own(own)).map(|events| events.endpoint),
                    endpoint,
                    replay,
                    topic,
                    announced_replay,
                })
            }
            (None, announced) => {
                announced.map(|events| EventAnnouncement { replay, announced_replay, ..events })
            }
        };
    }
    set_models(&mut described, &config.models);
    Ok(described)
}

/// Configured names replace the engine's names. `*` is not a name: the worker then takes any name
/// beside the configured names, or beside the engine's list if `*` is configured alone.
fn set_models(described: &mut Description, configured: &[String]) {
    let takes_any = configured.iter().any(|name| *name == ANY_MODEL);
    let mut names = configured.iter().filter(|name| *name != ANY_MODEL).peekable();
    if names.peek().is_some() {
        let known = std::mem::take(&mut described.models);
        let find = |name: &String| -> ServedModel {
            let found = known.iter().find(|model| *model.name == **name);
            found.cloned().unwrap_or_else(|| configured_model(name))
        };
        described.models = names.map(find).collect();
        described.listing = Listing::Configured;
    }
    if takes_any {
        described.listing = Listing::Any;
    }
}

/// Drops ranks from the first position whose port belongs to another configured worker.
fn leave_to_others(ranks: &mut Vec<DescribedRank>, subject: Subject<'_>) {
    let is_taken = |position: usize| {
        let offset = u16::try_from(position).ok();
        let port = offset.and_then(|offset| subject.url.port.checked_add(offset));
        position > 0 && port.is_none_or(|port| subject.taken_ports.contains(&port))
    };
    if let Some(end) = (0..ranks.len()).find(|position| is_taken(*position)) {
        ranks.truncate(end);
    }
}

/// A rank's endpoint in a configured list: either an entry for each rank by position, or a single
/// base to which engines add the rank's number.
fn of_rank(
    list: &[String],
    position: usize,
    number: u32,
    host: &str,
) -> Result<Option<ZmqEndpoint>, EndpointError> {
    match list {
        [] => Ok(None),
        [base] => ZmqEndpoint::parse(base, host)?.of_rank(number).map(Some),
        each => each.get(position).map(|text| ZmqEndpoint::parse(text, host)).transpose(),
    }
}

/// Checks the worker's health by the cheapest reliable route of its engine.
pub(crate) async fn check_health(
    asker: &WorkerClient,
    configured: Option<&str>,
    dialect: Dialect,
) -> Result<(), AskError> {
    if let Some(path) = configured {
        return asker.get(path).await.map(drop);
    }
    // SGLang's own /health runs a generation and takes a second or more.
    let (path, fallback) = match dialect {
        Dialect::Sglang => ("/model_info", "/get_model_info"),
        Dialect::Vllm | Dialect::Openai => ("/health", "/v1/models"),
    };
    match asker.get(path).await {
        Ok(_) => Ok(()),
        Err(error) if error.status() == Some(404) => asker.get(fallback).await.map(drop),
        Err(error) => Err(error),
    }
}

async fn ask_models(asker: &WorkerClient) -> Result<ModelList, DiscoveryError> {
    match asker.get("/v1/models").await {
        Ok(body) => read_models(&body).ok_or(DiscoveryError::Models),
        Err(error) => match error.status() {
            // A server without the route.
            Some(status @ (404 | 405 | 501)) => {
                Ok(ModelList { missing: Some(status), ..ModelList::default() })
            }
            Some(status @ (401 | 403)) if asker.has_key() => Err(DiscoveryError::WrongKey(status)),
            Some(status @ (401 | 403)) => Err(DiscoveryError::Forbidden(status)),
            _ => Err(error.into()),
        },
    }
}

async fn detect(asker: &WorkerClient, list: &ModelList) -> Result<Dialect, DiscoveryError> {
    if let Some(dialect) = list.dialect() {
        return Ok(dialect);
    }
    for path in ["/server_info", "/get_server_info", "/model_info"] {
        if optional(asker, path).await?.is_some_and(|body| body.contains("\"model_path\"")) {
            return Ok(Dialect::Sglang);
        }
    }
    let has_version =
        optional(asker, "/version").await?.is_some_and(|body| body.contains("version"));
    if has_version && optional(asker, "/metrics").await?.is_some_and(|body| body.contains("vllm:"))
    {
        return Ok(Dialect::Vllm);
    }
    Ok(Dialect::Openai)
}

/// True if vLLM's Rust frontend responds: in `owned_by` of its models, or by the frontend's version
/// in `/version`, where a proxy lists the models.
async fn is_vllm_rust(asker: &WorkerClient, list: &ModelList) -> Result<bool, DiscoveryError> {
    if list.owned_by == "vllm-frontend-rs" {
        return Ok(true);
    }
    let version = optional(asker, "/version").await?.unwrap_or_default();
    Ok(version.contains("\"rust_frontend_version\""))
}

async fn vllm_ranks(
    asker: &WorkerClient,
    subject: Subject<'_>,
) -> Result<SglangInfo, DiscoveryError> {
    let metrics = optional(asker, "/metrics").await?.unwrap_or_default();
    let mut ranks = ranks_of_vllm_metrics(&metrics);
    let sources = optional(asker, "/kv_event_sources").await?.unwrap_or_default();
    let events = events_of_vllm(&sources, &subject.url.host, subject.ip);
    let first = ranks.first().map_or(0, |rank| rank.number);
    let offset = |number: u32| usize::try_from(number.checked_sub(first)?).ok();
    let reach =
        events.keys().filter_map(|number| offset(*number)).filter(|at| *at < RANKS_MAX).max();
    let count = reach.map_or(0, |last| last + 1).max(ranks.len());
    let last = ranks.last().cloned().unwrap_or_default();
    let further = numbered(first, count, &last).into_iter().skip(ranks.len());
    ranks.extend(further);
    for rank in &mut ranks {
        rank.events = events.get(&rank.number).cloned().flatten();
    }
    let rank_count = numbers_ranks(&metrics).then_some(ranks.len());
    Ok(SglangInfo { rank_count, ..plain(ranks) })
}

async fn sglang_info(asker: &WorkerClient) -> Result<Option<String>, DiscoveryError> {
    match optional(asker, "/server_info").await? {
        Some(body) => Ok(Some(body)),
        None => optional(asker, "/get_server_info").await,
    }
}

/// Requests a route that may be missing or forbidden. A dead server is an error, and so is a server
/// that is overloaded: its earlier response stays valid.
async fn optional(asker: &WorkerClient, path: &str) -> Result<Option<String>, DiscoveryError> {
    match asker.get(path).await {
        Ok(body) => Ok(Some(body)),
        Err(error) => match error.status() {
            Some(408 | 425 | 429) => Err(error.into()),
            Some(400..=499 | 501) => Ok(None),
            _ => Err(error.into()),
        },
    }
}
