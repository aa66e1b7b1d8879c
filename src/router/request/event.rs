//! Events of a request, and the actions that its state machine returns.

use super::stop::{FailedAttempt, Stop};
use crate::dispatch::SendPlan;
use forebay_base::RankIndex;
use forebay_board::QueueDemand;
use forebay_board::account::Lease;
use forebay_fleet::worker::KvTransfer;
use forebay_mailbox::Waiter;
use std::rc::Rc;
use std::time::Duration;

#[derive(Debug)]
pub enum RequestEvent {
    /// The request has been read, and its prompt has been matched or cannot be.
    Ready,
    /// The queue granted a rank.
    Granted(Lease),
    /// The queue requires a new choice of rank.
    Reroute,
    /// The wait ended without a verdict.
    WaitOver(WaitEnd),
    /// An attempt failed before a byte of the response reached the client, or in the middle of a
    /// stream.
    Failed(FailedAttempt),
}

/// How a wait ends without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The client has left.
    Gone,
    /// The deadline has passed.
    Late,
    /// The shard drains and answers all waiting requests.
    Draining,
}

#[derive(Debug)]
pub enum Action {
    /// Post the waiter to its queue and wait. The request is counted into the queue: the code that
    /// ends the wait counts the request out with the same [`QueueDemand`].
    Wait(Box<Waiter>, QueueDemand),
    /// Send the request to the rank, or to both ranks.
    Send(Box<ChosenRanks>),
    /// Nothing is left to try.
    End(Stop),
}

/// The chosen rank, or both ranks of a pair.
#[derive(Debug)]
pub struct ChosenRanks {
    pub plan: Rc<SendPlan>,
    pub lease: Lease,
    /// The prefill rank of a pair.
    pub prefill: Option<PrefillDispatch>,
}

/// The prefill half of a pair.
#[derive(Debug)]
pub struct PrefillDispatch {
    pub plan: Rc<SendPlan>,
    pub lease: Lease,
    /// How the KV gets to the decode rank.
    pub kv_transfer: KvTransfer,
}

impl ChosenRanks {
    /// The rank that computes the prompt.
    #[must_use]
    pub fn prefill_rank(&self) -> RankIndex {
        self.prefill_lease().rank()
    }

    /// Estimated time of that rank for the prompt, if known.
    #[must_use]
    pub fn prefill_time(&self) -> Option<Duration> {
        self.prefill_lease().own_prefill_time()
    }

    /// Prompt tokens that that rank has to compute.
    #[must_use]
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill_lease().prefill_tokens()
    }

    fn prefill_lease(&self) -> &Lease {
        self.prefill.as_ref().map_or(&self.lease, |prefill| &prefill.lease)
    }
}
