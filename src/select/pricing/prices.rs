//! Cost of computing and caching prompt tokens for the whole fleet. A token that a rank already
//! holds need not be computed there; on other ranks it delays each request behind it. A block that
//! it evicts is computed again, if it is requested again. The same tokens take longer on a slower
//! rank.

use super::speeds::{RankSpeeds, SpeedRange};
use crate::Policy;
use forebay_base::RankIndex;
use forebay_board::{LoadBoard, RankPast};
use forebay_fleet::worker::{FleetSnapshot, Role, WorkerState};

/// Prices and shares of a cache are in units of this.
const ONE: u64 = 1_024;
/// At least 1 of so many ranks counts as free of prefill. A busy moment is not yet a full fleet,
/// and the price of a full fleet has no bound.
const FREE_PARTS: u64 = 10;
/// A large fleet is evaluated in groups of so many ranks. A request finds an idle rank and a cache
/// with room within a group, and the idlest of hundreds of ranks does not represent the rest.
const GROUP: u64 = 8;
/// More than a cache holds, and more than a prompt has.
const WRITTEN_TOKENS_MAX: u64 = 1 << 40;
const EVICTING_TOKENS_MAX: u64 = 1 << 40;

/// Prices of tokens at a moment, in units of 1/1,024 token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Price of a computed token: 1 on an idle fleet, at most [`FREE_PARTS`]. See [`price`].
    token: u64,
    /// Recently written tokens divided by cache size, for the least written cache of each group;
    /// mean of the groups. Caches of unknown size are left out.
    least_written: u64,
    /// Tokens found in caches divided by tokens written to them, at most 1 on each rank.
    reuse: u64,
    speeds: RankSpeeds,
}

/// Sums of recent writes and reuse over the caches of known size.
#[derive(Clone, Copy, Debug, Default)]
struct CacheSums {
    written_tokens: u64,
    /// The written tokens that are used again.
    used_tokens: u64,
    /// Sum over ranks of the least written share in the rank's group.
    least_sum: u64,
    ranks: u64,
    /// Least written share in the current group.
    least: u64,
    in_group: u64,
}

impl Prices {
    /// Prices on an idle fleet, with no cache of known size.
    pub const LEAST: Self =
        Self { token: ONE, least_written: 0, reuse: ONE, speeds: RankSpeeds::EQUAL };

    #[cfg(test)]
    pub(crate) const fn of_token(times: u64) -> Self {
        Self { token: times * ONE, ..Self::LEAST }
    }

