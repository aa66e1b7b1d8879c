//! What operators changed of the fleet outlives the process, in the file of `workers_state`.

use super::super::fleet::{NoPlace, OperatorWord};
use super::super::membership::ModelMemory;
use super::super::membership::{Confirmation, WorkerOrder, WorkersState};
use super::Control;
use forebay_admin::WorkerDrain;
use forebay_base::WorkerIndex;
use forebay_config::{KnownConnectors, Word, WorkerRole, WorkerUrl};
use std::collections::BTreeMap;
use tracing::{error, info, warn};

impl Control {
    /// Brings the workers to where operators left them. The configuration comes first: a worker
    /// that the configuration names is as the configuration says.
    pub(super) fn bring_back(&mut self, orders: &[WorkerOrder]) {
        self.recall_models();
        let mut known = KnownConnectors::new();
        for order in orders {
            let url = &order.url;
            let configured = self.fleet.worker_at(url);
            match configured.or_else(|| self.bring_back_added(order, &mut known)) {
                Some(place) => self.obey(place, order),
                // A source may list it.
                None if order.added => {}
                None => {
                    let state = self.setup.workers_state.as_mut();
                    state.into_iter().for_each(|state| state.expect(order.clone()));
                }
            }
        }
        // Without any worker nothing else would: the shards listen from their first fleet on.
        self.publish();
    }

    /// Takes the names that the workers listed in the process before.
    fn recall_models(&mut self) {
        let handed = self.lifecycle.take_models();
        let index = &self.env.config.index;
        let (memory, remembered) = ModelMemory::open(handed, index.snapshot.as_deref());
        self.setup.models = memory;
        self.fleet.remember(remembered);
    }

    fn obey(&mut self, place: WorkerIndex, order: &WorkerOrder) {
        let url = &order.url;
        if order.removed {
            info!(url, "stays removed, as the admin API said");
            self.end_worker(place);
        } else if order.draining && self.fleet.set_draining(place, WorkerDrain::KeepStreams) {
            info!(url, "goes on draining, as the admin API said");
        }
    }

    /// A source has brought a worker: what operators said of it before the start counts.
    pub(super) fn obey_earlier(&mut self, place: WorkerIndex, url: &str) {
        let state = self.setup.workers_state.as_mut();
        if let Some(order) = state.and_then(|state| state.take_order(url)) {
            self.obey(place, &order);
        }
    }

    fn bring_back_added(
        &mut self,
        order: &WorkerOrder,
        known: &mut KnownConnectors,
    ) -> Option<WorkerIndex> {
        let url = &order.url;
        let worker = order.worker().ok().filter(|_| order.added)?;
        match self.add(&worker, known) {
            Ok(place) => {
                info!(url, "added by the admin API before this process began");
                self.unheard.insert(place);
                Some(place)
            }
            Err(NoPlace::Tls(fault)) => {
                error!(
                    url,
                    "not added: {fault}; mend `upstream_tls` and restart, the line is kept"
                );
                let state = self.setup.workers_state.as_mut();
                state.into_iter().for_each(|state| state.expect(order.clone()));
                None
            }
            Err(reason) => {
                warn!(url, ?reason, "not added again: its name is in use, or no place is left");
                None
            }
        }
    }

    /// Has the file say what is now, if it has to say anything else. A process that has handed over
    /// leaves the file to the next one.
    pub(super) fn keep_workers(&mut self) {
        let generation = self.snapshot.generation;
        let now = self.env.clock.now();
        let handed_over = self.lifecycle.is_handed_over();
        let state = self.setup.workers_state.as_mut();
        if !handed_over && state.is_some_and(|state| state.is_due(generation, now)) {
            let orders = self.orders();
            if let Some(state) = &mut self.setup.workers_state {
                state.keep(&orders);
            }
        }
    }

    /// The same for the names that workers listed.
    pub(super) fn keep_models(&mut self) {
        if !self.lifecycle.is_handed_over() && self.setup.models.is_due(self.snapshot.generation) {
            self.setup.models.keep(&self.fleet.remembered());
        }
    }

    /// Confirms that the file has what was changed before, if there is a file.
    pub(super) fn confirm_kept(&mut self, answer: Confirmation) {
        if self.lifecycle.is_handed_over() {
            let _ = answer.send(Err("another process serves from now on".to_owned()));
            return;
        }
        match &mut self.setup.workers_state {
            Some(state) => state.confirm(answer),
            None => drop(answer.send(Ok(()))),
        }
        self.keep_workers();
    }

    /// Writes what is left to write.
    pub(super) async fn keep_workers_at_last(&mut self) {
        for _ in 0..2 {
            if let Some(state) = &mut self.setup.workers_state {
                state.written().await;
            }
            self.keep_workers();
        }
        if let Some(state) = &mut self.setup.workers_state {
            state.written().await;
        }
    }

    fn orders(&self) -> Vec<WorkerOrder> {
        let mut words: BTreeMap<&str, (usize, OperatorWord)> = BTreeMap::new();
        for (place, (authority, word)) in self.fleet.words().enumerate() {
            words.insert(authority, (place, word));
        }
        let mut orders = Vec::new();
        for worker in self.env.config.workers.iter().chain(self.sources.brought()) {
            let Ok(url) = WorkerUrl::parse(&worker.url) else { continue };
            let Some((_, word)) = words.remove(&*url.authority) else { continue };
            let removed = matches!(word, OperatorWord::Leave(..) | OperatorWord::Gone);
            let draining = matches!(word, OperatorWord::Drain(_));
            if removed || draining {
                let url = worker.url.clone();
                orders.push(WorkerOrder { url, draining, removed, ..WorkerOrder::default() });
            }
        }
        let mut added: Vec<_> = words.into_values().collect();
        added.sort_unstable_by_key(|(place, _)| *place);
        for (place, word) in added {
            let index = WorkerIndex::try_from_index(place);
            let Some(worker) = index.and_then(|index| self.probes.worker(index)) else { continue };
            if matches!(word, OperatorWord::Leave(..) | OperatorWord::Gone) {
                continue;
            }
            orders.push(WorkerOrder {
                url: worker.url.clone(),
                name: worker.name.clone(),
                role: (worker.role != WorkerRole::Auto).then(|| worker.role.word().to_owned()),
                api_key: worker.api_key.clone(),
                added: true,
                draining: matches!(word, OperatorWord::Drain(_)),
                removed: false,
            });
        }
        let pending = self.setup.workers_state.iter().flat_map(WorkersState::pending);
        orders.extend(pending.cloned());
        orders
    }
}
