//! Comparison of a prediction with the report of the engine, for a single answer.

use super::tally::{TrustCount, TrustTally};

/// Tokens by which prediction and report may differ: the text of two prompts may part inside a
/// token. Blocks of more tokens allow a block.
const SLACK_TOKENS: u64 = 16;
/// Longest prompt that an engine computes. A report above is cut, so that sums stay numbers.
const TOKENS_MAX: u64 = 1 << 24;

/// Weight of the claim of an answer: the same for long and short prompts, so that a caller with few
/// long prompts decides nothing for all.
const CLAIM: u64 = 1_024;

/// Tokens of a prompt in the cache of its rank: as predicted by events, as guessed by earlier
/// prompts, and as found by the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrustSample {
    /// On the device, by events.
    pub predicted_tokens: u64,
    /// In any tier, by events; at least `predicted_tokens`.
    pub predicted_tokens_max: u64,
    /// By the prompts that went to the rank; 0: unknown.
    pub guessed_tokens: u64,
    pub found_tokens: u64,
    pub block_size_tokens: u64,
    /// The rank computed no other prompt of this router at the choice: no prompt ahead of this
    /// prompt could add to the cache or evict from the cache unseen.
    pub is_quiet: bool,
    /// The events predict an upper bound: less is no fault.
    pub is_bound: bool,
}

impl TrustSample {
    /// Counts of this sample alone.
    #[must_use]
    pub fn tally(&self) -> TrustTally {
        let mut tally = TrustTally::default();
        let slack = self.block_size_tokens.max(SLACK_TOKENS);
        let least = self.predicted_tokens.min(TOKENS_MAX);
        let most = self.predicted_tokens_max.clamp(least, TOKENS_MAX);
        let guessed = self.guessed_tokens.min(TOKENS_MAX);
        let found = self.found_tokens.min(TOKENS_MAX);
        if least.max(found) == 0 {
            return tally;
        }
        let is_more = found > most.saturating_add(slack);
        let is_less = found.saturating_add(slack) < least && !self.is_bound;
        let is_guess_above = guessed > most.saturating_add(slack);
        // Guesses end at chunks and may be a chunk too long.
        let is_as_guessed = found > most.saturating_add(guessed.saturating_sub(most) / 4);
        tally.set(TrustCount::Samples, 1);
        tally.set(TrustCount::PredictedTokens, least);
        tally.set(TrustCount::FoundTokens, found);
        if !self.is_quiet {
            return tally;
        }
        let mut mark = |count, is_true| tally.set(count, u64::from(is_true));
        mark(TrustCount::Confirmed, guessed > 0 && !is_guess_above && !is_more);
        mark(TrustCount::GuessWrong, is_guess_above && !is_as_guessed);
        mark(TrustCount::More, is_more);
        mark(TrustCount::GuessRight, is_guess_above && is_more && is_as_guessed);
        if !self.is_bound {
            mark(TrustCount::Less, is_less);
            tally.set(TrustCount::Claimed, CLAIM);
            // A difference within the slack is none.
            let served = if is_less { found.saturating_mul(CLAIM) / least.max(1) } else { CLAIM };
            tally.set(TrustCount::Served, served);
        }
        tally
    }
}
