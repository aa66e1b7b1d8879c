//! A limit per minute, as a token bucket in virtual time. The bucket holds the units of a minute
//! and fills evenly. Its whole state is the moment when it will be full again, so that shards can
//! share it in a single atomic word. Sans-IO: the time is an argument.
//!
//! ```text
//!   now        full_at                        now + 1 min
//!    |============|--------------------------------|
//!      taken, not    left, as time: units times
//!      refilled      a minute over the limit
//! ```
//!
//! A cost is rounded down to whole nanoseconds, so a request may pass a nanosecond early.

use forebay_base::NanosSinceStart;

/// Capacity of a bucket, as time.
const MINUTE_NS: u64 = 60_000_000_000;

/// The longest debt. No answer of an engine may lock a tenant for longer.
const DEBT_NS_MAX: u64 = 60 * MINUTE_NS;

/// Units per minute, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinuteRate(u32);

/// Units taken of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenUnits {
    pub rate: MinuteRate,
    pub units: u64,
    /// When time alone will have refilled all of them.
    pub refilled_at: u64,
}

/// Why a bucket refuses units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateRefusal {
    /// The bucket has the units after this time, if no other request takes them.
    NotNow { wait_ns: u64 },
    /// The units exceed the capacity of the bucket.
    Never,
}

/// State of a limit that is sent to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStatus {
    pub limit: u64,
    /// Units that are available now.
    pub remaining: u64,
    /// Time until the bucket is full, if no request takes units.
    pub reset_ns: u64,
}

impl MinuteRate {
    /// `None` for 0, which means no limit.
    #[must_use]
    pub const fn of(per_minute: u32) -> Option<Self> {
        if per_minute == 0 { None } else { Some(Self(per_minute)) }
    }

    /// Units of a full bucket.
    #[must_use]
    pub fn per_minute(self) -> u64 {
        u64::from(self.0)
    }

    /// Takes units of a bucket that is full at `full_at`; returns the new `full_at`.
    ///
    /// # Errors
    /// [`RateRefusal`].
    pub fn take(self, full_at: u64, now: NanosSinceStart, units: u64) -> Result<u64, RateRefusal> {
        if units > u64::from(self.0) {
            return Err(RateRefusal::Never);
        }
        let next = full_at.max(now.0).saturating_add(self.cost_ns(units));
        match next.saturating_sub(now.0).checked_sub(MINUTE_NS) {
            None | Some(0) => Ok(next),
            Some(wait_ns) => Err(RateRefusal::NotNow { wait_ns }),
        }
    }

    /// Corrects a bucket from `taken` to `used` units. A use beyond the bucket's capacity is a
    /// debt, which time pays within an hour.
    #[must_use]
    pub fn corrected(self, full_at: u64, now: NanosSinceStart, taken: u64, used: u64) -> u64 {
        match used.checked_sub(taken) {
            Some(more) => {
                let owed = full_at.max(now.0).saturating_add(self.cost_ns(more));
                owed.min(now.0.saturating_add(DEBT_NS_MAX)).max(full_at)
            }
            // Units that time has refilled are not given back again: any moment below `now` means
            // full.
            None => full_at.saturating_sub(self.cost_ns(taken.saturating_sub(used))),
        }
    }

