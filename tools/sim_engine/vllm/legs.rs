//! The legs of a vLLM request, from its `kv_transfer_params`. A prefill holds its KV until a decode
//! takes it or its lease expires; a decode waits for KV before it goes to a rank.

use super::error::ApiError;
use super::fields::Fields;
use crate::batching::ranks::AbortOnDrop;
use crate::config::EngineRole;
use crate::random_id::random_u64;
use crate::state::EngineState;
use crate::transfer::{
    HandedKv, KvConnector, Patience, TransferOffer, TransferPeer, TransferRequest, prompt_digest,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// `kv_transfer_params` of a request, as far as they matter here. A field of another type makes the
/// request invalid.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TransferParams {
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    do_remote_decode: bool,
    do_remote_prefill: bool,
    transfer_id: Option<String>,
    #[serde(flatten)]
    remote: RemoteParams,
}

/// The prefill engine that computed the prompt, and its id of the request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RemoteParams {
    #[serde(rename = "remote_request_id")]
    request_id: Option<String>,
    #[serde(rename = "remote_engine_id")]
    engine_id: Option<String>,
    #[serde(rename = "remote_host")]
    host: Option<String>,
    #[serde(rename = "remote_port")]
    port: Option<u16>,
    #[serde(rename = "remote_bootstrap_addr")]
    bootstrap_addr: Option<String>,
}

/// Leg of a request on this engine.
#[derive(Debug)]
pub(super) enum EngineLeg {
    Whole,
    /// Computes the prompt for a decode on another engine.
    Give(Box<OfferState>),
    /// Decodes with KV from another engine.
    Take(TransferRequest),
}

/// State of a prefill that offers its KV.
#[derive(Debug)]
pub(super) struct OfferState {
    state: EngineState,
    /// Created when the request arrives, if the decode may come before the end of the prefill.
    offer: Option<TransferOffer>,
    request_id: String,
    hold: Duration,
    tells: bool,
}

/// Result of a finished prefill.
#[derive(Debug)]
pub(super) struct FinishedPrefill<'a> {
    pub(super) guard: AbortOnDrop,
    pub(super) prompt: &'a [u32],
    pub(super) salt: &'a str,
    pub(super) token_id: u32,
    pub(super) cached_tokens: usize,
    pub(super) dp_rank: usize,
}

impl TransferParams {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        Ok(fields.get("kv_transfer_params")?.unwrap_or_default())
    }

    /// The leg for this engine. `full_id` is the id of the request in its answer. Engines without a
    /// role ignore the parameters, as vLLM does without a connector.
    pub(super) async fn half(
        self,
        state: &EngineState,
        full_id: &str,
    ) -> Result<EngineLeg, ApiError> {
        if state.config.role == EngineRole::Both {
            return Ok(EngineLeg::Whole);
        }
        if self.do_remote_prefill {
            return self.taking(state, full_id);
        }
        if self.do_remote_decode {
            return self.giving(state, full_id).await;
        }
        Ok(EngineLeg::Whole)
    }

    async fn giving(self, state: &EngineState, full_id: &str) -> Result<EngineLeg, ApiError> {
        let settings = &state.config.transfer.vllm;
        let (key, hold, tells) = match (self.transfer_id, settings.connector) {
            (Some(id), _) => (Some(id), settings.push_timeout, false),
            (None, KvConnector::NixlPush) => {
                (Some(full_id.to_owned()), settings.push_timeout, true)
            }
            (None, KvConnector::Nixl | KvConnector::Mooncake) => (None, settings.kv_lease, true),
        };
        let (request_id, offer) = match key {
            Some(key) => {
                let offer = state.transfer.offers.offer(key.clone()).await;
                (key, Some(offer.ok_or_else(ApiError::internal)?))
            }
            None => (format!("{full_id}-0-{:08x}", random_u64() >> 32), None),
        };
        let state = state.clone();
        Ok(EngineLeg::Give(Box::new(OfferState { state, offer, request_id, hold, tells })))
    }

    fn taking(self, state: &EngineState, full_id: &str) -> Result<EngineLeg, ApiError> {
        let settings = &state.config.transfer.vllm;
        let lost = settings.kv_load_timeout;
        let together = Patience { total: settings.push_timeout, unreached: lost, lost };
        let peer = |host: Option<String>, port: Option<u16>| {
            host.zip(port).map(|(host, port)| TransferPeer { host, port })
        };
        let wanted = match (self.transfer_id, settings.connector) {
            (Some(key), _) => {
                let address = self.remote.bootstrap_addr.as_deref().and_then(peer_of);
                address.map(|peer| (peer, key, together))
            }
            (None, KvConnector::NixlPush) => peer(self.remote.host, self.remote.port)
                .map(|peer| (peer, full_id.to_owned(), together)),
            (None, KvConnector::Nixl | KvConnector::Mooncake) => {
                let once = Patience { total: lost, ..together };
                let peer = peer(self.remote.host, self.remote.port);
                peer.zip(self.remote.request_id).map(|(peer, key)| (peer, key, once))
            }
        };
        // Only some of the fields: a fault of the sender, at which vLLM fails with status 500.
        let (peer, key, patience) = wanted.ok_or_else(ApiError::internal)?;
        let engine_id = self.remote.engine_id;
        Ok(EngineLeg::Take(TransferRequest { peer, key, engine_id, patience }))
    }
}

