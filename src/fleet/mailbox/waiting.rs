//! Requests that wait for a rank, as they cross from the shard that has them to the shard that is
//! home to their queue, and what comes back.

use super::RequestFacts;
use crate::account::Lease;
use crate::worker::Leg;
use forebay_base::{NanosSinceStart, QueueIndex, RankIndex, ShardIndex};
use forebay_index::PrefixMarks;

/// Name of one wait of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The shard that has the request.
    pub shard: ShardIndex,
    /// Its place among those who wait there.
    pub slot: u32,
    /// Tells the waits of one place apart.
    pub life: u32,
}

/// What one rank holds of a waiting prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The rank.
    pub rank: RankIndex,
    /// Bytes of the prompt that count as held.
    pub bytes: u32,
}

/// A request that waits. What is needed to choose its rank when its turn comes, and nothing of its
/// body.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// Its name.
    pub ticket: Ticket,
    /// Where it waits.
    pub queue: QueueIndex,
    /// What the rank it waits for has to do.
    pub leg: Leg,
    /// The rank that its other leg has already.
    pub near: Option<RankIndex>,
    /// When it joined this queue.
    pub joined_at: NanosSinceStart,
    /// What is known of the request. It is never sent after its deadline.
    pub facts: RequestFacts,
    /// What is known of its prompt.
    pub prompt: WaitingPrompt,
    /// May it be sent to look for another rank when it has waited long?
    pub movable: bool,
}

/// A prompt without its text.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingPrompt {
    /// Length of the prompt.
    pub bytes: u64,
    /// Bytes per token of its model.
    pub bytes_per_token: f32,
    /// The ranks that hold most of the prompt; at most
    /// [`HOLDINGS_MAX`](forebay_base::limits::HOLDINGS_MAX).
    pub holdings: Vec<Holding>,
    /// Names of its prefixes.
    pub marks: PrefixMarks,
    /// The rank that the request waits for at first; `None`: any rank with room.
    pub target: Option<RankIndex>,
}

/// From a queue's home to the shard that has the request.
#[derive(Debug)]
pub enum Verdict {
    /// It may be sent. The lease has been taken; who drops it gives it back.
    Granted(Lease),
    /// It has to choose again: it waited too long in this queue, or nothing that the queue leads to
    /// can take it.
    Reroute,
}
