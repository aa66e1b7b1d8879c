//! Finds the rank to blame when two ranks fail a request together.

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

impl LoadBoard {
    /// Counts a failure of two ranks when neither is known to be the cause. The suspect is the rank
    /// with more such failures since its last success. `None`: both have the same count, which is
    /// still low. Ranks that always fail together are suspected by turns, so that both get single
    /// requests, which separate them. Two shards that count at once may find a difference of 1
    /// that no request with another partner has shown: a wrong suspect for a single request.
    #[must_use]
    pub fn doubt(&self, first: RankIndex, second: RankIndex) -> Option<Suspect> {
        let doubted = |rank| self.rank(rank).map(RankLoad::doubted);
        let of_first = doubted(first)?;
        let of_second = doubted(second)?;
        let (rank, is_shown) = match of_first.cmp(&of_second) {
            Less => (second, true),
            Greater => (first, true),
            Equal if of_first < TOGETHER_MAX => return None,
            Equal => (if of_first % 2 == 0 { first } else { second }, false),
        };
        Some(Suspect { rank, is_shown })
    }
}

#[cfg(test)]
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
}
