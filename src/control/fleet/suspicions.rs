//! Ranks with KV events that may belong to another rank or do not come, in the next snapshot of the
//! fleet.

use super::{Fleet, KnownRank, KnownWorker};
use forebay_base::{RankIndex, WorkerIndex};
use forebay_discovery::{DescribedRank, EventSubject, shared_endpoints, suspect_feeds};
use forebay_fleet::worker::{
    EventSocket, FeedSuspicion, FleetSnapshot, SuspicionSign, WorkerState,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

impl KnownWorker {
    fn event_subject(&self, worker: WorkerIndex) -> Option<EventSubject<'_>> {
        Some(EventSubject {
            worker,
            name: &self.shown.name,
            engine: &self.engine.place,
            address: self.shown.address,
            description: self.description.as_ref()?,
        })
    }

    /// False for an engine that does not answer, because another engine may have its endpoint by
    /// now. False too for an engine that requests use by another worker: an engine counts once.
    fn is_judged(&self) -> bool {
        self.is_present() && self.shown.state == WorkerState::Up && self.engine.used_by.is_none()
    }
}

impl KnownRank {
    /// Suspicion that the feed of the rank has found itself.
    fn own_suspicion(&self, described: &DescribedRank) -> Option<FeedSuspicion> {
        let events = described.events.as_ref()?;
        let foreign = events.replay.as_ref().filter(|_| self.findings.has_foreign_replay);
        if let Some(replay) = foreign {
            return Some(FeedSuspicion {
                socket: EventSocket::Replay,
                endpoint: replay.to_string().into(),
                sign: SuspicionSign::ForeignReplay,
            });
        }
        // An engine without a cache has no events.
        let is_silent = self.findings.is_silent && described.reuses_prefixes != Some(false);
        is_silent.then(|| FeedSuspicion {
            socket: EventSocket::Publisher,
            endpoint: events.endpoint.to_string().into(),
            sign: SuspicionSign::Silent { topic: events.topic.as_str().into() },
        })
    }
}

impl Fleet {
    fn event_subjects(&self, counts: impl Fn(&KnownWorker) -> bool) -> Vec<EventSubject<'_>> {
        let workers = self.workers.iter().enumerate().filter(|(_, known)| counts(known));
        let subjects = workers
            .filter_map(|(place, known)| known.event_subject(WorkerIndex::try_from_index(place)?));
        subjects.collect()
    }

    /// Ranks with the endpoint of a rank of another number. Workers that are down count, because
    /// another feed would forget what it knows.
    pub(super) fn shared_endpoints(&self) -> HashSet<(WorkerIndex, u32)> {
        shared_endpoints(&self.event_subjects(|_| true))
    }

    /// Holds the last judgement of feeds, or judges each new snapshot.
    pub(crate) fn defer_judgement(&mut self, is_deferred: bool) {
        self.judgement.is_deferred = is_deferred;
    }

    /// Takes the ranks without a batch; true if another rank is silent than before.
    pub(crate) fn set_silent(&mut self, silent: &[RankIndex]) -> bool {
        let mut is_changed = false;
        for (place, known) in self.ranks.iter_mut().enumerate() {
            let is_silent = silent.iter().any(|rank| rank.index() == place);
            let before = std::mem::replace(&mut known.findings.is_silent, is_silent);
            is_changed |= before != is_silent;
        }
        is_changed
    }

    /// Adds the suspicions about feeds to the snapshot.
    pub(super) fn add_suspicions(&mut self, snapshot: &mut FleetSnapshot) {
        if !self.judgement.is_deferred {
            self.judgement.found = self.judge();
        }
        for (index, suspicion) in &self.judgement.found {
            if let Some(rank) = snapshot.ranks.get_mut(index.index()) {
                rank.feed_suspicion = Some(Arc::clone(suspicion));
            }
        }
    }

    fn judge(&self) -> BTreeMap<RankIndex, Arc<FeedSuspicion>> {
        let subjects = self.event_subjects(KnownWorker::is_judged);
        let mut found = BTreeMap::new();
        for suspect in suspect_feeds(&subjects) {
            if let Some(rank) = self.rank_index(suspect.worker, suspect.number) {
                found.insert(rank, Arc::new(suspect.suspicion));
            }
        }
        for subject in &subjects {
            for described in &subject.description.ranks {
                let index = self.rank_index(subject.worker, described.number);
                let known = index.and_then(|index| self.ranks.get(index.index()));
                let suspicion = known.and_then(|known| known.own_suspicion(described));
                if let Some((index, suspicion)) = index.zip(suspicion) {
                    // The endpoints of the fleet show more: the other rank.
                    found.entry(index).or_insert_with(|| Arc::new(suspicion));
                }
            }
        }
        found
    }
}
