//! Commands from the control plane to a shard, and messages between shards.

use super::prefill::{PrefillLeg, PrefillOutcome};
use super::stored_response::StoredResponse;
use super::waiting::{Ticket, Verdict, Waiter};
use forebay_base::{NanosSinceStart, QueueIndex, WorkerIndex};
use forebay_index::RoutedPrompt;

/// From the control plane to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// Report in health checks that the router leaves. Nothing else changes.
    Unready,
    /// Stop accepting, let streams finish, then close remaining connections and end the thread.
    Drain(DrainOrder),
    /// Inject a fault, for a test.
    #[cfg(debug_assertions)]
    Plant(PlantedFault),
}

/// How a draining shard ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOrder {
    /// Connections without a request are closed at this time.
    pub silent_until: NanosSinceStart,
    /// Remaining connections are closed at this time.
    pub deadline: NanosSinceStart,
    /// Another process already serves.
    pub is_handed_over: bool,
    /// Another process has the listening sockets. It may accept from them already, or will.
    pub has_heir: bool,
}

/// Faults that a test can inject into a shard of a debug build.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    Hang(std::time::Duration),
    Panic,
}

/// From a shard to another. The first three are hints: losing a hint costs time, or the route to a
/// stored response. The sender retains all other messages until there is room.
#[derive(Debug)]
pub enum MeshMessage {
    /// A connection to this worker was refused or died: pooled connections to it are suspect.
    WorkerFailed { worker: WorkerIndex },
    /// A prompt was routed, and its path lies in the receiver's slice. Boxed to keep the ring
    /// small.
    Routed(Box<RoutedPrompt>),
    /// An engine stores a response.
    Kept(Box<StoredResponse>),
    /// A request joins a queue that the receiver owns.
    Join(Box<Waiter>),
    /// The request leaves the queue.
    Leave {
        /// The queue that it waited in.
        queue: QueueIndex,
        /// The wait that ends.
        ticket: Ticket,
    },
    /// The result of a wait, for the shard that has the request.
    Verdict {
        /// The wait that ends.
        ticket: Ticket,
        verdict: Box<Verdict>,
    },
    /// A prefill leg for a rank that the receiver owns.
    Prefill(Box<PrefillLeg>),
    /// Cancels a prefill leg.
    PrefillCancel { ticket: Ticket },
    /// The outcome of a prefill leg, for the shard that has the request.
    PrefillOutcome { ticket: Ticket, ended: Box<PrefillOutcome> },
}
