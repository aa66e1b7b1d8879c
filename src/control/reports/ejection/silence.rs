//! How long a rank has been silent while streams wait for it.

use super::look::RankLook;
use forebay_base::NanosSinceStart;
use forebay_base::limits::SHARD_BEAT_PERIOD;
use std::time::Duration;

/// A shard reports waiting streams in each beat. After a longer gap no stream waits.
const AWAITED_GAP: Duration = SHARD_BEAT_PERIOD.saturating_mul(4);

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Streams have waited since then without progress.
    since: Option<NanosSinceStart>,
    awaited_at: NanosSinceStart,
}

impl Silence {
    /// Takes an observation of the rank.
    pub(super) fn note(&mut self, seen: RankLook, now: NanosSinceStart) {
        if seen.answers {
            self.since = None;
        }
        if seen.awaited {
            self.awaited_at = now;
            self.since.get_or_insert(now);
        } else if now >= self.awaited_at.plus(AWAITED_GAP) {
            self.since = None;
        }
        // A report that only repeats the last figures is no sign of life.
        if let (Some(since), Some(moved_at)) = (&mut self.since, seen.moved_at) {
            *since = (*since).max(moved_at);
        }
    }

    /// Start of the silence; `None` where no stream waits.
    pub(super) const fn since(&self) -> Option<NanosSinceStart> {
        self.since
    }
}