    #[cfg(test)]
    pub(crate) fn with_speeds<'a>(self, pasts: impl Iterator<Item = &'a RankPast> + Clone) -> Self {
        let mut range = SpeedRange::default();
        pasts.clone().for_each(|past| range.add(past));
        Self { speeds: range.speeds(pasts), ..self }
    }

    /// Current prices for requests that these ranks serve. Only policies `kv` and `session` use
    /// prices.
    #[must_use]
    pub fn of(
        policy: Policy,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        ranks: &[RankIndex],
    ) -> Self {
        if !policy.has_target() {
            return Self::LEAST;
        }
        let mut all = 0_u64;
        let mut free = 0_u64;
        let mut caches = CacheSums::default();
        let mut speeds = SpeedRange::default();
        for &index in ranks {
            let Some((rank, worker)) = fleet.rank(index) else { continue };
            let (Some(load), Some(past)) = (board.rank(index), board.past(index)) else { continue };
            if rank.role != Role::Decode && worker.state == WorkerState::Up {
                all += 1;
                free += u64::from(load.prefill_tokens() == 0 && load.prefill_elsewhere() == 0);
                caches.add(past, rank.kv_capacity_tokens());
                speeds.add(past);
            }
        }
        let token = price(all, free);
        debug_assert!((ONE..=FREE_PARTS * ONE).contains(&token), "{token} is no price");
        // Reuse is counted only if prompts are matched.
        let reuse = if policy.uses_overlap() { caches.reuse() } else { ONE };
        let speeds = speeds.speeds(ranks.iter().filter_map(|rank| board.past(*rank)));
        Self { token, least_written: caches.least_written(), reuse, speeds }
    }

    /// Cost of computing the tokens beyond the tokens themselves.
    pub(crate) const fn delay(self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.token - ONE) / ONE
    }

    #[inline]
    pub(crate) const fn speeds(self) -> RankSpeeds {
        self.speeds
    }

    /// Least cost of computing the tokens, on any rank.
    pub(crate) fn least(self, tokens: u64) -> u64 {
        self.speeds.least(tokens).saturating_add(self.delay(tokens))
    }

    /// Tokens that are evicted by `tokens` new tokens and computed again. Estimated as the recently
    /// written share of the cache, times the reuse of written tokens. The share common to all
    /// caches counts by half: tokens that no rank holds must be written to some cache anyway. A
    /// copy of tokens that another rank holds takes room for a turnover of the cache. Misses fall
    /// with the square root of the cache size, so room lost for a turnover costs half as many
    /// tokens.
    #[inline]
    pub(crate) fn evicted(self, tokens: u64, written_tokens: u64, capacity_tokens: u64) -> u64 {
        // A cache of unknown size counts as the least written cache.
        let written = share(written_tokens, capacity_tokens).unwrap_or(self.least_written);
        let more = written.saturating_sub(self.least_written).min(ONE);
        let lost = u64::midpoint(written.min(ONE), more);
        tokens.min(EVICTING_TOKENS_MAX) * lost / ONE * self.reuse / ONE
    }
}

impl CacheSums {
    fn add(&mut self, past: &RankPast, capacity_tokens: u64) {
        let written_tokens = past.written_tokens();
        let Some(share) = share(written_tokens, capacity_tokens) else { return };
        // The reuse of a cache is unknown until as many tokens were written as it can hold.
        let unknown_tokens = capacity_tokens.saturating_sub(written_tokens);
        let used_tokens = past.reused_tokens().saturating_add(unknown_tokens);
        self.written_tokens += written_tokens;
        self.used_tokens += used_tokens.min(written_tokens);
        self.least = if self.in_group == 0 { share } else { self.least.min(share) };
        self.in_group += 1;
        if self.in_group == GROUP {
            self.end_group();
        }
    }

    fn end_group(&mut self) {
        // A share is below 2^51, and there are less than 2^13 ranks.
        self.least_sum += self.least * self.in_group;
        self.ranks += self.in_group;
        self.in_group = 0;
    }

    fn least_written(mut self) -> u64 {
        self.end_group();
        self.least_sum.checked_div(self.ranks).unwrap_or(0)
    }

    fn reuse(self) -> u64 {
        (self.used_tokens * ONE).checked_div(self.written_tokens).unwrap_or(ONE)
    }
}

/// Price of a computed token while `free` of `all` ranks compute no prompt.
///
/// With c servers at a shared queue and the share ρ of them busy, each added token delays an
/// arriving request by ρ^(√(2(c + 1)) − 1) / (1 − ρ) tokens. A busy rank does not count as a queue
/// of its own: other ranks of the group can take its requests.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of ranks; the bound of the price is above all"
)]
fn price(all: u64, free: u64) -> u64 {
    if all == 0 || free >= all {
        return ONE;
    }
    let idle = (free as f64 / all as f64).max(1.0 / FREE_PARTS as f64);
    let servers = all.min(GROUP) as f64;
    let exponent = (2.0 * (servers + 1.0)).sqrt() - 1.0;
    let delay = (1.0 - idle).powf(exponent) / idle;
    ONE + (delay * ONE as f64) as u64
}

