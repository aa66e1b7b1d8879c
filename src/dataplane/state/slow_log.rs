//! Rate limit of slow-request records. Under overload all requests are slow, and a few records show
//! that.

use forebay_base::NanosSinceStart;

/// Slow-request records per second and shard.
const LINES_PER_S_MAX: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Records written in the current second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlowLog {
    since: NanosSinceStart,
    lines: u32,
    left_out: u64,
}

impl SlowLog {
    /// Admits another record, and returns the number of records dropped since the last. `None` past
    /// the limit.
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
