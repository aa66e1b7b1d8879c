//! Commands from the control plane to a shard, and hints between shards.

use super::kept::KeptResponse;
use super::prefill::{PrefillEnded, PrefillLeg};
use super::waiting::{Ticket, Verdict, Waiter};
use forebay_base::{NanosSinceStart, QueueIndex, WorkerIndex};
use forebay_index::RoutedPrompt;

/// From control to one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// Tell whoever asks for the health of the router that it leaves. Nothing else changes.
    Unready,
    /// Stop accepting, let streams finish, then close what is left and end the thread.
    Drain(DrainOrder),
    /// Do wrong, for a test.
    #[cfg(debug_assertions)]
    Plant(PlantedFault),
}

/// How a shard ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOrder {
    /// Connections without a request are closed then.
    pub silent_until: NanosSinceStart,
    /// When what is left is closed.
    pub deadline: NanosSinceStart,
    /// Another process serves by now.
    pub is_handed_over: bool,
    /// Another process has the listening sockets. It may accept from them already, or will.
    pub has_heir: bool,
}

/// What a shard of a debug build can be told to do wrong.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// Stop the shard's thread for so long.
    Hang(std::time::Duration),
    /// End the shard by a panic.
    Panic,
}

/// From one shard to another. The first three are hints: losing one costs time, or the way to a
/// response. The others are kept by the sender until there is room.
#[derive(Debug)]
pub enum MeshMessage {
    /// A connection to this worker was refused or died: pooled connections to it are not to be
    /// trusted.
    WorkerFailed {
        /// The worker that failed.
        worker: WorkerIndex,
    },
    /// A prompt was routed whose path lies in the receiver's slice. Boxed, so that a ring of them
    /// stays small.
    Routed(Box<RoutedPrompt>),
    /// An engine keeps a response.
    Kept(Box<KeptResponse>),
    /// A request waits in a queue that the receiver is home to.
    Join(Box<Waiter>),
    /// It does not any more.
    Leave {
        /// Where it waited.
        queue: QueueIndex,
        /// Who.
        ticket: Ticket,
    },
    /// What became of a request of the receiver's that waited.
    Verdict {
        /// Which.
        ticket: Ticket,
        /// What.
        verdict: Box<Verdict>,
    },
    /// A prefill leg for a rank that the receiver is home to.
    Prefill(Box<PrefillLeg>),
    /// It is not wanted any more.
    PrefillCancel {
        /// Which.
        ticket: Ticket,
    },
    /// How a prefill leg of the receiver's request ended.
    PrefillEnded {
        /// Which.
        ticket: Ticket,
        /// How.
        ended: Box<PrefillEnded>,
    },
}
