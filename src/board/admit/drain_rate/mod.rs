//! Requests that a full pool ends per second: the input of `Retry-After` and of the projected wait
//! of a new request. Owned by a single thread, which passes in the number of ended requests from
//! time to time; never reads a clock.
//!
//! Only time in which the pool was full counts: ends of a pool with room show the demand, and not
//! the capacity. Until a full pool has ended requests, the rate is unknown.
//!
//! Several memories of different length run side by side, each without a bias towards its empty
//! beginning. The longest memory counts, until a shorter memory contradicts it. Long memories are
//! exact while the rate is steady; short memories are first to see that an overload has begun or
//! that a worker is gone. A contradicted memory continues from the state of the shorter memory. The
//! number of remembered ends defines a contradiction, so no fleet needs tuning.

use forebay_base::NanosSinceStart;
use std::time::Duration;

/// Time constants of the memories in seconds, from short to long.
const MEMORIES_S: [f64; 5] = [0.1, 0.5, 2.5, 12.0, 60.0];
/// A sample within this time of the last sample is skipped: refusals come in bursts.
const SAMPLE_STEP: Duration = Duration::from_millis(5);
/// Without a sample for this long, the rate is unknown.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(5);
/// A pool with room for this long has other requests by now: the longest memory ends.
const ROOM_AGE_MAX: Duration = Duration::from_secs(60);
/// Below this number of remembered ends, a memory has no rate.
const ENDS_NEEDED: f64 = 3.0;
/// Up to this number of remembered ends, the pool counts as idle.
const ENDS_IN_A_LULL: f64 = 0.5;
/// Standard deviations within which two memories agree.
const AGREEMENT_DEVIATIONS: f64 = 3.5;
/// Shortest and longest wait that a client is sent. The SDKs of both vendors obey up to a minute,
/// and choose their own wait above that.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
const _: () = assert!(RETRY_AFTER_MIN.as_nanos() < RETRY_AFTER_MAX.as_nanos());
const _: () = assert!(SAMPLE_STEP.as_nanos() < SAMPLE_AGE_MAX.as_nanos());
const _: () = assert!(ENDS_IN_A_LULL < ENDS_NEEDED);
/// Up to this share of the wait is added by chance, so that clients refused together do not come
/// back together.
const JITTER: f64 = 0.5;
/// Longest wait before the jitter: clients that are sent the longest wait must not come back
/// together either.
pub const BEFORE_JITTER_MAX: Duration = Duration::from_secs(40);

/// Ends per second of a pool; unknown at first.
#[derive(Clone, Debug, Default)]
pub struct DrainRate {
    memories: [Memory; MEMORIES_S.len()],
    last: Option<EndedSample>,
    /// Time of the last sample of a full pool.
    full_at: NanosSinceStart,
}

/// Requests of a pool that have ended so far.
#[derive(Clone, Copy, Debug)]
pub struct EndedSample {
    pub at: NanosSinceStart,
    pub ended_total: u64,
    /// The pool has no room for a further request, or requests wait for room.
    pub is_full: bool,
}

/// Ends and observed time, each faded by its age.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    ends: f64,
    seconds: f64,
    /// The integral of the squared weights: scales the variance of `ends`.
    squares: f64,
}

impl DrainRate {
    /// Cheap when called often; a call at least once per second keeps the rate known. A total that
    /// fell (ranks left the pool) starts a new count.
    pub fn observe(&mut self, sample: EndedSample) {
        let EndedSample { at: now, ended_total, is_full } = sample;
        let Some(last) = self.last.filter(|last| ended_total >= last.ended_total) else {
            self.last = Some(sample);
            return;
        };
        if is_full {
            self.full_at = now;
        } else if Duration::from_nanos(now.since(self.full_at)) > ROOM_AGE_MAX {
            self.memories = Default::default();
        }
        // Room at either end of the period: a part of its ends may show the demand.
        if !last.is_full || !is_full {
            self.last = Some(sample);
            return;
        }
        let passed = Duration::from_nanos(now.since(last.at));
        if passed < SAMPLE_STEP {
            return;
        }
        let ends = (ended_total - last.ended_total) as f64;
        let passed_s = passed.as_secs_f64();
        // The first ends after a lull: the length of the lull does not predict the new rate.
        if ends > 0.0 && self.memories.last().is_some_and(|longest| longest.ends < ENDS_IN_A_LULL) {
            self.memories = Default::default();
        }
        for (memory, length_s) in self.memories.iter_mut().zip(MEMORIES_S) {
            memory.add(ends, passed_s, length_s);
        }
        self.forget_what_changed();
        self.last = Some(sample);
        self.check_invariants();
    }

