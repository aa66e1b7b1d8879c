//! Recent history of a rank, as leases and the control plane report it: the speed of prompt
//! computation, tokens written to its KV cache, and tokens found there again. All values are hints
//! for the choice of a rank.

use forebay_base::NanosSinceStart;
use forebay_ring::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// Time span of computing prompts that the speed averages over.
const SPEED_NS: f32 = 30e9;
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
const ONE_WAIT: u32 = 1 << 9;
/// The word of waits has their count above this bit, and the fixed part of a wait below, in steps.
const COUNT_BIT: u32 = 16;
const FIXED_MASK: u32 = (1 << COUNT_BIT) - 1;
const _: () = assert!(WAITS_MAX * ONE_WAIT <= u32::MAX >> COUNT_BIT);
/// A faster answer moves the decode speed by this part of the difference, a slower answer by
/// [`DECODE_SLOWER`]: a client with many slow answers should not make its next answers cheap.
const DECODE_FASTER: f32 = 1.0 / 4.0;
const DECODE_SLOWER: f32 = 1.0 / 16.0;
/// Shorter answers do not measure a speed: the prompt and the network dominate.
const DECODED_TOKENS_MIN: u64 = 8;
/// Faster answers do not either: they may come from a cache.
const DECODED_TIME_MIN: Duration = Duration::from_millis(200);
/// Smallest and largest decode speed of an answer, in tokens per nanosecond, and the default: the
/// speed of a large model on a busy machine.
const DECODE_SPEEDS: (f32, f32) = (1e-9, 5_000e-9);
const DECODE_SPEED_USUAL: f32 = 50e-9;
/// Lowest assumed prefill speed, in tokens per nanosecond, for prompts without a charge for their
/// time.
const PREFILL_SPEED_MIN: f32 = 2_000e-9;
/// A rank with less than this time of prompts to compute gets more: its engine has work until the
/// next request arrives. With more, requests wait in the engine, where their order is lost.
const PREFILL_ROOM_NS: f32 = 250e6;
/// Smallest room of a slow rank: an engine computes this many tokens in a step.
const PREFILL_ROOM_MIN: u64 = 2_048;
/// Times are stored in steps of 2^14 ns. 31 bits of steps last for nine hours, longer than any
/// queue.
const STEP_BITS: u32 = 14;
const STEP_NS: f32 = (1_u32 << STEP_BITS) as f32;

/// Recent history of a rank. Ranks are adjacent in memory: a choice reads all of them.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct RankPast {
    /// KV tokens written recently, see [`crate::CacheWrites`]; saturates.
    written_tokens: AtomicU32,
    /// Prompt tokens found in the cache in the same time.
    reused_tokens: AtomicU32,
    /// Time of the last end of a prefill, or of the first prompt of a queue, in steps.
    prefill_since: AtomicU32,
    /// Prompt tokens that the rank had to compute at that time.
    prefill_tokens_then: AtomicU32,
    /// Prompt tokens computed per nanosecond, as the bits of an `f32`; 0: unknown.
    prefill_speed: AtomicU32,
    /// The same by the waits of single requests: rather too slow, since a queue makes waits longer.
    wait_speed: AtomicU32,
    /// Recent number of such waits, in units of 1/[`ONE_WAIT`], and the fixed part of a wait. The
    /// count fades like the tokens.
    waits: AtomicU32,
    /// Tokens per nanosecond of an answer, as the bits of an `f32`; 0: unknown. Only of answers
    /// with a token count.
    decode_speed: AtomicU32,
}

// Two in a cache line.
#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<RankPast>() == 32);

impl RankPast {
    /// Adds the KV tokens that a request writes, and finds in the cache.
    pub fn add(&self, written_tokens: u64, reused_tokens: u64) {
        more(&self.written_tokens, short(written_tokens));
        more(&self.reused_tokens, short(reused_tokens));
    }

    /// Subtracts tokens, down to 0.
    pub fn sub(&self, written_tokens: u64, reused_tokens: u64) {
        less(&self.written_tokens, |_| short(written_tokens));
        less(&self.reused_tokens, |_| short(reused_tokens));
    }

    /// Subtracts from each count the part that fades.
    pub(crate) fn fade(&self, fades: impl Fn(u32) -> u32) {
        less(&self.written_tokens, &fades);
        less(&self.reused_tokens, &fades);
        less(&self.waits, |all| fades(all >> COUNT_BIT) << COUNT_BIT);
    }

