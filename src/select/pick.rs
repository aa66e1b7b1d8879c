//! The policies.

use super::{RankCost, predicted_work_tokens};
use crate::base::RankIndex;
use crate::index::Overlaps;
use crate::worker::LoadBoard;

pub use crate::config::Policy;

/// Everything a policy looks at.
#[derive(Debug)]
pub struct PickRequest<'a> {
    /// Ranks to choose from; not empty.
    pub ranks: &'a [RankIndex],
    /// Loads of all ranks.
    pub board: &'a LoadBoard,
    /// Prompt bytes found per rank.
    pub overlaps: &'a Overlaps,
    /// Length of the prompt.
    pub prompt_bytes: u64,
    /// Bytes per token of this model, at least 1.
    pub bytes_per_token: f32,
}

/// The one piece of state a policy keeps, per shard.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

/// Chooses a rank; `None` only if there is none to choose from.
#[must_use]
pub fn pick(
    policy: Policy,
    request: &PickRequest<'_>,
    turn: &mut RoundRobin,
    random: &mut fastrand::Rng,
) -> Option<RankIndex> {
    let ranks = request.ranks;
    match policy {
        Policy::Kv => cheapest(ranks, random, |rank| request.cost(rank)),
        Policy::LeastLoaded => cheapest(ranks, random, |rank| request.load_only(rank)),
        Policy::PowerOfTwo => {
            let pair = [any(ranks, random)?, any(ranks, random)?];
            cheapest(&pair, random, |rank| request.load_only(rank))
        }
        Policy::RoundRobin => {
            let rank = ranks.get(turn.next % ranks.len().max(1)).copied();
            turn.next = turn.next.wrapping_add(1);
            rank
        }
        Policy::Random => any(ranks, random),
    }
}

impl PickRequest<'_> {
    /// Tokens of the prompt that the rank would have to compute.
    #[must_use]
    pub fn uncached_tokens(&self, rank: RankIndex) -> u64 {
        let held = u64::from(self.overlaps.get(rank).bytes);
        tokens(self.prompt_bytes.saturating_sub(held), self.bytes_per_token)
    }

    fn cost(&self, rank: RankIndex) -> RankCost {
        let uncached = self.uncached_tokens(rank);
        self.board
            .rank(rank)
            .map_or(RankCost(u64::MAX), |load| predicted_work_tokens(load, uncached))
    }

    fn load_only(&self, rank: RankIndex) -> RankCost {
        self.board
            .rank(rank)
            .map_or(RankCost(u64::MAX), |load| RankCost(u64::from(load.in_flight())))
    }
}

/// Tokens that so many bytes are expected to be, rounded up.
#[must_use]
pub(super) fn tokens(bytes: u64, bytes_per_token: f32) -> u64 {
    // In hundredths, so that the arithmetic stays in integers; the ratio is an estimate anyway.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 1..=1000 first; a NaN becomes 0 and then 100"
    )]
    let hundredths = ((bytes_per_token.clamp(1.0, 10.0) * 100.0) as u64).max(100);
    bytes.saturating_mul(100).div_ceil(hundredths)
}

/// The cheapest; among equals each has the same chance (reservoir sampling).
fn cheapest(
    ranks: &[RankIndex],
    random: &mut fastrand::Rng,
    cost: impl Fn(RankIndex) -> RankCost,
) -> Option<RankIndex> {
    let mut best: Option<(RankIndex, RankCost)> = None;
    let mut ties = 1_u32;
    for &rank in ranks {
        let this = cost(rank);
        match best {
            Some((_, least)) if this > least => {}
            Some((_, least)) if this == least => {
                ties = ties.saturating_add(1);
                if random.u32(..ties) == 0 {
                    best = Some((rank, this));
                }
            }
            _ => {
                best = Some((rank, this));
                ties = 1;
            }
        }
    }
    best.map(|(rank, _)| rank)
}

fn any(ranks: &[RankIndex], random: &mut fastrand::Rng) -> Option<RankIndex> {
    if ranks.is_empty() { None } else { ranks.get(random.usize(..ranks.len())).copied() }
}
