//! The shard's part in the queues: messages to and from the other shards, and the turn of its own
//! home.

use super::prefill;
use super::state::Shard;
use forebay_base::ShardIndex;
use forebay_fleet::account::Count;
use forebay_fleet::mailbox::{MeshMessage, PrefillLeg, Ticket, Verdict, Waiter};
use forebay_router::queue::HomeTurn;

impl Shard {
    /// Sends a message that must not be lost. A message to this shard is taken at once.
    pub(super) fn post(&self, to: ShardIndex, message: MeshMessage) {
        if to == self.env.number {
            self.take(message);
        } else {
            self.links.post(&self.env, to, message);
        }
    }

    /// Takes a message that belongs to the queues.
    pub(super) fn take(&self, message: MeshMessage) {
        match message {
            MeshMessage::Join(waiter) => self.join(waiter),
            MeshMessage::Leave { queue, ticket } => {
                self.queues.home.borrow_mut().leave(queue, ticket);
                self.links.ring(self.env.number);
            }
            MeshMessage::Verdict { ticket, verdict } => self.deliver(ticket, *verdict),
            MeshMessage::Prefill(leg) => self.start_prefill(leg),
            MeshMessage::PrefillCancel { ticket } => prefill::cancel(self, ticket),
            MeshMessage::PrefillEnded { ticket, ended } => {
                // Who let its leg go has left its seat.
                let _ = self.queues.legs.borrow_mut().deliver(ticket, *ended);
            }
            MeshMessage::WorkerFailed { worker } => self.forget_connections(worker),
            // Belongs to the slice, which the inbox has; it does not come here.
            MeshMessage::Routed(_) => self.env.count(Count::GuessedPromptsDropped),
        }
    }

    fn start_prefill(&self, leg: Box<PrefillLeg>) {
        if let Some(shard) = self.me.upgrade() {
            prefill::start(&shard, leg);
        }
    }

    fn join(&self, waiter: Box<Waiter>) {
        let promote_after = self.workers.fleet().flow.queue.promote_after;
        self.queues.home.borrow_mut().join(waiter, promote_after);
        self.links.ring(self.env.number);
    }

    fn deliver(&self, ticket: Ticket, verdict: Verdict) {
        let granted = matches!(verdict, Verdict::Granted(_));
        let delivered = self.routing.stages.borrow_mut().waits.deliver(ticket, verdict);
        if granted && !delivered {
            self.env.count(Count::GrantsReturned);
        }
    }

    /// Binds what can be bound in the queues at home here, and tells the shards that have the
    /// requests.
    pub(super) fn serve_home(&self) {
        let mut home = self.queues.home.borrow_mut();
        if home.is_empty() {
            return;
        }
        let fleet = self.workers.fleet();
        let mut verdicts = Vec::new();
        {
            let mut stages = self.routing.informed();
            let mut binder = stages.binder(&fleet, self.env.now());
            home.serve(&mut HomeTurn { binder: &mut binder, verdicts: &mut verdicts });
        }
        self.env.count(Count::QueueTurns);
        drop(home);
        for (ticket, verdict) in verdicts {
            let count = match verdict {
                Verdict::Granted(_) => Count::QueueGrants,
                Verdict::Reroute => Count::QueueReroutes,
            };
            self.env.count(count);
            self.post(ticket.shard, MeshMessage::Verdict { ticket, verdict: Box::new(verdict) });
        }
    }
}
