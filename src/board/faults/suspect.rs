//! Finds the rank to blame when two ranks fail a request together.

use super::breaker::{DOUBTS_BIT, ONE_DOUBT};
use crate::ComparisonTurn;
use crate::LoadBoard;
use crate::RankLoad;
use forebay_base::RankIndex;
use std::cmp::Ordering::{Equal, Greater, Less};

/// After this many failures together without a success, both ranks are suspected.
const TOGETHER_MAX: u32 = 3;

/// The suspected rank of two ranks that failed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The rank that may be to blame.
    pub rank: RankIndex,
    /// Requests with other partners have shown that this rank is to blame.
    pub is_shown: bool,
}

impl Suspect {
    /// Counts a failure of two ranks and compares them, see [`LoadBoard::doubt`]. `None` also while
    /// another shard compares: the failure is then not counted, and no shard waits.
    ///
    /// Model: tests/loom/doubts.rs.
    #[must_use]
    pub fn of(turn: &ComparisonTurn, ranks: [RankIndex; 2], loads: [&RankLoad; 2]) -> Option<Self> {
        let [of_first, of_second] = turn.run(|| loads.map(RankLoad::doubted))?;
        let [first, second] = ranks;
        let (rank, is_shown) = match of_first.cmp(&of_second) {
            Less => (second, true),
            Greater => (first, true),
            Equal if of_first < TOGETHER_MAX => return None,
            Equal => (if of_first % 2 == 0 { first } else { second }, false),
        };
        Some(Self { rank, is_shown })
    }
}

impl RankLoad {
    /// Counts a failure that this rank shares with another rank. Returns how many such failures in
    /// a row came before. The count stays at its two largest values: from 0 on again, the other
    /// rank would look worse. Odd and even alternate, and with them the suspect of equal ranks.
    fn doubted(&self) -> u32 {
        let mut before = 0;
        self.change_history(|word| {
            before = word;
            word.checked_add(ONE_DOUBT).unwrap_or(word.wrapping_sub(ONE_DOUBT))
        });
        before >> DOUBTS_BIT
    }
}

impl LoadBoard {
    /// Counts a failure of two ranks when neither is known to be the cause. The suspect is the rank
    /// with more such failures since its last success. `None`: both have the same count, which is
    /// still low. Ranks that always fail together are suspected by turns, so that both get single
    /// requests, which separate them.
    #[must_use]
    pub fn doubt(&self, first: RankIndex, second: RankIndex) -> Option<Suspect> {
        let loads = [self.rank(first)?, self.rank(second)?];
        Suspect::of(self.comparison(), [first, second], loads)
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use forebay_base::ModelIndex;
    use forebay_fleet::worker::Requester;

    const X: Requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };

    /// A rank hangs. Its partner's success with another rank shows it.
    #[test]
    fn of_two_that_fail_together_the_one_that_works_with_others_is_well() {
        let board = LoadBoard::new();
        let [ill, well, other] = [RankIndex(0), RankIndex(1), RankIndex(2)];
        let doubt = |first, second| board.doubt(first, second).map(|suspect| suspect.rank);
        let answers = |rank| board.rank(rank).unwrap().succeeded(X);
        assert_eq!(doubt(ill, well), None);
        assert_eq!(doubt(well, ill), None, "they have nobody else");
        answers(well);
        assert_eq!(doubt(ill, well), Some(ill));
        assert_eq!(doubt(well, ill), Some(ill));
        answers(well);
        assert_eq!(doubt(other, ill), Some(ill), "whoever it is with");
        assert_eq!(doubt(other, well), Some(other), "it has not answered since");
        answers(ill);
        board.rank(other).unwrap().answered();
        answers(well);
        assert_eq!(doubt(ill, well), None, "all is forgotten");
        assert_eq!(doubt(RankIndex(u16::MAX), well), None);
        let cell = board.rank(ill).unwrap();
        assert_eq!((cell.failures(), cell.is_open()), (0, false), "a doubt is no failure");
    }

    /// Round robin may pair the same two ranks again and again.
    #[test]
    fn two_that_are_always_asked_together_are_suspected_by_turns() {
        let board = LoadBoard::new();
        let [ill, well] = [RankIndex(0), RankIndex(1)];
        let doubt = || board.doubt(ill, well);
        assert!((0..TOGETHER_MAX).all(|_| doubt().is_none()), "a few times may be an accident");
        let suspects: Vec<_> = (0..4).map(|_| doubt().unwrap()).collect();
        assert!(suspects.iter().all(|suspect| !suspect.is_shown));
        assert_eq!(suspects.iter().filter(|suspect| suspect.rank == ill).count(), 2);
        board.rank(well).unwrap().succeeded(X);
        assert_eq!(doubt(), Some(Suspect { rank: ill, is_shown: true }), "with another it serves");
    }
    /// The word of the counts has 12 bits for doubts. The count of a rank that fails for days stays
    /// at its end: from 0 on again, its partner with few failures would look worse.
    #[test]
    fn a_count_at_its_end_does_not_start_again() {
        let board = LoadBoard::new();
        let [ill, well] = [RankIndex(0), RankIndex(1)];
        for _ in 0..10_000 {
            let _ = board.doubt(ill, well);
            board.rank(well).unwrap().answered();
        }
        assert_eq!(board.doubt(ill, well), Some(Suspect { rank: ill, is_shown: true }));
        assert_eq!(board.rank(ill).unwrap().failures(), 0, "the other counts of the word");
    }

    /// Ranks that fail together for days are suspected by turns to the end, else one of them gets
    /// no request that could show its health.
    #[test]
    fn turns_go_on_at_the_end_of_the_count() {
        let board = LoadBoard::new();
        let [first, second] = [RankIndex(0), RankIndex(1)];
        let mut suspects = [0_u32; 2];
        for _ in 0..20_000 {
            if let Some(Suspect { rank, is_shown }) = board.doubt(first, second) {
                assert!(!is_shown, "both fail alike");
                suspects[usize::from(rank == second)] += 1;
            }
        }
        assert!(suspects[0].abs_diff(suspects[1]) <= 2, "{suspects:?}");
    }
}