    /// Units that flow in during `time_ns`.
    fn units_in(self, time_ns: u64) -> u64 {
        let units = u128::from(time_ns) * u128::from(self.0) / u128::from(MINUTE_NS);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    #[must_use]
    pub fn standing(self, full_at: u64, now: NanosSinceStart) -> RateStatus {
        let reset_ns = full_at.saturating_sub(now.0);
        let left = u128::from(MINUTE_NS.saturating_sub(reset_ns)) * u128::from(self.0);
        let remaining = u64::try_from(left / u128::from(MINUTE_NS)).unwrap_or(u64::MAX);
        RateStatus { limit: u64::from(self.0), remaining, reset_ns }
    }

    fn cost_ns(self, units: u64) -> u64 {
        let cost = u128::from(units) * u128::from(MINUTE_NS) / u128::from(self.0);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

impl TakenUnits {
    /// Units that count as used if the request used `used`. Units that time has refilled are not
    /// given back again.
    #[must_use]
    pub fn spent(self, now: NanosSinceStart, used: u64) -> u64 {
        let returnable = self.rate.units_in(self.refilled_at.saturating_sub(now.0));
        used.max(self.units.saturating_sub(returnable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(per_minute: u32) -> MinuteRate {
        MinuteRate::of(per_minute).unwrap()
    }

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * SECOND)
    }

    #[test]
    fn a_minute_holds_the_limit_and_fills_evenly() {
        let three = rate(3);
        let mut full_at = 0;
        for left in [2, 1, 0] {
            full_at = three.take(full_at, at(100), 1).unwrap();
            let standing = three.standing(full_at, at(100));
            assert_eq!((standing.limit, standing.remaining), (3, left));
            assert_eq!(standing.reset_ns, (3 - left) * 20 * SECOND);
        }
        let refused = three.take(full_at, at(100), 1).unwrap_err();
        assert_eq!(refused, RateRefusal::NotNow { wait_ns: 20 * SECOND });
        let refused = three.take(full_at, at(119), 1).unwrap_err();
        assert_eq!(refused, RateRefusal::NotNow { wait_ns: SECOND });
        assert!(three.take(full_at, at(120), 1).is_ok(), "when it was told to come");
        assert_eq!(three.take(full_at, at(500), 4), Err(RateRefusal::Never));
        assert!(three.take(full_at, at(500), 3).is_ok());
        assert_eq!(MinuteRate::of(0), None);
    }

    #[test]
    fn what_was_not_used_comes_back_and_a_debt_is_paid() {
        let hundred = rate(100);
        let taken = hundred.take(0, at(10), 80).unwrap();
        let left = |full_at, now| hundred.standing(full_at, at(now)).remaining;
        assert_eq!(left(taken, 10), 20);
        assert_eq!(left(hundred.corrected(taken, at(10), 80, 30), 10), 70);
        assert_eq!(left(hundred.corrected(taken, at(10), 80, 80), 10), 20);
        // 250 used of a bucket of 100: nothing for 90 seconds, then the first unit.
        let debt = hundred.corrected(taken, at(10), 80, 250);
        assert_eq!((left(debt, 10), left(debt, 100)), (0, 0));
        assert_eq!(left(debt, 101), 1);
        let debt = hundred.corrected(taken, at(10), 80, u64::MAX);
        assert_eq!((left(debt, 10 + 3_540), left(debt, 10 + 3_600)), (0, 100), "an hour at most");
        // Time has refilled half of the taken units: at most the other half comes back.
        let taken = TakenUnits { rate: hundred, units: 80, refilled_at: taken };
        for (now, used, spent) in
            [(10, 0, 0), (10, 30, 30), (34, 0, 40), (34, 60, 60), (58, 0, 80), (900, 0, 80)]
        {
            assert_eq!(taken.spent(at(now), used), spent, "{used} used, at {now}");
        }
        assert_eq!(taken.spent(at(900), 250), 250);
        let taken = taken.refilled_at;
        // Time has refilled all units before the correction: no more than full.
        assert_eq!(left(hundred.corrected(taken, at(1_000), 80, 0), 1_000), 100);
        assert_eq!(left(hundred.corrected(taken, at(1_000), 80, 90), 1_000), 90);
    }

    proptest! {
        /// For any sequence of requests, no period passes more than a full bucket and its inflow,
        /// and a burst on a full bucket gets exactly the limit.
        #[test]
        fn no_more_than_the_limit_passes(
            per_minute in 1_u32..5_000_000,
            requests in prop::collection::vec((0_u64..30 * SECOND, 1_u64..2_000), 1..200),
        ) {
            let rate = rate(per_minute);
            let mut full_at = 0;
            let mut now = NanosSinceStart(SECOND);
            let mut passed = 0_u128;
            for (gap, units) in requests {
                now = NanosSinceStart(now.0 + gap);
                match rate.take(full_at, now, units) {
                    Ok(next) => {
                        passed += u128::from(units);
                        full_at = next;
                    }
                    Err(RateRefusal::Never) => prop_assert!(units > u64::from(per_minute)),
                    Err(RateRefusal::NotNow { wait_ns }) => {
                        let early = NanosSinceStart(now.0 + wait_ns.saturating_sub(1));
                        prop_assert!(wait_ns == 0 || rate.take(full_at, early, units).is_err());
                        let then = NanosSinceStart(now.0 + wait_ns);
                        prop_assert!(rate.take(full_at, then, units).is_ok());
                    }
                }
                let flowed = u128::from(now.0 - SECOND) * u128::from(per_minute);
                // A nanosecond per request, in units.
                let slack = 200 * u128::from(per_minute) / u128::from(MINUTE_NS) + 1;
                let most = u128::from(per_minute) + flowed / u128::from(MINUTE_NS) + slack;
                prop_assert!(passed <= most, "{} of {}", passed, most);
            }
        }

        #[test]
        fn a_burst_gets_the_limit_and_not_one_more(per_minute in 1_u32..3_000) {
            let rate = rate(per_minute);
            let now = at(7);
            let mut full_at = 0;
            for _ in 0..per_minute {
                full_at = rate.take(full_at, now, 1).unwrap();
            }
            prop_assert!(rate.take(full_at, now, 1).is_err());
            prop_assert_eq!(rate.standing(full_at, now).remaining, 0);
        }
    }
}
