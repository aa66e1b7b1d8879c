//! Prompt counts of a rank's cell of the load board: prompts sent, prompts computed, and the tokens
//! between the two. Any thread calls these functions; only leases and passes write.

use crate::PromptNumber;
use crate::RankLoad;
use crate::rank_load::{ONE_PLACE, PLACE_BIT, TOKENS_MASK};
use forebay_fleet::worker::RoomLimits;
use forebay_ring::sync::Ordering;

impl RankLoad {
    /// Is the rank below its limit of prompt tokens to compute? Excludes prompts without a visible
    /// first token, which would count until their answers end.
    #[must_use]
    pub fn takes_prefill(&self, limits: RoomLimits) -> bool {
        if limits.prefill_tokens_max == 0 {
            return true;
        }
        // ordering: a hint; pairs with nothing.
        let unseen = self.unseen.load(Ordering::Relaxed) & TOKENS_MASK;
        self.prefill_tokens().saturating_sub(unseen) < limits.prefill_tokens_max
    }

    /// Adds `tokens` of a prompt without a visible first token.
    pub fn add_unseen(&self, tokens: u64) {
        // ordering: a hint; pairs with nothing.
        self.unseen.fetch_add(tokens.min(TOKENS_MASK), Ordering::Relaxed);
    }

    /// Subtracts tokens of such prompts that are computed or given up.
    pub fn sub_unseen(&self, tokens: u64) {
        // ordering: a hint; pairs with nothing.
        let before = self.unseen.fetch_sub(tokens.min(TOKENS_MASK), Ordering::Relaxed);
        debug_assert!(before & TOKENS_MASK >= tokens, "unseen tokens taken off twice");
    }

    /// Are there prompts to compute without a visible first token?
    #[must_use]
    #[inline]
    pub fn has_unseen(&self) -> bool {
        // ordering: a hint; pairs with nothing.
        self.unseen.load(Ordering::Relaxed) & TOKENS_MASK > 0
    }

    /// Adds the uncached tokens of a prompt that the rank has yet to prefill. Returns its number.
    pub fn add_prefill(&self, tokens: u64) -> PromptNumber {
        // ordering: a hint for selection; pairs with nothing.
        self.prefill_tokens.fetch_add(tokens, Ordering::Relaxed);
        // ordering: a unique number for each prompt; pairs with nothing.
        PromptNumber::new(self.unseen.fetch_add(ONE_PLACE, Ordering::Relaxed) >> PLACE_BIT)
    }

    /// Subtracts tokens of a prompt: the first token arrived, or the request ended. Returns the
    /// rest.
    pub fn sub_prefill(&self, tokens: u64) -> u64 {
        self.sub_prefills(1, tokens)
    }

    /// Like [`sub_prefill`](Self::sub_prefill), for `count` prompts.
    pub fn sub_prefills(&self, count: u32, tokens: u64) -> u64 {
        // ordering: statistic; pairs with nothing.
        self.ended.fetch_add(u64::from(count) << PLACE_BIT, Ordering::Relaxed);
        // ordering: a hint for selection; pairs with nothing.
        let before = self.prefill_tokens.fetch_sub(tokens, Ordering::Relaxed);
        debug_assert!(before >= tokens, "prefill taken off twice");
        before.saturating_sub(tokens)
    }

    /// The number of the next prompt.
    #[must_use]
    pub fn prompts_sent(&self) -> PromptNumber {
        // ordering: statistic; pairs with nothing.
        PromptNumber::new(self.unseen.load(Ordering::Relaxed) >> PLACE_BIT)
    }

    /// Prompts that are computed as far as this router knows, or given up.
    #[must_use]
    pub fn prompts_done(&self) -> PromptNumber {
        // ordering: statistic; pairs with nothing.
        PromptNumber::new(self.ended.load(Ordering::Relaxed) >> PLACE_BIT)
    }
}
