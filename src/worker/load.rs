//! The load board: one padded cell of atomics per rank, shared by all shards and the control plane.
//! It is the truth of what this router has in flight. Leases (`account::lease`) are the only writers of the
//! first three numbers; the breaker words are written by whoever saw the outcome of a request.

use crate::base::limits::RANKS_MAX;
use crate::base::{NanosSinceStart, RankIndex};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One cell per rank that a fleet may have. About 128 KiB.
#[derive(Debug)]
pub struct LoadBoard {
    cells: Box<[CachePadded<RankLoad>]>,
}

/// What is in flight on one rank, as counted by this process.
#[derive(Debug, Default)]
pub struct RankLoad {
    in_flight: AtomicU32,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    failures: AtomicU32,
    open_until_ns: AtomicU64,
    trial: AtomicU32,
}

impl LoadBoard {
    /// An empty board.
    #[must_use]
    pub fn new() -> Self {
        Self { cells: (0..RANKS_MAX).map(|_| CachePadded::default()).collect() }
    }

    /// The cell of a rank; `None` only for an index past [`RANKS_MAX`].
    #[must_use]
    pub fn rank(&self, rank: RankIndex) -> Option<&RankLoad> {
        self.cells.get(rank.index()).map(|cell| &**cell)
    }
}

impl Default for LoadBoard {
    fn default() -> Self {
        Self::new()
    }
}

impl RankLoad {
    /// Takes one place unless `max` (0 = no limit) are taken. Exact under any interleaving.
    #[must_use]
    pub fn try_acquire(&self, max: u32) -> bool {
        if max == 0 {
            // ordering: a count nothing is published through; atomicity alone makes the limit exact.
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // ordering: as above; the read-modify-write decides, so two shards cannot take the last place both.
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < max).then(|| taken.saturating_add(1))
            })
            .is_ok()
    }

    /// Gives a place back.
    pub fn release(&self) {
        // ordering: statistic with an exact value; pairs with `try_acquire` on the same word only.
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "lease returned twice");
    }

    /// Adds uncached prompt tokens that the rank has yet to prefill.
    pub fn add_prefill(&self, tokens: u64) {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Takes them off again: the first token came, or the request ended.
    pub fn sub_prefill(&self, tokens: u64) {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    /// Adds tokens whose KV is held by requests in flight.
    pub fn add_decode(&self, tokens: u64) {
        // ordering: a hint for selection; pairs with nothing.
        self.decode_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Takes them off again.
    pub fn sub_decode(&self, tokens: u64) {
        // ordering: a hint for selection; pairs with nothing.
        self.decode_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    /// Requests in flight on the rank from this process.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Prompt tokens sent and not yet answered by a first token.
    #[must_use]
    pub fn prefill_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.prefill_tokens.load(Ordering::Relaxed)
    }

    /// Tokens held by requests in flight.
    #[must_use]
    pub fn decode_tokens(&self) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.decode_tokens.load(Ordering::Relaxed)
    }
}

/// The passive breaker of one rank. Closed: traffic flows. Open: none until `open_until`. Half open: one trial.
impl RankLoad {
    /// May a request go there now? In half-open state exactly one caller gets `true`; its outcome decides.
    #[must_use]
    pub fn breaker_admits(&self, now: NanosSinceStart) -> bool {
        // ordering: one word, monotone between successes; pairs with the store in `failed`.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        open_until == 0 || (now.0 >= open_until && !self.trial_taken())
    }

    /// Claims the one trial of a half-open rank, called when such a rank was picked. False: somebody else has it.
    #[must_use]
    pub fn claim(&self, now: NanosSinceStart) -> bool {
        // ordering: pairs with `failed`; a stale 0 sends one request more, which is retried elsewhere.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        if open_until == 0 {
            return true;
        }
        // ordering: the swap picks one winner; nothing else is published through it.
        now.0 >= open_until && self.trial.swap(1, Ordering::Relaxed) == 0
    }

    /// The rank answered (any answer that is not its own failure): closed again.
    pub fn succeeded(&self) {
        if self.failures() != 0 || self.is_open() {
            // ordering: independent words, each a hint; pairs with `breaker_admits`.
            self.failures.store(0, Ordering::Relaxed);
            // ordering: as above.
            self.open_until_ns.store(0, Ordering::Relaxed);
            // ordering: as above.
            self.trial.store(0, Ordering::Relaxed);
        }
    }

    /// The rank failed: refused, reset, timed out or 5xx of its own. Opens after `failures_max` in a row.
    pub fn failed(&self, now: NanosSinceStart, failures_max: u32, open: Duration) {
        // ordering: a count; the read-modify-write makes it exact.
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= failures_max {
            // ordering: pairs with `breaker_admits`; one word, a late reader sends one request more.
            self.open_until_ns.store(now.plus(open).0.max(1), Ordering::Relaxed);
            // ordering: as above.
            self.trial.store(0, Ordering::Relaxed);
        }
    }

    /// A trial that ended without an outcome (client left): the next request may try.
    pub fn trial_abandoned(&self) {
        // ordering: pairs with the swap in `claim`.
        self.trial.store(0, Ordering::Relaxed);
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.failures.load(Ordering::Relaxed)
    }

    /// True while the breaker is open or half open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // ordering: statistic; pairs with nothing.
        self.open_until_ns.load(Ordering::Relaxed) != 0
    }

    fn trial_taken(&self) -> bool {
        // ordering: a hint; `claim` decides.
        self.trial.load(Ordering::Relaxed) != 0
    }
}
