//! Requests that wait for a rank, on the way from the shard that has them to the shard that owns
//! their queue, and the results of the waits.

use super::RequestFacts;
use forebay_base::{NanosSinceStart, QueueIndex, RankIndex, ShardIndex};
use forebay_board::account::Lease;
use forebay_fleet::worker::Leg;
use forebay_index::PrefixMarks;

/// Id of a single wait of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The shard that has the request.
    pub shard: ShardIndex,
    /// Its slot among the waits of that shard.
    pub slot: u32,
    /// Generation of the slot: distinguishes successive waits.
    pub life: u32,
}

/// Part of a waiting prompt that a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub rank: RankIndex,
    /// Bytes of the prompt that count as held.
    pub bytes: u32,
}

/// A waiting request: the data that the choice of its rank needs, without its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    pub ticket: Ticket,
    pub queue: QueueIndex,
    /// The leg that the rank has to compute.
    pub leg: Leg,
    /// The rank of the other leg, if it is chosen already.
    pub near: Option<RankIndex>,
    /// When it joined this queue.
    pub joined_at: NanosSinceStart,
    /// Facts of the request. It is never sent after its deadline.
    pub facts: RequestFacts,
    pub prompt: WaitingPrompt,
    /// May the request be rerouted after a long wait?
    pub movable: bool,
}

/// Facts of a prompt, without its text.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingPrompt {
    pub bytes: u64,
    /// Bytes per token of its model.
    pub bytes_per_token: f32,
    /// The ranks that hold most of the prompt; at most
    /// [`HOLDINGS_MAX`](forebay_base::limits::HOLDINGS_MAX).
    pub holdings: Vec<Holding>,
    pub marks: PrefixMarks,
    /// The rank that the request waits for at first; `None`: any rank with room.
    pub target: Option<RankIndex>,
}

/// From a queue's owner to the shard that has the request.
#[derive(Debug)]
pub enum Verdict {
    /// The request may be sent. Dropping the lease gives it back.
    Granted(Lease),
    /// The request has to choose again: it waited too long in this queue, or no rank of the queue
    /// can take it.
    Reroute,
}
