//! What a rank has lately done, as leases tell: how fast it computes prompts, what was written to
//! its KV cache, and what was found there again. All of it is a hint for the choice of a rank.

use forebay_base::NanosSinceStart;
use forebay_ring::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// The speed is that of so much time in which prompts were computed.
const SPEED_NS: f32 = 30e9;
/// A faster wait moves the expected wait by this part of the way, a slower wait by that: most waits
/// have a queue in them. Until the speed is known, a faster wait moves it further: a first short
/// prompt would make a rank look slow for long.
const FASTER: f32 = 1.0 / 4.0;
const SLOWER: f32 = 1.0 / 40.0;
/// A wait has a fixed part, the step of the engine, and a part that grows with the tokens. A wait
/// of so many tokens teaches both alike. A longer one teaches the speed, a shorter one the fixed
/// part.
const SHORT_TOKENS: f32 = 2_000.0;
/// No wait counts as more than so many times as fast as those before it: the engine may have held a
/// prompt that nobody knew it held.
const FASTER_MAX: f32 = 2.0;
/// Tokens in a nanosecond by waits, at least and at most. A step from 0 would have no length.
const WAIT_SPEEDS: (f32, f32) = (1e-15, 1e3);
/// A speed is known well enough for comparing ranks by so many waits, each counted by what it
/// teaches of the speed. Fewer are chance.
const WAITS_MIN: u32 = 8;
/// More are not counted, so that a rank without waits is soon unknown.
const WAITS_MAX: u32 = 2 * WAITS_MIN;
/// Waits are counted in parts of one: few would not fade.
const ONE_WAIT: u32 = 1 << 9;
/// The word of waits has their count above this bit, and the fixed part of a wait below, in steps.
const COUNT_BIT: u32 = 16;
const FIXED_MASK: u32 = (1 << COUNT_BIT) - 1;
const _: () = assert!(WAITS_MAX * ONE_WAIT <= u32::MAX >> COUNT_BIT);
/// A faster answer moves the speed of answers by this part of the way, a slower one by that: a
/// client that has many slow answers should not make its next ones cheap.
const DECODE_FASTER: f32 = 1.0 / 4.0;
const DECODE_SLOWER: f32 = 1.0 / 16.0;
/// Shorter answers are no measure of a speed: the prompt and the way take their time.
const DECODED_TOKENS_MIN: u64 = 8;
/// Nor do faster ones. They may come out of a cache.
const DECODED_TIME_MIN: Duration = Duration::from_millis(200);
/// Tokens of one answer in a nanosecond, at least and at most; and while nothing is known, that of
/// a large model on a busy machine.
const DECODE_SPEEDS: (f32, f32) = (1e-9, 5_000e-9);
const DECODE_SPEED_USUAL: f32 = 50e-9;
/// No prompt is believed to take longer than at this speed, in tokens a nanosecond, where its time
/// is not charged for.
const PREFILL_SPEED_MIN: f32 = 2_000e-9;
/// A rank with less than this time of prompts to compute gets more: its engine has work until the
/// next request is there. With more, requests wait in the engine, where their order is lost.
const PREFILL_ROOM_NS: f32 = 250e6;
/// A slow rank gets so many tokens: an engine computes as many in one step.
const PREFILL_ROOM_MIN: u64 = 2_048;
/// Times are kept in these steps, of 2^14 ns. 31 bits of them last for nine hours, and no queue
/// stands as long.
const STEP_BITS: u32 = 14;
const STEP_NS: f32 = (1_u32 << STEP_BITS) as f32;

/// One rank's past. Ranks lie side by side: a choice reads them all.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct RankPast {
    /// KV tokens written lately, see [`super::CacheWrites`]; no more than the word holds.
    written_tokens: AtomicU32,
    /// Tokens of prompts that were found in the cache, of the same time.
    reused_tokens: AtomicU32,
    /// When a prompt was done last, or the first of a queue came, in steps.
    prefill_since: AtomicU32,
    /// Prompt tokens that the rank had to compute then.
    prefill_tokens_then: AtomicU32,
    /// Prompt tokens computed in a nanosecond, as the bits of an `f32`; 0: not known.
    prefill_speed: AtomicU32,
    /// The same by the waits of single requests: rather too slow, since a queue makes waits longer.
    wait_speed: AtomicU32,
    /// How many such waits there were lately, in parts of [`ONE_WAIT`], and the time of a wait that
    /// does not depend on its tokens. The count fades like the tokens.
    waits: AtomicU32,
    /// Tokens of one answer made in a nanosecond, as the bits of an `f32`; 0: not known. Only of
    /// answers that are counted.
    decode_speed: AtomicU32,
}

