//! Operators' changes of the fleet outlive the process, in the file of `workers_state`. Names of
//! models outlive the process in a file of their own.

use super::super::environment::Environment;
use super::super::fleet::{OperatorOrder, PlaceError};
use super::model_log::log_unlisted;
use super::model_memory::ModelMemory;
use super::workers_state::{Confirmation, WorkerOrder, WorkersState};
use super::{FleetChange, Membership};
use forebay_admin::WorkerDrain;
use forebay_base::WorkerIndex;
use forebay_config::{KnownConnectors, Word, WorkerConfig, WorkerRole, WorkerUrl};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use tracing::{error, info};

impl Membership {
    /// Restores the orders of operators and the names of models; a worker that slept is awake. A
    /// configured worker has its settings from the configuration; drains and removals count for it
    /// too. `models`: file from the process before.
    pub(crate) fn restore(&mut self, env: &Environment, models: Option<File>) -> FleetChange {
        let config = &env.config;
        let (memory, remembered) = ModelMemory::open(models, config.index.snapshot.as_deref());
        self.models = memory;
        self.fleet.remember(remembered);
        let (file, orders) = config.workers_state.as_deref().map(WorkersState::open).unzip();
        self.orders_file = file;
        let mut known = KnownConnectors::new();
        // Without any worker nothing else would publish a first fleet.
        let mut change = FleetChange::published();
        let mut unlisted = Vec::new();
        for order in orders.unwrap_or_default() {
            let configured =
                self.fleet.worker_at(&order.url).or_else(|| self.fleet.engine_at(&order.url));
            match configured.or_else(|| self.restore_added(env, &order, &mut known)) {
                Some(place) => change = change.and(self.apply_order(env, place, &order)),
                // Not added: `restore_added` has logged why, and has kept the order where it can.
                None if order.added => {}
                // A source may list the worker.
                None => {
                    unlisted.push(Arc::from(&*order.url));
                    self.expect(order);
                }
            }
        }
        log_unlisted(&unlisted);
        change
    }

    /// Forgets orders of before a restart: a worker that an operator adds, by a call or a reload,
    /// is not removed.
    pub(super) fn forget_orders(&mut self, url: &str) {
        if let Some(file) = &mut self.orders_file {
            file.forget_orders(url);
        }
    }

    /// Applies the earlier order for a worker that a source has added.
    pub(super) fn apply_pending_order(
        &mut self,
        env: &Environment,
        place: WorkerIndex,
        url: &str,
    ) -> FleetChange {
        let order = self.orders_file.as_mut().and_then(|file| file.take_order(url));
        order.map_or_else(FleetChange::default, |order| self.apply_order(env, place, &order))
    }

    /// Writes the files if the fleet has changed. A process that has handed over leaves the files
    /// to the next process.
    pub(crate) fn write_files(&mut self, env: &Environment, generation: u64, is_handed_over: bool) {
        self.write_orders(env, generation, is_handed_over);
        if !is_handed_over && self.models.take_due(generation) {
            self.models.keep(&self.fleet.remembered());
        }
    }

    /// As [`Self::write_files`], for the orders alone.
    pub(crate) fn write_orders(
        &mut self,
        env: &Environment,
        generation: u64,
        is_handed_over: bool,
    ) {
        let now = env.clock.now();
        let file = self.orders_file.as_mut();
        if !is_handed_over && file.is_some_and(|file| file.take_due(generation, now)) {
            let orders = self.orders(&env.config.workers);
            if let Some(file) = &mut self.orders_file {
                file.keep(&orders);
            }
        }
    }

    /// Confirms earlier changes once they are in the file, if there is a file.
    pub(crate) fn confirm(
        &mut self,
        env: &Environment,
        generation: u64,
        is_handed_over: bool,
        answer: Confirmation,
    ) {
        if is_handed_over {
            let _ = answer.send(Err("another process serves from now on".to_owned()));
            return;
        }
        match &mut self.orders_file {
            Some(file) => file.confirm(answer),
            None => drop(answer.send(Ok(()))),
        }
        self.write_orders(env, generation, is_handed_over);
    }

