//! What the simulator itself counts, to hold the production words against.

use forebay_base::limits::RANKS_MAX;
use forebay_base::{NanosSinceStart, QueueIndex, RankIndex};
use forebay_board::QueueDemand;
use forebay_mailbox::{MeshMessage, Ticket, Waiter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Default)]
pub(crate) struct Books {
    /// Requests that have a lease there.
    pub(crate) running: Vec<u32>,
    /// Grants on their way.
    pub(crate) transit: BTreeMap<Ticket, RankIndex>,
    /// Verdicts that lie in a wait and were not taken.
    pub(crate) delivered: BTreeSet<Ticket>,
    /// Requests counted into a queue, by queue.
    pub(crate) waiting: BTreeMap<QueueIndex, Sum>,
    /// The same, by queue and tenant.
    pub(crate) of_tenant: BTreeMap<(QueueIndex, u64), Sum>,
    pub(crate) tickets: BTreeMap<Ticket, usize>,
    /// Who stands in a home's line, and whose.
    pub(crate) at_home: BTreeMap<Ticket, (usize, Waiter)>,
    /// Messages under way between two shards, in the order in which they were posted.
    pub(crate) posted: BTreeMap<(usize, usize), VecDeque<(u8, Ticket)>>,
    /// When a rank of the queue was last seen closed by what only time ends.
    pub(crate) held_at: BTreeMap<QueueIndex, NanosSinceStart>,
    /// Until when windows are open, by pool.
    pub(crate) windows: BTreeMap<u16, NanosSinceStart>,
    /// How often windows were opened, by pool.
    pub(crate) openings: BTreeMap<u16, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
}

impl Books {
    pub(crate) fn new(ranks: usize, models: usize) -> Self {
        let queues = (0..ranks.max(models)).chain(RANKS_MAX..RANKS_MAX + models);
        let none = |index| (QueueIndex::try_from_index(index).unwrap(), Sum::default());
        Self { running: vec![0; ranks], waiting: queues.map(none).collect(), ..Self::default() }
    }

    pub(crate) fn join(&mut self, queue: QueueIndex, wanted: QueueDemand) {
        let of_tenant = self.of_tenant.entry((queue, wanted.tenant)).or_default();
        for sum in [self.waiting.get_mut(&queue).unwrap(), of_tenant] {
            sum.requests += 1;
            sum.bytes += wanted.bytes;
            sum.tokens += wanted.tokens;
        }
    }

    pub(crate) fn leave(&mut self, queue: QueueIndex, wanted: QueueDemand) {
        let of_tenant = self.of_tenant.get_mut(&(queue, wanted.tenant)).unwrap();
        for sum in [self.waiting.get_mut(&queue).unwrap(), of_tenant] {
            sum.requests -= 1;
            sum.bytes -= wanted.bytes;
            sum.tokens -= wanted.tokens;
        }
    }

    /// A home has granted.
    pub(crate) fn depart(&mut self, ticket: Ticket, rank: RankIndex) -> Result<(), String> {
        match self.transit.insert(ticket, rank) {
            None => Ok(()),
            Some(_) => Err(format!("{ticket:?} has two grants")),
        }
    }

    /// The grant is in somebody's hands, or was dropped.
    pub(crate) fn arrive(&mut self, ticket: Ticket) -> Option<RankIndex> {
        self.delivered.remove(&ticket);
        self.transit.remove(&ticket)
    }

    pub(crate) fn post(&mut self, from: usize, to: usize, message: &MeshMessage) {
        self.posted.entry((from, to)).or_default().extend(name(message));
    }

    /// Messages from one shard to another arrive in the order in which they were posted.
    pub(crate) fn take(
        &mut self,
        from: usize,
        to: usize,
        message: &MeshMessage,
    ) -> Result<(), String> {
        let first = self.posted.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let taken = name(message);
        if first == taken { Ok(()) } else { Err(format!("{taken:?} has passed {first:?}")) }
    }
}

fn name(message: &MeshMessage) -> Option<(u8, Ticket)> {
    match message {
        MeshMessage::Join(waiter) => Some((0, waiter.ticket)),
        MeshMessage::Leave { ticket, .. } => Some((1, *ticket)),
        MeshMessage::Verdict { ticket, .. } => Some((2, *ticket)),
        // Legs are sent from where their request is.
        _ => None,
    }
}
