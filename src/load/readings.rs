//! Readings of an answer, by rank, and its faults. Every fault is counted; a fault never affects
//! the readings of other ranks.

use forebay_base::limits::RANKS_MAX;
use forebay_board::LoadReading;

/// Largest accepted number of requests on a rank: far above what an engine can hold.
const REQUESTS_MAX: f64 = 1e6;
/// Largest accepted share of the cache, in thousandths: rounding may bring it just above the whole.
const PERMILLE_BELIEVED_MAX: f64 = 1_010.0;

/// Why a report, or a part of a report, was refused; see [`Self::ALL`] for the metrics label
/// `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// No answer in time, or no connection.
    Unreachable,
    /// A status that is not 200.
    Status,
    /// Not in the form of a report, or too long.
    Malformed,
    /// A rank that is negative, no number, or not a rank of the worker.
    Rank,
    /// The answer lacks a rank of the worker.
    RankMissing,
    /// A number that is missing, negative, not finite or implausibly large.
    Value,
    /// Outdated figures: the engine reports work without progress for a while.
    Still,
}

impl ReadFault {
    /// All faults with their metrics label.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Unreachable, "unreachable"),
        (Self::Status, "status"),
        (Self::Malformed, "malformed"),
        (Self::Rank, "rank"),
        (Self::RankMissing, "rank_missing"),
        (Self::Value, "value"),
        (Self::Still, "still"),
    ];
}

/// Readings of a worker, by the position of the rank; reused for every answer.
#[derive(Debug, Default)]
pub struct Readings {
    /// Number of the first rank.
    first: u64,
    ranks: Vec<Draft>,
    faults: [u64; ReadFault::ALL.len()],
    /// Start of the process that answers, in milliseconds since 1970, where reported.
    pub(super) started_ms: Option<u64>,
}

/// A reading in the making.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Draft {
    pub(super) running: Option<u32>,
    pub(super) waiting: Option<u32>,
    /// All figures except `running` and `waiting`.
    pub(super) rest: LoadReading,
    /// A number was refused: the reading is not whole.
    pub(super) spoilt: bool,
    /// A count of first tokens was refused: the sums over models are not whole.
    uncounted: bool,
}

impl Readings {
    /// Resets the readings for an answer of a worker with `rank_count` ranks, numbered from 0.
    pub fn begin(&mut self, rank_count: usize) {
        self.begin_at(0, rank_count);
    }

    /// [`Self::begin`] for ranks that the engine numbers from `first` on.
    pub fn begin_at(&mut self, first: u32, rank_count: usize) {
        self.first = u64::from(first);
        self.started_ms = None;
        self.ranks.clear();
        self.ranks.resize(rank_count.min(RANKS_MAX), Draft::default());
        self.faults = [0; ReadFault::ALL.len()];
    }

    /// Ranks of the worker.
    pub(super) const fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// Ends a well-formed answer: counts ranks without a reading as missing.
    pub(super) fn end(&mut self) {
        for position in 0..self.ranks.len() {
            let draft = self.ranks.get(position).copied().unwrap_or_default();
            if draft.running.is_none() && draft.waiting.is_none() && !draft.spoilt {
                self.fault(ReadFault::RankMissing);
            } else if draft.whole().is_none() && !draft.spoilt {
                self.fault(ReadFault::Value);
            }
        }
    }

    /// The readings that are whole, by the rank's position.
    pub fn iter(&self) -> impl Iterator<Item = (usize, LoadReading)> + '_ {
        self.ranks.iter().enumerate().filter_map(|(rank, draft)| Some((rank, draft.whole()?)))
    }

    /// Count of a fault in this answer.
    #[must_use]
    pub fn fault_count(&self, fault: ReadFault) -> u64 {
        self.faults.get(fault as usize).copied().unwrap_or(0)
    }

    pub fn fault(&mut self, fault: ReadFault) {
        if let Some(count) = self.faults.get_mut(fault as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// The reading of a rank, to be filled in. A rank that the worker does not have is counted as a
    /// fault. A missing number means the only rank of a worker with a single rank.
    pub(super) fn at(&mut self, rank: RankNumber) -> Option<&mut Draft> {
        let position = match rank {
            RankNumber::Is(number) => {
                number.checked_sub(self.first).and_then(|offset| usize::try_from(offset).ok())
            }
            RankNumber::Missing if self.ranks.len() == 1 => Some(0),
            RankNumber::Missing | RankNumber::Invalid => None,
        };
        let known = position.filter(|&position| position < self.ranks.len());
        if known.is_none() {
            self.fault(ReadFault::Rank);
        }
        self.ranks.get_mut(known?)
    }

    /// Fills in a number of a rank. An invalid number (`None`) is counted and spoils the rank's
    /// reading.
    pub(super) fn put<T>(
        &mut self,
        rank: RankNumber,
        value: Option<T>,
        place: impl FnOnce(&mut Draft, T),
    ) {
        let Some(draft) = self.at(rank) else { return };
        match value {
            Some(value) => place(draft, value),
            None => {
                draft.spoilt = true;
                self.fault(ReadFault::Value);
            }
        }
    }

    /// Refuses an invalid count of first tokens: the reading of the rank has none.
    pub(super) fn refuse_first_tokens(&mut self, rank: RankNumber) {
        if let Some(draft) = self.at(rank) {
            draft.uncounted = true;
            self.fault(ReadFault::Value);
        }
    }
}

impl Draft {
    fn whole(&self) -> Option<LoadReading> {
        if self.spoilt {
            return None;
        }
        let mut rest = self.rest;
        if self.uncounted {
            rest.progress.first_tokens = None;
            rest.progress.first_token_wait_ms = None;
        }
        Some(LoadReading { running: self.running?, waiting: self.waiting?, ..rest })
    }
}

/// Rank number in a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankNumber {
    Is(u64),
    Missing,
    Invalid,
}

/// A number of requests.
pub(super) fn requests(value: f64) -> Option<u32> {
    whole(value, REQUESTS_MAX).and_then(|count| u32::try_from(count).ok())
}

/// A number of tokens, or another number of that size: exact as a float.
pub(super) fn tokens(value: f64) -> Option<u64> {
    whole(value, 9e15)
}

/// A share from 0 to 1, as thousandths. Engines name it per cent and send a fraction; a value above
/// 1 is refused.
pub(super) fn permille(share: f64) -> Option<u16> {
    let permille = whole((share * 1_000.0).round(), PERMILLE_BELIEVED_MAX)?;
    u16::try_from(permille.min(1_000)).ok()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 2^53 by the test before"
)]
fn whole(value: f64, most: f64) -> Option<u64> {
    (value.is_finite() && value >= 0.0 && value <= most).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_at_their_index() {
        for (index, (fault, _)) in ReadFault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, index);
        }
    }

    #[test]
    fn implausible_numbers_are_refused() {
        assert_eq!(
            (requests(3.0), requests(0.0), tokens(8e15)),
            (Some(3), Some(0), Some(8_000_000_000_000_000))
        );
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300] {
            assert_eq!((requests(odd), tokens(odd), permille(odd)), (None, None, None), "{odd}");
        }
        assert_eq!(
            (permille(0.0), permille(0.25), permille(1.0)),
            (Some(0), Some(250), Some(1_000))
        );
        assert_eq!((permille(1.004), permille(1.5), permille(25.0)), (Some(1_000), None, None));
    }
}
