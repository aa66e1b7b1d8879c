//! The rejection windows: requests of a pool are refused at once while its window is open. Each
//! pool has a word for each [`WindowOrigin`]: its own queue, an operator, the queues of other
//! replicas, their operators. A further word covers all pools and is read before a body is read. A
//! window ends by the clock alone, without any action.

use crossbeam_utils::CachePadded;
use forebay_base::limits::POOLS_MAX;
use forebay_base::{NanosSinceStart, PoolIndex};
use forebay_ring::Bell;
use forebay_ring::sync::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// All windows. Any thread opens, closes and reads them.
#[derive(Debug)]
pub struct Windows {
    pools: Box<[CachePadded<PoolWindow>]>,
    /// Latest end that any window was given: 0, or a time in the past, means that no window is
    /// open. Closing does not lower it.
    latest_ns: CachePadded<AtomicU64>,
    /// Openings and closings so far.
    edges: CachePadded<AtomicU64>,
    control: OnceLock<Arc<Bell>>,
}

/// Limit at which this router opened a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowCause {
    /// No rank of the pool takes a request, and no queue does.
    Places = 1,
    /// The queues hold `queue.depth_max` requests.
    Depth,
    /// The queues hold `queue.bytes_max` bytes.
    Bytes,
}

#[derive(Debug, Default)]
struct PoolWindow {
    /// [`WindowCause`] of the last window of this router; 0 before the first.
    cause: AtomicU64,
    /// In the order of [`WindowOrigin::ALL`].
    by_origin: [OriginWindow; WindowOrigin::ALL.len()],
}

/// The window of an origin.
#[derive(Debug, Default)]
struct OriginWindow {
    ends_ns: AtomicU64,
    openings: AtomicU64,
}

/// Origin of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowOrigin {
    /// This router: its own queue is full.
    Here,
    /// An operator of this router. New room does not close the window.
    Hand,
    /// Another replica of this router: its queue is full.
    Elsewhere,
    /// An operator of another replica. An order, as [`Self::Hand`] is.
    HandElsewhere,
}

impl WindowOrigin {
    /// Each origin, in the order of the words.
    pub const ALL: [Self; 4] = [Self::Here, Self::Hand, Self::Elsewhere, Self::HandElsewhere];
    /// Origins of windows that an operator opened, here or at another replica.
    pub const BY_HAND: [Self; 2] = [Self::Hand, Self::HandElsewhere];
}

impl WindowCause {
    const ALL: [Self; 3] = [Self::Places, Self::Depth, Self::Bytes];
}

impl Windows {
    #[must_use]
    pub fn new() -> Self {
        Self {
            pools: (0..POOLS_MAX).map(|_| CachePadded::default()).collect(),
            latest_ns: CachePadded::new(AtomicU64::new(0)),
            edges: CachePadded::new(AtomicU64::new(0)),
            control: OnceLock::new(),
        }
    }

    /// Sets the bell that rings when a window of this router opens or closes. The first call
    /// counts.
    pub fn set_bell(&self, control: Arc<Bell>) {
        let _ = self.control.set(control);
    }

    /// May any pool's window be open? A load of a line that is written only when a window opens.
    /// Called for every request, before its body is read.
    #[must_use]
    pub fn may_be_open(&self, now: NanosSinceStart) -> bool {
        // ordering: a reader of an old value accepts a request or checks its pool; both are
        // harmless.
        now.0 < self.latest_ns.load(Ordering::Relaxed)
    }

    /// End of the period in which requests of the pool are refused; `None` if they are not.
    #[must_use]
    pub fn open_until(&self, pool: PoolIndex, now: NanosSinceStart) -> Option<NanosSinceStart> {
        WindowOrigin::ALL.into_iter().filter_map(|by| self.open_by_until(pool, by, now)).max()
    }

