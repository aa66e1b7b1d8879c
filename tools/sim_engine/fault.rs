//! Faults on demand, for tests of what a router does about them: the next requests die at a phase
//! that was asked for. [`Faults`] is the plan; `wire_cut` breaks connections, `debug::fault` takes
//! the orders and meets the requests.

use forebay_base::NanosSinceStart;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::watch;

/// When a request dies.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FaultAt {
    /// The port is closed for a while.
    Connect,
    /// The connection ends without an answer.
    BeforeHead,
    /// It ends in the middle of the head.
    InHead,
    /// It ends between head and body.
    AfterHead,
    /// It ends in the body.
    MidBody,
    /// The request is read and never answered.
    Hang,
    /// The answer has status 500.
    Error,
    /// Status 503, or how the engine refuses.
    Refuse,
}

/// The fault that requests meet next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FaultPlan {
    pub(super) at: FaultAt,
    /// Requests that it is still for.
    pub(super) count: u64,
    /// `mid_body`: bytes of the body, with its framing, that still go out.
    pub(super) body_bytes: usize,
    /// Requests that met a fault so far, whichever.
    pub(super) met: u64,
    /// `connect`: until then the port is closed.
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

    /// Replaces what was planned.
    pub(super) fn plan(&self, at: FaultAt, count: u64, body_bytes: usize) {
        self.0.send_modify(|plan| {
            plan.at = at;
            plan.count = count;
            plan.body_bytes = body_bytes;
        });
    }

    /// Closes the port until then.
    pub(super) fn be_deaf(&self, until: NanosSinceStart) {
        self.0.send_modify(|plan| plan.deaf_until = until);
    }

    /// The fault that a request meets which comes now.
    pub(super) fn meet(&self, now: NanosSinceStart) -> Option<FaultPlan> {
        let mut met = None;
        self.0.send_if_modified(|plan| {
            // A connection that was open before is as good as none.
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

    /// What is planned now.
    pub(super) fn current(&self) -> FaultPlan {
        *self.0.borrow()
    }

    /// Told of every change.
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
