//! Comparisons of ranks: a single shard compares at a time.

use forebay_ring::sync::{AtomicBool, Ordering};

/// The turn of a shard to compare ranks.
///
/// A comparison adds to the counts of two ranks. Between both additions, an addition of another
/// shard would look like a failure with another partner, which proves a fault.
#[derive(Debug, Default)]
pub struct ComparisonTurn {
    is_taken: AtomicBool,
}

impl ComparisonTurn {
    /// Runs the comparison. `None`: another shard has the turn, and nothing was done.
    pub(crate) fn run<T>(&self, compare: impl FnOnce() -> T) -> Option<T> {
        // ordering: Acquire; pairs with the Release below, so the counts include all additions of
        // the turn before.
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let outcome = compare();
        // ordering: Release; pairs with the Acquire above.
        self.is_taken.store(false, Ordering::Release);
        Some(outcome)
    }
}
