//! Slow start: a returned worker has cold caches, and perhaps kernels to compile. Its ranks get a
//! share of the load of warm siblings, which grows until the slow start ends. The same holds for a
//! readmitted rank. Without a warm sibling no other rank can take the load, and the slow start
//! ends. Sans-IO: time and loads are arguments.

use forebay_base::{NanosSinceStart, PoolIndex, RankIndex, WorkerIndex};
use forebay_fleet::worker::{FleetSnapshot, LimitSource, Role, WorkerState};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of the ramp.
const STEPS: u32 = 20;

/// Ranks and workers in their slow start.
#[derive(Debug, Default)]
pub(super) struct WarmingRanks {
    comebacks: BTreeMap<WarmingKey, Comeback>,
}

/// All ranks of a worker, or a single rank.
type WarmingKey = (WorkerIndex, Option<RankIndex>);

/// Requests in flight on the fullest warm rank of each pool and role.
#[derive(Debug)]
pub(super) struct WarmLoads(Vec<(PoolIndex, Role, u32)>);

impl WarmLoads {
    /// Of ranks that are up and outside of a slow start. `load`: requests in flight; `None` for a
    /// rank that gets no requests.
    pub(super) fn of(
        fleet: &FleetSnapshot,
        warming: &WarmingRanks,
        load: impl Fn(RankIndex) -> Option<u32>,
    ) -> Self {
        let mut fullest: Vec<(PoolIndex, Role, u32)> = Vec::new();
        for (index, rank, worker) in fleet.present() {
            let is_warm = worker.state == WorkerState::Up && !rank.room.is_closed();
            let Some(load) = load(index).filter(|_| is_warm) else { continue };
            if warming.holds(rank.worker, index) {
                continue;
            }
            match fullest
                .iter_mut()
                .find(|(pool, role, _)| (*pool, *role) == (rank.pool, rank.role))
            {
                Some((_, _, most)) => *most = load.max(*most),
                None => fullest.push((rank.pool, rank.role, load)),
            }
        }
        Self(fullest)
    }

    /// Load of the fullest sibling; 0 for a worker without ranks yet.
    pub(super) fn usual(
        &self,
        fleet: &FleetSnapshot,
        worker: WorkerIndex,
        rank: Option<RankIndex>,
    ) -> Option<u32> {
        let is_its_own = |index| rank.is_none_or(|rank| rank == index);
        let own =
            fleet.present().find(|(index, rank, _)| rank.worker == worker && is_its_own(*index));
        let Some((_, own, _)) = own else { return Some(0) };
        let same = self.0.iter().find(|(pool, role, _)| (*pool, *role) == (own.pool, own.role));
        same.map(|(_, _, load)| *load)
    }
}

#[derive(Debug)]
struct Comeback {
    since: NanosSinceStart,
    /// Current limit of requests in flight on each of the ranks.
    places: u32,
}

impl WarmingRanks {
    /// The worker serves again.
    pub(super) fn begin(&mut self, worker: WorkerIndex, now: NanosSinceStart) {
        self.comebacks.insert((worker, None), Comeback { since: now, places: 1 });
    }

    /// A readmitted rank serves again.
    pub(super) fn begin_rank(
        &mut self,
        worker: WorkerIndex,
        rank: RankIndex,
        now: NanosSinceStart,
    ) {
        self.comebacks.insert((worker, Some(rank)), Comeback { since: now, places: 1 });
    }

    /// The worker no longer serves.
    pub(super) fn end(&mut self, worker: WorkerIndex) {
        self.comebacks.retain(|(slow, _), _| *slow != worker);
    }

    /// Raises the limits; true if a rank may have more than before. `usual`: requests in flight on
    /// the fullest warm sibling of the worker or rank; `None` without a warm sibling.
    pub(super) fn grow(
        &mut self,
        now: NanosSinceStart,
        time: Duration,
        usual: impl Fn(WorkerIndex, Option<RankIndex>) -> Option<u32>,
    ) -> bool {
        let whole = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut has_grown = false;
        self.comebacks.retain(|(worker, rank), comeback| {
            let elapsed = now.since(comeback.since);
            let siblings = usual(*worker, *rank).filter(|_| elapsed < whole);
            let Some(usual) = siblings else {
                has_grown = true;
                return false;
            };
            let steps = u64::from(STEPS).saturating_mul(elapsed) / whole.max(1);
            let share = u64::from(usual).saturating_mul(steps).div_ceil(u64::from(STEPS));
            let places = u32::try_from(share).unwrap_or(u32::MAX);
            has_grown |= places > comeback.places;
            comeback.places = comeback.places.max(places);
            true
        });
        has_grown
    }

    pub(super) fn is_empty(&self) -> bool {
        self.comebacks.is_empty()
    }

    /// Is the rank in its slow start?
    pub(super) fn holds(&self, worker: WorkerIndex, rank: RankIndex) -> bool {
        self.places(worker, rank).is_some()
    }

    fn places(&self, worker: WorkerIndex, rank: RankIndex) -> Option<u32> {
        let of = |rank| self.comebacks.get(&(worker, rank)).map(|comeback| comeback.places);
        [of(None), of(Some(rank))].into_iter().flatten().min()
    }

