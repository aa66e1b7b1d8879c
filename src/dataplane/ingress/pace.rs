//! Checks the rate of a request body. Takes the time as an argument.

use forebay_base::NanosSinceStart;
use std::time::Duration;

const NANOS_PER_S: u64 = 1_000_000_000;

/// Minimum average rate of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyPace {
    bytes_per_s: u64,
    from: NanosSinceStart,
}

impl BodyPace {
    /// A body that begins `now` has `grace`, and then needs this rate. 0: no minimum.
    #[must_use]
    pub fn new(now: NanosSinceStart, grace: Duration, bytes_per_s: usize) -> Self {
        let bytes_per_s = u64::try_from(bytes_per_s).unwrap_or(u64::MAX);
        Self { bytes_per_s, from: now.plus(grace) }
    }

    /// The time from which that many bytes are too few.
    #[must_use]
    pub fn due_at(&self, received_bytes: usize) -> NanosSinceStart {
        let bytes = u64::try_from(received_bytes).unwrap_or(u64::MAX);
        match bytes.saturating_mul(NANOS_PER_S).checked_div(self.bytes_per_s) {
            Some(nanos) => self.from.plus(Duration::from_nanos(nanos)),
            None => NanosSinceStart(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> NanosSinceStart {
        NanosSinceStart(millis * 1_000_000)
    }

    /// When a client is cut that sends so many bytes each second.
    fn cut_after_s(pace: BodyPace, bytes_per_s: usize) -> Option<u64> {
        (0..100_000).find(|second| {
            let received = bytes_per_s * usize::try_from(*second).unwrap();
            at(second * 1_000) >= pace.due_at(received)
        })
    }

    #[test]
    fn a_slow_body_is_cut_after_the_grace_and_a_fast_one_never() {
        let pace = BodyPace::new(at(0), Duration::from_secs(30), 500);
        assert_eq!(cut_after_s(pace, 0), Some(30));
        assert_eq!(cut_after_s(pace, 1), Some(31));
        assert_eq!(cut_after_s(pace, 250), Some(60));
        assert_eq!(cut_after_s(pace, 500), None);
        assert_eq!(cut_after_s(pace, 5_000), None);
    }

    #[test]
    fn bytes_that_came_early_count_later() {
        let pace = BodyPace::new(at(1_000), Duration::from_secs(2), 1_000);
        assert_eq!(pace.due_at(0), at(3_000));
        assert_eq!(pace.due_at(10_000), at(13_000));
        assert_eq!(pace.due_at(usize::MAX).0, at(3_000).0 + u64::MAX / 1_000);
    }

    #[test]
    fn without_a_rate_nothing_is_too_slow() {
        let pace = BodyPace::new(at(5), Duration::from_secs(30), 0);
        assert_eq!(pace.due_at(0), NanosSinceStart(u64::MAX));
        assert_eq!(cut_after_s(pace, 0), None);
    }
}
