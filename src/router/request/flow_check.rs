//! Invariants of a request's state machine before and after each step. Checked in debug builds
//! only.

use super::event::{Action, RequestEvent};
use super::flow::{HOPS_MAX, REFUSALS_MAX, RequestFlow};
use forebay_board::QueueDemand;
use forebay_fleet::worker::Leg;
use forebay_mailbox::Waiter;

impl RequestFlow {
    /// Checks that the event may follow the last action: a wait ends once, and no other event
    /// comes during the wait.
    pub(super) fn check_event(&self, event: &RequestEvent) {
        let ends_a_wait = match event {
            RequestEvent::Granted(_) | RequestEvent::Reroute | RequestEvent::WaitOver(_) => true,
            RequestEvent::Ready | RequestEvent::Failed(_) => false,
        };
        debug_assert_eq!(self.waiting.is_some(), ends_a_wait, "out of turn: {event:?}");
        let is_first = matches!(event, RequestEvent::Ready);
        debug_assert!(!is_first || (self.is_new() && self.failed.is_none()), "begun twice");
    }

    /// Checks that each count is within its limit, and that a request waits exactly when its action
    /// is `Wait`.
    pub(super) fn check_invariants(&self, action: &Action) {
        debug_assert!(self.tries.hop_count <= HOPS_MAX, "sent on without end");
        debug_assert!(self.tries.refused_count <= REFUSALS_MAX, "refused without end");
        debug_assert_eq!(self.waiting.is_some(), matches!(action, Action::Wait(..)));
        if let Action::Wait(waiter, wanted) = action {
            debug_assert_eq!(wanted.class, waiter.facts.caller.class);
            debug_assert!(waiter.near.is_none() || waiter.leg == Leg::Prefill);
            self.check_wait(waiter, *wanted);
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

    /// Checks that the machine, its waiter and the queue's count describe the same wait.
    fn check_wait(&self, waiter: &Waiter, wanted: QueueDemand) {
        let Some(wait) = &self.waiting else { return };
        debug_assert_eq!(wait.leg, waiter.leg, "waits for another leg");
        debug_assert_eq!(wait.queued.queue, waiter.queue, "counted into another queue");
        debug_assert_eq!(wait.queued.wanted, wanted, "counted as another request");
        // Only a request for a prefill rank waits with a decode rank, and then near that rank.
        debug_assert_eq!(self.decode_rank(), waiter.near, "near another rank");
        debug_assert_eq!(waiter.facts.tried, self.facts.tried, "other ranks have failed it");
    }
}
