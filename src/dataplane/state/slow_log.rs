//! How many slow requests the log gets: under overload all are slow, and the first few say it.

use forebay_base::NanosSinceStart;

/// Records of slow requests that a shard writes in a second.
const LINES_PER_S_MAX: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// What a shard has written lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlowLog {
    since: NanosSinceStart,
    lines: u32,
    left_out: u64,
}

impl SlowLog {
    /// May one more be written? Then with how many were left out since the last one.
    pub(crate) fn take(&mut self, now: NanosSinceStart) -> Option<u64> {
        if now.since(self.since) >= SECOND_NS {
            self.since = now;
            self.lines = 0;
        }
        if self.lines >= LINES_PER_S_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_says_what_was_left_out() {
        let mut log = SlowLog::default();
        let at = |ms: u64| NanosSinceStart(5 * SECOND_NS + ms * 1_000_000);
        let written = (0..25).filter(|_| log.take(at(1)).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(log.take(at(999)), None);
        assert_eq!(log.take(at(1_001)), Some(16));
        assert_eq!(log.take(at(1_002)), Some(0));
    }
}
