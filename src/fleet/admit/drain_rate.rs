//! How many requests of a pool end per second: what `Retry-After` and the projected wait of a
//! newcomer are computed from. Owned by one thread, which tells it now and then how many have
//! ended; never reads a clock.
//!
//! Several memories of different length run side by side, each without a bias towards its empty
//! beginning. The longest counts, until a shorter one contradicts it: long memories are exact while
//! nothing changes, short ones see first that an overload has begun or that a worker is gone, and
//! the long ones then go on from there. What counts as contradiction follows from the number of
//! ends remembered, so there is nothing to tune per fleet.

use forebay_base::NanosSinceStart;
use std::time::Duration;

/// Time constants of the memories in seconds, from short to long.
const MEMORIES_S: [f64; 5] = [0.1, 0.5, 2.5, 12.0, 60.0];
/// Samples that come sooner than this after the last one wait for the next: refusals come in
/// bursts.
const SAMPLE_STEP: Duration = Duration::from_millis(5);
/// Without a sample for so long nothing is known any more.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(5);
/// Remembered ends below which a memory knows nothing.
const ENDS_NEEDED: f64 = 3.0;
/// Remembered ends up to which nothing was going on.
const ENDS_IN_A_LULL: f64 = 0.5;
/// Standard deviations within which two memories agree.
const AGREEMENT_DEVIATIONS: f64 = 3.5;
/// Shortest and longest wait that a client is told. The SDKs of both vendors obey up to one minute
/// and do as they like with more.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
const _: () = assert!(RETRY_AFTER_MIN.as_nanos() < RETRY_AFTER_MAX.as_nanos());
const _: () = assert!(SAMPLE_STEP.as_nanos() < SAMPLE_AGE_MAX.as_nanos());
const _: () = assert!(ENDS_IN_A_LULL < ENDS_NEEDED);
/// Up to this share of the wait is added by chance, so that clients refused together do not come
/// back together.
const JITTER: f64 = 0.5;

/// Ends per second of one pool. Starts knowing nothing.
#[derive(Clone, Debug, Default)]
pub struct DrainRate {
    memories: [Memory; MEMORIES_S.len()],
    last: Option<EndedSample>,
}

#[derive(Clone, Copy, Debug)]
struct EndedSample {
    at: NanosSinceStart,
    ended_total: u64,
}

/// Ends and time seen, each faded by its age.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    ends: f64,
    seconds: f64,
    /// The integral of the squared weights: says how far chance moves `ends`.
    squares: f64,
}

impl DrainRate {
    /// `ended_total` requests have ended so far. Cheap when called often; at least once per second
    /// keeps it known. A total that fell (ranks left the pool) starts counting from there.
    pub fn observe(&mut self, now: NanosSinceStart, ended_total: u64) {
        let sample = EndedSample { at: now, ended_total };
        let Some(last) = self.last.filter(|last| ended_total >= last.ended_total) else {
            self.last = Some(sample);
            return;
        };
        let passed = Duration::from_nanos(now.since(last.at));
        if passed < SAMPLE_STEP {
            return;
        }
        let ends = (ended_total - last.ended_total) as f64;
        let passed_s = passed.as_secs_f64();
        // The first ends after a lull: how long it was tells nothing about how fast they come.
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

    /// What holds after each sample.
    fn check_invariants(&self) {
        for memory in &self.memories {
            debug_assert!(memory.ends.is_finite() && memory.ends >= 0.0, "{memory:?}");
            debug_assert!(memory.seconds.is_finite() && memory.seconds > 0.0, "{memory:?}");
            debug_assert!(memory.squares.is_finite() && memory.squares > 0.0, "{memory:?}");
        }
    }

    /// Other ranks make up the pool from now on: what was learnt stays, the count starts from here.
    pub fn rebase(&mut self, now: NanosSinceStart, ended_total: u64) {
        self.last = Some(EndedSample { at: now, ended_total });
    }

    /// Ends per second; `None` while unknown: too few ends seen, or no sample lately.
    #[must_use]
    pub fn per_second(&self, now: NanosSinceStart) -> Option<f64> {
        let last = self.last?;
        if Duration::from_nanos(now.since(last.at)) > SAMPLE_AGE_MAX {
            return None;
        }
        // Not the shortest, which would be newer: chance moves it most.
        let memory = self.memories.last()?;
        (memory.ends >= ENDS_NEEDED).then(|| memory.rate())
    }

    /// Where a memory's rate lies outside of what all shorter ones allow, something has changed
    /// since: it and the longer ones start anew with what the next shorter one knows. So the
    /// longest memory is always one that nothing contradicts.
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

    /// How long it takes until `ahead` requests have ended; `None` while the rate is unknown.
    #[must_use]
    pub fn projected_wait(&self, now: NanosSinceStart, ahead: u64) -> Option<Duration> {
        let rate = self.per_second(now)?;
        debug_assert!(rate.is_finite() && rate > 0.0, "a wait at a rate of {rate}");
        Duration::try_from_secs_f64(ahead as f64 / rate).ok()
    }

    /// When a client that is refused now should come back: after `ahead` requests have ended, and a
    /// little later by chance. Never more than a minute; `None` while the rate is unknown.
    pub fn retry_after(
        &self,
        now: NanosSinceStart,
        ahead: u64,
        random: &mut fastrand::Rng,
    ) -> Option<Duration> {
        let wait = self.projected_wait(now, ahead)?;
        // Cut before the chance comes in: clients told the longest wait must not come back together
        // either.
        let cut = wait.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX.div_f64(1.0 + JITTER));
        Some(later_by_chance(cut, random))
    }
}

/// A time to come back after: not before `after`, up to half later, and no later than a minute
/// unless `after` is. Who was refused together does not come back together.
pub fn later_by_chance(after: Duration, random: &mut fastrand::Rng) -> Duration {
    let latest = after.mul_f64(1.0 + JITTER).min(RETRY_AFTER_MAX);
    // Only later, never earlier: before `after` a client would be refused once more.
    after + latest.saturating_sub(after).mul_f64(random.f64())
}

impl Memory {
    /// Fades what was, and adds `ends` that were spread over the `passed_s` seconds since.
    fn add(&mut self, ends: f64, passed_s: f64, length_s: f64) {
        debug_assert!(ends >= 0.0 && passed_s > 0.0 && length_s > 0.0);
        let kept = (-passed_s / length_s).exp();
        // The time seen fades with the ends, so that the empty beginning is no time without ends.
        let weight = length_s * (1.0 - kept);
        self.ends = self.ends * kept + ends * weight / passed_s;
        self.seconds = self.seconds * kept + weight;
        self.squares = self.squares * kept * kept + length_s / 2.0 * (1.0 - kept * kept);
    }

    fn rate(&self) -> f64 {
        self.ends / self.seconds
    }

    /// Standard deviation of the rate if ends come by chance. One end more than seen: none seen
    /// does not mean none come.
    fn deviation(&self) -> f64 {
        ((self.ends + 1.0) / self.seconds * self.squares).sqrt() / self.seconds
    }
}

#[cfg(test)]
#[path = "drain_rate_tests.rs"]
mod tests;
