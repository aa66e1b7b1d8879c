//! What happens to a request, and what the machine says to do.

use super::stop::{Failed, Stop};
use crate::dispatch::SendPlan;
use forebay_base::RankIndex;
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::Waiter;
use forebay_fleet::worker::{KvTransfer, QueueWanted};
use std::rc::Rc;
use std::time::Duration;

/// What has happened to the request.
#[derive(Debug)]
pub enum RequestEvent {
    /// It has been read, and its prompt has been matched or cannot be.
    Ready,
    /// The queue gave it a rank.
    Granted(Lease),
    /// The queue sends it on.
    Reroute,
    /// It waits no longer, without a verdict.
    WaitOver(WaitEnd),
    /// An attempt has failed before a byte of the answer reached the client, or in the middle of a
    /// stream.
    Failed(Failed),
}

/// How a wait ends without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The client has left.
    Gone,
    /// The deadline has passed.
    Late,
    /// The shard drains, and answers whoever still waits.
    Draining,
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// Post the waiter to its queue and wait. The request is counted into the queue: whoever ends
    /// the wait counts it out with the same [`QueueWanted`].
    Wait(Box<Waiter>, QueueWanted),
    /// Send it to the rank, or to both ranks.
    Send(Box<Chosen>),
    /// Nothing is left to try.
    End(Stop),
}

/// The rank that gets the request.
#[derive(Debug)]
pub struct Chosen {
    /// Where it is, and what it is told.
    pub plan: Rc<SendPlan>,
    /// Its cost on the rank.
    pub lease: Lease,
    /// The rank that computes its prompt, when that is another one.
    pub prefill: Option<Prefilling>,
}

/// The prefill half of a pair.
#[derive(Debug)]
pub struct Prefilling {
    /// Where it is, and what it is told.
    pub plan: Rc<SendPlan>,
    /// Its cost on the rank.
    pub lease: Lease,
    /// How the KV gets to the other rank.
    pub kv_transfer: KvTransfer,
}

impl Chosen {
    /// The rank that computes the prompt.
    #[must_use]
    pub fn prefill_rank(&self) -> RankIndex {
        self.prefill_lease().rank()
    }

    /// How long that rank should take for the prompt; `None`: not known.
    #[must_use]
    pub fn prefill_time(&self) -> Option<Duration> {
        self.prefill_lease().own_prefill_time()
    }

    fn prefill_lease(&self) -> &Lease {
        self.prefill.as_ref().map_or(&self.lease, |prefill| &prefill.lease)
    }
}
