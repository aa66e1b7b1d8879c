//! Engine of a worker, and the worker by which requests use that engine.

use forebay_base::WorkerIndex;
use forebay_config::{EngineAddress, WorkerConfig, WorkerUrl};
use std::sync::Arc;

/// Engine of a worker, beside other workers that may be the same engine.
#[derive(Debug)]
pub(super) struct EngineSeat {
    pub(super) place: EngineAddress,
    /// It is the worker by which the engine is used, at the address that it has now.
    pub(super) is_used: bool,
    /// Name of the worker by which the engine is used instead.
    pub(super) used_by: Option<Arc<str>>,
    /// Workers before it in the fleet that the log has as the same engine.
    pub(super) named_with: Vec<WorkerIndex>,
}

impl EngineSeat {
    pub(super) fn of(url: &WorkerUrl, worker: &WorkerConfig) -> Self {
        let place = EngineAddress::of(url, worker.tls.tls_name.as_deref());
        Self { place, is_used: false, used_by: None, named_with: Vec::new() }
    }
}
