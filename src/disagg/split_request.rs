//! Properties of a request that a KV transfer needs, and obstacles to a split.

use super::ids::KvTransferId;
use super::members::{Member, MemberName};
use super::rooms::{RoomRequest, RoomShape};
use forebay_base::limits::SPLIT_ITEMS_MAX;
use forebay_fleet::worker::KvTransfer;
use forebay_prompt::parse::Endpoint;
use thiserror::Error;

/// The result of [`inspect`](super::inspect()).
#[derive(Clone, Debug)]
pub struct SplitRequest {
    pub(super) endpoint: Endpoint,
    /// Members that a KV transfer may change, in the order of the body, with duplicates.
    pub(super) members: Vec<Member>,
    /// The body has more such members than the limit.
    pub(super) is_overfull: bool,
    /// Members of the top object.
    pub(super) member_count: u32,
    /// Position of the closing brace of the body.
    pub(super) closing_brace: u32,
    /// Number of prompts in a list; `None` for a single prompt outside of a list.
    pub(super) prompts: Option<u32>,
    /// The member `n`; `None` when unclear.
    pub(super) samples: Option<u32>,
    /// The client sent its own `kv_transfer_params`.
    pub(super) has_transfer: bool,
    pub(super) flags: SplitFlags,
}

/// Features that some engines do not support with KV from another worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SplitFlags {
    pub beam_search: bool,
    pub scores_prompt: bool,
    pub embeddings: bool,
    pub continues: bool,
    pub own_tools: bool,
}

/// Why a request is not split. Clients get the text if the engines cannot serve the request
/// unsplit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// The engine does not support a split at this endpoint.
    #[error("requests of this kind cannot be split into prefill and decode")]
    Endpoint,
    /// The request has more prompts or samples than the flow supports.
    #[error(
        "it asks for {items} answers at once, of which {items_max} can be handed from prefill to decode"
    )]
    Items {
        /// Number of prompts times samples.
        items: u64,
        /// Limit of the flow.
        items_max: u32,
    },
    /// `n` is above 1. SGLang's frontend puts all samples into the same room (0.5.23,
    /// `managers/tokenizer_manager.py`, `_handle_batch_request`; sgl-project/sglang#30723), where
    /// the transfers block each other until they time out.
    #[error(
        "`n` is above 1, and SGLang cannot hand several samples from prefill to decode: send `n` requests instead"
    )]
    Samples,
    /// The member `n` is no whole number.
    #[error("`n` has to be a whole number")]
    SamplesUnclear,
    /// The client sent its own `kv_transfer_params`.
    #[error("it has `kv_transfer_params` of its own")]
    OwnTransfer,
    /// The engine that computes the prompt also computes its scores.
    #[error("`echo` and `prompt_logprobs` need the prompt to be computed where the answer is")]
    ScoresPrompt,
    /// Beam search runs several requests with the same id.
    #[error("beam search cannot be handed from prefill to decode")]
    BeamSearch,
    /// The prompt is given as embeddings.
    #[error("`prompt_embeds` cannot be handed from prefill to decode")]
    Embeddings,
    /// The request continues a response that a worker stores, or runs after its answer.
    #[error(
        "responses that continue another one, or run in the background, cannot be split into prefill and decode"
    )]
    Continues,
    /// The engine may call tools itself, and then continue with a new request for the same KV
    /// transfer.
    #[error("tools that the engine calls itself cannot be used with KV from another worker")]
    OwnTools,
    /// The body has too many members to change.
    #[error("the body repeats members that have to be changed for prefill and decode too often")]
    Overfull,
}