/// Share of the cache; `None` if its size is unknown.
fn share(tokens: u64, capacity_tokens: u64) -> Option<u64> {
    (tokens.min(WRITTEN_TOKENS_MAX) * ONE).checked_div(capacity_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::{Rank, test_support};

    fn all() -> [RankIndex; 8] {
        [0, 1, 2, 3, 4, 5, 6, 7].map(RankIndex)
    }

    /// Eight workers with a rank each, whose caches hold 1,600 tokens.
    fn eight_workers() -> FleetSnapshot {
        let rank = |rank: RankIndex| Rank { kv_block_count: 100, ..test_support::rank(rank.0) };
        FleetSnapshot {
            workers: all().map(|_| test_support::worker()).into(),
            ranks: all().map(rank).into(),
            ..FleetSnapshot::default()
        }
    }

    /// A token's price while the first so many of eight ranks compute a prompt.
    fn price(busy: u16, change: impl Fn(&mut FleetSnapshot)) -> u64 {
        let mut fleet = eight_workers();
        change(&mut fleet);
        let board = LoadBoard::new();
        for rank in 0..busy {
            board.rank(RankIndex(rank)).expect("a rank").add_prefill(100);
        }
        Prices::of(Policy::Kv, &fleet, &board, &all()).token
    }

    #[test]
    fn a_token_costs_more_the_more_ranks_compute_prompts() {
        let prices = [0, 4, 6, 7, 8].map(|busy| price(busy, |_| ()));
        // Eight servers with one queue: 0.5^3.24 / 0.5, and so on.
        assert_eq!(prices, [1_024, 1_240, 2_635, 6_337, 8_300]);
        let four = Prices::of_token(4);
        assert_eq!(four.delay(100), 300, "beyond the 100 themselves");
        assert_eq!(Prices::LEAST.delay(u64::MAX), 0);
    }

    #[test]
    fn ranks_that_compute_no_prompts_do_not_count() {
        let decodes = |fleet: &mut FleetSnapshot| {
            fleet.ranks.iter_mut().skip(4).for_each(|rank| rank.role = Role::Decode);
        };
        assert_eq!(price(2, decodes), ONE + 457, "half of four are busy");
        let are_down = |fleet: &mut FleetSnapshot| {
            fleet.workers.iter_mut().skip(4).for_each(|worker| worker.state = WorkerState::Down);
        };
        assert_eq!(price(2, are_down), ONE + 457);
        assert_eq!(price(8, |fleet| fleet.ranks.clear()), ONE);
    }

    #[test]
    fn a_large_fleet_has_the_price_of_eight_ranks() {
        assert_eq!(super::price(64, 32), super::price(8, 4));
        assert_eq!(super::price(4_096, 512), super::price(8, 1));
        assert!(super::price(2, 1) > super::price(8, 4), "two ranks share less");
    }

    #[test]
    fn only_kv_knows_what_is_used_again() {
        let fleet = eight_workers();
        let board = LoadBoard::new();
        board.past(RankIndex(0)).expect("a rank").add(4_000, 1_000);
        let of = |policy| Prices::of(policy, &fleet, &board, &all()).reuse;
        assert_eq!([Policy::Kv, Policy::Session].map(of), [ONE / 4, ONE]);
    }

    #[test]
    fn a_rank_that_computes_for_another_replica_is_busy() {
        let fleet = eight_workers();
        let board = LoadBoard::new();
        let token = || Prices::of(Policy::Kv, &fleet, &board, &all()).token;
        assert_eq!(token(), ONE);
        for rank in 0..4 {
            board.rank(RankIndex(rank)).expect("a rank").set_prefill_elsewhere(1);
        }
        assert_eq!(token(), price(4, |_| ()));
    }

    #[test]
    fn only_kv_pays() {
        let fleet = eight_workers();
        let board = LoadBoard::new();
        board.rank(RankIndex(0)).expect("a rank").add_prefill(1);
        let of = |policy| Prices::of(policy, &fleet, &board, &[RankIndex(0)]);
        assert_eq!(of(Policy::LeastLoaded), Prices::LEAST);
        assert_ne!(of(Policy::Kv), Prices::LEAST);
        assert!(of(Policy::Kv).token > ONE);
    }

    /// Of 100 tokens to compute, those that push out others, by rank.
    fn evicted(written: [u64; 8], change: impl Fn(&mut FleetSnapshot)) -> [u64; 8] {
        let mut fleet = eight_workers();
        let board = LoadBoard::new();
        change(&mut fleet);
        for (rank, tokens) in all().iter().zip(written) {
            board.past(*rank).expect("a rank").add(tokens, tokens);
        }
        let prices = Prices::of(Policy::Kv, &fleet, &board, &all());
        all().map(|rank| {
            let written = board.past(rank).expect("a rank").written_tokens();
            prices.evicted(100, written, fleet.kv_capacity_tokens(rank))
        })
    }

    #[test]
    fn a_cache_loses_half_of_what_all_lose_and_what_it_is_written_to_more() {
        let written = [400, 800, 1_200, 2_000, 2_400, u64::MAX, 400, 400];
        assert_eq!(evicted(written, |_| ()), [12, 37, 62, 100, 100, 100, 12, 12]);
        assert_eq!(evicted([0; 8], |_| ()), [0; 8], "none of the caches is full");
        assert_eq!(evicted([800; 8], |_| ()), [25; 8], "equal everywhere");
        assert_eq!(evicted([9_600; 8], |_| ()), [50; 8], "equal and often");
        let larger = |fleet: &mut FleetSnapshot| fleet.ranks[1].kv_block_count = 200;
        assert_eq!(evicted(written, larger)[1], 12, "it holds twice as much");
    }

    #[test]
    fn what_is_never_asked_for_again_pushes_out_nothing_of_worth() {
        let seen = |written, reused| {
            let past = RankPast::default();
            past.add(written, reused);
            let mut caches = CacheSums::default();
            caches.add(&past, 1_600);
            caches.reuse()
        };
        assert_eq!(seen(3_200, 0), 0);
        assert_eq!(seen(3_200, 800), ONE / 4);
        assert_eq!(seen(3_200, 9_600), ONE, "each once at most");
        assert_eq!(seen(0, 0), ONE);
        assert_eq!(seen(800, 0), ONE, "as much of the cache is empty yet");
        assert_eq!(seen(1_200, 0), ONE / 3);
        let one_hot = [(500_000, 0), (50_000, 500_000)].iter().cycle().take(8);
        let mut caches = CacheSums::default();
        for &(written, reused) in one_hot {
            let past = RankPast::default();
            past.add(written, reused);
            caches.add(&past, 10_000);
        }
        assert_eq!(caches.reuse(), ONE * 50 / 550, "what is hot hides nothing of the others");
        assert_eq!(seen(u64::MAX, u64::MAX), ONE);
        let never = Prices { reuse: 0, ..Prices::LEAST };
        assert_eq!(never.evicted(100, 1_600, 1_600), 0);
    }

    #[test]
    fn a_large_fleet_is_looked_at_in_groups() {
        let mut caches = CacheSums::default();
        for written in (0..16).map(|rank| 160 * (rank + 1)).chain([0]) {
            let past = RankPast::default();
            past.add(written, 0);
            caches.add(&past, 1_600);
        }
        // A tenth in the first group, nine tenths in the second, nothing in that of one rank.
        assert_eq!(caches.least_written(), 8 * (ONE / 10 + ONE * 9 / 10) / 17);
    }

    #[test]
    fn caches_that_do_not_count_are_not_the_least() {
        let mut written = [800; 8];
        written[0] = 0;
        assert_eq!(evicted(written, |_| ())[7], 50);
        let is_down = |fleet: &mut FleetSnapshot| fleet.workers[0].state = WorkerState::Down;
        assert_eq!(evicted(written, is_down)[7], 25);
        let is_unknown = |fleet: &mut FleetSnapshot| fleet.ranks[0].kv_block_count = 0;
        assert_eq!(evicted(written, is_unknown), [25; 8], "no better than the others");
    }
}
