//! Which probes run: one for each worker that is not gone.

use super::super::feeds::AdapterLoads;
use forebay_base::limits::{ENGINE_CALLS_MAX, ENGINES_CALLED_MAX};
use forebay_base::{Clock, NanosSinceStart, WorkerIndex};
use forebay_config::{Config, WorkerConfig, WorkerUrl};
use forebay_discovery::{ModelTexts, Probe, ProbeNotice, Probing, SignsOfLife, WorkerClients};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

/// All probes, what more are made with, and what else engines are asked.
pub(in crate::control) struct Probes {
    probing: Probing,
    running: HashMap<WorkerIndex, RunningProbe>,
    calls: JoinSet<CallOutcome>,
    turns: CallTurns,
    pub(in crate::control) adapters: AdapterLoads,
}

/// How many calls of the admin API may be under way, and how many engines asked for them.
pub(in crate::control) struct CallTurns {
    pub(in crate::control) calls: Arc<Semaphore>,
    pub(in crate::control) engines: Rc<Semaphore>,
}

/// What an engine made of a call.
pub(in crate::control) type CallOutcome = (WorkerIndex, Result<(), String>);

struct RunningProbe {
    worker: WorkerConfig,
    /// Where it hears that its worker may have been restarted.
    doubts: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Probes {
    /// Starts those of the configured workers.
    pub(in crate::control) fn start(
        config: &Arc<Config>,
        clock: Clock,
        clients: &WorkerClients,
        notices: mpsc::Sender<ProbeNotice>,
    ) -> Self {
        let probing = Probing {
            config: Arc::clone(config),
            clients: clients.clone(),
            texts: ModelTexts::new(clock, config.image_key_file.is_some()),
            signs: Rc::new(SignsOfLife::new(clock)),
            notices,
        };
        let turns = CallTurns {
            calls: Arc::new(Semaphore::new(ENGINE_CALLS_MAX)),
            engines: Rc::new(Semaphore::new(ENGINES_CALLED_MAX)),
        };
        let mut probes = Self {
            probing,
            running: HashMap::new(),
            calls: JoinSet::new(),
            turns,
            adapters: AdapterLoads::default(),
        };
        let has_url = |worker: &&WorkerConfig| WorkerUrl::parse(&worker.url).is_ok();
        for (position, worker) in config.workers.iter().filter(has_url).enumerate() {
            if let Some(index) = WorkerIndex::try_from_index(position) {
                probes.add(index, worker);
            }
        }
        probes
    }

    /// Starts the one of a worker that has come.
    pub(in crate::control) fn add(&mut self, index: WorkerIndex, worker: &WorkerConfig) {
        self.end(index);
        let probe = self.probing.one(index, worker);
        self.running.extend(probe.map(|probe| (index, run(worker.clone(), probe))));
    }

    /// Starts all of them again, by the rules of `config` and what it says of its workers now.
    pub(in crate::control) fn restart(
        &mut self,
        config: &Arc<Config>,
        is_up: impl Fn(WorkerIndex) -> bool,
    ) {
        self.probing.config = Arc::clone(config);
        self.probing.texts.set_names_images(config.image_key_file.is_some());
        let running: Vec<_> = self.running.drain().collect();
        for (index, RunningProbe { worker, task, .. }) in running {
            task.abort();
            let now = config.workers.iter().find(|now| now.url == worker.url);
            let worker = now.unwrap_or(&worker);
            let probe = self.probing.one(index, worker);
            let probe = probe.map(|probe| match is_up(index) {
                true => probe.of_one_that_is_up(),
                false => probe,
            });
            self.running.extend(probe.map(|probe| (index, run(worker.clone(), probe))));
        }
    }

    /// Of calls that the admin API hands on.
    pub(in crate::control) const fn turns(&self) -> &CallTurns {
        &self.turns
    }

    /// The ways to ask workers.
    pub(in crate::control) const fn clients(&self) -> &WorkerClients {
        &self.probing.clients
    }

    /// Ends the one of a worker that has gone. What it said last may still be on its way.
    pub(in crate::control) fn end(&mut self, worker: WorkerIndex) {
        if let Some(ended) = self.running.remove(&worker) {
            ended.task.abort();
        }
    }

    /// The worker showed that it lives.
    pub(in crate::control) fn note_life(&self, worker: WorkerIndex, at: NanosSinceStart) {
        self.probing.signs.note(worker, at);
    }

    /// What all workers are probed by that are not gone.
    pub(in crate::control) fn workers(&self) -> impl Iterator<Item = &WorkerConfig> {
        self.running.values().map(|probe| &probe.worker)
    }

    /// What a worker is probed by.
    pub(in crate::control) fn worker(&self, worker: WorkerIndex) -> Option<&WorkerConfig> {
        self.running.get(&worker).map(|probe| &probe.worker)
    }

    /// Tells the engine of a worker, which is asked as `authority` with that key.
    pub(in crate::control) fn call(
        &mut self,
        worker: WorkerIndex,
        authority: String,
        api_key: Option<String>,
        path: &'static str,
    ) {
        let clients = self.probing.clients.clone();
        self.calls.spawn_local(async move {
            let said = clients.call(&authority, api_key, path).await;
            (worker, said)
        });
    }

    /// The next answer to a call, if one has come.
    pub(in crate::control) fn next_answer(&mut self) -> Option<CallOutcome> {
        self.calls.try_join_next()?.ok()
    }

    /// Tells a probe that its worker may not be what it was.
    pub(in crate::control) fn doubt(&self, worker: WorkerIndex) {
        if let Some(probe) = self.running.get(&worker) {
            probe.doubts.notify_one();
        }
    }
}

fn run(worker: WorkerConfig, probe: Probe) -> RunningProbe {
    RunningProbe { worker, doubts: probe.doubts(), task: tokio::task::spawn_local(probe.run()) }
}
