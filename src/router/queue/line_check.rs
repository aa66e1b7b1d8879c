//! What must hold of a line between two calls. Debug builds check it, release builds do nothing.

use super::line::Line;

/// A debug build counts all who wait after one join in so many: it costs a look at each row.
const CHECKED_EACH: u64 = 16;

impl Line {
    /// What holds after each change.
    pub(super) fn check_invariants(&self) {
        debug_assert!(self.movable.len() <= self.standing.len(), "who left may still move");
        debug_assert!(
            self.ripening.by_time.len() <= self.standing.len(),
            "who left may still rise"
        );
        debug_assert_eq!(
            self.looked.by_number.len(),
            self.standing.len(),
            "each is looked at some time"
        );
    }

    /// Who stands waits, and who waits stands. Called after a join.
    pub(super) fn check_count(&self) {
        if cfg!(debug_assertions) && self.next_number.is_multiple_of(CHECKED_EACH) {
            debug_assert_eq!(
                self.flows.len(),
                self.standing.len(),
                "the rows and the places differ"
            );
        }
    }
}
