//! What computing and keeping prompt tokens costs a fleet. A token that some rank holds already
//! need not be computed at all; elsewhere it delays every request behind it. What it pushes out of
//! a cache is computed again.

use super::Policy;
use forebay_base::RankIndex;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, Role, WorkerState};

/// Prices and shares of a cache are in units of this.
const ONE: u64 = 1_024;
/// Ranks without a prefill are counted as at least this part of all. A busy moment is no full
/// fleet, and the price of a full one has no bound.
const FREE_PARTS: u64 = 10;
/// More than a cache holds, and more than a prompt has.
const WRITTEN_TOKENS_MAX: u64 = 1 << 40;
const EVICTING_TOKENS_MAX: u64 = 1 << 40;

/// What tokens cost at one moment, in units of 1/1,024 token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Of a token to compute: 1 on an idle fleet, at most [`FREE_PARTS`].
    ///
    /// In a queue at utilization ρ one token of work makes the busy period 1 / (1 − ρ) tokens
    /// longer: whoever comes in that time waits for it. ρ is the share of the ranks that compute
    /// prompts now.
    token: u64,
    /// Of the caches of known size, the least written to: the lately written tokens over the size.
    least_written: u64,
}

impl Prices {
    /// On an idle fleet, with no cache written to more than another.
    pub const LEAST: Self = Self { token: ONE, least_written: u64::MAX };

    /// A token to compute costs so many.
    #[cfg(test)]
    pub(super) const fn of_token(times: u64) -> Self {
        Self { token: times * ONE, ..Self::LEAST }
    }

    /// At this moment, for requests that these ranks serve. Only `kv` and
    /// `session` compare by them.
    #[must_use]
    pub fn of(
        policy: Policy,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        ranks: &[RankIndex],
    ) -> Self {
        if !matches!(policy, Policy::Kv | Policy::Session) {
            return Self::LEAST;
        }
        let (mut all, mut free, mut least_written) = (0_u64, 0_u64, u64::MAX);
        for &index in ranks {
            let Some((rank, worker)) = fleet.rank(index) else { continue };
            let Some(load) = board.rank(index) else { continue };
            if rank.role != Role::Decode && worker.state == WorkerState::Up {
                all += 1;
                free += u64::from(load.prefill_tokens() == 0);
                let capacity = fleet.kv_capacity_tokens(index);
                let written = share(load.written_tokens(), capacity).unwrap_or(u64::MAX);
                least_written = least_written.min(written);
            }
        }
        let token = (all * FREE_PARTS * ONE).checked_div((free * FREE_PARTS).max(all));
        let token = token.unwrap_or(ONE);
        debug_assert!((ONE..=FREE_PARTS * ONE).contains(&token), "{token} is no price");
        Self { token, least_written }
    }

    /// What computing so many tokens costs beyond the tokens themselves.
    pub(super) const fn delay(self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.token - ONE) / ONE
    }

    /// What so many new tokens push out of a cache that will be asked for again. The share of the
    /// cache that was written lately is such; what all caches have of it cannot be avoided.
    pub(super) fn evicted(self, tokens: u64, written_tokens: u64, capacity_tokens: u64) -> u64 {
        let written = share(written_tokens, capacity_tokens).unwrap_or(0);
        let more = written.saturating_sub(self.least_written).min(ONE);
        tokens.min(EVICTING_TOKENS_MAX) * more / ONE
    }
}

/// Of a cache of known size.
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
        assert_eq!(prices, [ONE, 2 * ONE, 4 * ONE, 8 * ONE, 10 * ONE]);
        let four = Prices::of_token(4);
        assert_eq!(four.delay(100), 300, "beyond the 100 themselves");
        assert_eq!(Prices::LEAST.delay(u64::MAX), 0);
    }

    #[test]
    fn ranks_that_compute_no_prompts_do_not_count() {
        let decodes = |fleet: &mut FleetSnapshot| {
            fleet.ranks.iter_mut().skip(4).for_each(|rank| rank.role = Role::Decode);
        };
        assert_eq!(price(2, decodes), 2 * ONE);
        let are_down = |fleet: &mut FleetSnapshot| {
            fleet.workers.iter_mut().skip(4).for_each(|worker| worker.state = WorkerState::Down);
        };
        assert_eq!(price(2, are_down), 2 * ONE);
        assert_eq!(price(8, |fleet| fleet.ranks.clear()), ONE);
    }

    #[test]
    fn only_kv_pays() {
        let (fleet, board) = (eight_workers(), LoadBoard::new());
        board.rank(RankIndex(0)).expect("a rank").add_prefill(1);
        let of = |policy| Prices::of(policy, &fleet, &board, &[RankIndex(0)]);
        assert_eq!(of(Policy::LeastLoaded), Prices::LEAST);
        assert_ne!(of(Policy::Kv), Prices::LEAST);
    }

    /// Of 100 tokens to compute, those that push out others, by rank.
    fn evicted(written: [u64; 8], change: impl Fn(&mut FleetSnapshot)) -> [u64; 8] {
        let (mut fleet, board) = (eight_workers(), LoadBoard::new());
        change(&mut fleet);
        for (rank, tokens) in all().iter().zip(written) {
            board.rank(*rank).expect("a rank").add_written(tokens);
        }
        let prices = Prices::of(Policy::Kv, &fleet, &board, &all());
        all().map(|rank| {
            let written = board.rank(rank).expect("a rank").written_tokens();
            prices.evicted(100, written, fleet.kv_capacity_tokens(rank))
        })
    }

    #[test]
    fn a_cache_loses_as_much_as_it_is_written_to_more_than_the_least() {
        let written = [400, 800, 1_200, 2_000, 2_400, u64::MAX, 400, 400];
        assert_eq!(evicted(written, |_| ()), [0, 25, 50, 100, 100, 100, 0, 0]);
        assert_eq!(evicted([800; 8], |_| ()), [0; 8], "equal everywhere");
        let larger = |fleet: &mut FleetSnapshot| fleet.ranks[1].kv_block_count = 200;
        assert_eq!(evicted(written, larger)[1], 0, "it holds twice as much");
    }

    #[test]
    fn caches_that_do_not_count_are_not_the_least() {
        let mut written = [800; 8];
        written[0] = 0;
        assert_eq!(evicted(written, |_| ())[7], 50);
        let is_down = |fleet: &mut FleetSnapshot| fleet.workers[0].state = WorkerState::Down;
        assert_eq!(evicted(written, is_down)[7], 0);
        let is_unknown = |fleet: &mut FleetSnapshot| fleet.ranks[0].kv_block_count = 0;
        assert_eq!(evicted(written, is_unknown), [0; 8]);
    }
}
