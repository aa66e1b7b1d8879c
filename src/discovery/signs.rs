//! When workers last showed that they live, beside their answers to checks: a stream moved, or a
//! report of their load came.

use forebay_base::{Clock, NanosSinceStart, WorkerIndex};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// Written by the control plane's loop, read by probes.
#[derive(Debug)]
pub struct SignsOfLife {
    clock: Clock,
    last: RefCell<HashMap<WorkerIndex, NanosSinceStart>>,
}

impl SignsOfLife {
    /// No sign of anybody yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, last: RefCell::default() }
    }

    /// There was a sign at that moment.
    pub fn note(&self, worker: WorkerIndex, at: NanosSinceStart) {
        self.last.borrow_mut().insert(worker, at);
    }

    /// Was there a sign in that time before now?
    #[must_use]
    pub fn were_within(&self, time: Duration, worker: WorkerIndex) -> bool {
        let last = self.last.borrow().get(&worker).copied();
        last.is_some_and(|last| self.clock.now() <= last.plus(time))
    }
}
