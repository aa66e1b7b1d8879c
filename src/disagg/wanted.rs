//! What a KV transfer knows of a request, and what keeps a request from being split.

use super::ids::KvTransferId;
use super::members::{Member, Named};
use super::rooms::{RoomShape, RoomsWanted};
use forebay_base::limits::SPLIT_ITEMS_MAX;
use forebay_fleet::worker::KvTransfer;
use forebay_prompt::parse::Endpoint;
use thiserror::Error;

/// The result of [`inspect`](super::inspect()).
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(super) endpoint: Endpoint,
    /// Members that a KV transfer may change, in the order of the body, repeated ones included.
    pub(super) members: Vec<Member>,
    /// There were more of them than are kept.
    pub(super) is_overfull: bool,
    /// Members of the top object.
    pub(super) member_count: u32,
    /// Where the brace stands that closes the body.
    pub(super) closing_brace: u32,
    /// Prompts of a list; `None` when there is one that stands in no list.
    pub(super) prompts: Option<u32>,
    /// `n`; `None` when it is not clear.
    pub(super) samples: Option<u32>,
    /// The client sent `kv_transfer_params` of its own.
    pub(super) has_transfer: bool,
    pub(super) flags: WantedFlags,
}

/// What some engines cannot do for KV that was computed elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WantedFlags {
    pub beam_search: bool,
    pub scores_prompt: bool,
    pub embeddings: bool,
    pub continues: bool,
    pub own_tools: bool,
}

/// Why a request is not split. The text goes to clients of engines that can serve it in no
/// other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// The engine has no way to hand this kind of request over.
    #[error("requests of this kind cannot be split into prefill and decode")]
    Endpoint,
    /// More prompts or samples than the flow can carry.
    #[error(
        "it asks for {items} answers at once, of which {items_max} can be handed from prefill to decode"
    )]
    Items {
        /// Prompts times samples.
        items: u64,
        /// What the flow can carry.
        items_max: u32,
    },
    /// More than one sample, which SGLang's frontend puts into one room (0.5.23,
    /// `managers/tokenizer_manager.py`, `_handle_batch_request`; sgl-project/sglang#30723): the
    /// transfers get into each other's way until they time out.
    #[error(
        "`n` is above 1, and SGLang cannot hand several samples from prefill to decode: send `n` requests instead"
    )]
    Samples,
    /// `n` is no whole number.
    #[error("`n` has to be a whole number")]
    SamplesUnclear,
    /// The client brought its own `kv_transfer_params`.
    #[error("it has `kv_transfer_params` of its own")]
    OwnTransfer,
    /// Scores of the prompt are computed where the prompt is.
    #[error("`echo` and `prompt_logprobs` need the prompt to be computed where the answer is")]
    ScoresPrompt,
    /// Beam search runs several requests under one name.
    #[error("beam search cannot be handed from prefill to decode")]
    BeamSearch,
    /// The prompt is given as embeddings.
    #[error("`prompt_embeds` cannot be handed from prefill to decode")]
    Embeddings,
    /// It goes on with what one worker keeps, or runs on after its answer.
    #[error(
        "responses that continue another one, or run in the background, cannot be split into prefill and decode"
    )]
    Continues,
    /// The engine may call tools and go on by itself, each time as a new request under the same
    /// KV transfer.
    #[error("tools that the engine calls itself cannot be used with KV from another worker")]
    OwnTools,
    /// Too many members that would have to be changed.
    #[error("the body repeats members that have to be changed for prefill and decode too often")]
    Overfull,
}

impl Wanted {
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
            flags: WantedFlags::default(),
        }
    }

    /// True when the request can be split in this way.
    #[must_use]
    pub fn can_split(&self, kv_transfer: &KvTransfer) -> bool {
        self.obstacle(kv_transfer).is_none()
    }

    /// What keeps the request from being split in this way, if anything does.
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
    pub fn rooms(&self) -> RoomsWanted {
        let samples = self.samples.unwrap_or(1).max(1);
        let prompts = self.prompts.unwrap_or(1).max(1);
        // Lists of rooms are repeated for further samples (0.5.23, `managers/io_struct.py`), which
        // two requests may not share.
        let shape =
            if samples == 1 && self.prompts.is_some() { RoomShape::List } else { RoomShape::Range };
        RoomsWanted { count: prompts.saturating_mul(samples).min(SPLIT_ITEMS_MAX), shape }
    }

    /// Appends the body of SGLang's `POST /abort_request` that ends this attempt on both legs;
    /// false, and nothing appended, where only closing the connection ends it. In batches the
    /// engine gives out names of its own. A name that the client chose is never used, however long:
    /// other clients' may begin with it, and the next attempt has it too.
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

    /// The member of that name that counts.
    pub(super) fn last(&self, named: Named) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.named == named)
    }

    /// True if the client set the member to something.
    pub(super) fn is_set(&self, named: Named, body: &[u8]) -> bool {
        self.last(named).is_some_and(|member| value_of(body, member) != b"null")
    }
}

/// What the names of `/v1/responses` begin with, also in the answer.
const RESPONSE_START: &[u8] = b"resp_";

/// The member that names a request to SGLang; `None` where there is none.
pub(super) fn rid_key(endpoint: Endpoint) -> Option<Named> {
    match endpoint {
        Endpoint::Generate | Endpoint::ChatCompletions | Endpoint::Completions => Some(Named::Rid),
        Endpoint::Responses => Some(Named::RequestId),
        _ => None,
    }
}

/// What stands before our own id in that member.
pub(super) fn rid_start(endpoint: Endpoint) -> &'static [u8] {
    if endpoint == Endpoint::Responses { RESPONSE_START } else { b"" }
}

pub(super) fn value_of<'a>(body: &'a [u8], member: &Member) -> &'a [u8] {
    let start = usize::try_from(member.value.start);
    let end = usize::try_from(member.value.end);
    let (Ok(start), Ok(end)) = (start, end) else { return &[] };
    body.get(start..end).unwrap_or_default()
}

/// Endpoints that take the members of a flow (vLLM 0.32 and 0.33, SGLang 0.5.23).
fn has_legs(endpoint: Endpoint, kv_transfer: &KvTransfer) -> bool {
    match (endpoint, kv_transfer) {
        (Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages, _) => true,
        (Endpoint::Generate, KvTransfer::Bootstrap(_)) => true,
        // A push finds its request by the id, and the ids of responses are the engine's own.
        (Endpoint::Responses, kv_transfer) => !matches!(kv_transfer, KvTransfer::Push(_)),
        _ => false,
    }
}
