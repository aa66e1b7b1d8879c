//! The shard's part in the queues: messages to and from the other shards, and the turn of its own
//! home.

use super::prefill;
use super::state::Shard;
use forebay_base::ShardIndex;
use forebay_fleet::account::Count;
use forebay_fleet::mailbox::{MeshMessage, PrefillLeg, Ticket, Verdict, Waiter};
use forebay_router::queue::HomeTurn;

impl Shard {
    /// Sends a message that must not be lost. A full ring keeps it here; the inbox tries again.
    pub(super) fn post(&self, to: ShardIndex, message: MeshMessage) {
        if to == self.number {
            self.take(message);
            return;
        }
        let mut mesh = self.mesh.borrow_mut();
        let sent = self.outbox.borrow_mut().post(to, message, |message| mesh.send(to, message));
        self.ring(if sent { to } else { self.number });
    }

    /// Sends what found no room before. What is for a shard that has ended is for nobody.
    pub(super) fn empty_outbox(&self) {
        let mut mesh = self.mesh.borrow_mut();
        let send = |to, message| if self.has_ended(to) { Ok(()) } else { mesh.send(to, message) };
        self.outbox.borrow_mut().flush(send, |to| self.ring(to));
    }

    /// Is there anything that found no room?
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.borrow().is_empty()
    }

    /// Takes a message that belongs to the queues.
    pub(super) fn take(&self, message: MeshMessage) {
        match message {
            MeshMessage::Join(waiter) => self.join(waiter),
            MeshMessage::Leave { queue, ticket } => {
                self.home.borrow_mut().leave(queue, ticket);
                self.ring(self.number);
            }
            MeshMessage::Verdict { ticket, verdict } => self.deliver(ticket, *verdict),
            MeshMessage::Prefill(leg) => self.start_prefill(leg),
            MeshMessage::PrefillCancel { ticket } => prefill::cancel(self, ticket),
            MeshMessage::PrefillEnded { ticket, ended } => {
                // Who let its leg go has left its seat.
                let _ = self.legs.borrow_mut().deliver(ticket, *ended);
            }
            MeshMessage::WorkerFailed { worker } => self.forget_connections(worker),
            // Belongs to the slice, which the inbox has; it does not come here.
            MeshMessage::Routed(_) => self.counters.add(Count::GuessedPromptsDropped, 1),
        }
    }

    fn start_prefill(&self, leg: Box<PrefillLeg>) {
        if let Some(shard) = self.me.upgrade() {
            prefill::start(&shard, leg);
        }
    }

    fn join(&self, waiter: Box<Waiter>) {
        let promote_after = self.fleet().flow.queue.promote_after;
        self.home.borrow_mut().join(waiter, promote_after);
        self.ring(self.number);
    }

    fn deliver(&self, ticket: Ticket, verdict: Verdict) {
        let granted = matches!(verdict, Verdict::Granted(_));
        let delivered = self.stages.borrow_mut().waits.deliver(ticket, verdict);
        if granted && !delivered {
            self.counters.add(Count::GrantsReturned, 1);
        }
    }

    pub(super) fn ring(&self, shard: ShardIndex) {
        if let Some(bell) = self.bells.get(shard.index()) {
            bell.ring();
        }
    }

    /// Binds what can be bound in the queues at home here, and tells the shards that have the
    /// requests.
    pub(super) fn serve_home(&self) {
        let mut home = self.home.borrow_mut();
        if home.is_empty() {
            return;
        }
        let fleet = self.fleet();
        let mut verdicts = Vec::new();
        {
            let mut stages = self.informed();
            let mut binder = stages.binder(&fleet, self.now());
            home.serve(&mut HomeTurn { binder: &mut binder, verdicts: &mut verdicts });
        }
        self.counters.add(Count::QueueTurns, 1);
        drop(home);
        for (ticket, verdict) in verdicts {
            let count = match verdict {
                Verdict::Granted(_) => Count::QueueGrants,
                Verdict::Reroute => Count::QueueReroutes,
            };
            self.counters.add(count, 1);
            self.post(ticket.shard, MeshMessage::Verdict { ticket, verdict: Box::new(verdict) });
        }
    }
}
