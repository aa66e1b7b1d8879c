//! Predicted cache hit of an engine, counted once it is known which rank computes the prompt.

use super::prompt_match::ModelRequest;
use crate::exchange::buffers::Buffers;
use crate::state::env::Env;
use crate::state::links::Links;
use crate::state::routing::RoutingState;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_board::LoadBoard;
use forebay_board::account::{Count, RankCount};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::trust::{RequestShape, TrustSample, trust_group};
use forebay_fleet::worker::{Role, SessionKey, WorkerState};
use forebay_index::GuessKind;
use forebay_prompt::parse::{ApiRequest, PromptSource};
use forebay_router::request::ChosenRanks;
use forebay_select::{
    ChoiceReason, Policy, PromptSize, TierOverlaps, is_anchor, most_held, reaches,
};
use std::time::Duration;

/// Cache hit that the router predicts. Boxed: inline, the future of each connection would hold it
/// several times.
#[derive(Debug)]
pub(crate) struct PredictedHit {
    /// The choice used a guess: the prediction is neither shown nor counted as an error.
    is_guessed: bool,
    /// Comparison with the engine's report; `None` for answers that prove nothing.
    compared: Option<ComparedHit>,
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

/// Computed blocks of an answer that are an event for certain. With context parallelism, a block of
/// events has as many of the engine's blocks as it has workers.
const EVENT_BLOCKS: u64 = 16;

impl PredictedHit {
    /// Has the engine computed blocks, which it stores? The last token of each prompt is computed,
    /// also in a block that the engine has.
    fn stores_blocks(&self, prompt_tokens: u64, cached_tokens: u64) -> bool {
        let size = u64::from(self.block_size_tokens);
        let blocks = |tokens: u64| tokens.checked_div(size).unwrap_or(0);
        blocks(prompt_tokens.saturating_sub(1))
            >= blocks(cached_tokens).saturating_add(EVENT_BLOCKS)
    }
}

/// The prediction by the events, before claims shrink, for the trust in such predictions.
#[derive(Clone, Copy, Debug)]
struct ComparedHit {
    model: ModelIndex,
    shape: RequestShape,
    /// Group of the rank's worker.
    group: u8,
    blocks: u32,
    blocks_most: u32,
    /// Guessed part of the prompt, in thousandths.
    guessed_permille: u16,
    is_quiet: bool,
    is_bound: bool,
}

impl PredictedHit {
    /// Tokens, for the client. `None` if a guess decided.
    pub(crate) fn tokens(&self) -> Option<u32> {
        (!self.is_guessed).then_some(self.tokens)
    }
}

/// A choice of a rank longer ago than this after the arrival went by an old match.
const FRESH_TIME_MAX: Duration = Duration::from_secs(1);

/// The rank that computes the prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputingRank {
    pub(crate) rank: RankIndex,
    /// Nothing but the caches explains the report of the rank: the match is fresh, and the rank
    /// computes no other prompt of the router.
    pub(crate) is_quiet: bool,
}

