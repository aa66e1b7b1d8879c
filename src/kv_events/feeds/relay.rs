//! Streams of a relay that carries the batches of several ranks. Each rank counts its own batches,
//! so the numbers of such a stream look like gaps and restarts. A batch's own rank separates them.

/// Ranks that the batches of a connection name.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRanks {
    own: u32,
    first: Option<u32>,
    is_shared: bool,
    /// The router follows the endpoint for ranks of several numbers, so each connection is shared.
    is_shared_endpoint: bool,
    /// A batch without a rank was reported.
    is_nameless_known: bool,
}

/// Decision about a batch by its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchPassage {
    /// The batch is the rank's own, as far as known.
    Own,
    /// The first batch of a second rank: batches before may have been of other ranks too.
    Mixed,
    /// A batch of another rank.
    Foreign,
    /// A batch without a rank in a stream of several ranks: its events may be of any rank.
    Nameless,
}

impl StreamRanks {
    /// A connection without batches, for the rank of that number.
    pub(super) const fn new(own: u32, is_shared_endpoint: bool) -> Self {
        let is_shared = is_shared_endpoint;
        Self { own, first: None, is_shared, is_shared_endpoint, is_nameless_known: false }
    }

    /// The next connection to the endpoint.
    pub(super) const fn of_next_connection(self) -> Self {
        Self::new(self.own, self.is_shared_endpoint)
    }

    /// Takes the rank that a batch names. While all batches name the same rank, its number does not
    /// count: engines and router may number ranks in different ways.
    pub(super) fn judge(&mut self, rank: Option<u32>) -> BatchPassage {
        let Some(rank) = rank else {
            return if self.is_shared { BatchPassage::Nameless } else { BatchPassage::Own };
        };
        let first = *self.first.get_or_insert(rank);
        if self.is_shared {
            return if rank == self.own { BatchPassage::Own } else { BatchPassage::Foreign };
        }
        self.is_shared = first != rank;
        if self.is_shared { BatchPassage::Mixed } else { BatchPassage::Own }
    }

    /// True for a batch that names another rank, in a stream of several ranks.
    pub(super) fn is_of_other_rank(&self, rank: Option<u32>) -> bool {
        self.is_shared && rank.is_some_and(|rank| rank != self.own)
    }

    /// True for the first batch without a rank of a connection.
    pub(super) const fn is_first_nameless(&mut self) -> bool {
        !std::mem::replace(&mut self.is_nameless_known, true)
    }

    /// True if the batch of that rank is this rank's in a shared stream.
    pub(super) fn is_own(&self, rank: Option<u32>) -> bool {
        rank == Some(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::{BatchPassage, StreamRanks};

    #[test]
    fn a_second_rank_separates_the_stream() {
        let mut ranks = StreamRanks::new(1, false);
        let passages = [Some(0), None, Some(0), Some(1), Some(0), Some(1), Some(2), None];
        assert_eq!(
            passages.map(|rank| ranks.judge(rank)),
            [
                BatchPassage::Own,
                BatchPassage::Own,
                BatchPassage::Own,
                BatchPassage::Mixed,
                BatchPassage::Foreign,
                BatchPassage::Own,
                BatchPassage::Foreign,
                BatchPassage::Nameless,
            ]
        );
    }

    /// Issue 39: an endpoint that is followed for two ranks gave both the blocks of rank 0.
    #[test]
    fn an_endpoint_of_several_ranks_is_shared_from_the_first_batch() {
        let mut ranks = StreamRanks::new(1, true);
        let passages = [Some(0), None, Some(1)].map(|rank| ranks.judge(rank));
        assert_eq!(passages, [BatchPassage::Foreign, BatchPassage::Nameless, BatchPassage::Own]);
        assert_eq!(ranks.of_next_connection().judge(Some(0)), BatchPassage::Foreign);
        assert!(ranks.is_of_other_rank(Some(0)) && !ranks.is_of_other_rank(Some(1)));
    }

    #[test]
    fn a_stream_of_a_single_rank_is_taken_whatever_its_number() {
        let mut ranks = StreamRanks::new(1, false);
        assert!(
            [Some(7); 4].map(|rank| ranks.judge(rank)).iter().all(|it| *it == BatchPassage::Own)
        );
    }
}
