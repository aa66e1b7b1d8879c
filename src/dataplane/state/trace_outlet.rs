//! Outlet of traces to the control plane, and the rate limit of traces that clients request.

use forebay_base::NanosSinceStart;
use forebay_board::account::{Count, ShardCounters};
use forebay_mailbox::TraceRecord;
use forebay_ring::Producer;
use std::cell::{Cell, RefCell};

const SECOND_NS: u64 = 1_000_000_000;

/// Ring of traces to the control plane.
pub(crate) struct TraceOutlet {
    ring: RefCell<Producer<TraceRecord>>,
    asked: Cell<AskedTraces>,
}

/// Traces requested by clients in the current second.
#[derive(Clone, Copy, Debug, Default)]
struct AskedTraces {
    since: NanosSinceStart,
    count: u32,
}

impl AskedTraces {
    fn take(&mut self, now: NanosSinceStart, most: u32) -> bool {
        if now.since(self.since) >= SECOND_NS {
            *self = Self { since: now, count: 0 };
        }
        let has_room = self.count < most;
        self.count += u32::from(has_room);
        has_room
    }
}

impl TraceOutlet {
    pub(crate) fn new(ring: Producer<TraceRecord>) -> Self {
        Self { ring: RefCell::new(ring), asked: Cell::default() }
    }

    /// Sends a trace to the control plane. Drops and counts it if the ring is full.
    pub(crate) fn give(&self, counters: &ShardCounters, traced: TraceRecord) {
        if self.ring.borrow_mut().push(traced).is_err() {
            counters.add(Count::TracesDropped, 1);
        }
    }

    /// True if a client may request another trace in this second.
    pub(crate) fn may_be_asked(
        &self,
        counters: &ShardCounters,
        now: NanosSinceStart,
        most: u32,
    ) -> bool {
        let mut asked = self.asked.get();
        let has_room = asked.take(now, most);
        self.asked.set(asked);
        if !has_room {
            counters.add(Count::TracesOverAsked, 1);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_ask_for_so_many_traces_in_a_second() {
        let mut asked = AskedTraces::default();
        let at = |ms: u64| NanosSinceStart(SECOND_NS + ms * 1_000_000);
        assert_eq!((0..9).filter(|_| asked.take(at(1), 3)).count(), 3);
        assert!(!asked.take(at(1_000), 3));
        assert!(asked.take(at(1_001), 3));
        assert!(!asked.take(at(1_002), 0));
    }
}
