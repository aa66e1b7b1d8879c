//! Requests that wait for each rank, by size: a request waits behind requests with fewer tokens to
//! compute.

use ahash::AHashMap;
use forebay_base::RankIndex;

/// Sizes are counted by powers of two; larger requests count with the last.
const SIZES: usize = 24;

/// A sum over waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingSum {
    pub(super) requests: u64,
    /// Prompt tokens to compute.
    pub(super) tokens: u64,
    /// KV tokens that the requests hold once they run.
    pub(super) held_tokens: u64,
}

/// Sums of waiting requests, by rank and size.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    ranks: AHashMap<RankIndex, Box<[WaitingSum; SIZES]>>,
}

impl WaitingSum {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.held_tokens = self.held_tokens.saturating_add(other.held_tokens);
    }

    fn sub(&mut self, other: Self) {
        debug_assert!(self.requests >= other.requests, "a request that left twice");
        self.requests = self.requests.saturating_sub(other.requests);
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.held_tokens = self.held_tokens.saturating_sub(other.held_tokens);
    }

    const fn half(self) -> Self {
        let Self { requests, tokens, held_tokens } = self;
        Self { requests: requests / 2, tokens: tokens / 2, held_tokens: held_tokens / 2 }
    }
}

fn size(tokens: u64) -> usize {
    let bits = u64::BITS - tokens.leading_zeros();
    usize::try_from(bits).unwrap_or(SIZES).min(SIZES - 1)
}

impl Backlog {
    /// Adds a request that waits for the rank.
    pub(super) fn add(&mut self, rank: RankIndex, one: WaitingSum) {
        let sizes =
            self.ranks.entry(rank).or_insert_with(|| Box::new([WaitingSum::default(); SIZES]));
        if let Some(sum) = sizes.get_mut(size(one.tokens)) {
            sum.add(one);
        }
    }

    /// Removes a request that no longer waits for the rank.
    pub(super) fn sub(&mut self, rank: RankIndex, one: WaitingSum) {
        let Some(sizes) = self.ranks.get_mut(&rank) else { return };
        if let Some(sum) = sizes.get_mut(size(one.tokens)) {
            sum.sub(one);
        }
        if sizes.iter().all(|sum| sum.requests == 0) {
            self.ranks.remove(&rank);
        }
    }

    /// Requests at the rank that are served before a request of size `own`: all smaller, and half
    /// of the same size. `waits_there`: the request itself is in the sums.
    pub(super) fn before(&self, rank: RankIndex, own: WaitingSum, waits_there: bool) -> WaitingSum {
        let mut before = WaitingSum::default();
        let Some(sizes) = self.ranks.get(&rank) else { return before };
        let size = size(own.tokens);
        sizes.iter().take(size).for_each(|sum| before.add(*sum));
        if let Some(mut same) = sizes.get(size).copied() {
            if waits_there {
                same.sub(own);
            }
            before.add(same.half());
        }
        before
    }

    #[cfg(test)]
    pub(super) fn all(&self, rank: RankIndex) -> WaitingSum {
        let mut all = WaitingSum::default();
        self.ranks
            .get(&rank)
            .into_iter()
            .flat_map(|sizes| sizes.iter())
            .for_each(|sum| all.add(*sum));
        all
    }
}
