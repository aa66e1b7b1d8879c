//! Probes of workers: a task for each present worker.

use super::redescriptions::Redescriptions;
use forebay_base::{Clock, NanosSinceStart, WorkerIndex};
use forebay_config::{Config, WorkerConfig, WorkerUrl};
use forebay_discovery::{
    LastChecks, ModelTexts, Probe, ProbeFactory, ProbeNotice, SignsOfLife, WorkerClients,
};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// Probes of all present workers.
pub(super) struct Probes {
    probing: ProbeFactory,
    running: HashMap<WorkerIndex, RunningProbe>,
    /// Workers that the last restart of all probes describes again.
    pub(super) redescriptions: Redescriptions,
}

struct RunningProbe {
    worker: WorkerConfig,
    /// Notifies the probe of a possible restart of its worker.
    doubts: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Probes {
    /// Starts the probes of the configured workers.
    pub(super) fn start(
        config: &Arc<Config>,
        clock: Clock,
        clients: &WorkerClients,
        notices: mpsc::Sender<ProbeNotice>,
    ) -> Self {
        let probing = ProbeFactory {
            config: Arc::clone(config),
            clients: clients.clone(),
            texts: ModelTexts::new(clock, config.image_key_file.is_some()),
            signs: Rc::new(SignsOfLife::new(clock)),
            notices,
        };
        let redescriptions = Redescriptions::default();
        let mut probes = Self { probing, running: HashMap::new(), redescriptions };
        let has_url = |worker: &&WorkerConfig| WorkerUrl::parse(&worker.url).is_ok();
        for (position, worker) in config.workers.iter().filter(has_url).enumerate() {
            if let Some(index) = WorkerIndex::try_from_index(position) {
                probes.add(index, worker);
            }
        }
        probes
    }

    /// Starts the probe of a new worker.
    pub(super) fn add(&mut self, index: WorkerIndex, worker: &WorkerConfig) {
        self.end(index);
        let probe = self.probing.one(index, worker);
        self.running.extend(probe.map(|probe| (index, run(worker.clone(), probe))));
    }

    /// Restarts the probe of a worker with other settings.
    pub(super) fn renew(&mut self, index: WorkerIndex, worker: &WorkerConfig, is_up: bool) {
        self.end(index);
        let probe = self.probing.one(index, worker);
        let probe = probe.map(|probe| match is_up {
            true => probe.of_one_that_is_up(),
            false => probe,
        });
        self.running.extend(probe.map(|probe| (index, run(worker.clone(), probe))));
    }

    /// Restarts all probes with the rules and the workers of `config`. The descriptions of workers
    /// that are up are awaited until `by`.
    pub(super) fn restart(
        &mut self,
        config: &Arc<Config>,
        is_up: impl Fn(WorkerIndex) -> bool,
        by: NanosSinceStart,
    ) {
        let awaited = self.running.keys().copied().filter(|index| is_up(*index));
        self.redescriptions = Redescriptions::of(awaited, by);
        self.probing.config = Arc::clone(config);
        self.probing.texts.set_names_images(config.image_key_file.is_some());
        let running: Vec<_> = self.running.drain().collect();
        for (index, RunningProbe { worker, task, .. }) in running {
            task.abort();
            let now = config.workers.iter().find(|now| now.url == worker.url);
            self.renew(index, now.unwrap_or(&worker), is_up(index));
        }
    }

    /// HTTP clients for workers.
    pub(super) const fn clients(&self) -> &WorkerClients {
        &self.probing.clients
    }

    /// Ends the probe of a worker. Its last notice may still arrive.
    pub(super) fn end(&mut self, worker: WorkerIndex) {
        if let Some(ended) = self.running.remove(&worker) {
            ended.task.abort();
            self.redescriptions.end(worker);
        }
        self.probing.signs.forget(worker);
    }

    /// The last health checks of the worker.
    pub(super) fn last_checks(&self, worker: WorkerIndex) -> Option<LastChecks> {
        self.probing.signs.last_checks(worker)
    }

    /// Records a sign of life of the worker.
    pub(super) fn note_life(&self, worker: WorkerIndex, at: NanosSinceStart) {
        self.probing.signs.note(worker, at);
    }

    /// Settings of all probes that run.
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerConfig> {
        self.running.values().map(|probe| &probe.worker)
    }

    /// Settings of a worker's probe.
    pub(super) fn worker(&self, worker: WorkerIndex) -> Option<&WorkerConfig> {
        self.running.get(&worker).map(|probe| &probe.worker)
    }

    /// Probes the worker now: it may have been restarted.
    pub(super) fn doubt(&self, worker: WorkerIndex) {
        if let Some(probe) = self.running.get(&worker) {
            probe.doubts.notify_one();
        }
    }
}

fn run(worker: WorkerConfig, probe: Probe) -> RunningProbe {
    RunningProbe { worker, doubts: probe.doubts(), task: tokio::task::spawn_local(probe.run()) }
}