// Two to a line of the cache.
#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<RankPast>() == 32);

impl RankPast {
    /// A request writes so many KV tokens, and finds so many in the cache.
    pub fn add(&self, written_tokens: u64, reused_tokens: u64) {
        more(&self.written_tokens, short(written_tokens), u32::MAX);
        more(&self.reused_tokens, short(reused_tokens), u32::MAX);
    }

    /// Takes tokens off again, as far as they are there.
    pub fn sub(&self, written_tokens: u64, reused_tokens: u64) {
        less(&self.written_tokens, |_| short(written_tokens));
        less(&self.reused_tokens, |_| short(reused_tokens));
    }

    /// Takes from each count what fades of it.
    pub(super) fn fade(&self, fades: impl Fn(u32) -> u32) {
        less(&self.written_tokens, &fades);
        less(&self.reused_tokens, &fades);
        less(&self.waits, |all| fades(all >> COUNT_BIT) << COUNT_BIT);
    }

    /// KV tokens that requests have lately written.
    #[must_use]
    pub fn written_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        u64::from(self.written_tokens.load(Ordering::Relaxed))
    }

    /// Tokens of prompts that they found in the cache.
    #[must_use]
    pub fn reused_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        u64::from(self.reused_tokens.load(Ordering::Relaxed))
    }

    /// The first prompt of a queue comes, of which the rank has so many tokens to compute.
    pub fn prefill_began(&self, tokens: u64, now: NanosSinceStart) {
        // ordering: hints for selection; pair with nothing. Between the two the queue is that of
        // another moment.
        self.prefill_since.store(steps(now), Ordering::Relaxed);
        // ordering: as above.
        self.prefill_tokens_then.store(short(tokens), Ordering::Relaxed);
    }

    /// A prompt of which the rank had so many tokens to compute is done, and so many are left of
    /// others.
    pub fn prefill_ended(&self, tokens: u64, left_tokens: u64, now: NanosSinceStart) {
        if tokens == 0 {
            return;
        }
        // ordering: hints for selection; pair with nothing. Each time between two ends is taken by
        // one of them.
        let since = self.prefill_since.swap(steps(now), Ordering::Relaxed);
        // ordering: as above.
        self.prefill_tokens_then.store(short(left_tokens), Ordering::Relaxed);
        let tokens = float(tokens);
        let took_ns = float(ns_since(since, now));
        let learn = |bits: u32| {
            let speed = f32::from_bits(bits);
            let is_first = speed == 0.0 || took_ns >= SPEED_NS;
            let speed = if is_first {
                tokens / took_ns
            } else {
                speed + (tokens - speed * took_ns) / SPEED_NS
            };
            speed.is_finite().then(|| speed.max(0.0).to_bits())
        };
        // ordering: as above.
        let _ = self.prefill_speed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }

    /// The first token of a prompt came so long after the request was sent.
    pub fn waited(&self, tokens: u64, took_ns: u64) {
        let tokens = float(tokens).max(1.0);
        let took_ns = float(took_ns).max(1.0);
        // Of two waits that end together one may be lost.
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
            reason = "a time; too large is the largest"
        )]
        let fixed = (fixed_ns / STEP_NS) as u32;
        let count = count.saturating_add(more).min(WAITS_MAX * ONE_WAIT);
        // ordering: as above.
        self.waits.store(count << COUNT_BIT | fixed.min(FIXED_MASK), Ordering::Relaxed);
        let speed = (1.0 / token_ns).clamp(WAIT_SPEEDS.0, WAIT_SPEEDS.1);
        // ordering: as above.
        self.wait_speed.store(speed.to_bits(), Ordering::Relaxed);
    }

    /// Prompt tokens that the rank computes in a nanosecond, by the waits of single requests; 0:
    /// not known well enough.
    #[must_use]
    #[inline]
    pub fn known_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        let waits = self.waits.load(Ordering::Relaxed);
        if waits < (WAITS_MIN * ONE_WAIT) << COUNT_BIT { 0.0 } else { self.wait_speed() }
    }

    /// An answer of so many tokens took so long behind its prompt.
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
        // Of two answers that end together one may be lost.
        let speed = speed + (sample - speed) * by;
        // ordering: a hint; pairs with nothing.
        self.decode_speed.store(speed.to_bits(), Ordering::Relaxed);
    }

    /// Tokens of one answer that the rank makes in that time, by the answers before; without any,
    /// by [`DECODE_SPEED_USUAL`].
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

    /// How long the rank should take for so many prompt tokens in nanoseconds, rather too short: a
    /// bill charges for the time behind it.
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

    /// How long the rank takes for so many prompt tokens, rather too long; `None`: not known.
    #[must_use]
    pub fn prefill_time(&self, tokens: u64) -> Option<Duration> {
        let speed = self.wait_speed();
        // ordering: a hint; pairs with nothing.
        let fixed_ns = fixed_ns(self.waits.load(Ordering::Relaxed));
        let seconds = (fixed_ns + float(tokens) / speed) / 1e9;
        if speed > 0.0 { Duration::try_from_secs_f32(seconds).ok() } else { None }
    }

    /// Prompt tokens that the rank computes in a second, as first tokens have told, at least 1;
    /// `None`: not known.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> Option<u64> {
        // ordering: a figure for people; pairs with nothing.
        per_second(f32::from_bits(self.prefill_speed.load(Ordering::Relaxed)))
    }

    /// Prompt tokens that a rank may have yet to compute and still get more: what it computes in
    /// [`PREFILL_ROOM_NS`]. Any number where the speed is not known; it is a limit nonetheless, so
    /// that each prefill that ends tells the queue.
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

    /// The speed that ranks are compared by, as [`Self::known_speed`], in a second and at least 1;
    /// `None`: not known well enough.
    #[must_use]
    pub fn wait_tokens_per_s(&self) -> Option<u64> {
        per_second(self.known_speed())
    }

    /// The rank is another one now.
    pub fn forget(&self) {
        self.fade(|all| all);
        for speed in [&self.prefill_speed, &self.wait_speed, &self.decode_speed, &self.waits] {
            // ordering: a hint for selection; pairs with nothing.
            speed.store(0, Ordering::Relaxed);
        }
    }

    /// Of so many prompt tokens that no first token has come of, those that are still to be
    /// computed, as far as time and speed tell. In the time that a queue should take, what is left
    /// of it falls to two fifths: the speed is a mean, and what an engine does first is not known.
    /// From then on it rises: the rank is slower than it was, or stands still. What came since the
    /// last first token counts in full.
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
        // About e^(-x): a choice asks for each busy rank.
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