impl OfferState {
    /// Id that the legs share.
    pub(super) fn meeting(&self) -> &str {
        &self.request_id
    }

    /// Holds the KV for its decode from now on; returns its parameters for the answer.
    pub(super) async fn hold(self, done: FinishedPrefill<'_>) -> Value {
        let Self { state, offer, request_id, hold, tells } = self;
        let FinishedPrefill { guard, prompt, salt, token_id, cached_tokens, dp_rank } = done;
        let offer = match offer {
            Some(offer) => Some(offer),
            None => state.transfer.offers.offer(request_id.clone()).await,
        };
        let params = if tells {
            params(&state, &request_id, prompt.len(), cached_tokens, dp_rank)
        } else {
            Value::Null
        };
        let prompt_tokens = prompt.len();
        let prompt_digest = prompt_digest(prompt, salt);
        let kv = HandedKv { token_id, cached_tokens, prompt_tokens, prompt_digest, dp_rank };
        if let Some(mut offer) = offer {
            tokio::spawn(async move {
                offer.ready(kv);
                if tokio::time::timeout(hold, offer.taken()).await.is_err() {
                    offer.withdraw("its lease is over");
                    state.requests.tally.expired();
                }
                drop(guard);
            });
        }
        params
    }
}

/// Waits for the KV; `false` without KV of this prompt.
pub(super) async fn taken(
    state: &EngineState,
    wanted: &TransferRequest,
    prompt: &[u32],
    salt: &str,
) -> bool {
    let waiting = state
        .transfer
        .offers
        .offer(format!("{}:{}/{}", wanted.peer.host, wanted.peer.port, wanted.key));
    let Some(_waiting) = waiting.await else { return false };
    let kv = state.transfer.seeker.take(wanted).await;
    let fits = |kv: HandedKv| {
        (kv.prompt_tokens, kv.prompt_digest) == (prompt.len(), prompt_digest(prompt, salt))
    };
    kv.is_ok_and(fits)
}

/// Parameters for a decode that pulls.
fn params(
    state: &EngineState,
    request_id: &str,
    prompt_tokens: usize,
    cached_tokens: usize,
    dp_rank: usize,
) -> Value {
    let config = &state.config;
    let blocks = prompt_tokens.div_ceil(config.block_size as usize);
    let first = usize::try_from(random_u64() % BLOCK_IDS).unwrap_or_default() + 1;
    let block_ids: Vec<_> = (first..first + blocks).collect();
    let dp_rank = u32::try_from(dp_rank).unwrap_or(u32::MAX);
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [block_ids],
        "remote_engine_id": config.transfer.vllm.engine_id_of(dp_rank, config.ranks),
        "remote_request_id": request_id, "remote_host": config.listen.ip().to_string(),
        "remote_port": state.place.registry_port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
        "remote_num_tokens": prompt_tokens, "remote_blocks_expiry_time": null, "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    })
}

/// Bound of the first made-up block id; only the number of ids matters.
const BLOCK_IDS: u64 = 1_000_000;

/// Parses `http://host:port`, with or without the scheme.
fn peer_of(address: &str) -> Option<TransferPeer> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some(TransferPeer { host, port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_scheme() {
        let peer = |host: &str, port| Some(TransferPeer { host: host.into(), port });
        assert_eq!(peer_of("http://10.0.0.9:8998"), peer("10.0.0.9", 8_998));
        assert_eq!(peer_of("[::1]:1/"), peer("::1", 1));
        assert_eq!(peer_of("http://host"), None);
        assert_eq!(peer_of("host:70000"), None);
    }
}
