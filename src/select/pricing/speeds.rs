//! Relative prefill speeds of the ranks of a choice. The same tokens take longer on a slower rank.

use forebay_board::RankPast;

/// Ranks count as equal while the fastest is at most so many times as fast as the slowest: the
/// waits of equal ranks vary as much.
const ALIKE_UP_TO: f32 = 1.5;
/// Otherwise a rank within this factor of the mean counts as the mean.
const EQUAL_UP_TO: f32 = 1.25;
/// Limit of the factor between a rank's speed and the mean.
const TIMES_MAX: i64 = 4;
/// Unit of speed ratios.
const ONE: i64 = 1_024;
/// More than a rank has in its queue.
const TOKENS_MAX: u64 = 1 << 40;

/// Mean speed of the ranks at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RankSpeeds {
    /// Prompt tokens per nanosecond; 0: all ranks are about equal.
    mean: f32,
}

/// Least and greatest speed of the added ranks. Speeds are stored as bits: for positive numbers the
/// bits have the same order, and integers compare faster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpeedRange {
    /// Minus 1, so that an unknown speed (0) is not the least.
    least: u32,
    most: u32,
}

impl Default for SpeedRange {
    fn default() -> Self {
        Self { least: u32::MAX, most: 0 }
    }
}

impl SpeedRange {
    #[inline]
    pub(crate) fn add(&mut self, past: &RankPast) {
        let bits = past.known_speed().to_bits();
        self.least = self.least.min(bits.wrapping_sub(1));
        self.most = self.most.max(bits);
    }

    /// Speeds among all ranks that serve the model, including ranks that were not added.
    #[inline]
    pub(crate) fn speeds<'a>(self, pasts: impl Iterator<Item = &'a RankPast>) -> RankSpeeds {
        let least = f32::from_bits(self.least.wrapping_add(1));
        let most = f32::from_bits(self.most);
        if most > least * ALIKE_UP_TO { RankSpeeds::unequal(pasts) } else { RankSpeeds::EQUAL }
    }
}

impl RankSpeeds {
    pub(crate) const EQUAL: Self = Self { mean: 0.0 };

