//! What must hold of the machine of a request before and after each step. Debug builds check it,
//! release builds do nothing here.

use super::event::{Action, RequestEvent};
use super::flow::{HOPS_MAX, REFUSALS_MAX, RequestFlow};
use forebay_fleet::mailbox::Waiter;
use forebay_fleet::worker::{Leg, QueueWanted};

impl RequestFlow {
    /// What may follow the last action: a wait ends once, and nothing else happens meanwhile.
    pub(super) fn check_event(&self, event: &RequestEvent) {
        let ends_a_wait = match event {
            RequestEvent::Granted(_) | RequestEvent::Reroute | RequestEvent::WaitOver(_) => true,
            RequestEvent::Ready | RequestEvent::Failed(_) => false,
        };
        debug_assert_eq!(self.waiting.is_some(), ends_a_wait, "out of turn: {event:?}");
        let is_first = matches!(event, RequestEvent::Ready);
        debug_assert!(!is_first || (self.is_new() && self.failed.is_none()), "begun twice");
    }

    /// Each count that goes up has a limit, and a request that waits says where.
    pub(super) fn check_invariants(&self, action: &Action) {
        debug_assert!(self.tries.hop_count <= HOPS_MAX, "sent on without end");
        debug_assert!(self.tries.refused_count <= REFUSALS_MAX, "refused without end");
        debug_assert_eq!(self.waiting.is_some(), matches!(action, Action::Wait(..)));
        if let Action::Wait(waiter, wanted) = action {
            debug_assert_eq!(wanted.class, waiter.facts.caller.class);
            debug_assert!(waiter.near.is_none() || waiter.leg == Leg::Prefill);
            self.check_stay(waiter, *wanted);
        }
        if let Action::Send(chosen) = action {
            debug_assert_eq!(chosen.plan.rank, chosen.lease.rank(), "a plan of another rank");
            let has_failed = self.facts.tried.contains(&chosen.lease.rank());
            debug_assert!(!has_failed, "sent where it has failed");
            if let Some(prefill) = &chosen.prefill {
                debug_assert_eq!(prefill.plan.rank, prefill.lease.rank(), "of another rank");
                debug_assert!(prefill.lease.rank() != chosen.lease.rank(), "a pair of one rank");
            }
        }
    }

    /// The machine, its waiter and what is counted tell of one wait.
    fn check_stay(&self, waiter: &Waiter, wanted: QueueWanted) {
        let Some(stay) = &self.waiting else { return };
        debug_assert_eq!(stay.leg, waiter.leg, "waits for another leg");
        debug_assert_eq!(stay.queued.queue, waiter.queue, "counted into another queue");
        debug_assert_eq!(stay.queued.wanted, wanted, "counted as another request");
        // Only a prefill is waited for with a rank in hand, and then near that rank.
        debug_assert_eq!(self.decode_rank(), waiter.near, "near another rank");
        debug_assert_eq!(waiter.facts.tried, self.facts.tried, "other ranks have failed it");
    }
}
