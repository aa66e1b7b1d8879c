//! Counts of compared predictions, by group of workers.

use forebay_base::WorkerIndex;

/// Groups of workers. A group has its own counts, so that an odd worker stands out.
/// Fleets of up to this many workers have a group for each.
pub const TRUST_GROUPS: usize = 8;

/// Group of a worker.
#[must_use]
pub const fn trust_group(worker: WorkerIndex) -> usize {
    worker.index() % TRUST_GROUPS
}

/// Counts of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustCount {
    /// Answers with a prediction or a cached prompt.
    Samples,
    /// Prompt tokens that events predicted as cached.
    PredictedTokens,
    /// Prompt tokens that the engines found in their caches.
    FoundTokens,
    /// Answers with more cached than events predicted, on a rank without other prompts.
    More,
    /// The same, where a guess by earlier prompts was above the events.
    GuessRight,
    /// The same ranks: a guess was above the events, and the report was not.
    GuessWrong,
    /// The same ranks: the events confirmed the guess.
    Confirmed,
    /// Answers with less cached than events predicted, on a rank without other prompts.
    Less,
    /// Claims of answers on such ranks, each of the same weight.
    Claimed,
    /// Served part of [`TrustCount::Claimed`].
    Served,
}

impl TrustCount {
    /// All counts, in the order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Samples,
        Self::PredictedTokens,
        Self::FoundTokens,
        Self::More,
        Self::GuessRight,
        Self::GuessWrong,
        Self::Confirmed,
        Self::Less,
        Self::Claimed,
        Self::Served,
    ];
}

/// Counts of a group, or of several groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrustTally([u64; TrustCount::ALL.len()]);

impl TrustTally {
    #[must_use]
    pub fn get(&self, count: TrustCount) -> u64 {
        self.0.get(count as usize).copied().unwrap_or(0)
    }

    /// Sets a count to a value.
    pub fn set(&mut self, count: TrustCount, value: u64) {
        if let Some(place) = self.0.get_mut(count as usize) {
            *place = value;
        }
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Self) {
        for (value, more) in self.0.iter_mut().zip(other.0) {
            *value = value.saturating_add(more);
        }
    }

    /// Growth since the earlier counts. Counters wrap.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut grown = *self;
        for (value, before) in grown.0.iter_mut().zip(before.0) {
            *value = value.wrapping_sub(before);
        }
        grown
    }

    /// Halves all counts: older samples weigh less.
    pub fn fade(&mut self) {
        for value in &mut self.0 {
            *value /= 2;
        }
    }
}
