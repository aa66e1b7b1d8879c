//! The rejection windows: while one is open, requests of its pool are refused at once. One word per
//! pool that this router's shards share, one that the control plane writes for the other replicas,
//! and one that covers all pools and is looked at before a body is read. A window ends by the clock
//! alone; nothing has to happen for it.

use crossbeam_utils::CachePadded;
use forebay_base::limits::POOLS_MAX;
use forebay_base::{NanosSinceStart, PoolIndex};
use forebay_ring::Bell;
use forebay_ring::sync::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// All windows. Any thread opens, closes and looks.
#[derive(Debug)]
pub struct Windows {
    pools: Box<[CachePadded<PoolWindow>]>,
    /// No pool is open beyond this: 0, or the past, means that nobody needs to look closer.
    latest_ns: CachePadded<AtomicU64>,
    /// Openings and closings so far.
    edges: CachePadded<AtomicU64>,
    control: OnceLock<Arc<Bell>>,
}

#[derive(Debug)]
struct PoolWindow {
    here_ns: AtomicU64,
    by_hand_ns: AtomicU64,
    elsewhere_ns: AtomicU64,
    openings: AtomicU64,
}

/// Whose word a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy {
    /// This router: its own queue is full.
    Here,
    /// An operator of this router. Room that comes back does not close it.
    Hand,
    /// Another replica.
    Elsewhere,
}

impl Windows {
    /// All closed.
    #[must_use]
    pub fn new() -> Self {
        let pool = |_| {
            CachePadded::new(PoolWindow {
                here_ns: AtomicU64::new(0),
                by_hand_ns: AtomicU64::new(0),
                elsewhere_ns: AtomicU64::new(0),
                openings: AtomicU64::new(0),
            })
        };
        Self {
            pools: (0..POOLS_MAX).map(pool).collect(),
            latest_ns: CachePadded::new(AtomicU64::new(0)),
            edges: CachePadded::new(AtomicU64::new(0)),
            control: OnceLock::new(),
        }
    }

    /// Whom to wake when a window of this router opens or closes. The first call counts.
    pub fn tell(&self, control: Arc<Bell>) {
        let _ = self.control.set(control);
    }

    /// May any pool be closed to traffic? One load of a line that is written only when a window
    /// opens. Looked at for every request, before its body is read.
    #[must_use]
    pub fn may_be_open(&self, now: NanosSinceStart) -> bool {
        // ordering: one word; who reads an old value accepts or looks closer, both harmless.
        now.0 < self.latest_ns.load(Ordering::Relaxed)
    }

    /// Until when requests of the pool are refused; `None` if they are not.
    #[must_use]
    pub fn open_until(&self, pool: PoolIndex, now: NanosSinceStart) -> Option<NanosSinceStart> {
        let by = |by| self.open_by_until(pool, by, now);
        by(OpenedBy::Here).max(by(OpenedBy::Hand)).max(by(OpenedBy::Elsewhere))
    }

