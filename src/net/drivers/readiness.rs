//! Readiness of a watched descriptor.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// Readiness of a descriptor. Set by edges, cleared by a call that would block.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    pub(crate) readable: Direction,
    pub(crate) writable: Direction,
    /// The peer has closed; the event may have come together with the last bytes.
    pub(crate) is_ended: Cell<bool>,
    /// The operation or registration that reports edges.
    pub(crate) key: Cell<Option<usize>>,
}

#[derive(Debug, Default)]
pub(crate) struct Direction {
    pub(crate) is_ready: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Direction {
    fn set(&self) {
        self.is_ready.set(true);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_ready.get() {
            return Poll::Ready(());
        }
        keep_waker(&mut self.waker.borrow_mut(), cx);
        Poll::Pending
    }
}

impl Readiness {
    /// Records an edge and wakes the waiting task.
    pub(crate) fn set(&self, readable: bool, writable: bool) {
        if readable {
            self.readable.set();
        }
        if writable {
            self.writable.set();
        }
    }

    /// The peer has closed, or the descriptor is broken.
    pub(crate) fn set_ended(&self) {
        self.is_ended.set(true);
    }

    /// Records that the registration has ended: no further edges come.
    pub(crate) fn end(&self) {
        self.key.set(None);
    }
}

/// Stores the task's waker; waiting again in the same place costs a comparison.
pub(crate) fn keep_waker(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        place => *place = Some(cx.waker().clone()),
    }
}
