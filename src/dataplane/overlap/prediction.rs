//! What an engine should find in its cache, counted when it is known which rank computes a prompt.

use super::prompt_match::ModelRequest;
use crate::exchange::buffers::Buffers;
use crate::state::env::Env;
use crate::state::links::Links;
use crate::state::routing::RoutingState;
use forebay_base::RankIndex;
use forebay_fleet::account::{Count, RankCount};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{Role, SessionKey, WorkerState};
use forebay_select::{ChoiceReason, Policy, is_anchor, most_held, reaches};

/// Expected cache hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictedHit {
    /// Blocks on the device, as the engine will count them: never the one with the prompt's last
    /// token.
    pub(crate) blocks: u32,
    /// The same with those in lower tiers, which some engines count and some do not, or not in
    /// time.
    pub(crate) blocks_most: u32,
    /// Tokens per block on that rank.
    pub(crate) block_size_tokens: u32,
}

impl PredictedHit {
    /// The same in tokens.
    pub(crate) const fn tokens(self) -> u32 {
        self.blocks.saturating_mul(self.block_size_tokens)
    }
}

/// Bytes of the prompt that a rank holds. Looks at the match that is at hand, as
/// [`account_choice`].
pub(crate) fn held_bytes(routing: &RoutingState, rank: RankIndex) -> u32 {
    routing.stages.borrow().matching.matched.overlaps().get(rank).bytes
}

/// Counts what was found, learns bytes per token from it, remembers where the prompt goes, and says
/// what the engine should report.
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
    let told = stages.matching.matched.exact(asked.fleet, rank);
    let told = told.filter(|_| reaches(asked.fleet, rank, asked.endpoint));
    let Some(held) = told else {
        let guessed = stages.matching.matched.overlaps().get(rank).bytes;
        env.counters.add(Count::GuessedBytes, u64::from(guessed));
        return None;
    };
    let overlap = held.device;
    env.counters.choices().add(rank, RankCount::OverlapBytes, u64::from(overlap.bytes));
    let block_size_tokens = asked.fleet.ranks.get(rank.index())?.block_size_tokens;
    // Images have no bytes of text.
    let learnt = match buffers.prompt.has_images() {
        true => None,
        false => stages.matching.ratios.learn(asked.model_index, overlap, block_size_tokens),
    };
    if let Some(ratio) = learnt {
        env.counters.set_bytes_per_token(asked.model_index, ratio);
    }
    let whole_bytes = buffers.prompt.whole_bytes();
    let blocks = overlap.servable_blocks(whole_bytes);
    let blocks_most = held.kv_pool.servable_blocks(whole_bytes).max(blocks);
    (block_size_tokens > 0).then_some(PredictedHit { blocks, blocks_most, block_size_tokens })
}

/// Counts why it was chosen, and what another one had. After [`account`]: looks at the match that
/// is at hand.
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
    let is_kept = is_anchor(session, asked.fleet, rank, counting);
    let because = ChoiceReason::of(policy, held, most, is_only, is_kept);
    env.counters.choices().decided(because as usize);
    env.counters.add(Count::OverlapUnusedBytes, u64::from(most.saturating_sub(held)));
    because
}

/// What the engine says that it found in its cache.
pub(crate) fn account_answer(
    env: &Env,
    rank: RankIndex,
    told: Option<TokenUsage>,
    cached: Option<u64>,
    predicted: Option<PredictedHit>,
) {
    if let Some(used) = told {
        let choices = env.counters.choices();
        choices.add(rank, RankCount::CachedTokens, used.cached);
        choices.add(rank, RankCount::ComputedTokens, used.prompt.saturating_sub(used.cached));
    }
    if let (Some(predicted), Some(reported)) = (predicted, cached) {
        account_error(env, predicted, reported);
    }
}

fn account_error(env: &Env, predicted: PredictedHit, reported_tokens: u64) {
    let reported = reported_tokens / u64::from(predicted.block_size_tokens.max(1));
    // What lies between is in a lower tier: whether it counts as cached differs between engines and
    // connectors.
    let within = u64::from(predicted.blocks)..=u64::from(predicted.blocks_most);
    let expected = reported.clamp(*within.start(), *within.end());
    env.counters.add(Count::OverlapPredictedBlocks, expected);
    env.counters.add(Count::OverlapReportedBlocks, reported);
    let signed = |blocks| i64::try_from(blocks).unwrap_or(i64::MAX);
    env.counters.overlap_error(signed(expected).saturating_sub(signed(reported)));
}

/// Tells the owner of the prompt's path where it went, if that helps the next one.
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
        let told = &mut routing.reported_paths.borrow_mut();
        matched.to_remember(&ask, &buffers.prompt, rank, told, now)
    };
    if let Some((owner, prompt)) = remembered {
        links.post_routed(env, owner, prompt);
    }
}
