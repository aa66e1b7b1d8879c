//! Interval of a worker's scrapes: as configured, unless its answers cost the engine too much.
//! Sans-IO.

use std::time::Duration;

/// At most 1/200 of the engine's time, 5 ms per second, goes into answers.
const COST_SHARE: u32 = 200;
/// Bytes of answers per second, at most: an engine also has to build and send them.
const BYTES_PER_SECOND_MAX: u64 = 512 * 1024;
/// Longest pause after an expensive answer.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest pause after failed scrapes.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Answers before a pause may be longer: the first answers include the connection's setup and run
/// cold code.
const JUDGED_MIN: usize = 4;
/// Number of recent times. The shortest of them is the cost: any longer time includes a wait for
/// the engine's other work. A busy engine must not be scraped less often, since its load matters
/// most.
const REMEMBERED: usize = 8;

/// Pauses between the scrapes of a worker.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    backs_off: bool,
    times: [Option<Duration>; REMEMBERED],
    next: usize,
    failures: u32,
}

impl Pace {
    /// If `backs_off` is false, only failures lengthen the pauses.
    pub fn new(interval: Duration, backs_off: bool) -> Self {
        Self { interval, backs_off, times: [None; REMEMBERED], next: 0, failures: 0 }
    }

    /// The pause after an answer. `took`: time from the request to the last byte of the answer.
    pub fn answered(&mut self, took: Duration, bytes: usize) -> Duration {
        self.failures = 0;
        if let Some(time) = self.times.get_mut(self.next) {
            *time = Some(took);
        }
        self.next = (self.next + 1) % REMEMBERED;
        let judged = self.times.iter().flatten().count() >= JUDGED_MIN;
        if !self.backs_off || !judged {
            return self.interval;
        }
        let cost = self.times.iter().flatten().min().copied().unwrap_or(took);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let for_bytes = Duration::from_millis(bytes.saturating_mul(1_000) / BYTES_PER_SECOND_MAX);
        let for_cost = cost.saturating_mul(COST_SHARE).max(for_bytes).min(PAUSE_MAX);
        self.interval.max(for_cost)
    }

    /// The pause after a failed scrape: longer each time.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let longer = self.interval.saturating_mul(1 << self.failures.min(6));
        longer.min(FAILED_PAUSE_MAX).max(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A pace after the first answers, which are not judged.
    fn pace(times_ms: u64, bytes: usize) -> Pace {
        let mut pace = Pace::new(SECOND, true);
        for _ in 1..JUDGED_MIN {
            assert_eq!(pace.answered(ms(times_ms), bytes), SECOND);
        }
        pace
    }

    #[test]
    fn cheap_answers_are_scraped_as_configured() {
        let mut pace = pace(2, 50_000);
        assert_eq!(pace.answered(ms(2), 50_000), SECOND);
        assert_eq!(pace.answered(ms(900), 50_000), SECOND, "the engine was busy, not the answer");
    }

    #[test]
    fn answers_that_always_take_long_or_are_large_are_scraped_less_often() {
        assert_eq!(pace(20, 50_000).answered(ms(20), 50_000), ms(4_000));
        assert_eq!(pace(10_000, 1).answered(ms(10_000), 1), PAUSE_MAX);
        assert_eq!(pace(1, 2 << 20).answered(ms(1), 2 << 20), ms(4_000));
        let mut fixed = Pace::new(SECOND, false);
        for _ in 0..2 * REMEMBERED {
            assert_eq!(fixed.answered(ms(10_000), 2 << 20), SECOND, "as configured");
        }
    }

    #[test]
    fn a_slow_spell_is_forgotten() {
        let mut pace = pace(100, 1);
        assert_eq!(pace.answered(ms(100), 1), ms(20_000));
        assert_eq!(pace.answered(ms(1), 1), SECOND);
        for _ in 0..REMEMBERED - 1 {
            assert_eq!(pace.answered(ms(100), 1), SECOND);
        }
        assert_eq!(pace.answered(ms(100), 1), ms(20_000), "by now it is the answer");
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let mut pace = Pace::new(SECOND, true);
        let pauses: Vec<Duration> = (0..4).map(|_| pace.failed()).collect();
        assert_eq!(pauses, [2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND]);
        assert_eq!(pace.answered(ms(1), 1), SECOND);
        assert_eq!(pace.failed(), 2 * SECOND);
        assert_eq!(Pace::new(60 * SECOND, false).failed(), 60 * SECOND);
    }
}
