//! Speed of prompt computation, by the waits of single requests for their first token.

use super::{COUNT_BIT, RankPast, STEP_NS, float, per_second};
use forebay_ring::sync::Ordering;
use std::time::Duration;

/// A faster wait moves the expected wait by this part of the difference, a slower wait by
/// [`SLOWER`]: most waits include a queue. Until the speed is known, a faster wait moves it
/// further: otherwise a first short prompt would make a rank look slow for long.
const FASTER: f32 = 1.0 / 4.0;
const SLOWER: f32 = 1.0 / 40.0;
/// A wait has a fixed part, the step of the engine, and a part that grows with the tokens. A wait
/// of this many tokens adjusts both alike. A longer wait adjusts the speed, a shorter wait the
/// fixed part.
const SHORT_TOKENS: f32 = 2_000.0;
/// A wait counts as at most this many times as fast as expected: the engine may have found a prompt
/// in its cache that the index did not have.
const FASTER_MAX: f32 = 2.0;
/// Smallest and largest speed by waits, in tokens per nanosecond. A step from 0 would have no
/// length.
const WAIT_SPEEDS: (f32, f32) = (1e-15, 1e3);
/// Waits that make a speed reliable for comparing ranks, each weighted by its share of the speed.
/// Fewer waits are chance.
const WAITS_MIN: u32 = 8;
/// Most waits that are counted, so that a rank without waits is soon unknown.
const WAITS_MAX: u32 = 2 * WAITS_MIN;
/// Waits are counted in fractions: small integers would not fade.
pub(super) const ONE_WAIT: u32 = 1 << 9;
const FIXED_MASK: u32 = (1 << COUNT_BIT) - 1;
const _: () = assert!(WAITS_MAX * ONE_WAIT <= u32::MAX >> COUNT_BIT);
/// Lowest assumed prefill speed, in tokens per nanosecond, for prompts without a charge for their
/// time.
const PREFILL_SPEED_MIN: f32 = 2_000e-9;

impl RankPast {
    /// The first token of a prompt arrived `took_ns` after the request was sent.
    pub fn waited(&self, tokens: u64, took_ns: u64) {
        let tokens = float(tokens).max(1.0);
        let took_ns = float(took_ns).max(1.0);
        // Of two waits that end together, an update may be lost.
        // ordering: hints; pair with nothing.
        let word = self.waits.load(Ordering::Relaxed);
        let count = word >> COUNT_BIT;
        let fixed_ns = fixed_ns(word);
        let token_ns = 1.0 / self.wait_speed();
        let size = tokens / SHORT_TOKENS;
        let speed_share = size * size / (1.0 + size * size);
        let (fixed_ns, token_ns) = if token_ns.is_finite() {
            let expected_ns = fixed_ns + token_ns * tokens;
            let faster = (expected_ns / took_ns).min(FASTER_MAX) - 1.0;
            let known = count as f32 / (WAITS_MIN * ONE_WAIT) as f32;
            let by = if faster > 0.0 { FASTER.max(1.0 - known) } else { SLOWER };
            let less_ns = expected_ns * faster * by;
            // The shortest way to a pair of figures that expects this wait (normalized LMS).
            let less_token_ns = (speed_share * less_ns / tokens).min(token_ns / 2.0);
            (fixed_ns - (1.0 - speed_share) * less_ns, token_ns - less_token_ns)
        } else {
            (0.0, took_ns / tokens)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of one wait"
        )]
        let more = (speed_share * ONE_WAIT as f32) as u32;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time; below 0 is 0, too large is the largest"
        )]
        let fixed = (fixed_ns / STEP_NS) as u32;
        let count = count.saturating_add(more).min(WAITS_MAX * ONE_WAIT);
        // ordering: as above.
        self.waits.store(count << COUNT_BIT | fixed.min(FIXED_MASK), Ordering::Relaxed);
        let speed = (1.0 / token_ns).clamp(WAIT_SPEEDS.0, WAIT_SPEEDS.1);
        // ordering: as above.
        self.wait_speed.store(speed.to_bits(), Ordering::Relaxed);
    }

    /// Prompt tokens that the rank computes per nanosecond, by the waits of single requests; 0: not
    /// reliable yet.
    #[must_use]
    #[inline]
    pub fn known_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        let waits = self.waits.load(Ordering::Relaxed);
        if waits < (WAITS_MIN * ONE_WAIT) << COUNT_BIT { 0.0 } else { self.wait_speed() }
    }

    /// Low estimate of the time for `tokens` of a prompt, in nanoseconds: a bill charges for the
    /// time after it.
    #[must_use]
    pub fn prefill_time_least(&self, tokens: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate, not negative; too large is the largest"
        )]
        let ns = (float(tokens) / self.known_speed().max(PREFILL_SPEED_MIN)) as u64;
        ns
    }

    /// High estimate of the time for `tokens` of a prompt; `None`: unknown.
    #[must_use]
    pub fn prefill_time(&self, tokens: u64) -> Option<Duration> {
        let speed = self.wait_speed();
        // ordering: a hint; pairs with nothing.
        let fixed_ns = fixed_ns(self.waits.load(Ordering::Relaxed));
        let seconds = (fixed_ns + float(tokens) / speed) / 1e9;
        if speed > 0.0 { Duration::try_from_secs_f32(seconds).ok() } else { None }
    }

    /// The speed for comparing ranks, see [`Self::known_speed`], per second and at least 1; `None`:
    /// not reliable yet.
    #[must_use]
    pub fn wait_tokens_per_s(&self) -> Option<u64> {
        per_second(self.known_speed())
    }

    fn wait_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        f32::from_bits(self.wait_speed.load(Ordering::Relaxed))
    }
}

