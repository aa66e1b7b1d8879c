//! Faults on demand, to test a router's reaction: the next requests fail at a chosen phase.
//! [`Faults`] is the plan; `wire_cut` breaks connections, `debug::fault` sets the plan and applies
//! it to requests.

use forebay_base::NanosSinceStart;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::watch;

/// Phase at which a request fails.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FaultAt {
    /// The port is closed for a while.
    Connect,
    /// The connection ends without an answer.
    BeforeHead,
    /// The connection ends in the middle of the head.
    InHead,
    /// The connection ends between head and body.
    AfterHead,
    /// The connection ends in the body.
    MidBody,
    /// The request is read and never answered.
    Hang,
    /// The answer has status 500.
    Error,
    /// The engine refuses in its own form, by default with 503.
    Refuse,
}

/// The fault of the next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FaultPlan {
    pub(super) at: FaultAt,
    /// Number of requests that the fault still applies to.
    pub(super) count: u64,
    /// For `mid_body`: bytes of the body, with its framing, before the cut.
    pub(super) body_bytes: usize,
    /// Number of requests with any fault so far.
    pub(super) met: u64,
    /// For `connect`: time at which the port opens again.
    #[serde(skip)]
    pub(super) deaf_until: NanosSinceStart,
}

/// The plan, shared. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Faults(Arc<watch::Sender<FaultPlan>>);

impl Faults {
    /// Requests are served until a fault is planned.
    pub(super) fn none() -> Self {
        let deaf_until = NanosSinceStart(0);
        let plan =
            FaultPlan { at: FaultAt::BeforeHead, count: 0, body_bytes: 0, met: 0, deaf_until };
        Self(Arc::new(watch::Sender::new(plan)))
    }

    /// Replaces the plan by another fault.
    pub(super) fn plan(&self, at: FaultAt, count: u64, body_bytes: usize) {
        self.0.send_modify(|plan| {
            plan.at = at;
            plan.count = count;
            plan.body_bytes = body_bytes;
        });
    }

    /// Closes the port until that time.
    pub(super) fn be_deaf(&self, until: NanosSinceStart) {
        self.0.send_modify(|plan| plan.deaf_until = until);
    }

    /// Takes the fault of a request that arrives now.
    pub(super) fn meet(&self, now: NanosSinceStart) -> Option<FaultPlan> {
        let mut met = None;
        self.0.send_if_modified(|plan| {
            // A connection opened before the port closed fails too.
            if now < plan.deaf_until {
                met = Some(FaultPlan { at: FaultAt::BeforeHead, ..*plan });
            } else if plan.count > 0 {
                plan.count -= 1;
                met = Some(*plan);
            }
            plan.met += u64::from(met.is_some());
            met.is_some()
        });
        met
    }

    /// The present plan of faults.
    pub(super) fn current(&self) -> FaultPlan {
        *self.0.borrow()
    }

    /// A receiver of every change.
    pub(super) fn watch(&self) -> watch::Receiver<FaultPlan> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_for_so_many_requests_and_deafness_for_a_while() {
        let faults = Faults::none();
        let at = |ns| faults.meet(NanosSinceStart(ns)).map(|plan| plan.at);
        assert_eq!(at(0), None);
        faults.plan(FaultAt::Hang, 2, 0);
        assert_eq!([at(1), at(2), at(3)], [Some(FaultAt::Hang), Some(FaultAt::Hang), None]);
        faults.be_deaf(NanosSinceStart(10));
        assert_eq!([at(9), at(10)], [Some(FaultAt::BeforeHead), None]);
        assert_eq!(faults.current().met, 3);
    }
}
