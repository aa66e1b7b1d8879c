//! The shard's part in the queues: messages to and from other shards, and turns of the queues that
//! this shard owns.

use super::prefill_leg;
use crate::state::shard::Shard;
use forebay_base::ShardIndex;
use forebay_board::account::Count;
use forebay_mailbox::{MeshMessage, PrefillLeg, Verdict};
use forebay_router::request::TakeOutcome;

impl Shard {
    /// Sends a message that must not be lost. A message to this shard is handled at once.
    pub(crate) fn post(&self, to: ShardIndex, message: MeshMessage) {
        if to == self.env.number {
            self.take(message);
        } else {
            self.links.post(&self.env, to, message);
        }
    }

    /// Handles a message for the queues or for a prefill leg.
    pub(crate) fn take(&self, message: MeshMessage) {
        let taken = {
            let mut stages = self.routing.stages.borrow_mut();
            stages.take(&mut self.queues.home.borrow_mut(), &self.workers.fleet.borrow(), message)
        };
        match taken {
            TakeOutcome::News => self.links.ring_bell(self.env.number),
            TakeOutcome::Delivered(_) | TakeOutcome::Returned(_, Verdict::Reroute) => {}
            TakeOutcome::Returned(_, Verdict::Granted(_)) => self.env.count(Count::GrantsReturned),
            TakeOutcome::Other(message) => self.take_of_leg(message),
        }
    }

    fn take_of_leg(&self, message: MeshMessage) {
        match message {
            MeshMessage::Prefill(leg) => self.start_prefill(leg),
            MeshMessage::PrefillCancel { ticket } => prefill_leg::cancel(self, ticket),
            MeshMessage::PrefillOutcome { ticket, ended } => {
                prefill_leg::take_back(self, ticket, *ended);
            }
            // The queues and the inbox handle these.
            MeshMessage::Join(_)
            | MeshMessage::Leave { .. }
            | MeshMessage::Verdict { .. }
            | MeshMessage::WorkerFailed { .. }
            | MeshMessage::Kept(_)
            | MeshMessage::Routed(_) => debug_assert!(false, "not for a leg: {message:?}"),
        }
    }

    fn start_prefill(&self, leg: Box<PrefillLeg>) {
        if let Some(shard) = self.me.upgrade() {
            prefill_leg::start(&shard, leg);
        }
    }

    /// Binds waiting requests of this shard's queues to ranks, and sends the verdicts to the shards
    /// of the requests.
    pub(crate) fn serve_home(&self) {
        let mut home = self.queues.home.borrow_mut();
        if home.is_empty() {
            return;
        }
        let fleet = self.workers.fleet();
        let now = self.env.now();
        let verdicts = self.routing.informed().serve(&mut home, &fleet, now);
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
