//! Predicted cache hit of an engine, counted once it is known which rank computes the prompt.

use super::prompt_match::ModelRequest;
use crate::exchange::buffers::Buffers;
use crate::state::env::Env;
use crate::state::links::Links;
use crate::state::routing::RoutingState;
use forebay_base::RankIndex;
use forebay_fleet::account::{Count, RankCount};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{Role, SessionKey, WorkerState};
use forebay_select::{ChoiceReason, Policy, PromptSize, is_anchor, most_held, reaches};

/// Cache hit that the router predicts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictedHit {
    /// Blocks on the device, counted as the engine counts them: never the block with the prompt's
    /// last token.
    pub(crate) blocks: u32,
    /// Blocks including lower tiers. Some engines count these as cached; others do not, or load
    /// them too late.
    pub(crate) blocks_most: u32,
    /// Tokens in `blocks`; estimated from their bytes where the rank mixes block sizes.
    tokens: u32,
    /// Tokens per block on that rank; 0 where the rank mixes block sizes.
    block_size_tokens: u32,
}

impl PredictedHit {
    pub(crate) const fn tokens(self) -> u32 {
        self.tokens
    }
}

/// Bytes of the prompt that a rank holds. Uses the current match, as [`account_choice`] does.
pub(crate) fn held_bytes(routing: &RoutingState, rank: RankIndex) -> u32 {
    routing.stages.borrow().matching.matched.overlaps().get(rank).bytes
}

/// Counts the overlap, learns bytes per token from it and stores the route of the prompt. Returns
/// the cache hit that the engine should report.
pub(crate) fn account(
    env: &Env,
    routing: &RoutingState,
    links: &Links,
    buffers: &Buffers,
    asked: ModelRequest<'_>,
    rank: RankIndex,
) -> Option<PredictedHit> {
    let predicted = account_overlap(env, routing, buffers, asked, rank);
    remember(env, routing, links, buffers, asked, rank);
    predicted
}

fn account_overlap(
    env: &Env,
    routing: &RoutingState,
    buffers: &Buffers,
    asked: ModelRequest<'_>,
    rank: RankIndex,
) -> Option<PredictedHit> {
    let mut stages = routing.stages.borrow_mut();
    stages.matching.matched.recall(&buffers.prompt);
    let prompt_bytes = stages.matching.matched.prompt_bytes();
    if prompt_bytes == 0 {
        return None;
    }
    env.counters.add(Count::PromptBytes, prompt_bytes);
    let exact = stages.matching.matched.exact(asked.fleet, rank);
    let exact = exact.filter(|_| reaches(asked.fleet, rank, asked.endpoint));
    let Some(held) = exact else {
        let guessed = stages.matching.matched.overlaps().get(rank).bytes;
        env.counters.add(Count::GuessedBytes, u64::from(guessed));
        return None;
    };
    let overlap = held.device;
    env.counters.choices().add(rank, RankCount::OverlapBytes, u64::from(overlap.bytes));
    let of_rank = asked.fleet.ranks.get(rank.index())?;
    let block_size_tokens = of_rank.block_size_tokens;
    let mixes_sizes = of_rank.tiers.finer_tokens > 0;
    // Images have no bytes of text.
    let learnt = match buffers.prompt.has_images() || mixes_sizes {
        true => None,
        false => stages.matching.ratios.learn(asked.model_index, overlap, block_size_tokens),
    };
    if let Some(ratio) = learnt {
        env.counters.set_bytes_per_token(asked.model_index, ratio);
    }
    let whole_bytes = buffers.prompt.whole_bytes();
    let blocks = overlap.servable_blocks(whole_bytes);
    let blocks_most = held.kv_pool.servable_blocks(whole_bytes).max(blocks);
    let prompt = PromptSize::new(prompt_bytes, stages.matching.ratios.of(asked.model_index));
    let tokens = prompt.cached_tokens(overlap, blocks, of_rank);
    let comparable = if mixes_sizes { 0 } else { block_size_tokens };
    let hit = PredictedHit { blocks, blocks_most, tokens, block_size_tokens: comparable };
    (block_size_tokens > 0).then_some(hit)
}

/// Counts the reason of the choice, and the best overlap of the other ranks. Call after
/// [`account`]: uses the current match.
pub(crate) fn account_choice(
    env: &Env,
    routing: &RoutingState,
    asked: ModelRequest<'_>,
    session: Option<SessionKey>,
    rank: RankIndex,
) -> ChoiceReason {
    let stages = routing.stages.borrow();
    let overlaps = stages.matching.matched.overlaps();
    let computes = |index| {
        let known = asked.fleet.rank(index);
        known.is_some_and(|(rank, worker)| {
            rank.role != Role::Decode && worker.state == WorkerState::Up
        })
    };
    let held = overlaps.get(rank).bytes;
    let most = most_held(overlaps, computes);
    let is_only = asked.model.ranks.len() == 1;
    let policy = stages.rules.policy;
    let session = session.filter(|_| policy == Policy::Session);
    let counting = asked.model.ranks.iter().copied().filter(|&rank| computes(rank));
    let is_anchored = is_anchor(session, asked.fleet, rank, counting);
    let because = ChoiceReason::of(policy, held, most, is_only, is_anchored);
    env.counters.choices().decided(because as usize);
    env.counters.add(Count::OverlapUnusedBytes, u64::from(most.saturating_sub(held)));
    because
}

/// Counts the cache hit that the engine reports.
pub(crate) fn account_answer(
    env: &Env,
    rank: RankIndex,
    reported: Option<TokenUsage>,
    cached: Option<u64>,
    predicted: Option<PredictedHit>,
) {
    if let Some(used) = reported {
        let choices = env.counters.choices();
        choices.add(rank, RankCount::CachedTokens, used.cached);
        choices.add(rank, RankCount::ComputedTokens, used.prompt.saturating_sub(used.cached));
    }
    if let (Some(predicted), Some(cached)) = (predicted, cached) {
        account_error(env, predicted, cached);
    }
}

fn account_error(env: &Env, predicted: PredictedHit, reported_tokens: u64) {
    // Blocks of several sizes cannot be compared with a number of tokens.
    let Some(reported) = reported_tokens.checked_div(u64::from(predicted.block_size_tokens)) else {
        return;
    };
    // The blocks in between are in a lower tier. Whether these count as cached depends on engine
    // and connector.
    let within = u64::from(predicted.blocks)..=u64::from(predicted.blocks_most);
    let expected = reported.clamp(*within.start(), *within.end());
    env.counters.add(Count::OverlapPredictedBlocks, expected);
    env.counters.add(Count::OverlapReportedBlocks, reported);
    let signed = |blocks| i64::try_from(blocks).unwrap_or(i64::MAX);
    env.counters.overlap_error(signed(expected).saturating_sub(signed(reported)));
}

/// Sends the route of the prompt to the owner of its path, if later requests can profit.
fn remember(
    env: &Env,
    routing: &RoutingState,
    links: &Links,
    buffers: &Buffers,
    asked: ModelRequest<'_>,
    rank: RankIndex,
) {
    let ask = asked.request(&routing.index, &buffers.api, buffers.body());
    let now = || env.now();
    let remembered = {
        let matched = &routing.stages.borrow().matching.matched;
        let reported_paths = &mut routing.reported_paths.borrow_mut();
        matched.to_remember(&ask, &buffers.prompt, rank, reported_paths, now)
    };
    if let Some((owner, prompt)) = remembered {
        links.post_routed(env, owner, prompt);
    }
}
