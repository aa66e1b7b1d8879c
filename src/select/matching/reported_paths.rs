//! Paths of prompts that a shard has reported to their owners, with the time of the report. A
//! prompt whose chunks the rank already holds is reported again only before its guesses expire.
//! Each shard has its own table. A path that has lost its entry here is reported again.

use forebay_base::limits::REPORTED_PATHS_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_index::BlockKey;
use std::time::Duration;

/// The last reported paths. Each key has a single possible place.
#[derive(Debug)]
pub struct ReportedPaths(Box<[(u64, NanosSinceStart)]>);

/// A path by the key of its end, and the rank that it went to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutedPath {
    pub(crate) end: BlockKey,
    pub(crate) rank: RankIndex,
}

impl Default for ReportedPaths {
    fn default() -> Self {
        Self(vec![(0, NanosSinceStart(0)); REPORTED_PATHS_MAX].into())
    }
}

impl ReportedPaths {
    /// Records a report of the path if none was made within the period; false: a report was made.
    #[must_use]
    pub(crate) fn mark_due(
        &mut self,
        path: RoutedPath,
        now: NanosSinceStart,
        period: Duration,
    ) -> bool {
        // A single place for each key, so no search: a path that lost its place is reported again,
        // which costs a message.
        let key = path.end.to_word() ^ u64::from(path.rank.0) << 48;
        let place = usize::try_from(key >> 16).unwrap_or(0) % REPORTED_PATHS_MAX;
        let Some((reported, at)) = self.0.get_mut(place) else { return true };
        let is_due = *reported != key || at.plus(period) <= now;
        if is_due {
            *reported = key;
            *at = now;
        }
        is_due
    }

    /// Records a report of the path, whatever the time of the last report.
    pub(crate) fn mark(&mut self, path: RoutedPath, now: NanosSinceStart) {
        let _ = self.mark_due(path, now, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_due_after_the_period_and_for_each_rank() {
        let mut reported = ReportedPaths::default();
        let period = Duration::from_nanos(10);
        let end = BlockKey::from_word(7 << 20).expect("not 0");
        let mut mark_due = |rank, now| {
            let path = RoutedPath { end, rank: RankIndex(rank) };
            reported.mark_due(path, NanosSinceStart(now), period)
        };
        assert!(mark_due(0, 1));
        assert!(!mark_due(0, 10));
        assert!(mark_due(1, 10));
        assert!(!mark_due(1, 19));
        assert!(mark_due(0, 11));
        assert!(mark_due(0, 21));
        let path = RoutedPath { end, rank: RankIndex(0) };
        reported.mark(path, NanosSinceStart(25));
        assert!(!reported.mark_due(path, NanosSinceStart(34), period));
    }
}
