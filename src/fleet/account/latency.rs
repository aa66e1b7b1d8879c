//! Time per stage, one HDR histogram each. A shard records into its own set, about 10 ns a value,
//! and hands the whole set to the control plane once per second.

use hdrhistogram::Histogram;

/// What is timed. The name is the metrics label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scan of the body.
    Parse,
    /// Prompt to text.
    Render,
    /// Walk of the index.
    Index,
    /// Choice of the rank and its lease.
    Select,
    /// In a queue, for those that waited.
    Queue,
    /// From the request read completely to its bytes handed to the worker's connection: the
    /// router's own time.
    Dispatch,
    /// A prefill leg's way over the mesh: from where its request is to where it is sent from.
    PrefillHop,
    /// From the prefill leg's departure to the decode leg's, for legs that leave together.
    DecodeLag,
    /// From dispatch to the first byte of the answer.
    FirstByte,
    /// From the first byte of the request's head to the last byte of the answer.
    Total,
}

impl Stage {
    /// All, in order of their index.
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

/// One histogram of nanoseconds per stage; values above one hour count as one hour, error below 1
/// %.
#[derive(Clone, Debug)]
pub struct StageHistograms {
    stages: Vec<Histogram<u64>>,
}

/// Longest time that keeps its value.
const NANOS_MAX: u64 = 3_600_000_000_000;

impl StageHistograms {
    /// All empty.
    #[must_use]
    pub fn new() -> Self {
        let stages = Stage::ALL
            .iter()
            .filter_map(|_| Histogram::new_with_bounds(1, NANOS_MAX, 2).ok())
            .collect();
        Self { stages }
    }

    /// Records one duration.
    pub fn record(&mut self, stage: Stage, nanos: u64) {
        if let Some(histogram) = self.stages.get_mut(stage as usize) {
            histogram.saturating_record(nanos);
        }
    }

    /// The histogram of one stage.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&Histogram<u64>> {
        self.stages.get(stage as usize)
    }

    /// True if nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stages.iter().all(Histogram::is_empty)
    }

    /// Adds another set to this one.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            // Same bounds on both sides, so the addition cannot be refused.
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
