//! What is known of a descriptor that is watched: whether it is readable or writable.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// What is known of one descriptor. Set by edges, cleared by who finds that it is not so.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    pub(crate) readable: Direction,
    pub(crate) writable: Direction,
    /// The other side has closed: this may have been told together with its last bytes.
    pub(crate) is_ended: Cell<bool>,
    /// The operation or registration that tells of edges.
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
    /// Notes an edge and wakes who waits for it.
    pub(crate) fn set(&self, readable: bool, writable: bool) {
        if readable {
            self.readable.set();
        }
        if writable {
            self.writable.set();
        }
    }

    /// The other side has closed, or the descriptor is broken.
    pub(crate) fn set_ended(&self) {
        self.is_ended.set(true);
    }

    /// From now on nothing tells of edges any more.
    pub(crate) fn end(&self) {
        self.key.set(None);
    }
}

/// Remembers whom to wake; a task that waits again in the same place costs a comparison.
pub(crate) fn keep_waker(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        place => *place = Some(cx.waker().clone()),
    }
}
