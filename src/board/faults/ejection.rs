//! Ejection of a rank: the control plane stops requests to it. Uses the words of the breaker, and
//! further words for the reason and the counts. Only the control plane writes the further words.

use crate::RankLoad;
use forebay_base::NanosSinceStart;
use forebay_ring::sync::Ordering;

/// The counts of all reasons share a word. A count saturates.
const COUNT_BITS: u32 = 16;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;
const _: () = assert!(EjectReason::ALL.len() * COUNT_BITS as usize <= u32::BITS as usize);
const SLOW: u8 = 1;
const STALLED: u8 = 2;
/// A request tries a stalled rank.
const STALLED_TRIED: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectReason {
    /// Requests wait there, and the rank sends no bytes.
    Stalled,
    /// Its first bytes come far later than the first bytes of other ranks in its pool.
    Slow,
}

impl EjectReason {
    /// All reasons, in the order of their index.
    pub const ALL: [Self; 2] = [Self::Stalled, Self::Slow];

    /// The reason in metrics, `/workers` and the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Slow => "slow",
        }
    }
}

impl RankLoad {
    /// Ejects the rank until `until`. If the rank has stalled, requests that wait there leave, if
    /// they may.
    pub fn eject(&self, reason: EjectReason, until: NanosSinceStart) {
        let word = match reason {
            EjectReason::Stalled => STALLED,
            EjectReason::Slow => SLOW,
        };
        // ordering: a hint; pairs with `ejected`. Stored before `open_until_ns`, which answers
        // would otherwise reset.
        self.ejection.store(word, Ordering::Relaxed);
        self.forget_trials();
        self.keep_ejected(until);
        let more = |counts: u32| {
            let is_full = count_of(counts, reason) == COUNT_MAX;
            (!is_full).then_some(counts + (1 << (COUNT_BITS * reason as u32)))
        };
        // ordering: statistic; pairs with nothing.
        let _ = self.ejections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Ejections of the rank for that reason.
    #[must_use]
    pub fn ejection_count(&self, reason: EjectReason) -> u32 {
        // ordering: statistic; pairs with nothing.
        count_of(self.ejections.load(Ordering::Relaxed), reason)
    }

    /// Repeats the ejection while it lasts: an answer at the same moment may have closed the
    /// breaker.
    pub fn keep_ejected(&self, until: NanosSinceStart) {
        // ordering: pairs with `breaker_admits`; a late reader sends an extra request. At least 1,
        // since 0 means closed.
        self.open_until_ns.fetch_max(until.0.max(1), Ordering::Relaxed);
    }

    /// The pause of a stalled rank is over: a single request tries the rank, and may wait there.
    pub fn let_try(&self) {
        // ordering: a hint; pairs with `is_stalled`.
        self.ejection.store(STALLED_TRIED, Ordering::Relaxed);
    }

    /// Ends the ejection. Failures still count: the next failure may pause the rank.
    pub fn readmit(&self) {
        // ordering: a hint; pairs with `ejected`.
        self.ejection.store(0, Ordering::Relaxed);
        self.close();
    }

    /// Another process answers at the rank's address, and did not cause the failures of the process
    /// before. An ejection stays.
    pub fn forget_failures(&self) {
        self.signs().forget_service();
        // ordering: independent words, each a hint; a failure at the same moment may stay or go.
        self.failures.store(0, Ordering::Relaxed);
        // ordering: as above.
        self.history.store(0, Ordering::Relaxed);
        let _ = self.reopen();
    }

    #[must_use]
    pub fn ejected(&self) -> Option<EjectReason> {
        // ordering: a hint; pairs with `eject`.
        match self.ejection.load(Ordering::Relaxed) {
            0 => None,
            SLOW => Some(EjectReason::Slow),
            _ => Some(EjectReason::Stalled),
        }
    }

    /// Records whether every request fails on the rank. Only shown: the rank gets requests as
    /// before, because the requests of a single caller can have that result.
    pub fn set_failing(&self, is_failing: bool) {
        // ordering: a hint; pairs with `is_failing`.
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    /// Does every request fail on the rank?
    #[must_use]
    pub fn is_failing(&self) -> bool {
        // ordering: a hint; pairs with `set_failing`.
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Has the rank stalled, so that waiting requests should leave?
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        // ordering: a hint; pairs with `eject`.
        self.ejection.load(Ordering::Relaxed) == STALLED
    }
}

fn count_of(counts: u32, reason: EjectReason) -> u32 {
    (counts >> (COUNT_BITS * reason as u32)) & COUNT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BreakerClaim;
    use crate::BreakerRules;
    use crate::FailureScope;
    use crate::FailureWeight;
    use crate::LoadBoard;
    use crate::RankFailure;
    use forebay_base::{ModelIndex, RankIndex};
    use forebay_fleet::worker::Requester;
    use std::time::Duration;

    const REQUESTER: Requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };

    /// A failure of the first rank, beside a sibling without failures.
    fn fail(board: &LoadBoard, failures: u32) {
        let weight = FailureWeight::Failed;
        let failure = RankFailure {
            rank: RankIndex(0),
            requester: REQUESTER,
            scope: FailureScope::Rank,
            weight,
            status: 500,
            is_trial: true,
        };
        let rules = BreakerRules { failures, open: Duration::from_nanos(10) };
        let siblings = std::iter::once(RankIndex(1));
        board.hold_against(failure, siblings, rules, NanosSinceStart(5));
    }

    const UNTIL: NanosSinceStart = NanosSinceStart(1_000);

    #[test]
    fn heads_of_answers_do_not_bring_an_ejected_rank_back() {
        let board = LoadBoard::new();
        let load = board.rank(RankIndex(0)).unwrap();
        load.eject(EjectReason::Stalled, UNTIL);
        assert!(load.is_stalled() && !load.breaker_admits(NanosSinceStart(999), Some(REQUESTER)));
        load.succeeded(REQUESTER);
        fail(&board, 1);
        assert!(
            !load.breaker_admits(NanosSinceStart(999), Some(REQUESTER)),
            "nor is the pause cut short"
        );
        load.let_try();
        assert_eq!((load.is_stalled(), load.ejected()), (false, Some(EjectReason::Stalled)));
        assert_eq!(load.claim(UNTIL, REQUESTER), Some(BreakerClaim::Trial));
        load.succeeded(REQUESTER);
        assert_eq!(load.claim(UNTIL, REQUESTER), None, "one at a time, whatever its head says");
        load.readmit();
        assert_eq!(
            (load.ejected(), load.claim(UNTIL, REQUESTER)),
            (None, Some(BreakerClaim::Free))
        );
    }

    #[test]
    fn a_rank_that_comes_back_is_paused_by_its_next_failure() {
        let board = LoadBoard::new();
        let load = board.rank(RankIndex(0)).unwrap();
        load.eject(EjectReason::Slow, UNTIL);
        (0..3).for_each(|_| fail(&board, 3));
        load.readmit();
        assert_eq!(load.claim(NanosSinceStart(6), REQUESTER), Some(BreakerClaim::Free));
        fail(&board, 3);
        assert_eq!(load.claim(NanosSinceStart(6), REQUESTER), None);
    }

    #[test]
    fn an_answer_at_the_same_moment_is_made_good() {
        let load = RankLoad::default();
        load.eject(EjectReason::Slow, UNTIL);
        assert_eq!(EjectReason::ALL.map(|reason| load.ejection_count(reason)), [0, 1]);
        load.close();
        assert!(load.breaker_admits(NanosSinceStart(0), None));
        load.keep_ejected(UNTIL);
        assert!(!load.breaker_admits(NanosSinceStart(0), None));
    }
}
