//! What computing one prompt token costs a fleet. A token that some rank holds already need not be
//! computed at all; elsewhere it delays every request behind it.

use super::Policy;
use forebay_base::RankIndex;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, RankLoad, Role, WorkerState};

const ONE: u64 = 1_024;
/// Ranks without a prefill are counted as at least this part of all. A busy moment is no full
/// fleet, and the price of a full one has no bound.
const FREE_PARTS: u64 = 10;

/// The price of a token, in units of 1/1,024 token: 1 on an idle fleet, at most [`FREE_PARTS`].
///
/// In a queue at utilization ρ one token of work makes the busy period 1 / (1 − ρ) tokens longer:
/// whoever comes in that time waits for it. ρ is the share of the ranks that compute prompts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPrice(u64);

impl TokenPrice {
    /// On an idle fleet.
    pub const LEAST: Self = Self(ONE);

    /// At this moment, for requests that these ranks serve. Only `kv` compares by it.
    #[must_use]
    pub fn of(
        policy: Policy,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        ranks: &[RankIndex],
    ) -> Self {
        if policy != Policy::Kv {
            return Self::LEAST;
        }
        let (mut all, mut free) = (0_u64, 0_u64);
        for &index in ranks {
            let Some((rank, worker)) = fleet.rank(index) else { continue };
            if rank.role != Role::Decode && worker.state == WorkerState::Up {
                all += 1;
                let prefill_tokens = board.rank(index).map_or(0, RankLoad::prefill_tokens);
                free += u64::from(prefill_tokens == 0);
            }
        }
        let price = (all * FREE_PARTS * ONE).checked_div((free * FREE_PARTS).max(all));
        let price = Self(price.unwrap_or(ONE));
        debug_assert!((ONE..=FREE_PARTS * ONE).contains(&price.0), "{price:?} is no price");
        price
    }

    /// What computing so many tokens costs beyond the tokens themselves.
    pub(super) const fn delay(self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.0 - ONE) / ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::test_support;

    const RANKS: u16 = 8;

    fn eight_workers() -> FleetSnapshot {
        FleetSnapshot {
            workers: (0..RANKS).map(|_| test_support::worker()).collect(),
            ranks: (0..RANKS).map(test_support::rank).collect(),
            ..FleetSnapshot::default()
        }
    }

    /// A token's price while the first so many of eight ranks compute a prompt.
    fn price(busy: u16, change: impl Fn(&mut FleetSnapshot)) -> u64 {
        let mut fleet = eight_workers();
        change(&mut fleet);
        let (board, ranks): (_, Vec<_>) = (LoadBoard::new(), (0..RANKS).map(RankIndex).collect());
        for rank in 0..busy {
            board.rank(RankIndex(rank)).expect("a rank").add_prefill(100);
        }
        TokenPrice::of(Policy::Kv, &fleet, &board, &ranks).0
    }

    #[test]
    fn a_token_costs_more_the_more_ranks_compute_prompts() {
        let prices = [0, 4, 6, 7, 8].map(|busy| price(busy, |_| ()));
        assert_eq!(prices, [ONE, 2 * ONE, 4 * ONE, 8 * ONE, 10 * ONE]);
        assert_eq!(TokenPrice(4 * ONE).delay(100), 300, "beyond the 100 themselves");
        assert_eq!(TokenPrice::LEAST.delay(u64::MAX), 0);
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
        let of = |policy| TokenPrice::of(policy, &fleet, &board, &[RankIndex(0)]);
        assert_eq!(of(Policy::LeastLoaded), TokenPrice::LEAST);
        assert_ne!(of(Policy::Kv), TokenPrice::LEAST);
    }
}
