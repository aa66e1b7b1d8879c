//! Model names of a worker, as a process leaves them to the next process.

use serde::{Deserialize, Serialize};

/// A worker of the process before, with its model names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RememberedWorker {
    /// Address of the worker, as `host:port`.
    pub(crate) worker: String,
    pub(crate) models: Vec<String>,
    /// It was up when the lines were written.
    pub(crate) up: bool,
    /// It lists nothing, and takes any model as the only worker.
    pub(crate) sole: bool,
}
