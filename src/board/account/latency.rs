//! Time per stage, an HDR histogram each. A shard records into its own set, about 10 ns a value,
//! and hands the whole set to the control plane once per second.

use hdrhistogram::Histogram;

/// Timed stages of a request. The name is the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scan of the body.
    Parse,
    /// Rendering of the prompt text.
    Render,
    /// Walk of the index.
    Index,
    /// Choice of the rank and its lease.
    Select,
    /// Time in a queue, for requests that waited.
    Queue,
    /// From the request read completely to its bytes handed to the worker's connection: the
    /// router's own time.
    Dispatch,
    /// A prefill leg's way over the mesh: from the shard that has the request to the shard that
    /// sends the leg.
    PrefillHop,
    /// From the prefill leg's departure to the decode leg's, for legs that leave together.
    DecodeLag,
    /// From dispatch to the first byte of the answer.
    FirstByte,
    /// From the first byte of the request's head to the last byte of the answer.
    Total,
}

impl Stage {
    /// All stages, in the order of their index.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Parse, "parse"),
        (Self::Render, "render"),
        (Self::Index, "index"),
        (Self::Select, "select"),
        (Self::Queue, "queue"),
        (Self::Dispatch, "dispatch"),
        (Self::PrefillHop, "prefill_hop"),
        (Self::DecodeLag, "decode_lag"),
        (Self::FirstByte, "first_byte"),
        (Self::Total, "total"),
    ];
}

/// A histogram of nanoseconds per stage. Values above 1 hour count as 1 hour; the error is below 1
/// %.
#[derive(Clone, Debug)]
pub struct StageHistograms {
    stages: Vec<Histogram<u64>>,
}

/// Longest time that is recorded exactly.
const NANOS_MAX: u64 = 3_600_000_000_000;

impl StageHistograms {
    #[must_use]
    pub fn new() -> Self {
        let stages = Stage::ALL
            .iter()
            .filter_map(|_| Histogram::new_with_bounds(1, NANOS_MAX, 2).ok())
            .collect();
        Self { stages }
    }

    pub fn record(&mut self, stage: Stage, nanos: u64) {
        if let Some(histogram) = self.stages.get_mut(stage as usize) {
            histogram.saturating_record(nanos);
        }
    }

    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&Histogram<u64>> {
        self.stages.get(stage as usize)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stages.iter().all(Histogram::is_empty)
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            // Both sides have the same bounds, so the addition cannot fail.
            if mine.add(theirs).is_err() {
                forebay_base::count_broken_invariant();
            }
        }
    }
}

impl Default for StageHistograms {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_sets_hold_both() {
        let mut left = StageHistograms::new();
        let mut right = StageHistograms::new();
        assert_eq!(left.stages.len(), Stage::ALL.len());
        left.record(Stage::Parse, 1_000);
        right.record(Stage::Parse, u64::MAX);
        left.merge(&right);
        let parse = left.stage(Stage::Parse).unwrap();
        assert_eq!(parse.len(), 2);
        assert!(parse.max() >= NANOS_MAX);
        assert!(!left.is_empty());
    }
}