/// Of a speed in a nanosecond, for people.
fn per_second(speed: f32) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "no speed is below 0, and a figure that is too large is the largest"
    )]
    (speed > 0.0).then_some(((speed * 1e9) as u64).max(1))
}

fn more(word: &AtomicU32, by: u32, most: u32) {
    // ordering: a hint for selection; pairs with nothing.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
        Some(all.saturating_add(by).min(most))
    });
}

fn less(word: &AtomicU32, by: impl Fn(u32) -> u32) {
    // ordering: as in `more`.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
        Some(all.saturating_sub(by(all)))
    });
}

/// The fixed part of a wait, of the word of waits.
fn fixed_ns(waits: u32) -> f32 {
    float(u64::from(waits & FIXED_MASK)) * STEP_NS
}

/// Signed, since processors have one instruction for that. No time and no queue has 64 bits.
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

    /// A rank that computes 1,000 tokens a second, and began a queue of 4,000 at 100 s.
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
        // One of five finds no queue.
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
        past.waited(u64::MAX, 0);
        past.waited(0, u64::MAX);
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

    /// A rank that stands still while its queue grows.
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
        // One wait of a minute: the speed is that of it.
        past.prefill_ended(60_000, 4_000, at(460));
        assert_eq!(past.prefill_left(4_000, at(462)), 2_461);
        assert_eq!(past.prefill_tokens_per_s(), Some(1_000));
        past.forget();
        assert_eq!(past.prefill_tokens_per_s(), None);
        assert_eq!(past.prefill_left(4_000, at(462)), 4_000, "another engine");
    }
}
