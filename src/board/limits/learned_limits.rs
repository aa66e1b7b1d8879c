//! The learned limits of all ranks. Owned by the control plane: it follows the fleet, processes the
//! reports, and stores each limit in the load board, where leases obey it.

use super::learned_limit::{LearnedLimit, LimitReport};
use crate::LoadBoard;
use crate::LoadReading;
use crate::OwnLoad;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::FleetSnapshot;
use forebay_fleet::worker::LimitSource;

/// Above this share, a prompt of usual length finds no free blocks.
const KV_FULL_PERMILLE: u16 = 950;

/// A limit for each rank with [`LimitSource::Learned`].
#[derive(Debug, Default)]
pub struct LearnedLimits {
    by_rank: Vec<Option<RankLimit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankLimit {
    /// Generation of the engine, see [`forebay_fleet::worker::WorkerGeneration`].
    engine: u32,
    limit: LearnedLimit,
}

impl LearnedLimits {
    /// Follows a change of the fleet. Forgets the limit of an engine that restarts, declares its
    /// limit, or gets a configured limit.
    pub fn follow(&mut self, fleet: &FleetSnapshot, board: &LoadBoard) {
        self.by_rank.resize(fleet.ranks.len().max(self.by_rank.len()), None);
        for (position, entry) in self.by_rank.iter_mut().enumerate() {
            let Some(index) = RankIndex::try_from_index(position) else { continue };
            let engine = fleet
                .rank(index)
                .filter(|(rank, _)| rank.limit_source == LimitSource::Learned)
                .map(|(_, worker)| worker.generation.engine);
            if entry.map(|entry| entry.engine) != engine {
                *entry = engine.map(|engine| RankLimit { engine, limit: LearnedLimit::default() });
                board.set_learned_places(index, None);
            }
        }
    }

    /// Processes a load report of a rank. `own`: this router's load there.
    pub fn observe(
        &mut self,
        rank: RankIndex,
        reading: &LoadReading,
        own: OwnLoad,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        let Some(Some(entry)) = self.by_rank.get_mut(rank.index()) else { return };
        let elsewhere = board.rank(rank).map_or(0, |load| load.places_elsewhere());
        let report = LimitReport {
            running: reading.running,
            waiting: reading.waiting.saturating_sub(reading.deferred),
            known: own.in_flight.saturating_add(elsewhere),
            is_kv_full: reading.kv_permille.is_some_and(|permille| permille >= KV_FULL_PERMILLE),
        };
        if entry.limit.observe(report, now) {
            board.set_learned_places(rank, entry.limit.places_max());
        }
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::RankLoad;
    use forebay_base::ModelIndex;
    use forebay_fleet::worker::test_support::{rank, worker};
    use forebay_fleet::worker::{Rank, RoomDemand, RoomLimits};

    const RANK: RankIndex = RankIndex(0);
    const NONE: RoomLimits = RoomLimits { places_max: 0, kv_tokens_max: 0, prefill_tokens_max: 0 };

    /// Takes all places that are left.
    fn taken(load: &RankLoad, limits: RoomLimits) -> usize {
        let takes = |_: &usize| load.try_acquire(limits, RoomDemand::default()).is_some();
        let count = (0..1_000).take_while(takes).count();
        (0..count).for_each(|_| load.release(0));
        count
    }

    #[test]
    fn leases_obey_what_was_learned_until_the_engine_starts_anew() {
        let mut limits = LearnedLimits::default();
        let board = LoadBoard::new();
        let mut fleet = FleetSnapshot { workers: vec![worker()], ..FleetSnapshot::default() };
        fleet.ranks.push(Rank { limit_source: LimitSource::Learned, ..rank(0) });
        limits.follow(&fleet, &board);
        let load = board.rank(RANK).unwrap();
        let report = |limits: &mut LearnedLimits, second: u64| {
            let reading = LoadReading { running: 8, waiting: 300, ..LoadReading::default() };
            let own = OwnLoad { in_flight: 308, ..OwnLoad::default() };
            limits.observe(RANK, &reading, own, &board, NanosSinceStart(second * 1_000_000_000));
        };
        assert_eq!(taken(load, NONE), 1_000);
        (1..=2).for_each(|second| report(&mut limits, second));
        assert_eq!((load.learned_places(), taken(load, NONE)), (9, 9));
        assert!(load.has_room(NONE, RoomDemand::default()));
        assert_eq!(taken(load, RoomLimits { places_max: 20, ..NONE }), 20, "of another source");
        assert_eq!(taken(load, RoomLimits::CLOSED), 0);
        // A refusal when idle: a single request may try, however many would run.
        load.refused(ModelIndex(0), NanosSinceStart(0));
        let room = |ms: u64| load.room_at(NONE, None, NanosSinceStart(ms * 1_000_000)).places_max;
        assert_eq!([room(1), room(401), room(3_000)], [1, 3, 9]);
        limits.follow(&fleet, &board);
        assert_eq!(load.learned_places(), 9, "the same engine");
        fleet.workers[0].generation = fleet.workers[0].generation.with_empty_caches();
        limits.follow(&fleet, &board);
        assert_eq!(load.learned_places(), 9, "the same engine, with empty caches");
        fleet.workers[0].generation = fleet.workers[0].generation.with_other_engine();
        limits.follow(&fleet, &board);
        assert_eq!(taken(load, NONE), 1_000, "another one");
        (3..=4).for_each(|second| report(&mut limits, second));
        assert_eq!(load.learned_places(), 9, "learned again");
        fleet.ranks[0].limit_source = LimitSource::Configured;
        limits.follow(&fleet, &board);
        assert_eq!(load.learned_places(), 0);
    }
}
