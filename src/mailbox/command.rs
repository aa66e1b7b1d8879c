//! Commands from the control plane to a shard, and hints between shards.

use super::routed::RoutedPrompt;
use crate::base::{NanosSinceStart, WorkerIndex};

/// From control to one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// Stop accepting, let streams finish until the deadline, then close what is left and end the thread.
    Drain {
        /// When what is left is closed.
        deadline: NanosSinceStart,
    },
}

/// From one shard to another. All are hints: losing one costs time, never an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshMessage {
    /// A connection to this worker was refused or died: pooled connections to it are not to be trusted.
    WorkerFailed {
        /// The worker that failed.
        worker: WorkerIndex,
    },
    /// A prompt was routed whose path lies in the receiver's slice. Boxed, so that a ring of them stays small.
    Routed(Box<RoutedPrompt>),
}
