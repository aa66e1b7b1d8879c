//! Speed of a rank's first bytes: time per uncached prompt token, so that a long prompt or a queue
//! of prompts is no fault. Older samples fade.

use forebay_base::NanosSinceStart;
use forebay_board::FirstBytes;
use std::time::Duration;

/// Comparisons of ranks in each `health.slow_after`.
pub(super) const SPEED_STEPS: u32 = 16;
/// Part of the samples that fades at each comparison.
const FADING_PART: u64 = 8;
/// Cap of a sum of waits, in multiples of the slow threshold, so that a short spell fades soon.
const SLOW_TIMES_MAX: u64 = 2;
/// Tokens that each request counts beside its own: a step of the engine has a fixed cost, and the
/// predicted cache hits may be wrong.
const LEAST_TOKENS: u64 = 512;
/// Fractions of a sample.
const SAMPLE: u64 = 1 << 10;
/// Earlier first bytes are never slow, whatever the pool's speed.
const SLOW_WAIT_MIN_US: u64 = 100_000;
/// A slow spell lasts this many times `health.slow_after` without new samples.
const UNKNOWN_TIMES_MAX: u32 = 6;
/// Fewest samples for a verdict.
const SLOW_SAMPLES_MIN: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct FirstByteSpeed {
    /// In units of 1/[`SAMPLE`].
    samples: u64,
    waited_us: u64,
    tokens: u64,
    slow: Option<SlowSpell>,
}

/// A time in which each comparison found the rank slow. Continues while there are no samples.
#[derive(Clone, Copy, Debug)]
struct SlowSpell {
    since: NanosSinceStart,
    seen_at: NanosSinceStart,
    samples: u32,
}

impl FirstByteSpeed {
    /// Adds samples of first bytes.
    pub(super) fn add(&mut self, more: FirstBytes) {
        self.samples = self.samples.saturating_add(u64::from(more.count) * SAMPLE);
        self.waited_us = self.waited_us.saturating_add(more.waited_us);
        self.tokens = self.tokens.saturating_add(more.tokens);
        if let Some(slow) = &mut self.slow {
            slow.samples = slow.samples.saturating_add(more.count);
        }
    }

    /// Nanoseconds per token; `None` while too few samples are known.
    pub(super) fn rate(&self) -> Option<u64> {
        let rate = self.waited_us.saturating_mul(1_000).checked_div(self.work());
        rate.filter(|_| self.samples >= SAMPLE)
    }

    /// Compares the rank with its pool, and fades the samples.
    pub(super) fn judge(&mut self, median: Option<u64>, factor: u64, now: NanosSinceStart) {
        if let Some(median) = median.filter(|_| self.rate().is_some()) {
            let slow_us = self.slow_us(median.max(1).saturating_mul(factor));
            let is_slow = self.waited_us >= slow_us;
            let new = SlowSpell { since: now, seen_at: now, samples: 0 };
            let slow = self.slow.filter(|_| is_slow).or(is_slow.then_some(new));
            self.slow = slow.map(|slow| SlowSpell { seen_at: now, ..slow });
            self.waited_us = self.waited_us.min(slow_us.saturating_mul(SLOW_TIMES_MAX));
        }
        let fade = |sum: &mut u64| *sum -= sum.div_ceil(FADING_PART);
        [&mut self.samples, &mut self.waited_us, &mut self.tokens].into_iter().for_each(fade);
    }

    /// Slow threshold of the summed waits, where `rate` ns per token are slow.
    fn slow_us(&self, rate: u64) -> u64 {
        let least = self.samples.saturating_mul(SLOW_WAIT_MIN_US) / SAMPLE;
        (rate.saturating_mul(self.work()) / 1_000).max(least)
    }

    /// Tokens of the samples, with a fixed cost for each; at least 1.
    fn work(&self) -> u64 {
        self.tokens.saturating_add(self.samples.saturating_mul(LEAST_TOKENS) / SAMPLE).max(1)
    }

    /// Drops an expired spell; true if the rank has been slow for `time`, by enough samples.
    pub(super) fn check_slow_for(&mut self, time: Duration, now: NanosSinceStart) -> bool {
        // A rank that was slow long ago counts as unknown.
        let kept = time.saturating_mul(UNKNOWN_TIMES_MAX);
        self.slow = self.slow.filter(|slow| now < slow.seen_at.plus(kept));
        self.slow.is_some_and(|slow| {
            slow.seen_at >= slow.since.plus(time) && slow.samples >= SLOW_SAMPLES_MIN
        })
    }
}

/// The median; of an even number the lower middle, so that half of a pool may be slow. `None` for
/// fewer than two rates.
pub(super) fn lower_median(mut rates: Vec<u64>) -> Option<u64> {
    rates.sort_unstable();
    let middle = rates.len().checked_sub(1)? / 2;
    rates.get(middle).copied().filter(|_| rates.len() > 1)
}
