//! Recent history of a rank, as leases and the control plane report it: the speed of prompt
//! computation, tokens written to its KV cache, and tokens found there again. All values are hints
//! for the choice of a rank.

mod decoding;
mod waits;

use forebay_base::NanosSinceStart;
use forebay_ring::sync::{AtomicU32, Ordering};

/// Time span of computing prompts that the speed averages over.
const SPEED_NS: f32 = 30e9;
/// A rank with less than this time of prompts to compute gets more: its engine has work until the
/// next request arrives. With more, requests wait in the engine, where their order is lost.
const PREFILL_ROOM_NS: f32 = 250e6;
/// Smallest room of a slow rank: an engine computes this many tokens in a step.
const PREFILL_ROOM_MIN: u64 = 2_048;
/// The word of waits has their count above this bit, and the fixed part of a wait below, in steps.
const COUNT_BIT: u32 = 16;
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
    /// Recent number of such waits, in units of 1/[`waits::ONE_WAIT`], and the fixed part of a
    /// wait. The count fades like the tokens.
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
        let since = self.begin_rest(left_tokens, now);
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

    /// The expected time of a prompt is over, and `left_tokens` of other prompts are left. An
    /// estimate is no measurement: the speed that gave the time stays.
    pub fn prefill_due(&self, left_tokens: u64, due_at: NanosSinceStart) {
        self.begin_rest(left_tokens, due_at);
    }

    /// Moves the start of the queue to `now`. Returns the start before, in steps.
    fn begin_rest(&self, left_tokens: u64, now: NanosSinceStart) -> u32 {
        // ordering: hints for selection; pair with nothing. The swap gives each period between two
        // ends to a single caller.
        let since = self.prefill_since.swap(steps(now), Ordering::Relaxed);
        // ordering: as above.
        self.prefill_tokens_then.store(short(left_tokens), Ordering::Relaxed);
        since
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

    /// A time that comes from the speed would teach its own rounding.
    #[test]
    fn an_expected_end_begins_the_rest_of_the_queue_and_teaches_no_speed() {
        let past = rank();
        let speed = || past.prefill_speed.load(Ordering::Relaxed);
        let known = speed();
        for number in 0..100 {
            let due_at = NanosSinceStart(at(102).0 + 33_333 * number);
            past.prefill_due(2_000, due_at);
            assert_eq!(past.prefill_left(2_000, due_at), 2_000);
        }
        assert_eq!(speed(), known);
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
