//! `invariant!`: stops a debug build, takes an error path and counts in release.

use std::sync::atomic::{AtomicU64, Ordering};

static BROKEN: AtomicU64 = AtomicU64::new(0);

/// Counts a broken invariant. Called by [`crate::invariant!`].
pub fn count_broken_invariant() {
    // ordering: statistic; pairs with nothing.
    BROKEN.fetch_add(1, Ordering::Relaxed);
}

/// Broken invariants since start; exported as `forebay_broken_invariants_total`. Anything but 0 is
/// a bug.
#[must_use]
pub fn broken_invariant_count() -> u64 {
    // ordering: statistic; pairs with nothing.
    BROKEN.load(Ordering::Relaxed)
}

/// Checks a condition that our own logic guarantees, never a condition on bytes from outside. Debug
/// builds stop; release builds count the failure and return the fallback.
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $fallback:expr) => {
        if !$condition {
            debug_assert!(false, "invariant: {}", stringify!($condition));
            $crate::count_broken_invariant();
            return $fallback;
        }
    };
}