impl ComputingRank {
    pub(crate) fn of(
        board: &LoadBoard,
        chosen: &ChosenRanks,
        arrived_at: NanosSinceStart,
        now: NanosSinceStart,
    ) -> Self {
        let rank = chosen.prefill_rank();
        let load = board.rank(rank);
        let is_alone = load.is_some_and(|load| load.prefill_tokens() <= chosen.prefill_tokens());
        Self { rank, is_quiet: is_alone && now < arrived_at.plus(FRESH_TIME_MAX) }
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
    computing: ComputingRank,
) -> Option<Box<PredictedHit>> {
    let predicted = account_overlap(env, routing, buffers, asked, computing);
    remember(env, routing, links, buffers, asked, computing.rank);
    predicted
}

fn account_overlap(
    env: &Env,
    routing: &RoutingState,
    buffers: &Buffers,
    asked: ModelRequest<'_>,
    ComputingRank { rank, is_quiet }: ComputingRank,
) -> Option<Box<PredictedHit>> {
    let mut stages = routing.stages.borrow_mut();
    stages.matching.matched.recall(&buffers.prompt);
    let prompt_bytes = stages.matching.matched.prompt_bytes();
    if prompt_bytes == 0 {
        return None;
    }
    env.counters.add(Count::PromptBytes, prompt_bytes);
    let shape = buffers.api.shape();
    let trust = asked.fleet.serving.trusts.of(&asked.model.name, shape);
    let is_reached = reaches(asked.fleet, rank, asked.endpoint);
    let matched = &stages.matching.matched;
    let known = asked.fleet.ranks.get(rank.index())?;
    let group = trust_group(known.worker);
    let exact = matched.exact(asked.fleet, rank).filter(|_| is_reached);
    let compared = |held: TierOverlaps| {
        let whole_bytes = buffers.prompt.whole_bytes();
        let blocks = held.device.servable_blocks(whole_bytes);
        let guessed = u64::from(matched.guessed_beside(rank)).saturating_mul(1_000);
        ComparedHit {
            model: asked.model_index,
            shape,
            group: u8::try_from(group).unwrap_or(u8::MAX),
            blocks,
            blocks_most: held.kv_pool.servable_blocks(whole_bytes).max(blocks),
            guessed_permille: u16::try_from(guessed / prompt_bytes).unwrap_or(u16::MAX),
            is_quiet,
            is_bound: known.tiers.is_upper_bound(),
        }
    };
    let mixes_sizes = known.tiers.finer_tokens > 0;
    let size = PromptSize::new(prompt_bytes, stages.matching.ratios.of(asked.model_index));
    let predicted = |held: TierOverlaps, is_guessed: bool| {
        let compared = compared(held);
        let part = |count| trust.share(group, count);
        let blocks = part(compared.blocks);
        let tokens = match mixes_sizes {
            true => part(size.cached_tokens(held.device, compared.blocks, known)),
            false => size.cached_tokens(held.device, blocks, known),
        };
        (known.block_size_tokens > 0).then(|| {
            Box::new(PredictedHit {
                is_guessed,
                blocks,
                blocks_most: part(compared.blocks_most),
                tokens,
                block_size_tokens: if mixes_sizes { 0 } else { known.block_size_tokens },
                compared: (proves(&buffers.api) && !mixes_sizes).then_some(compared),
            })
        })
    };
    let Some(held) = exact else {
        let guessed = matched.overlaps().get(rank).bytes;
        env.counters.add(Count::GuessedBytes, u64::from(guessed));
        let is_beside =
            trust.counts_guess(group) && matched.kind(asked.fleet, rank) == GuessKind::Speculative;
        return match is_beside && is_reached {
            true => predicted(matched.by_events(rank, known.tiers), true),
            false => None,
        };
    };
    let hit = predicted(held, false);
    let overlap = held.device;
    env.counters.choices().add(rank, RankCount::OverlapBytes, u64::from(overlap.bytes));
    // Images have no bytes of text.
    let learnt = match buffers.prompt.has_images() || mixes_sizes {
        true => None,
        false => {
            let block_size_tokens = known.block_size_tokens;
            stages.matching.ratios.learn(asked.model_index, overlap, block_size_tokens)
        }
    };
    if let Some(ratio) = learnt {
        env.counters.set_bytes_per_token(asked.model_index, ratio);
    }
    hit
}

/// Does the report of the engine show what it found of this prompt alone? Samples of a prompt share
/// its blocks, and a response that continues another has a prompt that the body does not show.
/// Token ids are not rendered, and a text has several lists of ids.
fn proves(request: &ApiRequest) -> bool {
    let is_batch = matches!(request.prompt, PromptSource::Batch(_));
    let is_rendered = request.shape() != RequestShape::TokenIds;
    request.answer_count <= 1 && request.previous_response.is_none() && !is_batch && is_rendered
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
    predicted: Option<&PredictedHit>,
) {
    let choices = env.counters.choices();
    // An engine that has never reported a cached token may not count them.
    let counts_cached = cached > Some(0) || choices.value(rank, RankCount::CachedTokens) > 0;
    if let Some(used) = reported {
        choices.add(rank, RankCount::CachedTokens, used.cached);
        choices.add(rank, RankCount::ComputedTokens, used.prompt.saturating_sub(used.cached));
    }
    // An engine may leave out a count of 0.
    if let Some((used, predicted)) = reported.zip(predicted)
        && (cached.is_some() || counts_cached)
        && predicted.stores_blocks(used.prompt, cached.unwrap_or(0))
    {
        choices.add(rank, RankCount::StoringAnswers, 1);
    }
    let Some((predicted, cached)) = predicted.zip(cached) else { return };
    if !predicted.is_guessed {
        account_error(env, predicted, cached);
    }
    if let Some(compared) = predicted.compared.filter(|_| counts_cached) {
        let prompt_tokens = reported.map_or(0, |used| used.prompt);
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(predicted.block_size_tokens);
        let sample = TrustSample {
            predicted_tokens: tokens(compared.blocks),
            predicted_tokens_max: tokens(compared.blocks_most),
            guessed_tokens: prompt_tokens.saturating_mul(compared.guessed_permille.into()) / 1_000,
            found_tokens: cached,
            block_size_tokens: predicted.block_size_tokens.into(),
            is_quiet: compared.is_quiet,
            is_bound: compared.is_bound,
        };
        let ComparedHit { model, shape, group, .. } = compared;
        choices.compared(model, shape, group.into(), &sample.tally());
    }
}

fn account_error(env: &Env, predicted: &PredictedHit, reported_tokens: u64) {
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
        let prompt = &buffers.prompt;
        let beside = matched.to_remember_beside(&ask, prompt, rank, reported_paths, now);
        [matched.to_remember(&ask, prompt, rank, reported_paths, now), beside]
    };
    for (owner, prompt) in remembered.into_iter().flatten() {
        links.post_routed(env, owner, prompt);
    }
}