    #[cold]
    fn unequal<'a>(pasts: impl Iterator<Item = &'a RankPast>) -> Self {
        let known = pasts.map(RankPast::known_speed).filter(|speed| *speed > 0.0);
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), speed| (sum + speed, count + 1.0));
        let mean: f32 = sum / count;
        Self { mean: if mean.is_finite() { mean } else { 0.0 } }
    }

    /// Do the speeds of the ranks differ?
    #[inline]
    pub(crate) fn differ(self) -> bool {
        self.mean > 0.0
    }

    /// Additional time for the tokens on that rank compared with the mean rank, in tokens; negative
    /// on a faster rank.
    pub(crate) fn longer(self, tokens: u64, past: &RankPast) -> i64 {
        let speed = past.known_speed();
        if !self.differ() || speed == 0.0 {
            return 0;
        }
        let times = self.mean / speed;
        if (1.0 / EQUAL_UP_TO..=EQUAL_UP_TO).contains(&times) {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "an estimate; too large is the largest"
        )]
        let times = ((times * ONE as f32) as i64).clamp(ONE / TIMES_MAX, ONE * TIMES_MAX);
        tokens.min(TOKENS_MAX).cast_signed() * (times - ONE) / ONE
    }

    /// Least time for the tokens on any rank, in tokens of the mean rank.
    pub(crate) fn least(self, tokens: u64) -> u64 {
        if self.differ() { tokens.min(TOKENS_MAX) / TIMES_MAX.cast_unsigned() } else { tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// A rank that computes `tokens` per second.
    fn rank(tokens: u64) -> RankPast {
        let past = RankPast::default();
        (0..32).for_each(|_| past.waited(tokens * 10_000, SECOND * 10_000));
        past
    }

    fn speeds(ranks: &[RankPast]) -> RankSpeeds {
        let mut range = SpeedRange::default();
        ranks.iter().for_each(|rank| range.add(rank));
        range.speeds(ranks.iter())
    }

    fn longer(tokens_per_s: &[u64]) -> Vec<i64> {
        let ranks: Vec<RankPast> = tokens_per_s.iter().map(|tokens| rank(*tokens)).collect();
        let speeds = speeds(&ranks);
        ranks.iter().map(|rank| speeds.longer(1_000, rank)).collect()
    }

    #[test]
    fn a_token_counts_more_on_a_slow_rank() {
        assert_eq!(longer(&[3_000, 1_000]), [-333, 1_000], "a mean of 2,000");
        assert_eq!(longer(&[2_000; 8]), [0; 8]);
        assert_eq!(longer(&[1_700, 2_500]), [0, 0], "waits of equal ranks differ as much");
        assert_eq!(longer(&[2_000, 2_100, 1_900, 8_000]), [750, 666, 841, -562]);
        assert_eq!(longer(&[20_000, 1]), [-500, 3_000], "no more than four times");
    }

    /// A queue in front of a rank, with steps of a fixed time and a time for each token.
    #[derive(Default)]
    struct QueuedRank {
        past: RankPast,
        free_at_us: u64,
        computed_tokens: u64,
        token_us: u64,
    }

    impl QueuedRank {
        fn queued_us(&self, now_us: u64) -> u64 {
            self.free_at_us.saturating_sub(now_us)
        }

        fn compute(&mut self, tokens: u64, now_us: u64, step_us: u64) {
            self.free_at_us = self.free_at_us.max(now_us) + tokens * self.token_us;
            self.computed_tokens += tokens;
            self.past.waited(tokens, (self.queued_us(now_us) + step_us) * 1_000);
        }
    }

    /// Prompt tokens per rank of 4,000 prompts, each sent to the rank with the least cost.
    fn share_out(token_us: [u64; 8], prompts: &[u64], step_us: u64) -> Vec<QueuedRank> {
        let rank = |token_us| QueuedRank { token_us, ..QueuedRank::default() };
        let mut ranks: Vec<QueuedRank> = token_us.into_iter().map(rank).collect();
        // Ranks are busy for two thirds of the time.
        let mean_tokens = prompts.iter().sum::<u64>() / prompts.len() as u64;
        let gap_us = mean_tokens * token_us.iter().sum::<u64>() / 64 * 3 / 2;
        for (at, &tokens) in prompts.iter().cycle().take(4_000).enumerate() {
            let now_us = at as u64 * gap_us;
            let mut range = SpeedRange::default();
            ranks.iter().for_each(|rank| range.add(&rank.past));
            let speeds = range.speeds(ranks.iter().map(|rank| &rank.past));
            let cost = |rank: &&mut QueuedRank| {
                let all = tokens + rank.queued_us(now_us) / rank.token_us;
                (all.saturating_add_signed(speeds.longer(all, &rank.past)), rank.computed_tokens)
            };
            let best = ranks.iter_mut().min_by_key(cost).unwrap();
            best.compute(tokens, now_us, step_us);
        }
        ranks
    }

    fn shares(ranks: &[QueuedRank]) -> Vec<u64> {
        let all: u64 = ranks.iter().map(|rank| rank.computed_tokens).sum();
        ranks.iter().map(|rank| rank.computed_tokens * 800 / all).collect()
    }

    /// Log-uniform sizes: as many between 10 and 20 tokens as between 5,000 and 10,000.
    fn prompts(octaves: std::ops::Range<u32>) -> impl Strategy<Value = Vec<u64>> {
        let shortest_and_octaves = (10_u64..200, octaves);
        shortest_and_octaves.prop_flat_map(|(shortest, octaves)| {
            let tokens = (0..octaves, 1_000_u64..2_000);
            let tokens = tokens.prop_map(move |(octave, part)| (shortest << octave) * part / 1_000);
            proptest::collection::vec(tokens, 500)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A step takes a while however short the prompt is. A rank with short prompts looked slow,
        /// got only shorter prompts, and looked slower.
        #[test]
        fn equal_ranks_do_not_drift_apart(prompts in prompts(1..10), step_us in 0_u64..100_000) {
            let shares = shares(&share_out([50; 8], &prompts, step_us));
            prop_assert!(shares.iter().all(|share| (67..150).contains(share)), "{shares:?}");
        }

        #[test]
        fn unequal_ranks_are_known(prompts in prompts(9..11), step_us in 0_u64..30_000) {
            let ranks = share_out([50, 150, 50, 150, 50, 150, 50, 150], &prompts, step_us);
            let shares = shares(&ranks);
            let of_kind = |kind: usize| shares.iter().skip(kind).step_by(2).sum::<u64>();
            prop_assert!(of_kind(0) > 2 * of_kind(1), "{shares:?}");
        }
    }

    #[test]
    fn a_rank_of_unknown_speed_is_like_the_mean() {
        let ranks = [rank(3_000), rank(1_000), RankPast::default()];
        let speeds = speeds(&ranks);
        let longer = [0, 1, 2].map(|at: usize| speeds.longer(1_000, &ranks[at]));
        assert_eq!(longer, [-333, 1_000, 0]);
        assert_eq!(self::speeds(&ranks[2..]), RankSpeeds::EQUAL);
    }

    #[test]
    fn no_number_is_too_large_and_none_is_below_the_least() {
        let ranks = [rank(1 << 40), rank(1)];
        let speeds = speeds(&ranks);
        assert!(speeds.differ());
        for tokens in [0, 1, 1_000, u64::MAX] {
            for past in &ranks {
                let longer = speeds.longer(tokens, past);
                let all = tokens.saturating_add_signed(longer);
                assert!(all >= speeds.least(tokens), "{tokens} {all}");
            }
        }
    }
}
