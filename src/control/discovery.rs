//! Asks a worker what it is: engine, models, ranks, block size, event streams. One task per worker calls it; every
//! question is bounded, every answer may be missing.

use super::described::{
    Announced, DescribedRank, Description, ModelList, ServedModel, configured_model,
    events_of_vllm, ranks_of_vllm_metrics, read_models, read_sglang_info,
};
use super::http::{AskError, Asker};
use super::zmq::{Endpoint, EndpointError};
use crate::config::{EngineKind, WorkerConfig, WorkerUrl};
use crate::worker::Dialect;
use std::net::IpAddr;
use thiserror::Error;

/// Why a worker cannot be described.
#[derive(Debug, Error)]
pub(super) enum DiscoveryError {
    /// No useful answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// 401 or 403.
    #[error("it refuses the question ({0}): set `api_key` of the worker")]
    Forbidden(u16),
    /// Something else than a model server listens there.
    #[error("its answer to GET /v1/models is no list of models: is this a model server?")]
    Models,
    /// The configured endpoints do not fit.
    #[error("`kv_events`: {0}")]
    Endpoint(#[from] EndpointError),
}

/// What the asking starts from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) config: &'a WorkerConfig,
    /// The worker's own setting, or the one for all.
    pub(super) engine: EngineKind,
    pub(super) url: &'a WorkerUrl,
    pub(super) ip: IpAddr,
}

/// Describes a worker by asking it.
pub(super) async fn discover(
    asker: &Asker,
    subject: Subject<'_>,
) -> Result<Description, DiscoveryError> {
    let list = ask_models(asker).await?;
    let dialect = match subject.engine {
        EngineKind::Vllm => Dialect::Vllm,
        EngineKind::Sglang => Dialect::Sglang,
        EngineKind::Openai => Dialect::Openai,
        EngineKind::Auto => detect(asker, &list).await?,
    };
    let (ranks, port_per_rank, files) = match dialect {
        Dialect::Vllm => (vllm_ranks(asker, subject).await?, false, None),
        Dialect::Sglang => match sglang_info(asker).await? {
            Some(body) => read_sglang_info(&body, &subject.url.host).map_or_else(
                || (vec![DescribedRank::default()], false, None),
                |info| (info.ranks, info.port_per_rank, info.files),
            ),
            None => (vec![DescribedRank::default()], false, None),
        },
        Dialect::Openai => (vec![DescribedRank::default()], false, None),
    };
    let mut models = list.models;
    if let Some(files) = files {
        for model in models.iter_mut().filter(|model| model.parent.is_none()) {
            model.root = Some(files.clone());
        }
    }
    let described = Description { dialect, models, ranks, port_per_rank };
    Ok(configured(described, subject)?)
}

/// Describes a worker from its configuration alone.
pub(super) fn assume(subject: Subject<'_>) -> Result<Description, EndpointError> {
    let dialect = match subject.engine {
        EngineKind::Vllm => Dialect::Vllm,
        EngineKind::Sglang => Dialect::Sglang,
        EngineKind::Auto | EngineKind::Openai => Dialect::Openai,
    };
    let ranks = vec![DescribedRank::default()];
    let described = Description { dialect, models: Vec::new(), ranks, port_per_rank: false };
    configured(described, subject)
}

/// Lays the worker's own settings over what was found.
fn configured(
    mut described: Description,
    subject: Subject<'_>,
) -> Result<Description, EndpointError> {
    let config = subject.config;
    let listed = config.kv_events.len();
    let count = config.ranks.map(|ranks| usize::try_from(ranks).unwrap_or(1));
    let count = count.unwrap_or_else(|| described.ranks.len().max(listed)).max(1);
    let last = described.ranks.last().cloned().unwrap_or_default();
    described.ranks.resize(count, DescribedRank { events: None, load: None, ..last });
    for (position, rank) in described.ranks.iter_mut().enumerate() {
        if let Some(tokens) = config.block_size_tokens {
            rank.block_size_tokens = tokens;
        }
        let dp_rank = u32::try_from(position).unwrap_or(u32::MAX);
        let endpoint = of_rank(&config.kv_events, dp_rank, &subject.url.host)?;
        let replay = of_rank(&config.replay, dp_rank, &subject.url.host)?;
        if let Some(endpoint) = endpoint {
            let topic = config.kv_topic.clone();
            rank.events = Some(Announced { endpoint, replay, topic });
        } else if let (Some(events), Some(replay)) = (&mut rank.events, replay) {
            events.replay = Some(replay);
        }
    }
    if !config.models.is_empty() {
        let known = std::mem::take(&mut described.models);
        let find = |name: &String| -> ServedModel {
            let found = known.iter().find(|model| *model.name == **name);
            found.cloned().unwrap_or_else(|| configured_model(name))
        };
        described.models = config.models.iter().map(find).collect();
    }
    Ok(described)
}

/// A rank's own endpoint of a configured list: one for each rank, or one base for all.
fn of_rank(list: &[String], dp_rank: u32, host: &str) -> Result<Option<Endpoint>, EndpointError> {
    match list {
        [] => Ok(None),
        [base] => Endpoint::parse(base, host)?.of_rank(dp_rank).map(Some),
        each => {
            let position = usize::try_from(dp_rank).unwrap_or(usize::MAX);
            each.get(position).map(|text| Endpoint::parse(text, host)).transpose()
        }
    }
}

/// Is the worker well? The cheapest honest question of each engine.
pub(super) async fn check_health(asker: &Asker, dialect: Dialect) -> Result<(), AskError> {
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

async fn ask_models(asker: &Asker) -> Result<ModelList, DiscoveryError> {
    match asker.get("/v1/models").await {
        Ok(body) => read_models(&body).ok_or(DiscoveryError::Models),
        Err(error) => match error.status() {
            // A server without the route: any model name goes.
            Some(404 | 405 | 501) => Ok(ModelList::default()),
            Some(status @ (401 | 403)) => Err(DiscoveryError::Forbidden(status)),
            _ => Err(error.into()),
        },
    }
}

async fn detect(asker: &Asker, list: &ModelList) -> Result<Dialect, DiscoveryError> {
    if list.owned_by.starts_with("vllm") {
        return Ok(Dialect::Vllm);
    }
    if list.owned_by.starts_with("sglang") {
        return Ok(Dialect::Sglang);
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

async fn vllm_ranks(
    asker: &Asker,
    subject: Subject<'_>,
) -> Result<Vec<DescribedRank>, DiscoveryError> {
    let metrics = optional(asker, "/metrics").await?.unwrap_or_default();
    let mut ranks = ranks_of_vllm_metrics(&metrics);
    let sources = optional(asker, "/kv_event_sources").await?.unwrap_or_default();
    let events = events_of_vllm(&sources, &subject.url.host, subject.ip);
    if events.len() > ranks.len() {
        let last = ranks.last().cloned().unwrap_or_default();
        ranks.resize(events.len(), last);
    }
    for (rank, events) in ranks.iter_mut().zip(events) {
        rank.events = events;
    }
    Ok(ranks)
}

async fn sglang_info(asker: &Asker) -> Result<Option<String>, DiscoveryError> {
    match optional(asker, "/server_info").await? {
        Some(body) => Ok(Some(body)),
        None => optional(asker, "/get_server_info").await,
    }
}

/// A route that may be missing; a dead server is still an error.
async fn optional(asker: &Asker, path: &str) -> Result<Option<String>, DiscoveryError> {
    match asker.get(path).await {
        Ok(body) => Ok(Some(body)),
        Err(error) if error.status().is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
