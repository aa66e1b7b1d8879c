//! Rules of other routers and of papers, written from their descriptions. They read the index and
//! the load board at once, in place of events and own counts, which flatters rules that poll load
//! figures in intervals.
//!
//! | rule | from | chooses |
//! |---|---|---|
//! | `longest_prefix` | | the rank that holds most of the prompt |
//! | `session_fixed` | | a rank by the hash of the session |
//! | `session_bounded` | | the same, until the rank has 1.25 times the mean requests |
//! | `lmetric` | arXiv 2603.15202, vllm-router `kv_aware` | least (prefill tokens) × (requests) |
//! | `dynamo` | NVIDIA Dynamo, router guide | least (prefill blocks + decode blocks) |
//! | `dynamo_agentic` | its preset for agents | the same with the weights 2, 4 and 64 |
//! | `sglang_cache_aware` | sglang-router, vllm-router | the last with it, or least requests |
//! | `vllm_kv_aware` | vLLM production stack | the longest match; else in turn |
//! | `llm_d` | llm-d, default since 2026-08-17 | a holder until it is saturated |
//! | `llm_d_legacy` | llm-d, default before | 3 × prefix + 2 × empty queue |
//!
//! `sglang_cache_aware` follows a prefix from 0.3 of the prompt on. Beyond an imbalance of 64
//! requests and 1.5 times it goes by least requests alone. `vllm_kv_aware` follows a match that
//! leaves at most 2,000 tokens. `dynamo_agentic` credits a held token twice, counts prefill four
//! times, and adds 64 blocks of 16 tokens for each request of the rank.
//!
//! `llm_d` is "sticky until saturated". The warm ranks hold at least 0.8 of the prompt. A request
//! goes to a warm rank, unless the least loaded warm rank has over 286,720 uncached tokens more in
//! flight than the least loaded cold rank. The figure is llm-d's default: about 18 s of a peak
//! prefill rate of 15,928 tokens/s. Of the ranks that are left, the choice is the least sum of
//! uncached tokens in flight and own uncached tokens.

use crate::production_router::{ProductionRouter, TraceArrival};
use ahash::AHashMap;
use forebay_base::RankIndex;
use forebay_board::RankLoad;
use forebay_config::{Policy, Word as _};
use std::str::FromStr;

/// How a rank is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A policy of this router.
    Own(Policy),
    /// A rule of another router or of a paper.
    Rival(Rival),
}

/// A rule that is not this router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Most of the prompt, whatever the load.
    LongestPrefix,
    /// The same rank for all requests of a session.
    Session,
    /// The same rank for a session, unless its load is above the mean.
    SessionBounded,
    /// New prefill tokens times the size of the batch.
    LMetric,
    /// Prefill blocks plus decode blocks.
    Dynamo,
    /// The same with the weights of its preset for agents.
    DynamoAgentic,
    /// The history of prefixes, unless the loads differ.
    SglangCacheAware,
    /// The longest match, unless it leaves too much.
    VllmKvAware,
    /// The ranks that hold most of the prompt until they are saturated, then all ranks.
    LlmD,
    /// A weighted sum of scores.
    LlmDLegacy,
}

/// Share of a prompt that a warm rank of `llm_d` holds at least.
const WARM_SHARE: f64 = 0.8;
/// Uncached tokens in flight that a warm rank of `llm_d` may have more than a cold rank.
const SATURATION_TOKENS: u64 = 286_720;

const RIVALS: [(&str, Rival); 10] = [
    ("longest_prefix", Rival::LongestPrefix),
    ("session_fixed", Rival::Session),
    ("session_bounded", Rival::SessionBounded),
    ("lmetric", Rival::LMetric),
    ("dynamo", Rival::Dynamo),
    ("dynamo_agentic", Rival::DynamoAgentic),
    ("sglang_cache_aware", Rival::SglangCacheAware),
    ("vllm_kv_aware", Rival::VllmKvAware),
    ("llm_d", Rival::LlmD),
    ("llm_d_legacy", Rival::LlmDLegacy),
];

impl Rule {
    /// All rules by name, the router's policies first.
    #[must_use]
    pub fn all() -> Vec<(&'static str, Self)> {
        let own = Policy::WORDS.iter().map(|(name, policy, _)| (*name, Self::Own(*policy)));
        own.chain(RIVALS.map(|(name, rival)| (name, Self::Rival(rival)))).collect()
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::all();
        let found = all.iter().find(|(name, _)| *name == text).map(|(_, rule)| *rule);
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        found.ok_or_else(|| format!("`{text}` is no policy; known are {}", names.join(", ")))
    }
}