    /// KV tokens that requests have recently written.
    #[must_use]
    pub fn written_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        u64::from(self.written_tokens.load(Ordering::Relaxed))
    }

    /// Prompt tokens that these requests found in the cache.
    #[must_use]
    pub fn reused_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        u64::from(self.reused_tokens.load(Ordering::Relaxed))
    }

    /// The first prompt of a queue arrives, with `tokens` to compute.
    pub fn prefill_began(&self, tokens: u64, now: NanosSinceStart) {
        // ordering: hints for selection; pair with nothing. A reader between both stores may mix
        // two moments.
        self.prefill_since.store(steps(now), Ordering::Relaxed);
        // ordering: as above.
        self.prefill_tokens_then.store(short(tokens), Ordering::Relaxed);
    }

    /// The prefill of a prompt with `tokens` to compute has ended, and `left_tokens` of other
    /// prompts are left.
    pub fn prefill_ended(&self, tokens: u64, left_tokens: u64, now: NanosSinceStart) {
        if tokens == 0 {
            return;
        }
        // ordering: hints for selection; pair with nothing. The swap gives each period between two
        // ends to a single caller.
        let since = self.prefill_since.swap(steps(now), Ordering::Relaxed);
        // ordering: as above.
        self.prefill_tokens_then.store(short(left_tokens), Ordering::Relaxed);
        let tokens = float(tokens);
        let took_ns = float(ns_since(since, now));
        let learn = |bits: u32| {
            let speed = f32::from_bits(bits);
            let replaces = speed == 0.0 || took_ns >= SPEED_NS;
            let speed = if replaces {
                tokens / took_ns
            } else {
                speed + (tokens - speed * took_ns) / SPEED_NS
            };
            speed.is_finite().then(|| speed.max(0.0).to_bits())
        };
        // ordering: as above.
        let _ = self.prefill_speed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }

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

    /// An answer of `tokens` took `took_ns` after its prompt.
    pub fn decoded(&self, tokens: u64, took_ns: u64) {
        if tokens < DECODED_TOKENS_MIN || Duration::from_nanos(took_ns) < DECODED_TIME_MIN {
            return;
        }
        let sample = (float(tokens) / float(took_ns)).clamp(DECODE_SPEEDS.0, DECODE_SPEEDS.1);
        let speed = self.decode_speed();
        let by = match (speed > 0.0, sample > speed) {
            (false, _) => 1.0,
            (true, true) => DECODE_FASTER,
            (true, false) => DECODE_SLOWER,
        };
        // Of two answers that end together, an update may be lost.
        let speed = speed + (sample - speed) * by;
        // ordering: a hint; pairs with nothing.
        self.decode_speed.store(speed.to_bits(), Ordering::Relaxed);
    }

    /// Tokens of an answer that the rank generates in that time, by earlier answers; by default,
    /// [`DECODE_SPEED_USUAL`].
    #[must_use]
    pub fn decoded_in(&self, time_ns: u64) -> u64 {
        let speed = self.decode_speed();
        let speed = if speed > 0.0 { speed } else { DECODE_SPEED_USUAL };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate, not negative; too large is the largest"
        )]
        let tokens = (speed * float(time_ns)) as u64;
        tokens
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

    fn decode_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        f32::from_bits(self.decode_speed.load(Ordering::Relaxed))
    }

    fn wait_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        f32::from_bits(self.wait_speed.load(Ordering::Relaxed))
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

    /// Prompt tokens that the rank computes per second, measured by first tokens, at least 1;
    /// `None`: unknown.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> Option<u64> {
        // ordering: a figure for people; pairs with nothing.
        per_second(f32::from_bits(self.prefill_speed.load(Ordering::Relaxed)))
    }

    /// Limit of prompt tokens to compute: the tokens that the rank computes in [`PREFILL_ROOM_NS`].
    /// The largest number while the speed is unknown: a limit nonetheless, so that each end of a
    /// prefill wakes the queue.
    #[must_use]
    #[inline]
    pub fn prefill_room(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        let speed = f32::from_bits(self.prefill_speed.load(Ordering::Relaxed));
        if speed == 0.0 {
            return u64::MAX;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate, not negative; too large is the largest"
        )]
        let tokens = (speed * PREFILL_ROOM_NS) as u64;
        tokens.max(PREFILL_ROOM_MIN)
    }

    /// The speed for comparing ranks, see [`Self::known_speed`], per second and at least 1; `None`:
    /// not reliable yet.
    #[must_use]
    pub fn wait_tokens_per_s(&self) -> Option<u64> {
        per_second(self.known_speed())
    }

    /// Forgets the written and found tokens: the caches of the rank are empty
    /// (`WorkerGeneration::cache`). The speeds are of the engine, and stay.
    pub(crate) fn forget_writes(&self) {
        less(&self.written_tokens, |all| all);
        less(&self.reused_tokens, |all| all);
    }

    /// Forgets counts and speeds: another engine may serve the rank (`WorkerGeneration::engine`).
    /// The start of the present queue stays.
    pub fn forget(&self) {
        self.forget_writes();
        for speed in [&self.prefill_speed, &self.wait_speed, &self.decode_speed, &self.waits] {
            // ordering: a hint for selection; pairs with nothing.
            speed.store(0, Ordering::Relaxed);
        }
    }

    /// Estimate of the tokens that are still to be computed, of `tokens` without a first token. In
    /// the time that a queue should take, the estimate falls to two fifths: the speed is a mean,
    /// and the order of prompts in the engine is unknown. After that it rises: the rank is slower
    /// than before, or has stalled. Prompts that arrived since the last first token count in full.
    #[must_use]
    #[inline]
    pub fn prefill_left(&self, tokens: u64, now: NanosSinceStart) -> u64 {
        if tokens == 0 {
            return 0;
        }
        // ordering: hints for selection; pair with nothing.
        let speed = f32::from_bits(self.prefill_speed.load(Ordering::Relaxed));
        // ordering: as above.
        let then = self.prefill_tokens_then.load(Ordering::Relaxed).min(short(tokens));
        // ordering: as above.
        let since = self.prefill_since.load(Ordering::Relaxed);
        let queue = float(u64::from(then));
        let done = speed * float(ns_since(since, now));
        if queue < 1.0 || done < 1.0 {
            return tokens;
        }
        // About e^(-x), but cheap: a choice computes this for each busy rank.
        let part = if done < queue { done / queue } else { queue / done };
        let left = queue / (1.0 + part + part * part / 2.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a number of tokens"
        )]
        let left = (left as u32).min(then);
        tokens - u64::from(then - left)
    }
}

