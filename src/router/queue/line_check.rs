//! Invariants of a line between two calls. Checked in debug builds only.

use super::line::Line;

/// A debug build counts all waiting requests at each 16th join only: the count visits each row.
const CHECKED_EACH: u64 = 16;

impl Line {
    pub(super) fn check_invariants(&self) {
        debug_assert!(self.movable.len() <= self.entries.len(), "who left may still move");
        debug_assert!(
            self.promotions.by_time.len() <= self.entries.len(),
            "who left may still rise"
        );
        debug_assert_eq!(
            self.scan_order.by_number.len(),
            self.entries.len(),
            "each is scan_order at some time"
        );
    }

    /// The rows and the entries by ticket hold the same requests. Called after a join.
    pub(super) fn check_count(&self) {
        if cfg!(debug_assertions) && self.next_number.is_multiple_of(CHECKED_EACH) {
            debug_assert_eq!(
                self.flows.len(),
                self.entries.len(),
                "the rows and the places differ"
            );
        }
    }
}