impl SplitRequest {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            members: Vec::new(),
            is_overfull: false,
            member_count: 0,
            closing_brace: 0,
            prompts: None,
            samples: Some(1),
            has_transfer: false,
            flags: SplitFlags::default(),
        }
    }

    /// True if the request can be split with that KV transfer.
    #[must_use]
    pub fn can_split(&self, kv_transfer: &KvTransfer) -> bool {
        self.obstacle(kv_transfer).is_none()
    }

    /// The first obstacle to a split with that KV transfer.
    #[must_use]
    pub fn obstacle(&self, kv_transfer: &KvTransfer) -> Option<Obstacle> {
        if !has_legs(self.endpoint, kv_transfer) {
            return Some(Obstacle::Endpoint);
        }
        let Some(samples) = self.samples else { return Some(Obstacle::SamplesUnclear) };
        let is_sglang = matches!(kv_transfer, KvTransfer::Bootstrap(_));
        if is_sglang && samples > 1 {
            return Some(Obstacle::Samples);
        }
        let items = u64::from(self.prompts.unwrap_or(1)) * u64::from(samples);
        let items_max = if is_sglang { SPLIT_ITEMS_MAX } else { 1 };
        if items > u64::from(items_max) {
            return Some(Obstacle::Items { items, items_max });
        }
        let vllm = |flag: bool| flag && !is_sglang;
        [
            (self.is_overfull, Obstacle::Overfull),
            (self.flags.continues, Obstacle::Continues),
            (vllm(self.has_transfer), Obstacle::OwnTransfer),
            (vllm(self.flags.scores_prompt), Obstacle::ScoresPrompt),
            (vllm(self.flags.beam_search), Obstacle::BeamSearch),
            (vllm(self.flags.embeddings), Obstacle::Embeddings),
            (vllm(self.flags.own_tools), Obstacle::OwnTools),
        ]
        .into_iter()
        .find_map(|(is_met, obstacle)| is_met.then_some(obstacle))
    }

    /// The rooms that an SGLang pair needs.
    #[must_use]
    pub fn rooms(&self) -> RoomRequest {
        let samples = self.samples.unwrap_or(1).max(1);
        let prompts = self.prompts.unwrap_or(1).max(1);
        // SGLang repeats a list of rooms for further samples (0.5.23, `managers/io_struct.py`), but
        // two requests must not share a room.
        let shape =
            if samples == 1 && self.prompts.is_some() { RoomShape::List } else { RoomShape::Range };
        RoomRequest { count: prompts.saturating_mul(samples).min(SPLIT_ITEMS_MAX), shape }
    }

    /// Appends the body of SGLang's `POST /abort_request` that ends this attempt on both legs.
    /// False, without a change of `out`, where only closing the connection ends the attempt: in
    /// batches the engine generates the ids. An id of the client is never used, because ids of
    /// other clients may start with it, and the next attempt has the same id.
    pub fn push_abort(&self, body: &[u8], id: &KvTransferId, out: &mut Vec<u8>) -> bool {
        let is_ours = |key| !self.is_set(key, body);
        let is_single = self.rooms().count == 1 && self.prompts.is_none();
        if !is_single || !rid_key(self.endpoint).is_some_and(is_ours) {
            return false;
        }
        out.extend_from_slice(b"{\"rid\":\"");
        out.extend_from_slice(rid_start(self.endpoint));
        out.extend_from_slice(id.rid());
        out.extend_from_slice(b"\"}");
        true
    }

    /// The last member of that name, which counts.
    pub(super) fn last(&self, named: MemberName) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.named == named)
    }

    /// True if the client set the member, and not to null.
    pub(super) fn is_set(&self, named: MemberName, body: &[u8]) -> bool {
        self.last(named).is_some_and(|member| value_of(body, member) != b"null")
    }
}

/// Prefix of ids of `/v1/responses`, also in the answer.
const RESPONSE_START: &[u8] = b"resp_";

/// The member with SGLang's id of a request; `None` at endpoints without an id.
pub(super) fn rid_key(endpoint: Endpoint) -> Option<MemberName> {
    match endpoint {
        Endpoint::Generate | Endpoint::ChatCompletions | Endpoint::Completions => {
            Some(MemberName::Rid)
        }
        Endpoint::Responses => Some(MemberName::RequestId),
        _ => None,
    }
}

/// Prefix of the router's id in that member.
pub(super) fn rid_start(endpoint: Endpoint) -> &'static [u8] {
    if endpoint == Endpoint::Responses { RESPONSE_START } else { b"" }
}

pub(super) fn value_of<'a>(body: &'a [u8], member: &Member) -> &'a [u8] {
    let start = usize::try_from(member.value.start);
    let end = usize::try_from(member.value.end);
    let (Ok(start), Ok(end)) = (start, end) else { return &[] };
    body.get(start..end).unwrap_or_default()
}

/// True for endpoints that accept the members of a flow (vLLM 0.32 and 0.33, SGLang 0.5.23).
fn has_legs(endpoint: Endpoint, kv_transfer: &KvTransfer) -> bool {
    match (endpoint, kv_transfer) {
        (Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages, _) => true,
        (Endpoint::Generate, KvTransfer::Bootstrap(_)) => true,
        // A push finds its request by the id, but the engine generates ids of responses.
        (Endpoint::Responses, kv_transfer) => !matches!(kv_transfer, KvTransfer::Push(_)),
        _ => false,
    }
}