/// The fixed part of a wait, from the word of waits.
fn fixed_ns(waits: u32) -> f32 {
    float(u64::from(waits & FIXED_MASK)) * STEP_NS
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn waits_without_a_queue_tell_how_long_a_prompt_takes() {
        let past = RankPast::default();
        let millis = || past.prefill_time(1_000).map(|time| time.as_millis());
        assert_eq!(millis(), None);
        past.waited(1_000, SECOND);
        assert_eq!(millis(), Some(1_000));
        // Every fifth wait finds no queue.
        for turn in 0..1_000 {
            past.waited(1_000, if turn % 5 == 0 { SECOND } else { 4 * SECOND });
        }
        assert!((1_050..1_400).contains(&millis().unwrap()), "{:?}", millis());
        let before = millis().unwrap();
        for _ in 0..100 {
            past.waited(10, SECOND / 10);
        }
        assert!(millis().unwrap() < before * 6 / 5, "a short prompt says little");
        let before = millis().unwrap();
        past.waited(1_000_000, 1);
        assert!(millis().unwrap() > before * 3 / 4, "the prompt was in the cache");
        past.waited(u64::MAX >> 1, 0);
        past.waited(0, u64::MAX >> 1);
        assert!(millis().is_some());
        past.forget();
        assert_eq!(millis(), None, "another engine");
    }

    #[test]
    fn few_waits_tell_no_speed() {
        let past = RankPast::default();
        let known = |times| {
            (0..times).for_each(|_| past.waited(1 << 20, SECOND));
            past.known_speed() > 0.0
        };
        assert_eq!([8, 1].map(known), [false, true], "a wait tells little less than all of it");
        past.fade(|waits| waits / 8);
        assert!(!known(0), "one more is needed now and then");
        assert!(known(1));
        past.forget();
        assert!(!known(1));
        assert!(known(1_000));
        (0..500).for_each(|_| past.fade(|waits| waits / 600));
        assert!(!known(0), "for eight minutes it had no prompt");
        past.forget();
        (0..1_000).for_each(|_| past.waited(100, SECOND));
        assert!(!known(0), "short prompts tell next to nothing");
    }

    #[test]
    fn the_step_is_no_part_of_the_speed() {
        let rank = |shortest: u64| {
            let past = RankPast::default();
            for turn in 0..2_000 {
                let tokens = shortest << (turn % 5);
                past.waited(tokens, SECOND / 20 + tokens * SECOND / 10_000);
            }
            past
        };
        let short = rank(200);
        let long = rank(2_000);
        let speeds = [&short, &long].map(|past| past.wait_tokens_per_s().unwrap());
        assert!(speeds.iter().all(|speed| (8_500..11_500).contains(speed)), "{speeds:?}");
        let millis = short.prefill_time(1).unwrap().as_millis();
        assert!((40..60).contains(&millis), "{millis}: the fixed part");
    }

    #[test]
    fn no_prompt_is_believed_to_take_long() {
        let past = RankPast::default();
        let millis = |tokens| past.prefill_time_least(tokens) / 1_000_000;
        assert_eq!(millis(1_000), 500, "nothing is known");
        (0..32).for_each(|_| past.waited(10, SECOND));
        assert_eq!(millis(1_000), 500, "short prompts had long waits");
        (0..64).for_each(|_| past.waited(8_000, SECOND));
        assert!((120..150).contains(&millis(1_000)), "{}", millis(1_000));
    }
}
