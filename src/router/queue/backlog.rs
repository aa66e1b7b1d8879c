//! What waits for each rank, by the size of the requests: a request waits behind those that have
//! fewer tokens to compute.

use ahash::AHashMap;
use forebay_base::RankIndex;

/// Sizes are counted by powers of two; larger requests count with the last.
const SIZES: usize = 24;

/// Requests that wait, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingSum {
    pub(super) requests: u64,
    /// Prompt tokens to compute.
    pub(super) tokens: u64,
    /// KV tokens that they hold once they run.
    pub(super) held_tokens: u64,
}

/// What waits for each of the ranks.
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
    /// A request waits for the rank.
    pub(super) fn add(&mut self, rank: RankIndex, one: WaitingSum) {
        let sizes =
            self.ranks.entry(rank).or_insert_with(|| Box::new([WaitingSum::default(); SIZES]));
        if let Some(sum) = sizes.get_mut(size(one.tokens)) {
            sum.add(one);
        }
    }

    /// It waits no longer.
    pub(super) fn sub(&mut self, rank: RankIndex, one: WaitingSum) {
        let Some(sizes) = self.ranks.get_mut(&rank) else { return };
        if let Some(sum) = sizes.get_mut(size(one.tokens)) {
            sum.sub(one);
        }
        if sizes.iter().all(|sum| sum.requests == 0) {
            self.ranks.remove(&rank);
        }
    }

    /// What waits for the rank and is served before a request, which may wait there itself. Of
    /// requests of about the same size half are.
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

    /// All that waits for the rank.
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
