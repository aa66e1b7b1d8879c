//! Requests that wait for a rank, as they cross from the shard that has them to the shard that is
//! home to their queue, and what comes back.

use crate::account::Lease;
use crate::base::{DpRank, ModelIndex, NanosSinceStart, QueueIndex, RankIndex, ShardIndex};
use crate::worker::Leg;

/// Name of one wait of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The shard that has the request.
    pub shard: ShardIndex,
    /// Its place among those who wait there.
    pub seat: u32,
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
    /// The part of them that no event has told of.
    pub on_the_way_bytes: u32,
}

/// A request that waits. What is needed to choose its rank when its turn comes, and nothing of its
/// body.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// Its name.
    pub ticket: Ticket,
    /// Where it waits.
    pub queue: QueueIndex,
    /// What it asks for.
    pub model: ModelIndex,
    /// What the rank it waits for has to do.
    pub leg: Leg,
    /// The rank that its other leg has already.
    pub near: Option<RankIndex>,
    /// The number that the rank which answers must have in its worker.
    pub pin: Option<DpRank>,
    /// Class asked for; 0 is served first.
    pub class: u8,
    /// Whose it is: a hash of the key.
    pub tenant: u64,
    /// That tenant's share beside others.
    pub weight: u32,
    /// When it came to the router.
    pub arrived_at: NanosSinceStart,
    /// When it joined this queue.
    pub joined_at: NanosSinceStart,
    /// It is never sent after this.
    pub deadline: NanosSinceStart,
    /// Length of its prompt.
    pub prompt_bytes: u64,
    /// Bytes per token of its model.
    pub bytes_per_token: f32,
    /// Output tokens expected.
    pub output_tokens: u32,
    /// May it be sent to look for another rank when it has waited long?
    pub movable: bool,
    /// The ranks that hold most of the prompt; at most
    /// [`HOLDINGS_MAX`](crate::base::limits::HOLDINGS_MAX).
    pub holdings: Vec<Holding>,
    /// Ranks that failed it, or refused it.
    pub tried: Vec<RankIndex>,
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
