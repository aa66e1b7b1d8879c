//! The passive breaker of one rank, as words of its cell of the load board. Closed: traffic flows.
//! Open: none until `open_until`. Half open: one trial. Any shard writes it, whoever saw the
//! outcome of a request. The control plane ejects a rank by the same words, and alone closes them
//! then ([`super::EjectReason`]).

use super::{LoadBoard, RankLoad};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_ring::sync::Ordering;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::time::Duration;

impl LoadBoard {
    /// Two ranks failed together and neither could be seen to be the cause. Who is, is told by what
    /// they do with others: the one that has failed so more often since it last answered. `None`:
    /// that cannot be told, or not yet.
    #[must_use]
    pub fn doubt(&self, first: RankIndex, second: RankIndex) -> Option<RankIndex> {
        let doubted = |rank| self.rank(rank).map(RankLoad::doubted);
        match doubted(first)?.cmp(&doubted(second)?) {
            Less => Some(second),
            Equal => None,
            Greater => Some(first),
        }
    }
}

/// On what terms a request has its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerClaim {
    /// The breaker is closed.
    Free,
    /// It is half open, and this is its trial.
    Trial,
}

impl RankLoad {
    /// May a request go there now? In half-open state exactly one caller gets `true`; its outcome
    /// decides.
    #[must_use]
    pub fn breaker_admits(&self, now: NanosSinceStart) -> bool {
        // ordering: one word, monotone between successes; pairs with the store in `failed`.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        open_until == 0 || (now.0 >= open_until && !self.trial_taken())
    }

    /// Claims the one trial of a half-open rank, called when such a rank was picked. `None`:
    /// somebody else has it.
    #[must_use]
    pub fn claim(&self, now: NanosSinceStart) -> Option<BreakerClaim> {
        // ordering: pairs with `failed`; a stale 0 sends one request more, which is retried
        // elsewhere.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        if open_until == 0 {
            return Some(BreakerClaim::Free);
        }
        // ordering: the swap picks one winner; nothing else is published through it.
        let won = now.0 >= open_until && self.trial.swap(1, Ordering::Relaxed) == 0;
        won.then_some(BreakerClaim::Trial)
    }

    /// The rank answered (any answer that is not its own failure): closed again.
    pub fn succeeded(&self) {
        // ordering: a hint; pairs with `doubted`.
        if self.failures() != 0 || self.is_open() || self.doubts.load(Ordering::Relaxed) != 0 {
            // ordering: independent words, each a hint; pairs with `breaker_admits`.
            self.failures.store(0, Ordering::Relaxed);
            // ordering: as above.
            self.doubts.store(0, Ordering::Relaxed);
            // The head of an answer may come from a server whose engine stands still.
            if self.ejected().is_none() {
                self.close();
            }
        }
    }

    /// The rank failed: refused, reset, timed out or 5xx of its own. Opens after `failures_max` in
    /// a row.
    pub fn failed(&self, now: NanosSinceStart, failures_max: u32, open: Duration) {
        // ordering: a count; the read-modify-write makes it exact.
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= failures_max {
            // ordering: pairs with `breaker_admits`; one word, a late reader sends one request
            // more.
            // At least 1, since 0 means closed. Not before the end of an ejection.
            self.open_until_ns.fetch_max(now.plus(open).0.max(1), Ordering::Relaxed);
            // A trial that failed is over: the next half-open state has a new one.
            // ordering: as above.
            self.trial.store(0, Ordering::Relaxed);
        }
    }

    /// The trial ended without an outcome (client left): the next request may try. Only for who has
    /// claimed it.
    pub fn trial_abandoned(&self) {
        // ordering: pairs with the swap in `claim`.
        self.trial.store(0, Ordering::Relaxed);
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.failures.load(Ordering::Relaxed)
    }

    /// True while the breaker is open or half open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // ordering: statistic; pairs with nothing.
        self.open_until_ns.load(Ordering::Relaxed) != 0
    }

    /// It failed together with another rank. How often that had happened in a row before.
    fn doubted(&self) -> u32 {
        // ordering: a count; pairs with the store in `succeeded`.
        self.doubts.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        // ordering: independent words, each a hint; pairs with `breaker_admits`.
        self.open_until_ns.store(0, Ordering::Relaxed);
        // ordering: as above.
        self.trial.store(0, Ordering::Relaxed);
    }

    /// Has a request claimed the trial?
    #[must_use]
    pub fn trial_taken(&self) -> bool {
        // ordering: a hint; `claim` decides.
        self.trial.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One rank hangs. Whom its partner works with besides, tells.
    #[test]
    fn of_two_that_fail_together_the_one_that_works_with_others_is_well() {
        let board = LoadBoard::new();
        let [ill, well, other] = [RankIndex(0), RankIndex(1), RankIndex(2)];
        let answers = |rank| board.rank(rank).unwrap().succeeded();
        assert_eq!(board.doubt(ill, well), None);
        assert_eq!(board.doubt(well, ill), None, "they have nobody else");
        answers(well);
        assert_eq!(board.doubt(ill, well), Some(ill));
        assert_eq!(board.doubt(well, ill), Some(ill));
        answers(well);
        assert_eq!(board.doubt(other, ill), Some(ill), "whoever it is with");
        assert_eq!(board.doubt(other, well), Some(other), "it has not answered since");
        answers(ill);
        answers(other);
        answers(well);
        assert_eq!(board.doubt(ill, well), None, "all is forgotten");
        assert_eq!(board.doubt(RankIndex(u16::MAX), well), None);
        let cell = board.rank(ill).unwrap();
        assert_eq!((cell.failures(), cell.is_open()), (0, false), "a doubt is no failure");
    }
}
