//! Known models of a worker.

use super::model_state::{ModelEvent, ModelState, SoleWorker};
use super::remembered_worker::RememberedWorker;
use forebay_base::WorkerIndex;
use forebay_config::{Config, WorkerConfig};
use forebay_discovery::Listing;
use forebay_fleet::worker::{ANY_MODEL, WorkerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most model names of a fleet. Further names are left out, and logged.
const FLEET_MODELS_MAX: usize = 1_024;
/// Names that a worker may bring once half of the places are given. A worker that lists new names
/// each time takes no place from other workers.
const WORKER_MODELS_MAX: usize = FLEET_MODELS_MAX / 4;

/// Model names of a fleet, and knowledge beyond single workers.
#[derive(Debug, Default)]
pub(super) struct FleetModels {
    /// In the order of their indices. A name keeps its index without a worker.
    pub(super) names: Vec<Arc<str>>,
    pub(super) sole: SoleWorker,
    /// By worker: models that it has listed and lists no longer. Adapters do not count: they come
    /// and go while their engine runs.
    pub(super) dropped: BTreeMap<WorkerIndex, BTreeSet<Arc<str>>>,
    /// Workers of the process before that are not present yet, by `host:port`.
    pub(super) remembered: BTreeMap<String, RememberedWorker>,
}

impl FleetModels {
    /// Gives places to names; returns the count of names without a place. `brought`: places that
    /// the worker already uses.
    pub(super) fn place(&mut self, names: &[Arc<str>], brought: &mut usize) -> usize {
        let mut left = 0;
        for name in names {
            if self.names.contains(name) {
                continue;
            }
            // The last place is for the model that takes any name.
            let is_full = self.names.len() + usize::from(**name != *ANY_MODEL) >= FLEET_MODELS_MAX;
            let is_scarce = self.names.len() >= FLEET_MODELS_MAX / 2;
            if is_full || is_scarce && *brought >= WORKER_MODELS_MAX {
                left += 1;
                continue;
            }
            *brought += 1;
            self.names.push(Arc::clone(name));
        }
        left
    }
}

/// Models of a worker, beside its description.
#[derive(Debug)]
pub(super) struct KnownModels {
    pub(super) state: ModelState,
    /// Names of a worker without a description: configured, or of the process before.
    pub(super) expected: Vec<Arc<str>>,
    /// The worker has passed a health check at some time.
    pub(super) was_up: bool,
    /// The configuration file has the worker.
    pub(super) is_in_file: bool,
    /// Fault of its last list, and the behavior without a list.
    fault: Option<String>,
    pub(super) news: ListNews,
    /// Places taken by names in its lists, also before restarts.
    pub(super) brought: usize,
    /// Why the worker is not up, or fails its checks.
    pub(super) trouble: Option<String>,
}

/// Changes of a worker's models by a description, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListNews {
    /// The list is missing: the fault, and the behavior without a list.
    pub(crate) lost: Option<(String, &'static str)>,
    /// The list is back.
    pub(crate) is_back: bool,
}

impl Default for KnownModels {
    fn default() -> Self {
        Self {
            state: ModelState::Unasked,
            expected: Vec::new(),
            was_up: false,
            is_in_file: false,
            fault: None,
            news: ListNews::default(),
            brought: 0,
            trouble: None,
        }
    }
}

impl KnownModels {
    /// Takes the worker's models from the configuration.
    pub(super) fn configure(&mut self, config: &Config, worker: &WorkerConfig, is_described: bool) {
        let is_asked = config.health.enabled;
        if !worker.models.is_empty() || !is_asked {
            self.state = ModelState::Configured;
            let names = worker.models.iter().filter(|name| *name != ANY_MODEL);
            self.expected = names.map(|name| name.as_str().into()).collect();
        } else if self.state == ModelState::Configured && !is_described {
            self.state = ModelState::Unasked;
            self.expected.clear();
        }
    }

    pub(super) fn take_health(&mut self, state: WorkerState) {
        if state == WorkerState::Up {
            self.was_up = true;
            self.trouble = None;
        }
        if state == WorkerState::Down {
            self.state = self.state.after(ModelEvent::Down);
        }
    }

    pub(super) fn remove(&mut self) {
        let state = self.state.after(ModelEvent::Removed);
        *self = Self { state, brought: self.brought, ..Self::default() };
    }

    /// The missing part that keeps the worker from serving.
    pub(super) fn lacks(&self) -> Option<&str> {
        self.fault.as_deref().filter(|_| !self.state.serves())
    }

    /// Takes the names from the process before.
    pub(super) fn remember(&mut self, known: &RememberedWorker) {
        if self.state != ModelState::Unasked || known.models.is_empty() {
            return;
        }
        self.state = if known.up { ModelState::Remembered } else { ModelState::Absent };
        self.expected = known.models.iter().map(|name| name.as_str().into()).collect();
    }

    pub(super) fn take_answer(&mut self, listing: Listing) {
        self.was_up |= matches!(listing, Listing::Nothing { is_well: true, .. });
        self.state = self.state.after(ModelEvent::Answer(listing));
        let does = self.state.without_list();
        let fault = listing.fault().map(|why| format!("a list of models: {why}; {does}"));
        self.news.is_back |= self.fault.is_some() && fault.is_none();
        if fault.is_some() && self.fault != fault {
            self.news.lost = listing.fault().map(|why| (why, does));
        }
        self.fault = fault;
    }
}
