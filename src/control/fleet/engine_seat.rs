//! Engine of a worker, and the worker by which requests use that engine.

use forebay_base::WorkerIndex;
use forebay_config::{EngineAddress, WorkerConfig, WorkerUrl};

/// Engine of a worker, beside other workers that may be the same engine.
#[derive(Debug)]
pub(super) struct EngineSeat {
    pub(super) place: EngineAddress,
    /// Requests use the engine by this worker, at its current address.
    pub(super) is_used: bool,
    /// The worker by which the engine is used instead.
    pub(super) used_by: Option<WorkerIndex>,
    /// Earlier workers in the fleet that were logged as the same engine.
    pub(super) named_with: Vec<WorkerIndex>,
}

impl EngineSeat {
    pub(super) fn of(url: &WorkerUrl, worker: &WorkerConfig) -> Self {
        let place = EngineAddress::of(url, worker.tls.tls_name.as_deref());
        Self { place, is_used: false, used_by: None, named_with: Vec::new() }
    }
}
