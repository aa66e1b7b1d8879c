//! A flag of a thread that tasks can wait for: set once, wakes all waiting tasks.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// A flag that is set at most once.
#[derive(Debug, Default)]
pub struct Signal {
    set: Cell<bool>,
    waiting: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// A place of a waiting task; released on drop.
#[derive(Debug)]
pub struct Seat<'a> {
    signal: &'a Signal,
    place: usize,
}

impl Signal {
    /// True once the flag is set.
    pub fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Sets the flag and wakes all waiting tasks.
    pub fn set(&self) {
        self.set.set(true);
        // The wakers are taken out first: a woken task may call back while this runs.
        let waiting: Vec<Waker> =
            self.waiting.borrow_mut().iter_mut().filter_map(Option::take).collect();
        for waker in waiting {
            waker.wake();
        }
    }

    /// A place to wait, for a single task.
    pub fn seat(&self) -> Seat<'_> {
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut waiting = self.waiting.borrow_mut();
            waiting.push(None);
            waiting.len() - 1
        });
        Seat { signal: self, place }
    }
}

impl Seat<'_> {
    /// Ready once the flag is set.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.is_set() {
            return Poll::Ready(());
        }
        if let Some(seat) = self.signal.waiting.borrow_mut().get_mut(self.place) {
            match seat {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                seat => *seat = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.signal.waiting.borrow_mut().get_mut(self.place) {
            *seat = None;
        }
        self.signal.free.borrow_mut().push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_reused_and_see_the_flag() {
        let signal = Signal::default();
        let mut cx = Context::from_waker(Waker::noop());
        let first = signal.seat();
        assert!(first.poll(&mut cx).is_pending());
        drop(first);
        let second = signal.seat();
        assert_eq!(signal.waiting.borrow().len(), 1);
        signal.set();
        assert!(second.poll(&mut cx).is_ready());
    }
}