    /// Waits until the files are written, for a bounded time.
    pub(crate) async fn finish(
        &mut self,
        env: &Environment,
        generation: u64,
        is_handed_over: bool,
    ) {
        for _ in 0..2 {
            if let Some(file) = &mut self.orders_file {
                file.written().await;
            }
            self.write_orders(env, generation, is_handed_over);
        }
        if let Some(file) = &mut self.orders_file {
            file.written().await;
        }
        self.models.written().await;
    }

    fn apply_order(
        &mut self,
        env: &Environment,
        place: WorkerIndex,
        order: &WorkerOrder,
    ) -> FleetChange {
        let url = &order.url;
        if order.removed {
            info!(url, "stays removed, as the admin API said");
            return self.end_worker(env, place);
        }
        if order.draining && self.fleet.set_draining(place, WorkerDrain::KeepStreams) {
            info!(url, "goes on draining, as the admin API said");
        }
        FleetChange::default()
    }

    fn restore_added(
        &mut self,
        env: &Environment,
        order: &WorkerOrder,
        known: &mut KnownConnectors,
    ) -> Option<WorkerIndex> {
        let url = &order.url;
        let worker = order.worker().ok().filter(|_| order.added)?;
        match self.add(env, &worker, known) {
            Ok(place) => {
                info!(url, "added by the admin API before this process began");
                self.start_wait.add(place);
                Some(place)
            }
            Err(PlaceError::Tls(fault)) => {
                error!(
                    url,
                    "not added: {fault}; mend `upstream_tls` and restart, the line is kept"
                );
                self.expect(order.clone());
                None
            }
            Err(reason) => {
                error!(url, "not added again: {reason}, then restart; the line is kept");
                self.expect(order.clone());
                None
            }
        }
    }

    /// Keeps the order until a source lists its worker.
    fn expect(&mut self, order: WorkerOrder) {
        if let Some(file) = &mut self.orders_file {
            file.expect(order);
        }
    }

    fn orders(&self, configured: &[WorkerConfig]) -> Vec<WorkerOrder> {
        let mut by_address: BTreeMap<&str, (usize, OperatorOrder)> = BTreeMap::new();
        for (place, (authority, order)) in self.fleet.orders().enumerate() {
            by_address.insert(authority, (place, order));
        }
        let mut orders = Vec::new();
        for worker in configured.iter().chain(self.sources.brought()) {
            let Ok(url) = WorkerUrl::parse(&worker.url) else { continue };
            let Some((_, order)) = by_address.remove(&*url.authority) else { continue };
            let removed = matches!(order, OperatorOrder::Leave(..) | OperatorOrder::Gone);
            let draining = matches!(order, OperatorOrder::Drain(_));
            if removed || draining {
                let url = worker.url.clone();
                orders.push(WorkerOrder { url, draining, removed, ..WorkerOrder::default() });
            }
        }
        let mut added: Vec<_> = by_address.into_values().collect();
        added.sort_unstable_by_key(|(place, _)| *place);
        for (place, order) in added {
            let index = WorkerIndex::try_from_index(place);
            let Some(worker) = index.and_then(|index| self.probes.worker(index)) else { continue };
            if matches!(order, OperatorOrder::Leave(..) | OperatorOrder::Gone) {
                continue;
            }
            orders.push(WorkerOrder {
                url: worker.url.clone(),
                name: worker.name.clone(),
                role: (worker.role != WorkerRole::Auto).then(|| worker.role.word().to_owned()),
                api_key: worker.api_key.clone(),
                added: true,
                draining: matches!(order, OperatorOrder::Drain(_)),
                removed: false,
            });
        }
        let pending = self.orders_file.iter().flat_map(WorkersState::pending);
        orders.extend(pending.cloned());
        orders
    }
}