/// State of a rule between requests.
#[derive(Debug)]
pub(crate) struct RivalState {
    rival: Rival,
    random: fastrand::Rng,
    turn: usize,
    /// Rank that last got each block.
    sent: AHashMap<u32, RankIndex>,
}

/// Figures of a rank that rules compare.
#[derive(Clone, Copy, Debug, Default)]
struct RankView {
    prefill_tokens: u64,
    decode_tokens: u64,
    in_flight: u64,
    uncached: u64,
    held: u64,
}

impl RivalState {
    pub(crate) fn new(rival: Rival, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { rival, random, turn: 0, sent: AHashMap::new() }
    }

    /// The rank, and the tokens that it is expected to compute. `waiting`: requests of each rank
    /// without a first token.
    pub(crate) fn choose(
        &mut self,
        arrival: TraceArrival<'_>,
        production: &mut ProductionRouter,
        waiting: &[u32],
    ) -> (RankIndex, u64) {
        production.look(arrival);
        let tokens = u64::from(arrival.request.input_tokens);
        let board = production.board();
        let seen: Vec<RankView> = (0..waiting.len())
            .map(|at| {
                let rank = RankIndex::try_from_index(at).unwrap_or(RankIndex(0));
                let load = board.rank(rank);
                let held = production.reported_tokens(rank);
                RankView {
                    held,
                    prefill_tokens: load.map_or(0, RankLoad::prefill_tokens),
                    decode_tokens: load.map_or(0, RankLoad::kv_tokens),
                    in_flight: load.map_or(0, |load| u64::from(load.in_flight())),
                    uncached: tokens.saturating_sub(held).max(1),
                }
            })
            .collect();
        let at = self.pick(arrival, &seen, waiting);
        let rank = RankIndex::try_from_index(at).unwrap_or(RankIndex(0));
        if self.rival == Rival::SglangCacheAware {
            self.sent.extend(arrival.request.blocks.iter().map(|&block| (block, rank)));
        }
        (rank, seen[at].uncached)
    }

    fn pick(&mut self, arrival: TraceArrival<'_>, seen: &[RankView], waiting: &[u32]) -> usize {
        let least_requests = |seen: &RankView| seen.in_flight as f64;
        let session = arrival.request.session;
        match self.rival {
            Rival::LongestPrefix => self.least(seen, |seen| (seen.uncached, seen.in_flight)),
            Rival::Session => place_of(session, 0, seen.len()),
            Rival::SessionBounded => {
                let all: u64 = seen.iter().map(|seen| seen.in_flight).sum();
                let most = (all + 1) as f64 * 1.25 / seen.len() as f64;
                let ring = (0..seen.len() as u32).map(|step| place_of(session, step, seen.len()));
                let mut ring = ring.filter(|&at| ((seen[at].in_flight + 1) as f64) <= most.ceil());
                ring.next().unwrap_or_else(|| place_of(session, 0, seen.len()))
            }
            Rival::LMetric => self
                .least(seen, |seen| (seen.prefill_tokens + seen.uncached) * (seen.in_flight + 1)),
            Rival::Dynamo => {
                self.least(seen, |seen| seen.prefill_tokens + seen.uncached + seen.decode_tokens)
            }
            Rival::DynamoAgentic => self.least(seen, |seen| {
                let prefill = (seen.prefill_tokens + seen.uncached) as f64 - seen.held as f64;
                4.0 * prefill + (seen.decode_tokens + 64 * 16 * seen.in_flight) as f64
            }),
            Rival::SglangCacheAware => {
                let loads = || seen.iter().map(|seen| seen.in_flight);
                let most = loads().max().unwrap_or(0);
                let least = loads().min().unwrap_or(0);
                let is_uneven = most - least > 64 && most as f64 > least as f64 * 1.5;
                let blocks = &arrival.request.blocks;
                let known = blocks.iter().take_while(|block| self.sent.contains_key(*block));
                let known = known.count();
                let is_match = known as f64 > blocks.len() as f64 * 0.3;
                match known.checked_sub(1).filter(|_| is_match && !is_uneven) {
                    Some(last) => self.sent[&blocks[last]].index(),
                    None => self.least(seen, least_requests),
                }
            }
            Rival::VllmKvAware => {
                let best = self.least(seen, |seen| (seen.uncached, seen.in_flight));
                if seen[best].uncached <= 2_000 {
                    return best;
                }
                self.turn += 1;
                self.turn % seen.len()
            }
            Rival::LlmD => {
                let candidates = sticky_candidates(arrival.request.input_tokens, seen);
                let cost = |at: &usize| seen[*at].prefill_tokens + seen[*at].uncached;
                candidates[self.least(&candidates, cost)]
            }
            Rival::LlmDLegacy => {
                let scores = blended_scores(arrival.request.input_tokens, seen, waiting);
                self.least(&scores, |score| -score)
            }
        }
    }

