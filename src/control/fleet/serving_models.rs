//! Names that each worker serves, names that are expected, and workers that take any name.

use super::known_models::ListNews;
use super::model_state::{Contender, ModelState};
use super::remembered_worker::RememberedWorker;
use super::{Fleet, KnownWorker, OperatorOrder};
use forebay_base::WorkerIndex;
use forebay_discovery::{Description, Listing, ServedModel, configured_model};
use forebay_fleet::worker::{ANY_MODEL, WorkerState};
use std::net::SocketAddr;
use std::sync::Arc;

impl KnownWorker {
    /// Names that the worker serves or is expected to serve.
    pub(super) fn model_names(&self) -> Vec<Arc<str>> {
        if !self.models.state.has_names() {
            return Vec::new();
        }
        match &self.description {
            Some(description) => description.model_names(),
            None => self.models.expected.clone(),
        }
    }

    /// Is the worker known for the name?
    pub(super) fn is_to_serve(&self, name: &str) -> bool {
        self.models.state.has_names()
            && match &self.description {
                Some(description) => description.served(name).is_some(),
                None => self.models.expected.iter().any(|one| **one == *name),
            }
    }

    /// Do requests for the name go to the worker's ranks? `Some(None)`: yes, because the worker
    /// takes any name.
    pub(super) fn serves(&self, name: &str, takes_any: bool) -> Option<Option<&ServedModel>> {
        if name == ANY_MODEL {
            return takes_any.then_some(None);
        }
        let description = self.description.as_ref().filter(|_| self.models.state.serves())?;
        description.served(name).map(Some)
    }

    fn takes_any_by_configuration(&self) -> bool {
        self.description.as_ref().is_some_and(|description| description.listing == Listing::Any)
    }

    pub(super) fn is_present(&self) -> bool {
        self.order != OperatorOrder::Gone
    }
}

