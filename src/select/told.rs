//! Which prompts a shard has told their owners of, and when: so that a prompt that goes where its
//! chunks are believed to be is told of again only when their time runs. One per shard. A prompt
//! that has lost its place here is told of once more.

use forebay_base::limits::TOLD_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_index::BlockKey;
use std::time::Duration;

/// The paths told of last, each at the one place that its key has.
#[derive(Debug)]
pub struct ToldPaths(Box<[(u64, NanosSinceStart)]>);

/// A path by the key of its end, and the rank that it went to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoutedPath {
    pub(super) end: BlockKey,
    pub(super) rank: RankIndex,
}

impl Default for ToldPaths {
    fn default() -> Self {
        Self(vec![(0, NanosSinceStart(0)); TOLD_MAX].into())
    }
}

impl ToldPaths {
    /// Notes that a path, by the key of its end, is told of; false if it was within the period.
    pub(super) fn is_due(
        &mut self,
        path: RoutedPath,
        now: NanosSinceStart,
        period: Duration,
    ) -> bool {
        // One place for each key and no search: a path that loses its place is told of once more,
        // which costs a message.
        let key = path.end.to_word() ^ u64::from(path.rank.0) << 48;
        let place = usize::try_from(key >> 16).unwrap_or(0) % TOLD_MAX;
        let Some((told, at)) = self.0.get_mut(place) else { return true };
        let is_due = *told != key || at.plus(period) <= now;
        if is_due {
            *told = key;
            *at = now;
        }
        is_due
    }

    /// Notes it whenever it was before.
    pub(super) fn note(&mut self, path: RoutedPath, now: NanosSinceStart) {
        self.is_due(path, now, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_due_after_the_period_and_for_each_rank() {
        let mut told = ToldPaths::default();
        let period = Duration::from_nanos(10);
        let end = BlockKey::from_word(7 << 20).expect("not 0");
        let mut is_due = |rank, now| {
            told.is_due(RoutedPath { end, rank: RankIndex(rank) }, NanosSinceStart(now), period)
        };
        assert!(is_due(0, 1));
        assert!(!is_due(0, 10));
        assert!(is_due(1, 10));
        assert!(!is_due(1, 19));
        assert!(is_due(0, 11));
        assert!(is_due(0, 21));
        let path = RoutedPath { end, rank: RankIndex(0) };
        told.note(path, NanosSinceStart(25));
        assert!(!told.is_due(path, NanosSinceStart(34), period));
    }
}
