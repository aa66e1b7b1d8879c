//! What a rank has lately done, as leases tell: how fast it computes prompts, what was written to
//! its KV cache, and what was found there again. All of it is a hint for the choice of a rank.

use forebay_base::NanosSinceStart;
use forebay_ring::sync::{AtomicU64, Ordering};

/// The speed is that of so much time in which prompts were computed.
const SPEED_NS: f64 = 30e9;

/// One rank's past. Ranks lie side by side: a choice reads them all.
#[derive(Debug, Default)]
pub struct RankPast {
    /// KV tokens written lately, see [`super::CacheWrites`].
    written_tokens: AtomicU64,
    /// Tokens of prompts that were found in the cache, of the same time.
    reused_tokens: AtomicU64,
    /// When a prompt was done last, or the first of a queue came.
    prefill_since_ns: AtomicU64,
    /// Prompt tokens computed in a nanosecond, as the bits of an `f64`; 0: not known.
    prefill_speed: AtomicU64,
}

const _: () = assert!(size_of::<RankPast>() == 32);

impl RankPast {
    /// A request writes so many KV tokens, and finds so many in the cache.
    pub fn add(&self, written_tokens: u64, reused_tokens: u64) {
        // ordering: hints for selection; pair with nothing.
        self.written_tokens.fetch_add(written_tokens, Ordering::Relaxed);
        // ordering: as above.
        self.reused_tokens.fetch_add(reused_tokens, Ordering::Relaxed);
    }

    /// Takes tokens off again, as far as they are there.
    pub fn sub(&self, written_tokens: u64, reused_tokens: u64) {
        for (word, tokens) in
            [(&self.written_tokens, written_tokens), (&self.reused_tokens, reused_tokens)]
        {
            let less = |before: u64| Some(before.saturating_sub(tokens));
            // ordering: as in `add`.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// KV tokens that requests have lately written.
    #[must_use]
    pub fn written_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        self.written_tokens.load(Ordering::Relaxed)
    }

    /// Tokens of prompts that they found in the cache.
    #[must_use]
    pub fn reused_tokens(&self) -> u64 {
        // ordering: a hint for selection; pairs with nothing.
        self.reused_tokens.load(Ordering::Relaxed)
    }

    /// The first prompt of a queue came.
    pub fn prefill_began(&self, now: NanosSinceStart) {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_since_ns.store(now.0, Ordering::Relaxed);
    }

    /// A prompt of which the rank had so many tokens to compute is done.
    pub fn prefill_ended(&self, tokens: u64, now: NanosSinceStart) {
        if tokens == 0 {
            return;
        }
        // ordering: hints for selection; pair with nothing. Each time between two ends is taken by
        // one of them.
        let since = self.prefill_since_ns.swap(now.0, Ordering::Relaxed);
        let (tokens, took_ns) = (float(tokens), float(now.since(NanosSinceStart(since))));
        let learn = |bits: u64| {
            let speed = f64::from_bits(bits);
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

    /// Of so many prompt tokens that no first token has come of, those that are still to be
    /// computed, as far as time and speed tell. In the time that all of them should take, what is
    /// left falls to a third: the speed is a mean, and what an engine does first is not known. From
    /// then on it rises: the rank is slower than it was, or stands still.
    #[must_use]
    pub fn prefill_left(&self, tokens: u64, now: NanosSinceStart) -> u64 {
        // ordering: hints for selection; pair with nothing.
        let speed = f64::from_bits(self.prefill_speed.load(Ordering::Relaxed));
        if tokens == 0 || speed == 0.0 {
            return tokens;
        }
        // ordering: as above.
        let since = self.prefill_since_ns.load(Ordering::Relaxed);
        let all = float(tokens);
        let done = speed * float(now.since(NanosSinceStart(since))) / all;
        // Without a time that has passed the second is infinite.
        let left = all * (-done.min(1.0 / done)).exp();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a word that is not negative; what is no number becomes 0"
        )]
        let left = left as u64;
        left.min(tokens)
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * SECOND)
    }

    /// A rank that computes 1,000 tokens a second, and began a queue at 100 s.
    fn rank() -> RankPast {
        let past = RankPast::default();
        past.prefill_began(at(90));
        past.prefill_ended(2_000, at(92));
        past.prefill_began(at(100));
        past
    }

    #[test]
    fn a_queue_gets_shorter_with_time_until_it_is_overdue() {
        let past = rank();
        let left = |second| past.prefill_left(4_000, at(second));
        let left = [100, 102, 104, 108, 116, 500].map(left);
        assert_eq!(left, [4_000, 2_426, 1_471, 2_426, 3_115, 3_960]);
        assert_eq!(past.prefill_left(4_000, at(99)), 4_000, "clocks of shards differ");
        assert_eq!(past.prefill_left(0, at(104)), 0);
        assert!(past.prefill_left(u64::MAX, at(104)) > u64::MAX / 2);
    }

    #[test]
    fn without_a_speed_the_whole_queue_counts() {
        let past = RankPast::default();
        past.prefill_began(at(1));
        assert_eq!(past.prefill_left(500, at(9)), 500);
        past.prefill_ended(0, at(9));
        past.prefill_ended(500, at(1));
        assert_eq!(past.prefill_left(500, at(9)), 500, "no time, no speed");
    }

    #[test]
    fn the_end_of_a_prompt_begins_the_rest_of_the_queue() {
        let past = rank();
        past.prefill_ended(2_000, at(102));
        assert_eq!(past.prefill_left(4_000, at(102)), 4_000);
        assert_eq!(past.prefill_left(4_000, at(104)), 2_426);
    }

    #[test]
    fn the_speed_follows_and_prompts_that_end_together_count_all() {
        let past = rank();
        for second in 1..=300 {
            past.prefill_ended(1_500, at(100 + second));
            past.prefill_ended(500, at(100 + second));
        }
        let left = past.prefill_left(4_000, at(401));
        assert!((2_420..2_430).contains(&left), "{left}: 2,000 tokens a second");
        // One wait of a minute: the speed is that of it.
        past.prefill_ended(60_000, at(460));
        assert_eq!(past.prefill_left(4_000, at(462)), 2_426);
    }
}