    /// Index of the least weight; ties are broken at random.
    fn least<S, T: PartialOrd>(&mut self, all: &[S], weight: impl Fn(&S) -> T) -> usize {
        let mut best = 0;
        let mut equal = 1;
        for at in 1..all.len() {
            let own = weight(&all[at]);
            let other = weight(&all[best]);
            if own < other {
                best = at;
                equal = 1;
            } else if own == other {
                equal += 1;
                if self.random.usize(..equal) == 0 {
                    best = at;
                }
            }
        }
        best
    }
}

/// The rank of a session on a ring, `step` places further.
fn place_of(session: u32, step: u32, ranks: usize) -> usize {
    let hash = (u64::from(session) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    ((hash + u64::from(step)) % ranks.max(1) as u64) as usize
}

/// The ranks that `llm_d` chooses from: the warm ranks, or all of them where no rank is warm or the
/// warm ranks are saturated.
fn sticky_candidates(input_tokens: u32, seen: &[RankView]) -> Vec<usize> {
    let is_warm = |at: &usize| seen[*at].held as f64 >= WARM_SHARE * f64::from(input_tokens);
    let (warm, cold): (Vec<usize>, Vec<usize>) = (0..seen.len()).partition(is_warm);
    let least = |ranks: &[usize]| ranks.iter().map(|&at| seen[at].prefill_tokens).min();
    let is_saturated = match (least(&warm), least(&cold)) {
        (Some(warm), Some(cold)) => warm > cold + SATURATION_TOKENS,
        (warm, _) => warm.is_none(),
    };
    if is_saturated { (0..seen.len()).collect() } else { warm }
}

/// The scores of `llm_d_legacy`, by rank.
fn blended_scores(input_tokens: u32, seen: &[RankView], waiting: &[u32]) -> Vec<f64> {
    let most = waiting.iter().copied().max().unwrap_or(0);
    let least = waiting.iter().copied().min().unwrap_or(0);
    let spread = f64::from((most - least).max(1));
    let score = |(seen, &waits): (&RankView, &u32)| {
        let prefix = 1.0 - seen.uncached as f64 / f64::from(input_tokens);
        let queue = f64::from(most - waits) / spread;
        3.0 * prefix + 2.0 * if most == least { 1.0 } else { queue }
    };
    seen.iter().zip(waiting).map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(held: u64, prefill_tokens: u64) -> RankView {
        let uncached = 1_000_u64.saturating_sub(held).max(1);
        RankView { held, prefill_tokens, uncached, ..RankView::default() }
    }

    #[test]
    fn llm_d_keeps_to_warm_ranks_until_they_are_saturated() {
        let candidates = |seen: &[RankView]| sticky_candidates(1_000, seen);
        assert_eq!(candidates(&[rank(799, 0), rank(0, 0)]), [0, 1], "no rank is warm");
        assert_eq!(candidates(&[rank(800, 286_720), rank(900, 400_000), rank(0, 0)]), [0, 1]);
        assert_eq!(candidates(&[rank(800, 286_721), rank(900, 400_000), rank(0, 0)]), [0, 1, 2]);
        assert_eq!(candidates(&[rank(800, 400_000), rank(0, 120_000)]), [0], "a cold rank waits");
        assert_eq!(candidates(&[rank(1_000, 900_000), rank(900, 900_000)]), [0, 1], "all are warm");
    }

    #[test]
    fn the_legacy_rule_of_llm_d_adds_prefix_and_queue() {
        let scores = blended_scores(1_000, &[rank(500, 0), rank(0, 0)], &[4, 2]);
        assert_eq!(scores, [1.5, 2.0]);
        assert_eq!(blended_scores(1_000, &[rank(500, 0), rank(0, 0)], &[2, 2]), [3.5, 2.0]);
    }
}
