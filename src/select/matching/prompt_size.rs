//! Size of a prompt in bytes and in estimated tokens.

use forebay_fleet::worker::Rank;
use forebay_index::Overlap;

/// Size of a prompt. Computed once, read for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptSize {
    bytes: u64,
    bytes_per_token: f32,
    /// The ratio in hundredths: with integers, the estimate for each rank is a single division.
    hundredths: u64,
    tokens: u64,
}

impl PromptSize {
    /// Clamps an impossible ratio to the nearest possible ratio.
    #[must_use]
    pub fn new(bytes: u64, bytes_per_token: f32) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 1..=10 first; a NaN becomes 0 and then 100"
        )]
        let hundredths = ((bytes_per_token.clamp(1.0, 10.0) * 100.0) as u64).max(100);
        let size = Self { bytes, bytes_per_token, hundredths, tokens: 0 };
        let tokens = size.tokens_of(bytes);
        Self { tokens, ..size }
    }

    /// Bytes of the whole prompt, in the units of the match.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Estimated tokens of the whole prompt.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    #[must_use]
    pub const fn bytes_per_token(&self) -> f32 {
        self.bytes_per_token
    }

    /// Estimated tokens of `bytes` of the prompt, rounded up.
    #[must_use]
    pub fn tokens_of(&self, bytes: u64) -> u64 {
        let tokens = bytes.saturating_mul(100).div_ceil(self.hundredths);
        debug_assert!(tokens <= bytes, "a token has a byte at least");
        tokens
    }

    /// Tokens that a rank serves from its cache: `servable` of the blocks of the overlap. With
    /// blocks of more than two sizes, the number of tokens that so many blocks can have which is
    /// nearest to the estimate from the bytes. That number is never above the estimate of the whole
    /// prompt, and above the truth by a block of the largest size at most, whatever the ratio.
    #[must_use]
    pub fn cached_tokens(&self, overlap: Overlap, servable: u32, rank: &Rank) -> u32 {
        let tokens = match (rank.tiers.finer_tokens, rank.tiers.odd) {
            (0, _) => servable.saturating_mul(rank.block_size_tokens),
            (unit, Some(_)) => servable.saturating_mul(unit),
            (_, None) => self.tokens_of_mixed(overlap, servable, rank),
        };
        tokens - tokens.checked_rem(rank.tiers.aligned_tokens).unwrap_or(0)
    }

    fn tokens_of_mixed(&self, overlap: Overlap, servable: u32, rank: &Rank) -> u32 {
        let finer = u64::from(rank.tiers.finer_tokens.max(1));
        let step = match u64::from(rank.block_size_tokens).abs_diff(finer) {
            // The larger size is not known any more: each block adds whole finer blocks.
            0 => finer,
            step => step,
        };
        let blocks = u64::from(overlap.blocks);
        let least = blocks.saturating_mul(finer);
        let most = self.tokens.min(least.saturating_add(blocks.saturating_mul(step)));
        let estimate = self.tokens_of(overlap.bytes.into()).clamp(least.min(most), most);
        let above = estimate.saturating_sub(least);
        let steps = (above + step / 2) / step;
        let nearest = least.saturating_add(steps.saturating_mul(step));
        let fitting = if nearest > most { nearest.saturating_sub(step) } else { nearest };
        // Blocks have `least` tokens for certain, and a wrong ratio must not add more than a block.
        let largest = finer.max(rank.block_size_tokens.into());
        let safe = fitting.min(self.tokens).min(least.saturating_add(largest));
        let computed_again = u64::from(overlap.blocks.saturating_sub(servable)) * finer;
        let tokens = safe.saturating_sub(computed_again);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::RankIndex;
    use forebay_fleet::worker::TierRanks;
    use forebay_fleet::worker::test_support::rank;
    use forebay_index::OddBlocks;
    use proptest::prelude::*;

    /// vllm#49125: overlaps of a rank with blocks of two sizes count units, and groups of several
    /// sizes resume only together.
    #[test]
    fn units_are_tokens_and_groups_resume_together() {
        let odd = OddBlocks { number: RankIndex(9), units: 1, usual_units: 4 };
        let tiers = TierRanks { finer_tokens: 16, odd: Some(odd), ..TierRanks::default() };
        let tokens = |tiers, blocks: u32| {
            let rank = Rank { block_size_tokens: 64, tiers, ..rank(0) };
            let overlap = Overlap { blocks, bytes: blocks };
            PromptSize::new(900, 4.0).cached_tokens(overlap, blocks, &rank)
        };
        assert_eq!(tokens(tiers, 6), 96);
        assert_eq!(tokens(TierRanks { aligned_tokens: 64, ..tiers }, 6), 64);
        assert_eq!(tokens(TierRanks { aligned_tokens: 48, ..TierRanks::default() }, 2), 96);
        assert!(!tiers.is_upper_bound() && TierRanks { odd: None, ..tiers }.is_upper_bound());
    }

    /// Blocks of 64, 16 and 16 tokens, in a prompt of 101 tokens and 372 bytes.
    #[test]
    fn blocks_of_several_sizes_are_counted_by_their_own() {
        let tiers = TierRanks { finer_tokens: 16, ..TierRanks::default() };
        let tokens = |bytes: u64, overlap: (u32, u32), servable, size, ratio| {
            let rank = Rank { block_size_tokens: size, tiers, ..rank(0) };
            let overlap = Overlap { blocks: overlap.0, bytes: overlap.1 };
            PromptSize::new(bytes, ratio).cached_tokens(overlap, servable, &rank)
        };
        for ratio in [3.3, 3.68] {
            assert_eq!(tokens(372, (3, 354), 3, 64, ratio), 96, "{ratio}");
            assert_eq!(tokens(372, (1, 236), 1, 64, ratio), 64, "{ratio}");
            assert_eq!(tokens(372, (2, 118), 2, 64, ratio), 32, "{ratio}");
        }
        assert_eq!(tokens(372, (3, 354), 3, 64, 4.0), 48, "a prompt of 93 tokens by this ratio");
        // The size that the rank reported last may be the smaller.
        assert_eq!(tokens(372, (2, 118), 2, 16, 3.68), 32);
        // The last block is computed again.
        assert_eq!(tokens(354, (3, 354), 2, 64, 3.68), 80);
        // Never more than the prompt, whatever the ratio.
        for (blocks, bytes) in [(1, 372), (3, 372), (9, 372), (0, 0)] {
            for ratio in [1.0, 3.7, 10.0, f32::NAN] {
                let most = PromptSize::new(372, ratio).tokens();
                assert!(u64::from(tokens(372, (blocks, bytes), blocks, 64, ratio)) <= most);
            }
        }
    }

    proptest! {
        /// Blocks of three sizes, of which the rank reports the smallest and any other: never more
        /// than the prompt, and a block of the largest size above the truth at most.
        #[test]
        fn three_sizes_are_never_claimed_by_more_than_a_block(
            sizes in prop::array::uniform3(1_u32..=256),
            picks in prop::collection::vec(0_usize..3, 0..60),
            again in 0_usize..60,
            bytes_of_token in 1_u32..=12,
            reported in 0_usize..3,
            ratio in 0.5_f32..12.0,
            tail in 0_u64..500,
        ) {
            let smallest = sizes.into_iter().min().unwrap_or(1);
            let largest = sizes.into_iter().max().unwrap_or(1);
            let tokens_of = |picks: &[usize]| picks.iter().map(|pick| sizes[*pick]).sum::<u32>();
            let held = tokens_of(&picks);
            let served = picks.get(..picks.len().saturating_sub(again)).unwrap_or_default();
            let tiers = TierRanks { finer_tokens: smallest, ..TierRanks::default() };
            let rank = Rank { block_size_tokens: sizes[reported], tiers, ..rank(0) };
            let overlap = Overlap {
                blocks: u32::try_from(picks.len()).unwrap_or(u32::MAX),
                bytes: held * bytes_of_token,
            };
            let size = PromptSize::new(u64::from(overlap.bytes) + tail, ratio);
            let servable = u32::try_from(served.len()).unwrap_or(u32::MAX);
            let claimed = size.cached_tokens(overlap, servable, &rank);
            prop_assert!(u64::from(claimed) <= size.tokens(), "{claimed} of {}", size.tokens());
            prop_assert!(claimed <= tokens_of(served) + largest, "{claimed}: {served:?}");
        }
    }

    #[test]
    fn tokens_are_rounded_up_and_survive_nonsense() {
        let tokens = |bytes, ratio| PromptSize::new(bytes, ratio).tokens();
        assert_eq!((tokens(9, 4.0), tokens(0, 4.0), tokens(10, f32::NAN)), (3, 0, 10));
        assert_eq!((tokens(10, 0.0), tokens(100, 1e9), tokens(10, -1.0)), (10, 10, 10));
        assert_eq!(PromptSize::new(90, 4.0).tokens_of(9), 3);
    }
}