    /// End of the pool's window if an operator opened it, here or at another replica; `None` if it
    /// is closed.
    #[must_use]
    pub fn open_by_hand_until(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<NanosSinceStart> {
        WindowOrigin::BY_HAND.into_iter().filter_map(|by| self.open_by_until(pool, by, now)).max()
    }

    /// End of the pool's window if this router or its operator opened it; `None` if it is closed.
    /// This end is sent to other replicas.
    #[must_use]
    pub fn open_here_until(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<NanosSinceStart> {
        let by = |by| self.open_by_until(pool, by, now);
        by(WindowOrigin::Here).max(by(WindowOrigin::Hand))
    }

    /// End of the pool's window by that origin; `None` if it is closed.
    #[must_use]
    pub fn open_by_until(
        &self,
        pool: PoolIndex,
        by: WindowOrigin,
        now: NanosSinceStart,
    ) -> Option<NanosSinceStart> {
        // ordering: a hint; pairs with nothing.
        let until = self.pools.get(pool.index())?.of(by).ends_ns.load(Ordering::Relaxed);
        (now.0 < until).then_some(NanosSinceStart(until))
    }

    /// Opens or extends a window of this router at a limit.
    pub fn open_at(
        &self,
        pool: PoolIndex,
        cause: WindowCause,
        now: NanosSinceStart,
        until: NanosSinceStart,
    ) -> bool {
        if let Some(words) = self.pools.get(pool.index()) {
            // ordering: for messages; pairs with nothing. Two openers at once have two causes, and
            // each of the causes is right.
            words.cause.store(cause as u64, Ordering::Relaxed);
        }
        self.open(pool, WindowOrigin::Here, now, until)
    }

    /// Limit at which this router last opened a window of the pool. `None`: it never did.
    #[must_use]
    pub fn cause(&self, pool: PoolIndex) -> Option<WindowCause> {
        // ordering: for messages; pairs with nothing.
        let number = self.pools.get(pool.index())?.cause.load(Ordering::Relaxed);
        WindowCause::ALL.into_iter().find(|cause| *cause as u64 == number)
    }

    /// Opens a window, or extends it. True only for the caller that opened it: an event per
    /// opening. After opening a window of [`WindowOrigin::Here`], the caller looks at the queue
    /// again: a request that left it before the fence could not close the window.
    pub fn open(
        &self,
        pool: PoolIndex,
        by: WindowOrigin,
        now: NanosSinceStart,
        until: NanosSinceStart,
    ) -> bool {
        // ordering: the read-modify-write picks a single opener and publishes nothing else.
        let write = |word: &AtomicU64| word.fetch_max(until.0, Ordering::Relaxed);
        self.write_end(pool, by, now, until, write)
    }

    /// Opens a window, or moves its end, also to an earlier time. True only for the caller that
    /// opened it.
    pub fn set_end(
        &self,
        pool: PoolIndex,
        by: WindowOrigin,
        now: NanosSinceStart,
        until: NanosSinceStart,
    ) -> bool {
        // ordering: as in `open`.
        let write = |word: &AtomicU64| word.swap(until.0, Ordering::Relaxed);
        self.write_end(pool, by, now, until, write)
    }

    /// `write` returns the end before.
    fn write_end(
        &self,
        pool: PoolIndex,
        by: WindowOrigin,
        now: NanosSinceStart,
        until: NanosSinceStart,
        write: impl FnOnce(&AtomicU64) -> u64,
    ) -> bool {
        let Some(words) = self.pools.get(pool.index()).map(|words| words.of(by)) else {
            return false;
        };
        let before = write(&words.ends_ns);
        // ordering: covers the word above; a reader that sees only this word finds the pool closed
        // and accepts the request.
        self.latest_ns.fetch_max(until.0, Ordering::Relaxed);
        // Extending an open window is no opening: each opening is a single event in the log and in
        // the count.
        let opened = before <= now.0 && now.0 < until.0;
        if opened {
            // ordering: statistic; pairs with nothing.
            words.openings.fetch_add(1, Ordering::Relaxed);
            self.edge(by);
        }
        // ordering: the SeqCst fence pairs with the fence in `QueueCell::leave`: the opener of a
        // window reads the queue after it, a request that leaves the queue reads the window after
        // it, so the opener or the leaver closes the window.
        fence(Ordering::SeqCst);
        opened
    }

    /// Closes a window early. True if it was open.
    pub fn close(&self, pool: PoolIndex, by: WindowOrigin, now: NanosSinceStart) -> bool {
        let Some(words) = self.pools.get(pool.index()) else { return false };
        // ordering: the swap picks a single closer and publishes nothing else.
        let closed = words.of(by).ends_ns.swap(0, Ordering::Relaxed) > now.0;
        if closed {
            self.edge(by);
        }
        closed
    }

    fn edge(&self, by: WindowOrigin) {
        // Every replica reports only its own windows.
        if matches!(by, WindowOrigin::Elsewhere | WindowOrigin::HandElsewhere) {
            return;
        }
        // ordering: Release; pairs with the Acquire in `edges`: a reader of the count also sees the
        // pools' words.
        self.edges.fetch_add(1, Ordering::Release);
        if let Some(bell) = self.control.get() {
            bell.ring();
        }
    }

    /// Openings and closings of this router so far.
    #[must_use]
    pub fn edges(&self) -> u64 {
        // ordering: Acquire; pairs with the Release in `edge`.
        self.edges.load(Ordering::Acquire)
    }

    /// Openings of a pool's window, of any origin.
    #[must_use]
    pub fn openings(&self, pool: PoolIndex) -> u64 {
        WindowOrigin::ALL.into_iter().map(|by| self.openings_by(pool, by)).sum()
    }

    /// Openings of a pool's window by that origin.
    #[must_use]
    pub fn openings_by(&self, pool: PoolIndex, by: WindowOrigin) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.pools.get(pool.index()).map_or(0, |pool| pool.of(by).openings.load(Ordering::Relaxed))
    }
}

impl PoolWindow {
    const fn of(&self, by: WindowOrigin) -> &OriginWindow {
        let [here, hand, elsewhere, hand_elsewhere] = &self.by_origin;
        match by {
            WindowOrigin::Here => here,
            WindowOrigin::Hand => hand,
            WindowOrigin::Elsewhere => elsewhere,
            WindowOrigin::HandElsewhere => hand_elsewhere,
        }
    }
}

impl Default for Windows {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const POOL: PoolIndex = PoolIndex(3);
    const AT: fn(u64) -> NanosSinceStart = NanosSinceStart;