/// Converts tokens per nanosecond to tokens per second, for people.
fn per_second(speed: f32) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "no speed is below 0, and a figure that is too large is the largest"
    )]
    (speed > 0.0).then_some(((speed * 1e9) as u64).max(1))
}

fn more(word: &AtomicU32, by: u32) {
    // ordering: a hint for selection; pairs with nothing.
    let _ =
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_add(by)));
}

fn less(word: &AtomicU32, by: impl Fn(u32) -> u32) {
    // ordering: as in `more`.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
        Some(all.saturating_sub(by(all)))
    });
}

/// The fixed part of a wait, from the word of waits.
fn fixed_ns(waits: u32) -> f32 {
    float(u64::from(waits & FIXED_MASK)) * STEP_NS
}

/// Signed, since processors have a single instruction for it. No time and no queue needs 64 bits:
/// numbers from 2^63 on become negative.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(number: u64) -> f32 {
    number.cast_signed() as f32
}

#[expect(clippy::cast_possible_truncation, reason = "it wraps")]
const fn steps(at: NanosSinceStart) -> u32 {
    (at.0 >> STEP_BITS) as u32
}

/// 0 where clocks of shards differ.
fn ns_since(since: u32, now: NanosSinceStart) -> u64 {
    let steps = steps(now).wrapping_sub(since);
    u64::from(if steps.cast_signed() < 0 { 0 } else { steps }) << STEP_BITS
}

