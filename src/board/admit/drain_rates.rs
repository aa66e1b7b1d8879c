//! Drain rates of all pools. The control plane keeps a set for the metrics, and each shard keeps a
//! set for `Retry-After`. Both read the load board once per tick, and shards also at each refusal.

use super::{DrainRate, EndedSample};
use crate::{LoadBoard, RankLoad};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_fleet::worker::{FleetSnapshot, Pool, RoomDemand, RoomLimits, WorkerState};
use std::time::Duration;

/// A rate per pool, by its number. The fleet's models bound the number of pools.
#[derive(Debug, Default)]
pub struct DrainRates {
    pools: Vec<PoolDrainRate>,
}

#[derive(Debug, Default)]
struct PoolDrainRate {
    /// While the pool is full: the capacity.
    rate: DrainRate,
    /// At all times: the throughput.
    ends: DrainRate,
    /// Ranks of the count.
    ranks: Vec<RankIndex>,
}

impl DrainRates {
    /// Samples every pool. Cheap when called often.
    pub fn observe(&mut self, fleet: &FleetSnapshot, board: &LoadBoard, now: NanosSinceStart) {
        for (index, pool) in fleet.used_pools() {
            self.sample(index, pool, board, now, || is_full(fleet, pool, board, now));
        }
    }

    /// Samples a pool that refuses a request now, which is full.
    pub fn observe_refusal(
        &mut self,
        index: PoolIndex,
        pool: &Pool,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        self.sample(index, pool, board, now, || true);
    }

    fn sample(
        &mut self,
        index: PoolIndex,
        pool: &Pool,
        board: &LoadBoard,
        now: NanosSinceStart,
        is_full: impl FnOnce() -> bool,
    ) {
        self.pools.resize_with(self.pools.len().max(index.index() + 1), PoolDrainRate::default);
        let Some(known) = self.pools.get_mut(index.index()) else { return };
        let loads = pool.ranks.iter().filter_map(|&rank| board.rank(rank));
        let ended_total = loads.map(RankLoad::ended).fold(0, u64::saturating_add);
        let sample = EndedSample { at: now, ended_total, is_full: is_full() };
        // A joining rank has a count of its whole life: these ends are no ends of this pool.
        if known.ranks != pool.ranks {
            known.ranks.clone_from(&pool.ranks);
            known.rate.rebase(sample);
            known.ends.rebase(sample);
        }
        known.rate.observe(sample);
        known.ends.observe(EndedSample { is_full: true, ..sample });
    }

    /// Ends per second at all times, also while the pool has room; `None` while unknown. Requests
    /// in flight over this rate are the service time (Little's law).
    #[must_use]
    pub fn ends_per_second(&self, pool: PoolIndex, now: NanosSinceStart) -> Option<f64> {
        self.pools.get(pool.index())?.ends.per_second(now)
    }

    /// Ends per second while the pool is full; `None` while unknown.
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

/// Do requests wait for the ranks that serve, or has none of these ranks room?
fn is_full(fleet: &FleetSnapshot, pool: &Pool, board: &LoadBoard, now: NanosSinceStart) -> bool {
    let waits = |rank: &RankIndex| {
        let queue = fleet.queue_of(*rank).and_then(|queue| board.queue(queue));
        queue.is_some_and(|queue| queue.waiting() > 0)
    };
    let serving = pool.ranks.iter().filter_map(|&index| {
        let (rank, worker) = fleet.rank(index)?;
        let load = board.rank(index).filter(|load| !load.is_restricted())?;
        (worker.state == WorkerState::Up).then_some((index, rank.room, load))
    });
    let has_room = |(index, room, load): (RankIndex, RoomLimits, &RankLoad)| {
        load.busy_until(None) <= now
            && load.has_room(board.limits_now(index, room), RoomDemand::default())
    };
    let mut serving = serving.peekable();
    serving.peek().is_some() && (pool.ranks.iter().any(waits) || !serving.any(has_room))
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
        let begin = |rank: u16| {
            let load = board.rank(RankIndex(rank)).unwrap();
            assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
        };
        let end = |rank: u16, count: usize| {
            for _ in 0..count {
                begin(rank);
                board.give_back(RankIndex(rank), 0, Some(forebay_base::ModelIndex(0)));
            }
        };
        (0..3).for_each(|rank| (0..4).for_each(|_| begin(rank)));
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

    /// A pool with room has a throughput, and no drain rate.
    #[test]
    fn a_pool_with_room_has_a_throughput_alone() {
        let fleet = two_pools();
        let board = LoadBoard::new();
        let mut rates = DrainRates::default();
        let load = board.rank(RankIndex(2)).unwrap();
        let mut now = NanosSinceStart(0);
        for _ in 0..50 {
            rates.observe(&fleet, &board, now);
            now = now.plus(Duration::from_millis(100));
            assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
            board.give_back(RankIndex(2), 0, Some(forebay_base::ModelIndex(0)));
        }
        rates.observe(&fleet, &board, now);
        let ends = rates.ends_per_second(PoolIndex(1), now).unwrap();
        assert!((9.0..11.0).contains(&ends), "{ends}");
        assert_eq!(rates.per_second(PoolIndex(1), now), None);
    }

    /// Ends count while each rank is full or refuses, or while requests wait, and not otherwise.
    #[test]
    fn ends_count_while_the_pool_is_full() {
        let fleet = two_pools();
        let pool = &fleet.pools[1];
        let board = LoadBoard::new();
        let load = board.rank(RankIndex(2)).unwrap();
        let limits = fleet.ranks[2].room;
        let is_full = |now| is_full(&fleet, pool, &board, NanosSinceStart(now));
        assert!(!is_full(0));
        (0..4).for_each(|_| assert!(load.try_acquire(limits, RoomDemand::default()).is_some()));
        assert!(is_full(0));
        load.release(0);
        assert!(!is_full(0));
        load.refused(forebay_base::ModelIndex(0), NanosSinceStart(5));
        assert!(is_full(6));
        // No rank serves.
        assert!(!super::is_full(&FleetSnapshot::default(), pool, &board, NanosSinceStart(6)));
    }
}
