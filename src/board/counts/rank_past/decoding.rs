//! Decode speed of a rank, by its answers.

use super::{RankPast, float};
use forebay_ring::sync::Ordering;
use std::time::Duration;

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

impl RankPast {
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

    fn decode_speed(&self) -> f32 {
        // ordering: a hint; pairs with nothing.
        f32::from_bits(self.decode_speed.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

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
}
