//! Drain rates of all pools. The control plane keeps a set for the metrics, and each shard keeps a
//! set for `Retry-After`. Both read the load board once per tick, and shards also at each refusal.

use super::DrainRate;
use crate::{LoadBoard, RankLoad};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_fleet::worker::{FleetSnapshot, Pool};
use std::time::Duration;

/// A rate per pool, by its number. The fleet's models bound the number of pools.
#[derive(Debug, Default)]
pub struct DrainRates {
    pools: Vec<PoolDrainRate>,
}

#[derive(Debug, Default)]
struct PoolDrainRate {
    rate: DrainRate,
    /// Ranks of the count.
    ranks: Vec<RankIndex>,
}

impl DrainRates {
    /// Samples every pool. Cheap when called often.
    pub fn observe(&mut self, fleet: &FleetSnapshot, board: &LoadBoard, now: NanosSinceStart) {
        for (index, pool) in fleet.used_pools() {
            self.observe_pool(index, pool, board, now);
        }
    }

    pub fn observe_pool(
        &mut self,
        index: PoolIndex,
        pool: &Pool,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        self.pools.resize_with(self.pools.len().max(index.index() + 1), PoolDrainRate::default);
        let Some(known) = self.pools.get_mut(index.index()) else { return };
        let loads = pool.ranks.iter().filter_map(|&rank| board.rank(rank));
        let ended = loads.map(RankLoad::ended).fold(0, u64::saturating_add);
        // A joining rank has a count of its whole life: these ends are no ends of this pool.
        if known.ranks != pool.ranks {
            known.ranks.clone_from(&pool.ranks);
            known.rate.rebase(now, ended);
        }
        known.rate.observe(now, ended);
    }

    /// Ends per second; `None` while unknown.
    #[must_use]
    pub fn per_second(&self, pool: PoolIndex, now: NanosSinceStart) -> Option<f64> {
        self.pools.get(pool.index())?.rate.per_second(now)
    }

    /// Time until `ahead` requests of the pool have ended; `None` while unknown.
    #[must_use]
    pub fn projected_wait(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
        ahead: u64,
    ) -> Option<Duration> {
        self.pools.get(pool.index())?.rate.projected_wait(now, ahead)
    }

    /// `Retry-After` for a client that is refused now, see [`DrainRate::retry_after`].
    pub fn retry_after(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
        ahead: u64,
        random: &mut fastrand::Rng,
    ) -> Option<Duration> {
        self.pools.get(pool.index())?.rate.retry_after(now, ahead, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::test_support::three_ranks;
    use forebay_fleet::worker::{RoomDemand, RoomLimits};

    /// Ranks 0 and 1 in a pool, rank 2 in another.
    fn two_pools() -> FleetSnapshot {
        let pool = |ranks: &[u16]| Pool {
            ranks: ranks.iter().map(|rank| RankIndex(*rank)).collect(),
            ..Pool::default()
        };
        FleetSnapshot { pools: vec![pool(&[0, 1]), pool(&[2])], ..three_ranks() }
    }

    #[test]
    fn each_pool_has_its_own_and_ranks_that_join_are_no_ends() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let mut rates = DrainRates::default();
        let end = |rank: u16, count: usize| {
            for _ in 0..count {
                let load = board.rank(RankIndex(rank)).unwrap();
                assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
                board.give_back(RankIndex(rank), 0, Some(forebay_base::ModelIndex(0)));
            }
        };
        end(2, 1_000);
        let mut now = NanosSinceStart(0);
        for _ in 0..50 {
            rates.observe(&fleet, &board, now);
            now = now.plus(Duration::from_millis(100));
            end(0, 2);
            end(1, 1);
        }
        rates.observe(&fleet, &board, now);
        let of = |rates: &DrainRates, pool| rates.per_second(PoolIndex(pool), now);
        let first = of(&rates, 0).unwrap();
        assert!((29.0..31.0).contains(&first), "{first}");
        assert_eq!(of(&rates, 2), None);
        // The other pool's rank, with a thousand ends of its own.
        fleet.pools[0].ranks.push(RankIndex(2));
        now = now.plus(Duration::from_millis(100));
        rates.observe(&fleet, &board, now);
        let after = rates.per_second(PoolIndex(0), now).unwrap();
        assert!((29.0..31.0).contains(&after), "{after}");
    }
}