    /// Limits the places of ranks in their slow start.
    pub(super) fn limit(&self, fleet: &mut FleetSnapshot) {
        for (position, rank) in fleet.ranks.iter_mut().enumerate() {
            let index = RankIndex::try_from_index(position);
            let Some(places) = index.and_then(|index| self.places(rank.worker, index)) else {
                continue;
            };
            if rank.room.is_closed() {
                continue;
            }
            let most = rank.room.places_max;
            if most == 0 || places < most {
                rank.room.places_max = places;
                rank.limit_source = LimitSource::SlowStart;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::Pool;
    use forebay_fleet::worker::test_support::{rank, worker};

    /// Workers of a pool, each with a rank.
    fn fleet_of_ranks(count: u16) -> FleetSnapshot {
        FleetSnapshot {
            workers: (0..count).map(|_| worker()).collect(),
            ranks: (0..count).map(rank).collect(),
            pools: vec![Pool { ranks: (0..count).map(RankIndex).collect(), kv_tokens: 0 }],
            ..FleetSnapshot::default()
        }
    }

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * 1_000_000_000)
    }

    #[test]
    fn a_share_grows_and_ends() {
        let mut warming = WarmingRanks::default();
        let worker = WorkerIndex(1);
        let time = Duration::from_secs(20);
        assert!(!warming.grow(at(5), time, |_, _| Some(40)), "no worker");
        warming.begin(worker, at(10));
        let mut places = |now: u64, usual: u32| {
            let grown = warming.grow(at(now), time, |_, _| Some(usual));
            (grown, warming.places(worker, RankIndex(7)))
        };
        assert_eq!(places(10, 40), (false, Some(1)), "one at least");
        assert_eq!(places(11, 40), (true, Some(2)));
        assert_eq!(places(20, 40), (true, Some(20)));
        assert_eq!(places(20, 40), (false, Some(20)));
        assert_eq!(places(25, 8), (false, Some(20)), "it keeps what it may have");
        assert_eq!(places(29, 8), (false, Some(20)));
        assert_eq!(places(30, 8), (true, None));
        warming.begin(worker, at(40));
        assert!(warming.holds(worker, RankIndex(7)));
        warming.end(worker);
        assert!(
            !warming.grow(at(41), time, |_, _| Some(40)) && !warming.holds(worker, RankIndex(7))
        );
        warming.begin(worker, at(50));
        assert!(warming.grow(at(50), Duration::ZERO, |_, _| Some(40)), "turned off meanwhile");
    }

    #[test]
    fn a_rank_comes_back_by_itself_and_goes_with_its_worker() {
        let mut warming = WarmingRanks::default();
        let worker = WorkerIndex(1);
        let time = Duration::from_secs(20);
        let [one, other] = [RankIndex(3), RankIndex(4)];
        warming.begin_rank(worker, one, at(10));
        assert!(warming.grow(at(20), time, |_, _| Some(40)));
        let places = |warming: &WarmingRanks| [one, other].map(|rank| warming.places(worker, rank));
        assert_eq!(places(&warming), [Some(20), None]);
        warming.begin(worker, at(20));
        assert_eq!(places(&warming), [Some(1), Some(1)]);
        warming.end(worker);
        assert_eq!(places(&warming), [None, None]);
    }

    /// Loads of ranks 0, 1, ... of the fleet.
    fn loads(warming: &WarmingRanks, fleet: &FleetSnapshot, loads: &[Option<u32>]) -> WarmLoads {
        WarmLoads::of(fleet, warming, |rank| loads[rank.index()])
    }

    #[test]
    fn a_worker_without_a_warm_sibling_has_no_limit() {
        let fleet = fleet_of_ranks(3);
        let mut warming = WarmingRanks::default();
        let time = Duration::from_secs(20);
        let workers = [0, 1, 2].map(|rank: usize| fleet.ranks[rank].worker);
        let begin = |warming: &mut WarmingRanks, now| {
            workers.iter().for_each(|worker| warming.begin(*worker, now));
        };
        let grow = |warming: &mut WarmingRanks, now: u64, of: [Option<u32>; 3]| {
            let warm = loads(warming, &fleet, &of);
            warming.grow(at(now), time, |worker, rank| warm.usual(&fleet, worker, rank));
            [0, 1, 2].map(|rank| warming.places(workers[usize::from(rank)], RankIndex(rank)))
        };
        begin(&mut warming, at(10));
        assert_eq!(grow(&mut warming, 11, [Some(1); 3]), [None; 3], "all came together");
        warming.begin(workers[2], at(20));
        assert_eq!(grow(&mut warming, 30, [Some(4), Some(40), Some(1)]), [None, None, Some(20)]);
        let ejected = [None, None, Some(20)];
        assert_eq!(grow(&mut warming, 31, ejected), [None; 3], "no other rank takes its load");
    }

    #[test]
    fn ranks_of_other_models_and_roles_are_no_siblings() {
        let mut fleet = fleet_of_ranks(2);
        let warming = WarmingRanks::default();
        let cold = fleet.ranks[1].worker;
        let usual = |fleet: &FleetSnapshot| {
            let mut warming = WarmingRanks::default();
            warming.begin(cold, at(0));
            loads(&warming, fleet, &[Some(8), Some(1)]).usual(fleet, cold, None)
        };
        assert_eq!(usual(&fleet), Some(8));
        fleet.ranks[0].role = Role::Prefill;
        assert_eq!(usual(&fleet), None);
        fleet.ranks[0].role = Role::Both;
        fleet.workers[0].state = WorkerState::Down;
        assert_eq!(usual(&fleet), None);
        let none = FleetSnapshot::default();
        assert_eq!(
            loads(&warming, &none, &[]).usual(&none, cold, None),
            Some(0),
            "not described yet"
        );
    }
}
