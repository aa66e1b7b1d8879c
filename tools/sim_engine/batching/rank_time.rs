//! The time of the ranks: the clock's time minus all stalls.

use forebay_base::{Clock, NanosSinceStart};
use std::time::Duration;

/// A clock that can stall.
#[derive(Debug)]
pub(crate) struct RankTime {
    clock: Clock,
    /// Duration of all stalls, up to the end of the last stall.
    lost_ns: u64,
    /// End of the last stall, by the clock.
    stands_until: NanosSinceStart,
}

impl RankTime {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, lost_ns: 0, stands_until: NanosSinceStart(0) }
    }

    /// The present time of the ranks.
    pub(crate) fn now(&self) -> NanosSinceStart {
        self.at(self.clock.now())
    }

    /// Stalls the ranks for that long from now on. Stalls add up, and no time ends them.
    pub(crate) fn stand_still(&mut self, time: Duration) {
        self.stand_still_at(self.clock.now(), time);
    }

    /// Duration by the clock until the ranks' time is `at`.
    pub(crate) fn until(&self, at: NanosSinceStart) -> Duration {
        Duration::from_nanos(at.0.saturating_add(self.lost_ns).saturating_sub(self.clock.now().0))
    }

    fn at(&self, clock: NanosSinceStart) -> NanosSinceStart {
        NanosSinceStart(clock.0.max(self.stands_until.0).saturating_sub(self.lost_ns))
    }

    fn stand_still_at(&mut self, clock: NanosSinceStart, time: Duration) {
        if time.is_zero() {
            let rest_ns = self.stands_until.since(clock);
            self.lost_ns = self.lost_ns.saturating_sub(rest_ns);
            self.stands_until = self.stands_until.min(clock);
            return;
        }
        let from = clock.0.max(self.stands_until.0);
        self.stands_until = NanosSinceStart(from).plus(time);
        self.lost_ns = self.lost_ns.saturating_add(self.stands_until.0 - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_still_and_goes_on_where_it_stood() {
        let mut time = RankTime::new(Clock::start());
        let at = |time: &RankTime, ns| time.at(NanosSinceStart(ns)).0;
        assert_eq!([0, 100].map(|ns| at(&time, ns)), [0, 100]);
        time.stand_still_at(NanosSinceStart(100), Duration::from_nanos(50));
        assert_eq!([100, 130, 150, 151].map(|ns| at(&time, ns)), [100, 100, 100, 101]);
        time.stand_still_at(NanosSinceStart(120), Duration::from_nanos(10));
        assert_eq!(
            [140, 160, 170].map(|ns| at(&time, ns)),
            [100, 100, 110],
            "longer by the second"
        );
        time.stand_still_at(NanosSinceStart(200), Duration::from_nanos(5));
        assert_eq!([200, 205, 207].map(|ns| at(&time, ns)), [140, 140, 142]);
        time.stand_still_at(NanosSinceStart(210), Duration::from_secs(3_600));
        assert_eq!([210, 290].map(|ns| at(&time, ns)), [145, 145]);
        time.stand_still_at(NanosSinceStart(300), Duration::ZERO);
        assert_eq!([300, 310].map(|ns| at(&time, ns)), [145, 155], "the stall is over");
        time.stand_still_at(NanosSinceStart(320), Duration::ZERO);
        assert_eq!(at(&time, 330), 175, "without a stall nothing ends");
    }
}
