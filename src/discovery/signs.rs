//! Last signs of life of workers beside their health checks: stream data, or a load report.

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
    /// Without any sign yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, last: RefCell::default() }
    }

    /// Records a sign at that time.
    pub fn note(&self, worker: WorkerIndex, at: NanosSinceStart) {
        self.last.borrow_mut().insert(worker, at);
    }

    /// True if a sign came within that time before now.
    #[must_use]
    pub fn were_within(&self, time: Duration, worker: WorkerIndex) -> bool {
        let last = self.last.borrow().get(&worker).copied();
        last.is_some_and(|last| self.clock.now() <= last.plus(time))
    }
}
