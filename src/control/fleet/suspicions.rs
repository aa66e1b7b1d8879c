//! Ranks with KV events that may belong to another rank, in the next snapshot of the fleet.

use super::{Fleet, KnownWorker};
use forebay_base::WorkerIndex;
use forebay_discovery::{EventSubject, suspect_feeds};
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use std::sync::Arc;

impl KnownWorker {
    /// `None` for an engine that does not answer, because another engine may have its endpoint by
    /// now. `None` too for an engine that requests use by another worker: an engine counts once.
    fn event_subject(&self, worker: WorkerIndex) -> Option<EventSubject<'_>> {
        let counts = self.is_present()
            && self.shown.state == WorkerState::Up
            && self.engine.used_by.is_none();
        Some(EventSubject {
            worker,
            name: &self.shown.name,
            engine: &self.engine.place,
            address: self.shown.address,
            description: self.description.as_ref().filter(|_| counts)?,
        })
    }
}

impl Fleet {
    /// Adds the suspicions about feeds to the snapshot.
    pub(super) fn add_suspicions(&self, snapshot: &mut FleetSnapshot) {
        let workers = self.workers.iter().enumerate();
        let subjects = workers
            .filter_map(|(place, known)| known.event_subject(WorkerIndex::try_from_index(place)?));
        let subjects: Vec<EventSubject<'_>> = subjects.collect();
        for suspect in suspect_feeds(&subjects) {
            let rank = self.rank_index(suspect.worker, suspect.number);
            if let Some(rank) = rank.and_then(|rank| snapshot.ranks.get_mut(rank.index())) {
                rank.feed_suspicion = Some(Arc::new(suspect.suspicion));
            }
        }
    }
}
