//! Model names of a worker, handed from a process to the next process.

use serde::{Deserialize, Serialize};

/// A worker of the process before, with its model names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RememberedWorker {
    /// Address of the worker, as `host:port`.
    pub(crate) worker: String,
    pub(crate) models: Vec<String>,
    /// The worker was up when the lines were written.
    pub(crate) up: bool,
    /// The worker lists nothing, and takes any model as the only worker.
    pub(crate) sole: bool,
}
