//! What a request looks for, and what it has found.

use super::journey::Journey;
use super::slot::Slot;
use super::state::Shard;
use crate::account::Lease;
use crate::base::{ModelIndex, NanosSinceStart, PoolIndex};
use crate::dispatch::SendPlan;
use crate::parse::Endpoint;
use crate::select::{Matched, PickRequest};
use crate::worker::{FleetSnapshot, Handoff, Leg, LoadReports, Model};

/// What is asked for.
pub(super) struct Target<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) model_index: ModelIndex,
    pub(super) model: &'a Model,
    pub(super) endpoint: Endpoint,
    pub(super) journey: &'a Journey,
}

impl Target<'_> {
    /// The pool of the ranks that such a leg goes to.
    pub(super) fn pool(&self, leg: Leg) -> PoolIndex {
        let prefill = if leg == Leg::Prefill { self.model.prefill_pool } else { None };
        prefill.unwrap_or(self.model.pool)
    }
}

/// The rank that gets the request.
pub(super) struct Chosen {
    pub(super) plan: SendPlan,
    pub(super) lease: Lease,
    /// What the rank is expected to find in its cache; `None` unless its KV events tell.
    pub(super) predicted: Option<Predicted>,
    /// Who computes its prompt, when that is another rank.
    pub(super) prefill: Option<Prefilling>,
}

/// The prefill half of a pair.
pub(super) struct Prefilling {
    pub(super) plan: SendPlan,
    pub(super) lease: Lease,
    pub(super) handoff: Handoff,
    /// What the prefill rank is expected to find in its cache.
    pub(super) predicted: Option<Predicted>,
}

/// Expected cache hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicted {
    /// Blocks on the device, as the engine will count them: never the one with the prompt's last
    /// token.
    pub(super) blocks: u32,
    /// The same with those in lower tiers, which some engines count and some do not, or not in
    /// time.
    pub(super) blocks_most: u32,
    /// Tokens per block on that rank.
    pub(super) block_size_tokens: u32,
}

/// The prompt, and what ranks hold of it.
pub(super) fn pick_request<'a>(
    shard: &'a Shard,
    slot: &Slot,
    matched: &'a Matched,
    reports: &'a LoadReports,
    (now, bytes_per_token): (NanosSinceStart, f32),
) -> PickRequest<'a> {
    PickRequest {
        leg: Leg::Whole,
        ranks: &[],
        board: &shard.board,
        reports,
        now,
        overlaps: matched.overlaps(),
        on_the_way: matched.on_the_way(),
        // A prompt that was not matched weighs what its body does: mostly text, a little JSON; not
        // the bytes of images.
        prompt_bytes: match matched.prompt_bytes() {
            0 => slot.request.text_bytes(body_bytes(slot)),
            matched => matched,
        },
        bytes_per_token,
    }
}

pub(super) fn body_bytes(slot: &Slot) -> u64 {
    u64::try_from(slot.message.len().saturating_sub(slot.head.head_bytes)).unwrap_or(u64::MAX)
}
