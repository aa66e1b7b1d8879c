//! Which probes run: one for each worker that is not gone.

use forebay_base::WorkerIndex;
use forebay_config::WorkerConfig;
use forebay_discovery::{Probe, Probing};
use std::collections::HashMap;
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// All probes, and what more are made with.
pub(super) struct Probes {
    probing: Probing,
    running: HashMap<WorkerIndex, RunningProbe>,
}

struct RunningProbe {
    /// Where it hears that its worker may have been restarted.
    doubts: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Probes {
    /// Starts those of the configured workers.
    pub(super) fn start(probing: Probing) -> Self {
        let all = probing.all();
        let indices = (0..all.len()).filter_map(WorkerIndex::try_from_index);
        let running = indices.zip(all.into_iter().map(run)).collect();
        Self { probing, running }
    }

    /// Starts the one of a worker that has come.
    pub(super) fn add(&mut self, index: WorkerIndex, worker: &WorkerConfig) {
        self.end(index);
        let probe = self.probing.one(index, worker);
        self.running.extend(probe.map(|probe| (index, run(probe))));
    }

    /// Ends the one of a worker that has gone. What it said last may still be on its way.
    pub(super) fn end(&mut self, worker: WorkerIndex) {
        if let Some(ended) = self.running.remove(&worker) {
            ended.task.abort();
        }
    }

    /// Tells a probe that its worker may not be what it was.
    pub(super) fn doubt(&self, worker: WorkerIndex) {
        if let Some(probe) = self.running.get(&worker) {
            probe.doubts.notify_one();
        }
    }
}

fn run(probe: Probe) -> RunningProbe {
    RunningProbe { doubts: probe.doubts(), task: tokio::task::spawn_local(probe.run()) }
}