    /// Until when this router itself has the pool's window open, on its own or its operator's word;
    /// `None` if it has not. This is what other replicas are told.
    #[must_use]
    pub fn open_here_until(
        &self,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<NanosSinceStart> {
        let by = |by| self.open_by_until(pool, by, now);
        by(OpenedBy::Here).max(by(OpenedBy::Hand))
    }

    /// Until when the pool's window is open by their word; `None` if it is not.
    #[must_use]
    pub fn open_by_until(
        &self,
        pool: PoolIndex,
        by: OpenedBy,
        now: NanosSinceStart,
    ) -> Option<NanosSinceStart> {
        // ordering: one word; pairs with `open` and `close`.
        let until = self.pools.get(pool.index())?.of(by).load(Ordering::Relaxed);
        (now.0 < until).then_some(NanosSinceStart(until))
    }

    /// Opens a window, or makes it last longer. True for the one caller who opened it: one event
    /// per opening.
    pub fn open(
        &self,
        pool: PoolIndex,
        by: OpenedBy,
        now: NanosSinceStart,
        until: NanosSinceStart,
    ) -> bool {
        let Some(words) = self.pools.get(pool.index()) else { return false };
        // ordering: the read-modify-write picks one opener; nothing else is published through it.
        let before = words.of(by).fetch_max(until.0, Ordering::Relaxed);
        // ordering: covers the word above; a reader that sees this one first finds the pool closed
        // and goes on.
        self.latest_ns.fetch_max(until.0, Ordering::Relaxed);
        // Who makes an open window longer is no opener: each opening is one event in the log and in
        // the count.
        let opened = before <= now.0 && now.0 < until.0;
        if opened {
            // ordering: statistic; pairs with nothing.
            words.openings.fetch_add(1, Ordering::Relaxed);
            self.edge(by);
        }
        // ordering: the SeqCst fence pairs with the one in `QueueCell::leave`: who opens a window
        // looks at the queue after it, who leaves the queue looks at the window after it, and one
        // of the two closes it.
        fence(Ordering::SeqCst);
        opened
    }

    /// Closes a window before its time. True if it was open.
    pub fn close(&self, pool: PoolIndex, by: OpenedBy, now: NanosSinceStart) -> bool {
        let Some(words) = self.pools.get(pool.index()) else { return false };
        // ordering: the swap picks one closer; nothing else is published through it.
        let closed = words.of(by).swap(0, Ordering::Relaxed) > now.0;
        if closed {
            self.edge(by);
        }
        closed
    }

    fn edge(&self, by: OpenedBy) {
        // Every replica tells its own windows: an opening elsewhere is no news to tell.
        if by == OpenedBy::Elsewhere {
            return;
        }
        // ordering: Release; pairs with the Acquire in `edges`: who sees the count sees the pools'
        // words.
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

    /// How often a pool's window was opened, by whomever.
    #[must_use]
    pub fn openings(&self, pool: PoolIndex) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.pools.get(pool.index()).map_or(0, |pool| pool.openings.load(Ordering::Relaxed))
    }
}

impl PoolWindow {
    const fn of(&self, by: OpenedBy) -> &AtomicU64 {
        match by {
            OpenedBy::Here => &self.here_ns,
            OpenedBy::Hand => &self.by_hand_ns,
            OpenedBy::Elsewhere => &self.elsewhere_ns,
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
        assert!(windows.open(POOL, OpenedBy::Here, AT(10), AT(100)), "the edge");
        assert!(!windows.open(POOL, OpenedBy::Here, AT(20), AT(120)), "longer, not anew");
        assert_eq!(windows.open_until(POOL, AT(119)), Some(AT(120)));
        assert_eq!(windows.open_until(PoolIndex(4), AT(119)), None);
        assert_eq!(windows.open_until(POOL, AT(120)), None);
        assert!(!windows.may_be_open(AT(120)), "nothing is left behind");
        assert!(windows.open(POOL, OpenedBy::Here, AT(120), AT(130)));
        assert_eq!((windows.openings(POOL), windows.edges()), (2, 2));
    }

    #[test]
    fn what_a_hand_opened_no_queue_closes() {
        let windows = Windows::new();
        windows.open(POOL, OpenedBy::Hand, AT(0), AT(100));
        windows.open(POOL, OpenedBy::Here, AT(0), AT(50));
        assert!(windows.close(POOL, OpenedBy::Here, AT(1)));
        assert_eq!(windows.open_until(POOL, AT(2)), Some(AT(100)));
        assert_eq!(windows.open_here_until(POOL, AT(2)), Some(AT(100)), "others are told");
        assert!(windows.close(POOL, OpenedBy::Hand, AT(3)));
        assert_eq!((windows.open_until(POOL, AT(3)), windows.edges()), (None, 4));
    }

    #[test]
    fn closing_ends_ones_own_only() {
        let windows = Windows::new();
        windows.open(POOL, OpenedBy::Elsewhere, AT(0), AT(100));
        assert_eq!(windows.edges(), 0, "others' windows are no news for them");
        assert!(!windows.close(POOL, OpenedBy::Here, AT(1)));
        windows.open(POOL, OpenedBy::Here, AT(1), AT(50));
        assert!(windows.close(POOL, OpenedBy::Here, AT(2)));
        assert_eq!(windows.open_until(POOL, AT(2)), Some(AT(100)));
        assert!(windows.close(POOL, OpenedBy::Elsewhere, AT(3)));
        assert_eq!(windows.open_until(POOL, AT(3)), None);
    }
}
