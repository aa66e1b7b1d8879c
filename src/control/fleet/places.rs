//! Workers that operators and sources take out, add and remove.

use super::{Fleet, KnownWorker, OperatorOrder, PlaceError};
use forebay_admin::WorkerDrain;
use forebay_base::limits::WORKERS_MAX;
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_config::{Config, WorkerConfig, WorkerUrl};
use forebay_discovery::Registration;
use forebay_fleet::worker::WorkerState;
use forebay_tls::Connector;
use std::sync::Arc;

impl Fleet {
    /// Takes the operator's order for a worker, which holds until the next order; true if it
    /// changed.
    pub(crate) fn set_draining(&mut self, worker: WorkerIndex, drain: WorkerDrain) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let moves = drain == WorkerDrain::MoveStreams;
        let order = match known.order {
            stays @ (OperatorOrder::Gone | OperatorOrder::Sleep(_)) => stays,
            _ if drain == WorkerDrain::Off => OperatorOrder::Serve,
            OperatorOrder::Leave(by, _) => OperatorOrder::Leave(by, moves),
            _ => OperatorOrder::Drain(moves),
        };
        std::mem::replace(&mut known.order, order) != order
    }

    /// Adds a worker, in a place of its own. A worker of an earlier address gets the earlier place
    /// with its ranks: counts by rank number continue for the same address. `connector`: of a
    /// worker with `https://`.
    pub(crate) fn add(
        &mut self,
        config: &Config,
        worker: &WorkerConfig,
        connector: Option<Connector>,
    ) -> Result<WorkerIndex, PlaceError> {
        let mut known = KnownWorker::new(config, worker).ok_or(PlaceError::Url)?;
        let authority = Arc::clone(&known.shown.authority);
        if self.worker_named(&known.shown.name).is_some() {
            return Err(PlaceError::Name);
        }
        known.shown.connector = connector;
        let place = self.workers.iter().position(|other| other.shown.authority == authority);
        let is_there = place.and_then(|place| self.workers.get(place));
        let is_there = is_there.is_some_and(|before| before.order != OperatorOrder::Gone);
        if let Some(name) = self.user_of(&known.engine.place).filter(|_| !is_there) {
            return Err(PlaceError::Engine(name));
        }
        if let Some(before) = place.and_then(|place| self.workers.get_mut(place)) {
            if before.order != OperatorOrder::Gone
                || before.shown.connector.is_some() && known.shown.connector.is_none()
            {
                return Err(PlaceError::Url);
            }
            known.shown.generation = before.shown.generation;
            known.models.brought = before.models.brought;
            *before = known;
        } else if self.workers.len() < WORKERS_MAX {
            self.workers.push(known);
        } else {
            return Err(PlaceError::Full);
        }
        let place = place.unwrap_or(self.workers.len() - 1);
        self.recall();
        WorkerIndex::try_from_index(place).ok_or(PlaceError::Full)
    }

    /// Cancels the removal of a worker; true if it had begun.
    pub(crate) fn stay(&mut self, worker: WorkerIndex) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let leaves = matches!(known.order, OperatorOrder::Leave(..));
        if leaves {
            known.order = OperatorOrder::Serve;
        }
        leaves
    }

    /// Begins the removal of a worker; false if it had begun before.
    pub(crate) fn leave(&mut self, worker: WorkerIndex, by: NanosSinceStart) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        let begins = !matches!(known.order, OperatorOrder::Leave(..) | OperatorOrder::Gone);
        if begins {
            known.order = OperatorOrder::Leave(by, known.order == OperatorOrder::Drain(true));
        }
        begins
    }

    /// Does a leaving worker still have the name or the address of this worker?
    pub(crate) fn is_leaving(&self, worker: &WorkerConfig) -> bool {
        let Ok(WorkerUrl { authority, .. }) = WorkerUrl::parse(&worker.url) else { return false };
        let name = worker.name.as_deref().unwrap_or(&authority);
        self.workers.iter().any(|known| {
            matches!(known.order, OperatorOrder::Leave(..))
                && (*known.shown.name == *name || *known.shown.authority == *authority)
        })
    }

    /// Leaving workers that are idle or late.
    pub(crate) fn leaving(
        &self,
        now: NanosSinceStart,
        is_idle: impl Fn(RankIndex) -> bool,
    ) -> Vec<WorkerIndex> {
        let ends = |index: &WorkerIndex| match self.workers.get(index.index()).map(|k| k.order) {
            Some(OperatorOrder::Leave(by, _)) => {
                let all = self.ranks.iter().enumerate().filter(|(_, rank)| rank.worker == *index);
                let mut ranks = all.filter_map(|(rank, _)| RankIndex::try_from_index(rank));
                now >= by || ranks.all(&is_idle)
            }
            _ => false,
        };
        let all = (0..self.workers.len()).filter_map(WorkerIndex::try_from_index);
        all.filter(ends).collect()
    }

    /// Ends a worker: it serves no model, and its name is free.
    pub(crate) fn remove(&mut self, worker: WorkerIndex) {
        let Some(known) = self.workers.get_mut(worker.index()) else { return };
        known.order = OperatorOrder::Gone;
        known.shown.state = WorkerState::Unknown;
        known.description = None;
        known.models.remove();
        known.texts.clear();
        known.registration = Registration::default();
        known.lose_engine();
        self.models.dropped.remove(&worker);
        let ranks = self.ranks.iter_mut().filter(|rank| rank.worker == worker);
        for rank in ranks {
            rank.lose_feed();
            rank.announced = None;
        }
    }
}