    #[test]
    fn a_window_opens_once_and_ends_by_the_clock() {
        let windows = Windows::new();
        assert!(!windows.may_be_open(AT(0)));
        assert!(windows.open(POOL, WindowOrigin::Here, AT(10), AT(100)), "the edge");
        assert!(!windows.open(POOL, WindowOrigin::Here, AT(20), AT(120)), "longer, not anew");
        assert_eq!(windows.open_until(POOL, AT(119)), Some(AT(120)));
        assert_eq!(windows.open_until(PoolIndex(4), AT(119)), None);
        assert_eq!(windows.open_until(POOL, AT(120)), None);
        assert!(!windows.may_be_open(AT(120)), "nothing is left behind");
        assert!(windows.open(POOL, WindowOrigin::Here, AT(120), AT(130)));
        assert_eq!((windows.openings(POOL), windows.edges()), (2, 2));
    }

    #[test]
    fn an_operator_shortens_a_window_without_opening_it_again() {
        let windows = Windows::new();
        assert!(windows.set_end(POOL, WindowOrigin::Hand, AT(0), AT(3_600)));
        assert!(!windows.set_end(POOL, WindowOrigin::Hand, AT(1), AT(5)), "open already");
        assert_eq!(windows.open_until(POOL, AT(4)), Some(AT(5)));
        assert_eq!(windows.open_until(POOL, AT(5)), None);
        assert_eq!(windows.openings(POOL), 1);
    }

    #[test]
    fn what_a_hand_opened_no_queue_closes() {
        let windows = Windows::new();
        windows.open(POOL, WindowOrigin::Hand, AT(0), AT(100));
        windows.open(POOL, WindowOrigin::Here, AT(0), AT(50));
        assert!(windows.close(POOL, WindowOrigin::Here, AT(1)));
        assert_eq!(windows.open_until(POOL, AT(2)), Some(AT(100)));
        assert_eq!(windows.open_here_until(POOL, AT(2)), Some(AT(100)), "the end is sent");
        assert!(windows.close(POOL, WindowOrigin::Hand, AT(3)));
        assert_eq!((windows.open_until(POOL, AT(3)), windows.edges()), (None, 4));
    }

    #[test]
    fn a_window_of_this_router_has_its_cause() {
        let windows = Windows::new();
        windows.open(POOL, WindowOrigin::Hand, AT(0), AT(100));
        assert_eq!(windows.cause(POOL), None);
        for cause in WindowCause::ALL {
            windows.open_at(POOL, cause, AT(0), AT(100));
            assert_eq!(windows.cause(POOL), Some(cause));
        }
    }

    #[test]
    fn closing_ends_ones_own_only() {
        let windows = Windows::new();
        windows.open(POOL, WindowOrigin::Elsewhere, AT(0), AT(100));
        assert_eq!(windows.edges(), 0, "others' windows are no news for them");
        assert!(!windows.close(POOL, WindowOrigin::Here, AT(1)));
        windows.open(POOL, WindowOrigin::Here, AT(1), AT(50));
        assert!(windows.close(POOL, WindowOrigin::Here, AT(2)));
        assert_eq!(windows.open_until(POOL, AT(2)), Some(AT(100)));
        assert!(windows.close(POOL, WindowOrigin::Elsewhere, AT(3)));
        assert_eq!(windows.open_until(POOL, AT(3)), None);
    }
}
