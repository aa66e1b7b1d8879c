//! A waiting request as input of select: the size of its prompt and its overlaps, without the text.

use super::backlog::WaitingSum;
use forebay_base::limits::HOLDINGS_MAX;
use forebay_fleet::worker::Leg;
use forebay_index::{Overlap, Overlaps};
use forebay_mailbox::{Holding, Waiter};
use forebay_select::PromptSize;

#[must_use]
pub fn prompt_tokens(waiter: &Waiter) -> u64 {
    PromptSize::new(waiter.prompt.bytes, waiter.prompt.bytes_per_token).tokens()
}

/// KV tokens that the request will hold.
fn held_tokens(waiter: &Waiter) -> u64 {
    let output = if waiter.leg == Leg::Prefill { 1 } else { u64::from(waiter.facts.output_tokens) };
    prompt_tokens(waiter).saturating_add(output)
}

/// Prompt tokens to compute at the rank that holds most of the prompt.
#[must_use]
pub fn tokens_to_compute(waiter: &Waiter) -> u64 {
    let prompt = PromptSize::new(waiter.prompt.bytes, waiter.prompt.bytes_per_token);
    let held = waiter.prompt.holdings.first().map_or(0, |holding| u64::from(holding.bytes));
    prompt.tokens_of(prompt.bytes().saturating_sub(held))
}

/// The request's part of a sum of waiting requests.
pub(super) fn waiting(waiter: &Waiter) -> WaitingSum {
    let tokens = tokens_to_compute(waiter);
    WaitingSum { requests: 1, tokens, held_tokens: held_tokens(waiter) }
}

/// Replaces `overlaps` with the waiter's overlaps.
pub(super) fn lay_out(waiter: &Waiter, overlaps: &mut Overlaps) {
    overlaps.clear();
    for holding in &waiter.prompt.holdings {
        overlaps.record(holding.rank, Overlap { blocks: 0, bytes: holding.bytes });
    }
}

/// The ranks that hold most of a prompt.
pub(super) fn holdings(overlaps: &Overlaps) -> Vec<Holding> {
    let holding = |(rank, overlap): (_, Overlap)| Holding { rank, bytes: overlap.bytes };
    let mut all: Vec<Holding> = overlaps.iter_held().map(holding).collect();
    all.sort_unstable_by_key(|holding| (std::cmp::Reverse(holding.bytes), holding.rank));
    // A message between shards has to stay small, and the largest overlaps decide.
    all.truncate(HOLDINGS_MAX);
    debug_assert!(all.is_sorted_by(|a, b| a.bytes >= b.bytes), "the largest first");
    all
}

#[derive(Debug)]
pub(super) struct QueuedRequest(pub(super) Box<Waiter>);

impl QueuedRequest {
    #[cfg(test)]
    pub(super) fn new(waiter: Waiter) -> Self {
        Self(Box::new(waiter))
    }

    pub(super) fn weight(&self) -> u32 {
        self.0.facts.caller.weight
    }

    /// Tokens of prompt and expected output, charged to the tenant.
    pub(super) fn cost_tokens(&self) -> u64 {
        prompt_tokens(&self.0).saturating_add(u64::from(self.0.facts.output_tokens)).max(1)
    }
}
