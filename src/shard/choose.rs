//! select for one request: the rank, its lease, and what the engine should find in its cache.
//! No await in here, so the shard's working memory serves all requests.

use super::connection::Slot;
use super::matching;
use super::outcome;
use super::state::{Scratch, Shard};
use crate::account::{Count, Lease, LeaseCost, Stage};
use crate::base::{ModelIndex, RankIndex};
use crate::config::Policy;
use crate::dispatch::SendPlan;
use crate::index::Overlap;
use crate::parse::{ApiRequest, Endpoint, Refusal};
use crate::select::{self, BYTES_PER_TOKEN_DEFAULT, NoModel, PickRequest, pick};
use crate::worker::{FleetSnapshot, Model};

/// Output tokens expected of a request that does not say.
const OUTPUT_TOKENS_DEFAULT: u32 = 256;
/// Output tokens counted at most: limits like 128k are ceilings, not expectations.
const OUTPUT_TOKENS_COUNTED_MAX: u32 = 2_048;
/// Weight of a new observation of bytes per token.
const BYTES_PER_TOKEN_STEP: f32 = 0.05;

/// What is asked for.
pub(super) struct Target<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) model_index: ModelIndex,
    pub(super) model: &'a Model,
    /// Ranks that failed this request.
    pub(super) tried: &'a [RankIndex],
}

/// The rank that gets the request.
pub(super) struct Chosen {
    pub(super) plan: SendPlan,
    pub(super) lease: Lease,
    /// What the rank is expected to find in its cache; `None` unless its KV events tell.
    pub(super) predicted: Option<Predicted>,
}

/// Expected cache hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicted {
    /// Blocks on the device, as the engine will count them: never the one with the prompt's last token.
    pub(super) blocks: u32,
    /// The same with those in lower tiers, which some engines count and some do not, or not in time.
    pub(super) blocks_most: u32,
    /// Tokens per block on that rank.
    pub(super) block_size_tokens: u32,
}

/// The model a request asks for. Endpoints that engines serve without a model name get the first one.
pub(super) fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    request: &ApiRequest,
) -> Result<(ModelIndex, &'a Model), Refusal> {
    select::model(fleet, endpoint, request).map_err(|none| match none {
        NoModel::NoneYet => outcome::no_worker("none has answered yet"),
        NoModel::Unknown => Refusal::unknown_model(&request.model),
        NoModel::Missing => Refusal::missing_model(),
    })
}

/// Chooses a rank and takes its lease. A rank that has no room is left out and the next best is tried.
pub(super) fn rank(shard: &Shard, slot: &Slot, target: &Target<'_>) -> Result<Chosen, Refusal> {
    let mut scratch = shard.scratch.borrow_mut();
    let scratch = &mut *scratch;
    scratch
        .candidates
        .collect(target.fleet, target.model, &shard.board, target.tried, shard.now())
        .map_err(|_| outcome::no_worker("all that serve its model are down, or failed it"))?;
    scratch.matched.clear();
    if shard.config.policy == Policy::Kv {
        matching::match_prompt(shard, slot, target, scratch);
    }
    let start = shard.now();
    let mut reported = shard.reported.borrow_mut();
    reported.receive();
    let ratio = scratch.bytes_per_token(target.model_index);
    // A prompt that was not matched weighs what its body does: mostly text, a little JSON.
    let body_bytes = slot.message.len().saturating_sub(slot.head.head_bytes);
    let prompt_bytes = match scratch.matched.prompt_bytes() {
        0 => u64::try_from(body_bytes).unwrap_or(u64::MAX),
        matched => matched,
    };
    loop {
        let request = PickRequest {
            ranks: scratch.candidates.ranks(),
            board: &shard.board,
            reports: &reported.reports,
            now: start,
            overlaps: scratch.matched.overlaps(),
            on_the_way: scratch.matched.on_the_way(),
            prompt_bytes,
            bytes_per_token: ratio,
        };
        let picked = pick(
            shard.config.policy,
            &request,
            &mut shard.turn.borrow_mut(),
            &mut shard.random.borrow_mut(),
        );
        let Some(rank) = picked else { return Err(outcome::no_room()) };
        let cost = cost(&request, rank, slot.request.max_tokens);
        let limit = shard.concurrency_max(target.fleet, rank);
        if let Some(lease) = Lease::try_take(&shard.board, rank, cost, limit, start)
            && let Some(plan) = SendPlan::new(target.fleet, rank)
        {
            let predicted = account_overlap(shard, scratch, target, rank);
            shard.time(Stage::Select, start);
            matching::remember(shard, slot, target, &scratch.matched, rank);
            return Ok(Chosen { plan, lease, predicted });
        }
        scratch.candidates.remove(rank);
    }
}

fn cost(request: &PickRequest<'_>, rank: RankIndex, max_tokens: Option<u32>) -> LeaseCost {
    let output = max_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(OUTPUT_TOKENS_COUNTED_MAX);
    LeaseCost {
        prefill_tokens: request.uncached_tokens(rank),
        decode_tokens: request.prompt_tokens().saturating_add(u64::from(output)),
    }
}

/// Counts what was found, learns bytes per token from it, and says what the engine should report.
fn account_overlap(
    shard: &Shard,
    scratch: &mut Scratch,
    target: &Target<'_>,
    rank: RankIndex,
) -> Option<Predicted> {
    let prompt_bytes = scratch.matched.prompt_bytes();
    if prompt_bytes == 0 {
        return None;
    }
    shard.counters.add(Count::PromptBytes, prompt_bytes);
    let Some(held) = scratch.matched.exact(target.fleet, rank) else {
        let guessed = scratch.matched.overlaps().get(rank).bytes;
        shard.counters.add(Count::GuessedBytes, u64::from(guessed));
        return None;
    };
    let overlap = held.device;
    shard.counters.add(Count::OverlapBytes, u64::from(overlap.bytes));
    let block_size_tokens = target.fleet.ranks.get(rank.index())?.block_size_tokens;
    if let Some(ratio) = learn_ratio(scratch, target.model_index, overlap, block_size_tokens) {
        shard.counters.set_bytes_per_token(target.model_index, ratio);
    }
    let prompt_bytes = usize::try_from(prompt_bytes).unwrap_or(usize::MAX);
    let blocks = overlap.servable_blocks(prompt_bytes);
    let blocks_most = held.disk.servable_blocks(prompt_bytes).max(blocks);
    (block_size_tokens > 0).then_some(Predicted { blocks, blocks_most, block_size_tokens })
}

/// Takes a matched prompt's ratio in; returns what is believed now.
fn learn_ratio(
    scratch: &mut Scratch,
    model: ModelIndex,
    overlap: Overlap,
    block_size_tokens: u32,
) -> Option<f32> {
    let tokens = u64::from(overlap.blocks) * u64::from(block_size_tokens);
    if tokens == 0 {
        return None;
    }
    if scratch.bytes_per_token.len() <= model.index() {
        scratch.bytes_per_token.resize(model.index() + 1, BYTES_PER_TOKEN_DEFAULT);
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio of counts far below 2^24 blocks")]
    let seen = f64::from(overlap.bytes) / (tokens as f64);
    let ratio = scratch.bytes_per_token.get_mut(model.index())?;
    #[expect(clippy::cast_possible_truncation, reason = "a ratio between 1 and 100")]
    let seen = seen as f32;
    *ratio += (seen - *ratio) * BYTES_PER_TOKEN_STEP;
    Some(*ratio)
}
