//! What one shard does for the queues: it takes their messages, serves the queues that it owns,
//! goes over to a new fleet, and ends the waits of its own requests. `dataplane/thread/queues.rs`
//! puts rings and tasks around it, `tests/sim` a schedule.

use super::event::{RequestEvent, WaitEnd};
use super::pressure::Newcomer;
use super::stages::Stages;
use crate::queue::Home;
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, ShardIndex};
use forebay_fleet::mailbox::{MeshMessage, Ticket, Verdict, Waiter};
use forebay_fleet::worker::{FleetSnapshot, Leg, LoadBoard, QueueWanted};
use forebay_prompt::parse::Refusal;

/// A wait in a queue, as the shard of its request keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The name of the wait in its verdict.
    pub ticket: Ticket,
    /// Where the request stands.
    pub queue: QueueIndex,
    /// What was counted into it.
    pub wanted: QueueWanted,
    /// The end of the wait, verdict or not.
    pub deadline: NanosSinceStart,
    /// What the rank that it waits for has to do.
    pub leg: Leg,
    /// The queue's home has let go of it.
    has_verdict: bool,
}

/// What came of a message of the queues.
#[derive(Debug)]
pub enum Taken {
    /// The home has to look at its queues before the shard sleeps.
    News,
    /// The request of the ticket has been woken with its verdict.
    Delivered(Ticket),
    /// The request of the ticket waits no longer. A lease goes back with the verdict.
    Returned(Ticket, Verdict),
    /// The message is not for the queues.
    Other(MeshMessage),
}

impl Wait {
    /// The wait of a request that has been counted into its queue.
    #[must_use]
    pub const fn new(waiter: &Waiter, wanted: QueueWanted) -> Self {
        let Waiter { ticket, queue, leg, .. } = *waiter;
        Self { ticket, queue, wanted, deadline: waiter.facts.deadline, leg, has_verdict: false }
    }

    /// The shard that owns the queue.
    #[must_use]
    pub fn home(&self, board: &LoadBoard) -> ShardIndex {
        ShardIndex::try_from_index(board.home(self.queue)).unwrap_or(ShardIndex(0))
    }

    /// What its request hears. True: the place in the queue is kept until the request has another
    /// one, or needs none.
    pub fn event(&mut self, ended: Result<Verdict, WaitEnd>) -> (RequestEvent, bool) {
        self.has_verdict = ended.is_ok();
        match ended {
            // It looks for its prefill rank in another queue.
            Ok(Verdict::Granted(lease)) => (RequestEvent::Granted(lease), self.leg != Leg::Decode),
            Ok(Verdict::Reroute) => (RequestEvent::Reroute, true),
            Err(end) => (RequestEvent::WaitOver(end), false),
        }
    }
}

/// The end of a request's wait, read at `read_at`.
#[must_use]
pub fn wait_deadline(
    fleet: &FleetSnapshot,
    read_at: NanosSinceStart,
    client_deadline: Option<NanosSinceStart>,
) -> NanosSinceStart {
    // What is configured bounds the wait. What the client says bounds the whole request, so it
    // counts from the head.
    let configured = read_at.plus(fleet.config.flow.queue.wait_max);
    client_deadline.map_or(configured, |deadline| configured.min(deadline))
}

impl Stages {
    /// Lets a request in whose model is known.
    ///
    /// # Errors
    /// The refusal of [`Stages::window_of`].
    pub fn let_in(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        newcomer: &mut Newcomer,
    ) -> Result<(), Refusal> {
        self.window_of(fleet, pool, now, newcomer)?;
        // Only for requests that get past the window: refused ones earn no retries.
        self.sends.retry.deposit();
        Ok(())
    }

    /// Takes a message of the queues.
    pub fn take(&mut self, home: &mut Home, fleet: &FleetSnapshot, message: MeshMessage) -> Taken {
        match message {
            MeshMessage::Join(waiter) => home.join(waiter, fleet.config.flow.queue.promote_after),
            MeshMessage::Leave { queue, ticket } => home.leave(queue, ticket),
            MeshMessage::Verdict { ticket, verdict } => {
                return match self.waits.take_or_return(ticket, *verdict) {
                    None => Taken::Delivered(ticket),
                    Some(verdict) => Taken::Returned(ticket, verdict),
                };
            }
            other => return Taken::Other(other),
        }
        Taken::News
    }

    /// Binds what can be bound in the queues of the shard. The caller posts the verdicts.
    pub fn serve(
        &mut self,
        home: &mut Home,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
    ) -> Vec<(Ticket, Verdict)> {
        let mut verdicts = Vec::new();
        let rates = std::mem::take(&mut self.drain_rates);
        home.serve(&mut self.binder(fleet, now), &rates, &mut verdicts);
        self.drain_rates = rates;
        verdicts
    }

    /// The shard has a new fleet: queues and windows go by its workers and its limits.
    pub fn take_over(&mut self, home: &mut Home, fleet: &FleetSnapshot, now: NanosSinceStart) {
        home.fleet_changed();
        for (pool, _) in fleet.used_pools() {
            self.relieve(fleet, pool, now);
        }
    }

    /// Gives a place in a queue back, whatever came of the wait. Returns what the queue's home must
    /// hear.
    pub fn end_wait(
        &mut self,
        wait: &Wait,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
    ) -> Option<MeshMessage> {
        let Wait { ticket, queue, wanted, .. } = *wait;
        self.waits.close(ticket);
        if let Some(cell) = self.loads.board.queue(queue) {
            cell.leave(wanted);
            if let Some(pool) = fleet.pool_of(queue) {
                self.relieve(fleet, pool, now);
            }
        }
        // The home forgets a request with its verdict. Told again, it would look at its queue for
        // nothing.
        (!wait.has_verdict).then_some(MeshMessage::Leave { queue, ticket })
    }
}
