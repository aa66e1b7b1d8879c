//! Sequence of the batches of a publisher: detects gaps, repeated batches and restarts. Pure state.
//!
//! A restarted engine may reach the same number, so the sequence has a digest of the last batch's
//! payload, which contains the time of publication. While repeats are expected, during and after a
//! replay, the digests of replayed batches stay too.
//!
//! Behind a forwarder, the first batch to arrive of a restarted engine may have exactly the next
//! number. Its digest says nothing, so a replay begins at a batch from before: at the last batch
//! that a replay has confirmed, or at the oldest digest.

use std::collections::VecDeque;
use twox_hash::XxHash3_64;

/// Most digests: batches that a publisher may queue for a reader that replays (its default limit is
/// 100,000).
const DIGESTS_MAX: usize = 131_072;

/// Digests that stay once the stream has been silent for a while, so that an idle rank costs little
/// memory.
const DIGESTS_AT_REST: usize = 1_024;

/// Digests that always stay: a replay begins at the oldest at most.
const DIGESTS_LIVE: usize = 64;

/// Identity of a batch: its number and a digest of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    pub(crate) digest: u64,
}

impl Mark {
    pub(crate) fn new(number: u64, payload: &[u8]) -> Self {
        Self { number, digest: XxHash3_64::oneshot(payload) }
    }
}

/// The batches applied so far.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    last: Option<u64>,
    /// Digest of the last batch, at the back, and of batches right before it.
    digests: VecDeque<u64>,
    repeats_expected: bool,
    /// Last batch when a replay was complete: the engine had it too.
    confirmed: Option<u64>,
}

/// Relation of a batch to the batches applied before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchArrival {
    /// The first batch of the stream.
    First {
        /// Batches published before the first.
        missed: u64,
    },
    /// The batch follows the last batch.
    Next,
    /// The batch was applied already.
    Repeated,
    /// Batches before this batch were lost.
    Gap { missed: u64 },
    /// The publisher restarted: another process, with an empty cache.
    Restarted,
}

impl Sequence {
    /// A sequence that continues after a batch from before a restart of this router.
    pub(crate) fn after(mark: Mark) -> Self {
        let Mark { number, digest } = mark;
        Self {
            last: Some(number),
            digests: [digest].into(),
            repeats_expected: false,
            confirmed: None,
        }
    }

    /// The last batch applied.
    pub(crate) fn last_mark(&self) -> Option<Mark> {
        Some(Mark { number: self.last?, digest: *self.digests.back()? })
    }

    /// Number of the last batch.
    pub(crate) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Number of the batch at which a replay begins. The answer shows whether the publisher is still
    /// the process that published this batch.
    pub(crate) fn replay_from(&self) -> Option<u64> {
        let last = self.last?;
        let back = self.digests.len().clamp(1, DIGESTS_LIVE) - 1;
        let oldest = last.saturating_sub(u64::try_from(back).unwrap_or(0));
        Some(self.confirmed.map_or(oldest, |confirmed| confirmed.clamp(oldest, last)))
    }

