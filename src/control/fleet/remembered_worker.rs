//! Model names of a worker, as a process leaves them to the next process.

use serde::{Deserialize, Serialize};

/// A worker of the process before, with its model names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::control) struct RememberedWorker {
    /// Address of the worker, as `host:port`.
    pub(in crate::control) worker: String,
    pub(in crate::control) models: Vec<String>,
    /// It was up when the lines were written.
    pub(in crate::control) up: bool,
    /// It lists nothing, and takes any model as the only worker.
    pub(in crate::control) sole: bool,
}
