//! A timer of a task.

use super::reactor::{self, Reactor};
use forebay_base::NanosSinceStart;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Waits for a deadline that may move. Moving it later costs nothing: the timer fires early, and is
/// then set again.
#[derive(Debug)]
pub struct Timer {
    set: Option<(Rc<Reactor>, usize)>,
}

impl Timer {
    /// A timer without a deadline.
    #[must_use]
    pub const fn new() -> Self {
        Self { set: None }
    }

    /// Ready when `at` has passed.
    ///
    /// # Panics
    /// Outside of [`super::block_on`] in debug builds; in release builds it is never ready there.
    pub fn poll_until(&mut self, at: NanosSinceStart, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((reactor, key)) = &self.set {
            if reactor.now() >= at {
                return Poll::Ready(());
            }
            reactor.timers.borrow_mut().aim(*key, at, cx.waker());
            return Poll::Pending;
        }
        let Some(reactor) = reactor::current() else { return Poll::Pending };
        if reactor.now() >= at {
            return Poll::Ready(());
        }
        let key = reactor.timers.borrow_mut().insert(at, cx.waker());
        self.set = Some((reactor, key));
        Poll::Pending
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some((reactor, key)) = self.set.take() {
            reactor.timers.borrow_mut().remove(key);
        }
    }
}
