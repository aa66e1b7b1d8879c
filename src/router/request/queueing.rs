//! Queue work of a shard: takes queue messages, serves the queues that it owns, adopts a new
//! fleet, and ends the waits of its own requests. `dataplane/thread/queues.rs` adds rings and
//! tasks, `tests/sim` a schedule.

use super::event::{RequestEvent, WaitEnd};
use super::pressure::NewRequest;
use super::stages::Stages;
use crate::queue::Home;
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, ShardIndex};
use forebay_board::{LoadBoard, QueueDemand};
use forebay_fleet::worker::{FleetSnapshot, Leg};
use forebay_mailbox::{MeshMessage, Ticket, Verdict, Waiter};
use forebay_prompt::parse::Refusal;

/// A wait in a queue, as recorded by the shard of the request.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Identifies the wait in its verdict.
    pub ticket: Ticket,
    pub queue: QueueIndex,
    /// Demand that was counted into the queue.
    pub wanted: QueueDemand,
    /// The end of the wait, with or without a verdict.
    pub deadline: NanosSinceStart,
    /// The leg that needs a rank.
    pub leg: Leg,
    /// The queue's owner has already removed the request.
    has_verdict: bool,
}

/// Result of [`Stages::take`] for a message between shards.
#[derive(Debug)]
pub enum TakeOutcome {
    /// The owner has to serve its queues before the shard sleeps.
    News,
    /// The request of the ticket has been woken with its verdict.
    Delivered(Ticket),
    /// The request of the ticket has stopped waiting. Dropping the verdict returns its lease.
    Returned(Ticket, Verdict),
    /// The message is not for the queues.
    Other(MeshMessage),
}

impl Wait {
    /// For a request that has been counted into its queue.
    #[must_use]
    pub const fn new(waiter: &Waiter, wanted: QueueDemand) -> Self {
        let Waiter { ticket, queue, leg, .. } = *waiter;
        Self { ticket, queue, wanted, deadline: waiter.facts.deadline, leg, has_verdict: false }
    }

    /// The shard that owns the queue.
    #[must_use]
    pub fn home(&self, board: &LoadBoard) -> ShardIndex {
        ShardIndex::try_from_index(board.home(self.queue)).unwrap_or(ShardIndex(0))
    }

    /// The event for the request. True: the place in the queue stays counted until the request has
    /// a new place or needs none.
    pub fn event(&mut self, ended: Result<Verdict, WaitEnd>) -> (RequestEvent, bool) {
        self.has_verdict = ended.is_ok();
        match ended {
            // A decode leg looks for its prefill rank in another queue.
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
    // The configured limit bounds the wait. The client's deadline bounds the whole request, so it
    // counts from the request head.
    let configured = read_at.plus(fleet.config.flow.queue.wait_max);
    client_deadline.map_or(configured, |deadline| configured.min(deadline))
}

impl Stages {
    /// Admits a request once its model is known. `source`: of its caller.
    ///
    /// # Errors
    /// The refusal of [`Stages::window_of`].
    pub fn let_in(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        new_request: &mut NewRequest,
        source: u32,
    ) -> Result<(), Refusal> {
        self.window_of(fleet, pool, now, new_request)?;
        // Only for requests that get past the window: refused ones earn no retries.
        self.sends.retry.deposit(source);
        Ok(())
    }

    pub fn take(
        &mut self,
        home: &mut Home,
        fleet: &FleetSnapshot,
        message: MeshMessage,
    ) -> TakeOutcome {
        match message {
            MeshMessage::Join(waiter) => home.join(waiter, fleet.config.flow.queue.promote_after),
            MeshMessage::Leave { queue, ticket } => home.leave(queue, ticket),
            MeshMessage::Verdict { ticket, verdict } => {
                return match self.waits.take_or_return(ticket, *verdict) {
                    None => TakeOutcome::Delivered(ticket),
                    Some(verdict) => TakeOutcome::Returned(ticket, verdict),
                };
            }
            other => return TakeOutcome::Other(other),
        }
        TakeOutcome::News
    }

    /// Binds waiting requests in the shard's queues while ranks have room. The caller posts the
    /// verdicts.
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

    /// Applies the workers and limits of a new fleet to queues and windows.
    pub fn take_over(&mut self, home: &mut Home, fleet: &FleetSnapshot, now: NanosSinceStart) {
        home.fleet_changed();
        for (pool, _) in fleet.used_pools() {
            self.relieve(fleet, pool, now);
        }
    }

    /// Returns a place in a queue after any end of the wait. Returns the message for the queue's
    /// owner, if any.
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
        // The owner drops a request with its verdict. A `Leave` after that would make the owner
        // scan its queue for nothing.
        (!wait.has_verdict).then_some(MeshMessage::Leave { queue, ticket })
    }
}