impl Fleet {
    /// Takes the list of models of a description; false if the worker keeps its earlier
    /// description.
    pub(super) fn take_list(
        &mut self,
        worker: WorkerIndex,
        address: SocketAddr,
        description: &mut Description,
    ) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        known.models.take_answer(description.listing);
        if !known.models.state.goes_by_earlier_list() {
            return true;
        }
        if known.description.is_none() {
            let names = known.models.expected.iter();
            description.models = names.map(|name| configured_model(name)).collect();
            return true;
        }
        if known.shown.address != address {
            known.shown.address = address;
            known.lose_engine();
        }
        false
    }

    /// Remembers the models that the worker listed before and does not list in `now`, until the
    /// worker lists them again, the configuration has its names, or the worker leaves. Names of the
    /// configuration do not count: its operator takes them away.
    pub(super) fn take_dropped(&mut self, worker: WorkerIndex, now: &Description) {
        match now.listing {
            Listing::Listed => {}
            Listing::Configured | Listing::Any => {
                self.models.dropped.remove(&worker);
                return;
            }
            Listing::Nothing { .. } => return,
        }
        let mut dropped = self.models.dropped.remove(&worker).unwrap_or_default();
        dropped.retain(|name| now.served(name).is_none());
        let is_listed = |list: &&Description| list.listing == Listing::Listed;
        let before = self.workers.get(worker.index()).and_then(|known| known.description.as_ref());
        for ServedModel { name, parent, .. } in
            before.filter(is_listed).iter().flat_map(|b| &b.models)
        {
            let has_place = self.models.names.contains(name);
            if parent.is_none() && has_place && now.served(name).is_none() {
                dropped.insert(Arc::clone(name));
            }
        }
        if !dropped.is_empty() {
            self.models.dropped.insert(worker, dropped);
        }
    }

    /// A worker that served the model before and lists other models now.
    pub(crate) fn dropped_by(&self, name: &str) -> Option<WorkerIndex> {
        let mut dropped = self.models.dropped.iter();
        dropped.find(|(_, names)| names.contains(name)).map(|(worker, _)| *worker)
    }

    /// Models that the worker served before. The worker lists other models now.
    pub(crate) fn dropped_models(&self, worker: WorkerIndex) -> Vec<Arc<str>> {
        self.models.dropped.get(&worker).into_iter().flatten().cloned().collect()
    }

    /// Changes of the list since the last call.
    pub(crate) fn take_list_news(&mut self, worker: WorkerIndex) -> ListNews {
        let known = self.workers.get_mut(worker.index());
        known.map(|known| std::mem::take(&mut known.models.news)).unwrap_or_default()
    }

    /// Gives places to the names that workers without a description are expected to serve.
    pub(super) fn place_expected(&mut self) {
        let undescribed = self.workers.iter().filter(|known| known.description.is_none());
        let names: Vec<_> = undescribed.flat_map(KnownWorker::model_names).collect();
        self.models.place(&names, &mut 0);
    }

    /// Takes the names from the process before.
    pub(crate) fn remember(&mut self, workers: Vec<RememberedWorker>) {
        let by_worker = workers.into_iter().map(|known| (known.worker.clone(), known));
        self.models.remembered = by_worker.collect();
        self.recall();
    }

    /// Applies the remembered names to present workers, once each.
    pub(super) fn recall(&mut self) {
        for (index, known) in self.workers.iter_mut().enumerate() {
            let before = self.models.remembered.remove(&*known.shown.authority);
            let Some(before) = before.filter(|_| known.description.is_none()) else { continue };
            known.models.remember(&before);
            known.models.was_up |= before.sole;
            let place = WorkerIndex::try_from_index(index).filter(|_| before.sole);
            place.into_iter().for_each(|place| self.models.sole.remember(place));
        }
        self.place_expected();
    }

    /// Names for the next process. Configured names are in its configuration.
    pub(crate) fn remembered(&self) -> Vec<RememberedWorker> {
        let present = self.workers.iter().enumerate().filter(|(_, known)| known.is_present());
        let listed = present.map(|(index, known)| RememberedWorker {
            worker: known.shown.authority.to_string(),
            models: match known.models.state {
                ModelState::Configured => Vec::new(),
                _ => known.model_names().iter().map(ToString::to_string).collect(),
            },
            up: known.shown.state == WorkerState::Up && known.models.state.serves(),
            sole: self.models.sole.is(index),
        });
        listed.filter(|known| known.sole || !known.models.is_empty()).collect()
    }

    /// Workers that take any model: by the configuration, or as the only worker.
    pub(super) fn workers_of_any(&mut self) -> Vec<WorkerIndex> {
        let present = self.workers.iter().enumerate().filter(|(_, known)| known.is_present());
        let all: Vec<(WorkerIndex, &KnownWorker)> = present
            .filter_map(|(index, known)| Some((WorkerIndex::try_from_index(index)?, known)))
            .collect();
        // A listless worker that leaves makes room for the next.
        let leaves = |known: &KnownWorker| matches!(known.order, OperatorOrder::Leave(..));
        let contenders: Vec<Contender> = all
            .iter()
            .filter(|(_, known)| known.models.state.has_names() || !leaves(known))
            .map(|(worker, known)| Contender {
                worker: *worker,
                state: known.models.state,
                was_up: known.models.was_up,
                is_in_file: known.models.is_in_file,
            })
            .collect();
        let any = all.iter().filter(|(_, known)| known.takes_any_by_configuration());
        let any = any.map(|(worker, _)| *worker);
        let any: Vec<WorkerIndex> = any.chain(self.models.sole.among(&contenders)).collect();
        if !any.is_empty() {
            self.models.place(&[ANY_MODEL.into()], &mut 0);
        }
        any
    }

    /// Does the file have a worker with names unknown so far? Workers of other sources do not
    /// count: a source may list any address.
    pub(super) fn awaits_models(&self) -> bool {
        let is_awaited = |known: &KnownWorker| {
            let is_nameless = known.models.expected.is_empty();
            known.is_present()
                && known.models.is_in_file
                && known.description.is_none()
                && is_nameless
        };
        self.workers.iter().any(is_awaited)
    }

    /// Has a present worker, of any origin, no description yet?
    pub(super) fn has_undescribed(&self) -> bool {
        self.workers.iter().any(|known| known.is_present() && known.description.is_none())
    }
}
