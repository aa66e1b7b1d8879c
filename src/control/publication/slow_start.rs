//! Slow start: a returned worker has cold caches, and perhaps kernels to compile. Its ranks get a
//! share of the load of other ranks, which grows until the slow start ends. The same holds for a
//! readmitted rank. Sans-IO: time and loads are arguments.

use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_fleet::worker::FleetSnapshot;
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
    /// the fullest of the other ranks.
    pub(super) fn grow(&mut self, now: NanosSinceStart, time: Duration, usual: u32) -> bool {
        let whole = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.comebacks.len();
        self.comebacks.retain(|_, comeback| now.since(comeback.since) < whole);
        let mut has_grown = self.comebacks.len() < before;
        for comeback in self.comebacks.values_mut() {
            let steps = u64::from(STEPS).saturating_mul(now.since(comeback.since)) / whole.max(1);
            let share = u64::from(usual).saturating_mul(steps).div_ceil(u64::from(STEPS));
            let places = u32::try_from(share).unwrap_or(u32::MAX);
            has_grown |= places > comeback.places;
            comeback.places = comeback.places.max(places);
        }
        has_grown
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
            rank.room.places_max = if most == 0 { places } else { most.min(places) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * 1_000_000_000)
    }

    #[test]
    fn a_share_grows_and_ends() {
        let mut warming = WarmingRanks::default();
        let worker = WorkerIndex(1);
        let time = Duration::from_secs(20);
        assert!(!warming.grow(at(5), time, 40), "nobody");
        warming.begin(worker, at(10));
        let mut places = |now: u64, usual: u32| {
            let grown = warming.grow(at(now), time, usual);
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
        assert!(!warming.grow(at(41), time, 40) && !warming.holds(worker, RankIndex(7)));
        warming.begin(worker, at(50));
        assert!(warming.grow(at(50), Duration::ZERO, 40), "turned off meanwhile");
    }

    #[test]
    fn a_rank_comes_back_by_itself_and_goes_with_its_worker() {
        let mut warming = WarmingRanks::default();
        let worker = WorkerIndex(1);
        let time = Duration::from_secs(20);
        let [one, other] = [RankIndex(3), RankIndex(4)];
        warming.begin_rank(worker, one, at(10));
        assert!(warming.grow(at(20), time, 40));
        let places = |warming: &WarmingRanks| [one, other].map(|rank| warming.places(worker, rank));
        assert_eq!(places(&warming), [Some(20), None]);
        warming.begin(worker, at(20));
        assert_eq!(places(&warming), [Some(1), Some(1)]);
        warming.end(worker);
        assert_eq!(places(&warming), [None, None]);
    }
}
