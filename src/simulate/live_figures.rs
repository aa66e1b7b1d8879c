//! Figures of a run without an end.

use crate::summary::RequestOutcome;

/// Buckets of times to the first token, four for each power of two.
const BUCKETS: usize = 160;
const NS_PER_MS: f64 = 1e6;

/// Figures of a rule since its start.
#[derive(Clone, Copy, Debug)]
pub struct LiveFigures {
    /// Requests that were answered to the last token.
    pub answered: u64,
    /// Requests that the router refused.
    pub refused: u64,
    /// Requests with a first token.
    pub first_tokens: u64,
    /// Sum of their times to the first token.
    pub ttft_ns: u64,
    /// Prompt tokens found in a cache.
    pub cached_tokens: u64,
    /// Prompt tokens that ranks computed.
    pub computed_tokens: u64,
    buckets: [u64; BUCKETS],
}

impl Default for LiveFigures {
    fn default() -> Self {
        Self {
            answered: 0,
            refused: 0,
            first_tokens: 0,
            ttft_ns: 0,
            cached_tokens: 0,
            computed_tokens: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl LiveFigures {
    pub(crate) fn count(&mut self, outcomes: impl Iterator<Item = RequestOutcome>) {
        for outcome in outcomes {
            match outcome.ttft_ns {
                Some(ttft) => {
                    self.first_tokens += 1;
                    self.ttft_ns += ttft;
                    self.buckets[bucket(ttft)] += 1;
                    self.answered += u64::from(outcome.is_over);
                }
                None => self.refused += u64::from(outcome.is_over),
            }
        }
    }

    /// Figures since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut buckets = self.buckets;
        buckets.iter_mut().zip(before.buckets).for_each(|(now, then)| *now -= then);
        Self {
            answered: self.answered - before.answered,
            refused: self.refused - before.refused,
            first_tokens: self.first_tokens - before.first_tokens,
            ttft_ns: self.ttft_ns - before.ttft_ns,
            cached_tokens: self.cached_tokens - before.cached_tokens,
            computed_tokens: self.computed_tokens - before.computed_tokens,
            buckets,
        }
    }

    /// Share of the prompt tokens that were found in a cache; `None` without tokens.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.cached_tokens + self.computed_tokens;
        (all > 0).then(|| self.cached_tokens as f64 / all as f64)
    }

    /// Mean time to the first token; `None` without a first token.
    #[must_use]
    pub fn ttft_ms_mean(&self) -> Option<f64> {
        let count = self.first_tokens;
        (count > 0).then(|| self.ttft_ns as f64 / count as f64 / NS_PER_MS)
    }

    /// Time to the first token that `part` of the requests keep, to a fifth; `None` without a first
    /// token.
    #[must_use]
    pub fn ttft_ms(&self, part: f64) -> Option<f64> {
        let wanted = (part * self.first_tokens as f64) as u64;
        let mut seen = 0;
        let mut buckets = self.buckets.iter();
        let at = buckets.position(|count| {
            seen += count;
            seen > wanted
        });
        at.map(|at| ((at as f64 + 0.5) / 4.0).exp2() / NS_PER_MS)
    }
}

fn bucket(ns: u64) -> usize {
    (((ns.max(1) as f64).log2() * 4.0) as usize).min(BUCKETS - 1)
}