    fn check_invariants(&self) {
        for memory in &self.memories {
            debug_assert!(memory.ends.is_finite() && memory.ends >= 0.0, "{memory:?}");
            debug_assert!(memory.seconds.is_finite() && memory.seconds > 0.0, "{memory:?}");
            debug_assert!(memory.squares.is_finite() && memory.squares > 0.0, "{memory:?}");
        }
    }

    /// Other ranks make up the pool from now on: the rate stays, and the count starts at the
    /// sample.
    pub const fn rebase(&mut self, sample: EndedSample) {
        self.last = Some(sample);
    }

    /// Ends per second; `None` while unknown: too few ends, or no recent sample.
    #[must_use]
    pub fn per_second(&self, now: NanosSinceStart) -> Option<f64> {
        let last = self.last?;
        if Duration::from_nanos(now.since(last.at)) > SAMPLE_AGE_MAX {
            return None;
        }
        // Not the shortest memory, which is newer: chance moves it most.
        let memory = self.memories.last()?;
        (memory.ends >= ENDS_NEEDED).then(|| memory.rate())
    }

    /// Starts memories anew after a change. If the rate of a memory lies outside of the range that
    /// all shorter memories allow, this memory and longer ones take the state of the next shorter
    /// memory. So nothing contradicts the longest memory.
    fn forget_what_changed(&mut self) {
        let mut low = f64::NEG_INFINITY;
        let mut high = f64::INFINITY;
        let mut undisputed: Option<Memory> = None;
        for memory in &mut self.memories {
            let slack = AGREEMENT_DEVIATIONS * memory.deviation();
            low = low.max(memory.rate() - slack);
            high = high.min(memory.rate() + slack);
            match undisputed {
                Some(shorter) if low > high => *memory = shorter,
                _ => undisputed = Some(*memory),
            }
        }
    }

    /// Time until `ahead` requests have ended; `None` while the rate is unknown.
    #[must_use]
    pub fn projected_wait(&self, now: NanosSinceStart, ahead: u64) -> Option<Duration> {
        let rate = self.per_second(now)?;
        debug_assert!(rate.is_finite() && rate > 0.0, "a wait at a rate of {rate}");
        Duration::try_from_secs_f64(ahead as f64 / rate).ok()
    }

    /// Wait for the `Retry-After` of a client that is refused now: until `ahead` requests have
    /// ended, plus jitter. Never more than a minute; `None` while the rate is unknown.
    pub fn retry_after(
        &self,
        now: NanosSinceStart,
        ahead: u64,
        random: &mut fastrand::Rng,
    ) -> Option<Duration> {
        let wait = self.projected_wait(now, ahead)?;
        let cut = wait.clamp(RETRY_AFTER_MIN, BEFORE_JITTER_MAX);
        Some(later_by_chance(cut, random))
    }
}

/// A random wait from `after` to `after` and a half, at most a minute unless `after` is longer.
/// Spreads clients that were refused together.
pub fn later_by_chance(after: Duration, random: &mut fastrand::Rng) -> Duration {
    let latest = after.mul_f64(1.0 + JITTER).min(RETRY_AFTER_MAX);
    // Only later, never earlier: before `after`, a client would be refused again.
    after + latest.saturating_sub(after).mul_f64(random.f64())
}

impl Memory {
    /// Fades the memory, and adds `ends` spread over the last `passed_s` seconds.
    fn add(&mut self, ends: f64, passed_s: f64, length_s: f64) {
        debug_assert!(ends >= 0.0 && passed_s > 0.0 && length_s > 0.0);
        let retained = (-passed_s / length_s).exp();
        // The observed time fades with the ends, so that the empty beginning is no time without
        // ends.
        let weight = length_s * (1.0 - retained);
        self.ends = self.ends * retained + ends * weight / passed_s;
        self.seconds = self.seconds * retained + weight;
        self.squares =
            self.squares * retained * retained + length_s / 2.0 * (1.0 - retained * retained);
    }

    fn rate(&self) -> f64 {
        self.ends / self.seconds
    }

    /// Standard deviation of the rate if ends come by chance. Adds 1 to the ends: a memory without
    /// ends does not prove a rate of 0.
    fn deviation(&self) -> f64 {
        ((self.ends + 1.0) / self.seconds * self.squares).sqrt() / self.seconds
    }
}

#[cfg(test)]
mod tests;