    /// A replay was complete: the engine has the last batch.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = self.last;
    }

    /// Compares a batch with the sequence; changes nothing.
    pub(crate) fn judge(&self, mark: Mark) -> BatchArrival {
        let Some(last) = self.last else { return BatchArrival::First { missed: mark.number } };
        match mark.number.checked_sub(last) {
            None | Some(0) => {
                let back = usize::try_from(last - mark.number).unwrap_or(usize::MAX);
                let at = self.digests.len().checked_sub(back.saturating_add(1));
                let digest = at.and_then(|at| self.digests.get(at));
                // Without a replay, an older batch comes from another process.
                let is_same = digest == Some(&mark.digest) && (back == 0 || self.repeats_expected);
                if is_same { BatchArrival::Repeated } else { BatchArrival::Restarted }
            }
            Some(1) => BatchArrival::Next,
            Some(ahead) => BatchArrival::Gap { missed: ahead - 1 },
        }
    }

    /// Adds a batch to the sequence, whatever its arrival.
    pub(crate) fn take(&mut self, mark: Mark) -> BatchArrival {
        let arrival = self.judge(mark);
        match arrival {
            BatchArrival::Repeated => return arrival,
            BatchArrival::Next => {}
            BatchArrival::First { .. } | BatchArrival::Gap { .. } | BatchArrival::Restarted => {
                self.digests.clear();
                self.confirmed = None;
            }
        }
        self.last = Some(mark.number);
        let digests_max = if self.repeats_expected { DIGESTS_MAX } else { DIGESTS_LIVE };
        while self.digests.len() >= digests_max {
            self.digests.pop_front();
        }
        self.digests.push_back(mark.digest);
        arrival
    }

    /// Remembers batches from now on, because the live stream may repeat batches of a replay.
    pub(crate) fn expect_repeats(&mut self) {
        self.repeats_expected = true;
    }

    /// Drops old digests of a silent stream, which will not repeat old batches any more.
    pub(crate) fn rest(&mut self) {
        if self.digests.len() > DIGESTS_AT_REST {
            self.digests.drain(..self.digests.len() - DIGESTS_AT_REST);
            self.digests.shrink_to_fit();
        }
    }

    /// Drops most digests, because the live stream is past the replay.
    pub(crate) fn no_more_repeats(&mut self) {
        if std::mem::take(&mut self.repeats_expected) {
            self.digests.drain(..self.digests.len().saturating_sub(DIGESTS_LIVE));
            self.digests.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64) -> Mark {
        Mark::new(number, &number.to_be_bytes())
    }

    fn other(number: u64) -> Mark {
        Mark::new(number, b"of another process")
    }

    #[test]
    fn tells_gaps_from_restarts() {
        let mut sequence = Sequence::default();
        let steps: Vec<BatchArrival> =
            [5, 6, 9, 10, 0, 1, u64::MAX].map(|number| sequence.take(mark(number))).into();
        assert_eq!(
            steps,
            [
                BatchArrival::First { missed: 5 },
                BatchArrival::Next,
                BatchArrival::Gap { missed: 2 },
                BatchArrival::Next,
                BatchArrival::Restarted,
                BatchArrival::Next,
                BatchArrival::Gap { missed: u64::MAX - 2 },
            ]
        );
    }

    #[test]
    fn the_same_batch_twice_is_no_restart() {
        let mut sequence = Sequence::default();
        sequence.take(mark(7));
        assert_eq!(sequence.take(mark(7)), BatchArrival::Repeated);
        assert_eq!(sequence.judge(other(7)), BatchArrival::Restarted, "same number, other bytes");
        sequence.take(mark(8));
        assert_eq!(sequence.judge(mark(7)), BatchArrival::Restarted, "not remembered");
    }

    #[test]
    fn another_life_goes_on_after_the_same_batch() {
        let mut before = Sequence::default();
        assert_eq!(before.last_mark(), None);
        before.take(mark(7));
        let sequence = Sequence::after(before.last_mark().unwrap());
        assert_eq!((sequence.last(), sequence.last_mark()), (Some(7), Some(mark(7))));
        assert_eq!(sequence.judge(mark(7)), BatchArrival::Repeated);
        assert_eq!(sequence.judge(other(7)), BatchArrival::Restarted);
        assert_eq!(sequence.judge(mark(8)), BatchArrival::Next);
    }

    #[test]
    fn what_a_replay_brought_is_known_until_the_stream_is_past_it() {
        let mut sequence = Sequence::default();
        sequence.expect_repeats();
        for number in 0..10 {
            sequence.take(mark(number));
        }
        assert_eq!(sequence.judge(mark(0)), BatchArrival::Repeated);
        assert_eq!(sequence.judge(mark(9)), BatchArrival::Repeated);
        assert_eq!(sequence.judge(other(0)), BatchArrival::Restarted);
        assert_eq!(sequence.take(mark(10)), BatchArrival::Next);
        sequence.no_more_repeats();
        assert_eq!(sequence.digests.len(), 11);
        assert_eq!(sequence.judge(mark(10)), BatchArrival::Repeated);
        assert_eq!(sequence.judge(mark(9)), BatchArrival::Restarted);
    }

    /// The hole of decision 0030: behind a forwarder, the first batch of a restarted engine to arrive
    /// has the next number. A replay from before it shows the restart.
    #[test]
    fn a_replay_begins_before_a_batch_that_may_be_of_a_restarted_engine() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.replay_from(), None);
        for number in 5..=9 {
            sequence.take(mark(number));
        }
        assert_eq!(sequence.replay_from(), Some(5));
        sequence.confirm();
        assert_eq!(sequence.replay_from(), Some(9));
        assert_eq!(sequence.take(other(10)), BatchArrival::Next);
        sequence.expect_repeats();
        assert_eq!(sequence.replay_from(), Some(9), "the last batch of the old process");
        assert_eq!(sequence.judge(other(9)), BatchArrival::Restarted);
        assert_eq!(sequence.judge(mark(9)), BatchArrival::Repeated, "the same process");
        // A replay is short, however long the stream was busy.
        for number in 11..1_000 {
            sequence.take(mark(number));
        }
        assert_eq!(sequence.replay_from(), Some(1_000 - DIGESTS_LIVE as u64));
        sequence.no_more_repeats();
        assert_eq!(sequence.digests.len(), DIGESTS_LIVE);
        // A gap forgets what was confirmed.
        sequence.take(mark(2_000));
        assert_eq!(sequence.replay_from(), Some(2_000));
    }

    #[test]
    fn memory_of_digests_is_bounded() {
        let mut sequence = Sequence::default();
        sequence.expect_repeats();
        for number in 0..=DIGESTS_MAX as u64 {
            sequence.take(mark(number));
        }
        assert_eq!(sequence.digests.len(), DIGESTS_MAX);
        assert_eq!(sequence.judge(mark(0)), BatchArrival::Restarted);
        assert_eq!(sequence.judge(mark(1)), BatchArrival::Repeated);
        sequence.rest();
        assert_eq!(sequence.digests.len(), DIGESTS_AT_REST);
        assert_eq!(sequence.judge(mark(DIGESTS_MAX as u64 - 9)), BatchArrival::Repeated);
        // A gap forgets what is before it.
        sequence.take(mark(DIGESTS_MAX as u64 + 5));
        assert_eq!(sequence.digests.len(), 1);
    }
}
