//! Timers of a thread.

use forebay_base::NanosSinceStart;
use slab::Slab;
use std::collections::BTreeSet;
use std::task::Waker;

/// All timers of a thread. Plain data.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    order: BTreeSet<(NanosSinceStart, usize)>,
    entries: Slab<TimerEntry>,
}

#[derive(Debug)]
struct TimerEntry {
    fires_at: NanosSinceStart,
    is_set: bool,
    waker: Waker,
}

impl Timers {
    pub(crate) fn insert(&mut self, at: NanosSinceStart, waker: &Waker) -> usize {
        let entry = TimerEntry { fires_at: at, is_set: true, waker: waker.clone() };
        let key = self.entries.insert(entry);
        self.order.insert((at, key));
        key
    }

    /// Lets a timer fire at `at` or earlier. Costs more than a comparison only if `at` is earlier
    /// than before.
    pub(crate) fn aim(&mut self, key: usize, at: NanosSinceStart, waker: &Waker) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if !entry.waker.will_wake(waker) {
            entry.waker.clone_from(waker);
        }
        if entry.is_set && entry.fires_at <= at {
            return;
        }
        if entry.is_set {
            self.order.remove(&(entry.fires_at, key));
        }
        entry.fires_at = at;
        entry.is_set = true;
        self.order.insert((at, key));
    }

    pub(crate) fn remove(&mut self, key: usize) {
        if let Some(entry) = self.entries.try_remove(key)
            && entry.is_set
        {
            self.order.remove(&(entry.fires_at, key));
        }
    }

    /// When the next timer fires.
    pub(crate) fn next(&self) -> Option<NanosSinceStart> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(crate) fn fire(&mut self, now: NanosSinceStart) {
        while let Some((at, key)) = self.order.first().copied()
            && at <= now
        {
            self.order.pop_first();
            if let Some(entry) = self.entries.get_mut(key) {
                entry.is_set = false;
                entry.waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> NanosSinceStart {
        NanosSinceStart(nanos)
    }

    #[test]
    fn only_an_earlier_moment_moves_a_timer() {
        let mut timers = Timers::default();
        let key = timers.insert(at(10), Waker::noop());
        timers.aim(key, at(30), Waker::noop());
        assert_eq!(timers.next(), Some(at(10)), "fires early, and is aimed anew then");
        timers.aim(key, at(5), Waker::noop());
        assert_eq!(timers.next(), Some(at(5)));
        timers.fire(at(5));
        assert_eq!(timers.next(), None);
        timers.aim(key, at(30), Waker::noop());
        assert_eq!(timers.next(), Some(at(30)));
        timers.remove(key);
        assert_eq!((timers.next(), timers.entries.len()), (None, 0));
    }

    #[test]
    fn all_that_is_due_fires_in_order() {
        let mut timers = Timers::default();
        for moment in [3, 1, 2, 9] {
            timers.insert(at(moment), Waker::noop());
        }
        timers.fire(at(3));
        assert_eq!(timers.next(), Some(at(9)));
    }
}