fn short(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * SECOND)
    }

    /// A rank that computes 1,000 tokens a second, with a queue of 4,000 since 100 s.
    fn rank() -> RankPast {
        let past = RankPast::default();
        past.prefill_began(2_000, at(90));
        past.prefill_ended(2_000, 0, at(92));
        past.prefill_began(4_000, at(100));
        past
    }

    #[test]
    fn a_queue_gets_shorter_with_time_until_it_is_overdue() {
        let past = rank();
        let left = |second| past.prefill_left(4_000, at(second));
        let left = [100, 102, 104, 108, 116, 500].map(left);
        assert_eq!(left, [4_000, 2_461, 1_600, 2_461, 3_121, 3_960]);
        assert_eq!(past.prefill_left(4_000, at(99)), 4_000, "clocks of shards differ");
        assert_eq!(past.prefill_left(0, at(104)), 0);
        assert_eq!(past.prefill_left(100, at(104)), 97, "most of the queue was given up");
        assert_eq!(past.prefill_left(u64::MAX, at(104)), u64::MAX - 2_400);
    }

    #[test]
    fn a_rank_gets_prompts_of_a_quarter_of_a_second() {
        let past = RankPast::default();
        assert_eq!(past.prefill_room(), u64::MAX, "without a speed there is no limit");
        let with_speed = |tokens| {
            let past = RankPast::default();
            past.prefill_began(tokens, at(10));
            past.prefill_ended(tokens, 0, at(11));
            past.prefill_room()
        };
        assert!((24_900..25_100).contains(&with_speed(100_000)), "{}", with_speed(100_000));
        assert_eq!([10, 1_000, 8_000].map(with_speed), [2_048; 3], "one step of a slow engine");
        past.prefill_began(100_000, at(10));
        past.prefill_ended(100_000, 0, at(11));
        past.forget();
        assert_eq!(past.prefill_room(), u64::MAX, "another engine");
    }

    #[test]
    fn the_times_of_two_queues_are_days_apart() {
        let past = rank();
        let day = 24 * 3_600;
        for days in [0, 1, 3, 4, 30] {
            past.prefill_began(4_000, at(100 + days * day));
            let left = [100, 104].map(|second| past.prefill_left(4_000, at(second + days * day)));
            assert_eq!(left, [4_000, 1_600], "{days} days");
        }
    }

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
    fn answers_are_as_fast_as_those_before() {
        let past = RankPast::default();
        let tokens = || past.decoded_in(10 * SECOND);
        assert_eq!(tokens(), 500, "nothing is known");
        past.decoded(7, SECOND);
        past.decoded(1_000, SECOND / 10);
        assert_eq!(tokens(), 500, "no measure");
        past.decoded(200, 2 * SECOND);
        assert_eq!(tokens(), 1_000);
        past.decoded(200, SECOND);
        assert_eq!(tokens(), 1_250, "a quarter of the way");
        past.decoded(450, 10 * SECOND);
        assert_eq!(tokens(), 1_200, "a sixteenth");
        (0..100).for_each(|_| past.decoded(1 << 24, SECOND));
        assert!((49_000..=50_000).contains(&tokens()), "{}", tokens());
        (0..1_000).for_each(|_| past.decoded(8, 1 << 60));
        assert!((10..20).contains(&tokens()), "{}", tokens());
        assert_eq!(past.decoded_in(0), 0);
        past.forget();
        assert_eq!(tokens(), 500, "another engine");
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

    /// A rank that has stalled while its queue grows.
    #[test]
    fn what_comes_later_is_no_reason_to_wait_for_the_rest() {
        let past = rank();
        let left = [(4_000, 104), (8_000, 104), (40_000, 140), (80_000, 180)];
        let left = left.map(|(tokens, second)| past.prefill_left(tokens, at(second)));
        assert_eq!(left, [1_600, 5_600, 39_619, 79_804]);
    }

    #[test]
    fn without_a_speed_the_whole_queue_counts() {
        let past = RankPast::default();
        past.prefill_began(500, at(1));
        assert_eq!(past.prefill_left(500, at(9)), 500);
        past.prefill_ended(500, 500, at(1));
        assert_eq!(past.prefill_left(500, at(9)), 500, "no time, no speed");
    }

    #[test]
    fn a_prompt_that_was_cached_says_nothing() {
        let past = rank();
        past.prefill_ended(0, 0, at(102));
        assert_eq!(past.prefill_left(4_000, at(104)), 1_600);
    }

    #[test]
    fn the_end_of_a_prompt_begins_the_rest_of_the_queue() {
        let past = rank();
        past.prefill_ended(2_000, 4_000, at(102));
        assert_eq!(past.prefill_left(4_000, at(102)), 4_000);
        assert_eq!(past.prefill_left(4_000, at(104)), 2_461);
    }

    #[test]
    fn the_speed_follows_and_prompts_that_end_together_count_all() {
        let past = rank();
        for second in 1..=300 {
            past.prefill_ended(1_500, 4_500, at(100 + second));
            past.prefill_ended(500, 4_000, at(100 + second));
        }
        let left = past.prefill_left(4_000, at(401));
        assert!((2_440..2_480).contains(&left), "{left}: 2,000 tokens a second");
        // A single wait of a minute defines the speed.
        past.prefill_ended(60_000, 4_000, at(460));
        assert_eq!(past.prefill_left(4_000, at(462)), 2_461);
        assert_eq!(past.prefill_tokens_per_s(), Some(1_000));
        past.forget();
        assert_eq!(past.prefill_tokens_per_s(), None);
        assert_eq!(past.prefill_left(4_000, at(462)), 4_000, "another engine");
    }
}
