//! Slow start: a worker that has come back has cold caches, and perhaps kernels to compile. It gets
//! a share of what others have in flight, which grows until its time is over. Sans-IO: time and
//! loads are arguments.

use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of the way up.
const STEPS: u32 = 20;

/// Workers that came back a moment ago.
#[derive(Debug, Default)]
pub(super) struct Warming {
    workers: BTreeMap<WorkerIndex, Comeback>,
}

#[derive(Debug)]
struct Comeback {
    since: NanosSinceStart,
    /// Most requests in flight on each of its ranks, for now.
    places: u32,
}

impl Warming {
    /// The worker serves again.
    pub(super) fn begin(&mut self, worker: WorkerIndex, now: NanosSinceStart) {
        self.workers.insert(worker, Comeback { since: now, places: 1 });
    }

    /// The worker serves no more.
    pub(super) fn end(&mut self, worker: WorkerIndex) {
        self.workers.remove(&worker);
    }

    /// Time has passed; true if a worker may have more than before. `usual`: requests in flight on
    /// the fullest rank of another worker.
    pub(super) fn grow(&mut self, now: NanosSinceStart, time: Duration, usual: u32) -> bool {
        let whole = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.workers.len();
        self.workers.retain(|_, worker| now.since(worker.since) < whole);
        let mut has_grown = self.workers.len() < before;
        for worker in self.workers.values_mut() {
            let steps = u64::from(STEPS).saturating_mul(now.since(worker.since)) / whole.max(1);
            let share = u64::from(usual).saturating_mul(steps).div_ceil(u64::from(STEPS));
            let places = u32::try_from(share).unwrap_or(u32::MAX);
            has_grown |= places > worker.places;
            worker.places = worker.places.max(places);
        }
        has_grown
    }

    /// True for a worker that is on its way up.
    pub(super) fn holds(&self, worker: WorkerIndex) -> bool {
        self.workers.contains_key(&worker)
    }

    /// Limits the ranks of these workers.
    pub(super) fn limit(&self, fleet: &mut FleetSnapshot) {
        for rank in &mut fleet.ranks {
            let Some(Comeback { places, .. }) = self.workers.get(&rank.worker) else { continue };
            if rank.room.is_closed() {
                continue;
            }
            let most = rank.room.places_max;
            rank.room.places_max = if most == 0 { *places } else { most.min(*places) };
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
        let (mut warming, worker, time) =
            (Warming::default(), WorkerIndex(1), Duration::from_secs(20));
        assert!(!warming.grow(at(5), time, 40), "nobody");
        warming.begin(worker, at(10));
        let mut places = |now: u64, usual: u32| {
            let grown = warming.grow(at(now), time, usual);
            (grown, warming.workers.get(&worker).map(|worker| worker.places))
        };
        assert_eq!(places(10, 40), (false, Some(1)), "one at least");
        assert_eq!(places(11, 40), (true, Some(2)));
        assert_eq!(places(20, 40), (true, Some(20)));
        assert_eq!(places(20, 40), (false, Some(20)));
        assert_eq!(places(25, 8), (false, Some(20)), "it keeps what it may have");
        assert_eq!(places(29, 8), (false, Some(20)));
        assert_eq!(places(30, 8), (true, None));
        warming.begin(worker, at(40));
        assert!(warming.holds(worker));
        warming.end(worker);
        assert!(!warming.grow(at(41), time, 40) && !warming.holds(worker));
        warming.begin(worker, at(50));
        assert!(warming.grow(at(50), Duration::ZERO, 40), "turned off meanwhile");
    }
}
