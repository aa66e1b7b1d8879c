//! A rank that is ejected: the control plane keeps requests away from it. The words are those of
//! the breaker, and further ones that say why and how often. Only the control plane writes these.

use super::RankLoad;
use forebay_base::NanosSinceStart;
use forebay_ring::sync::Ordering;

// As many as the board counts by.
const _: () = assert!(EjectReason::ALL.len() == 2);
const SLOW: u32 = 1;
const STALLED: u32 = 2;
/// A request tries a rank that stood still.
const STALLED_TRIED: u32 = 3;

/// Why a rank is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectReason {
    /// Requests wait there, and nothing comes.
    Stalled,
    /// Its first bytes come far later than those of its pool.
    Slow,
}

impl EjectReason {
    /// Both, in the order of their index.
    pub const ALL: [Self; 2] = [Self::Stalled, Self::Slow];

    /// Its word in metrics, `/workers` and the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Slow => "slow",
        }
    }
}

impl RankLoad {
    /// The rank gets nothing until then. Where it has stalled, requests that wait there leave, if
    /// they may.
    pub fn eject(&self, reason: EjectReason, until: NanosSinceStart) {
        let word = match reason {
            EjectReason::Stalled => STALLED,
            EjectReason::Slow => SLOW,
        };
        // ordering: a hint; pairs with `ejected`. Before `open_until_ns`, which answers would close
        // without it.
        self.ejection.store(word, Ordering::Relaxed);
        // ordering: as above; the next half-open state has a new trial.
        self.trial.store(0, Ordering::Relaxed);
        self.keep_ejected(until);
        if let Some(count) = self.ejected.get(reason as usize) {
            // ordering: statistic; pairs with nothing.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the rank was ejected for that reason.
    #[must_use]
    pub fn ejection_count(&self, reason: EjectReason) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.ejected.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// To be called again while the rank is ejected: an answer that came at the same moment may
    /// have closed the breaker.
    pub fn keep_ejected(&self, until: NanosSinceStart) {
        // ordering: pairs with `breaker_admits`; one word, a late reader sends one request more.
        // At least 1, since 0 means closed.
        self.open_until_ns.fetch_max(until.0.max(1), Ordering::Relaxed);
    }

    /// The pause of a rank that stood still is over: one request tries it, and may wait there.
    pub fn let_try(&self) {
        // ordering: a hint; pairs with `is_stalled`.
        self.ejection.store(STALLED_TRIED, Ordering::Relaxed);
    }

    /// The rank is ejected no more. A breaker that has failures of its own goes on with a trial.
    pub fn readmit(&self) {
        // ordering: a hint; pairs with `ejected`.
        self.ejection.store(0, Ordering::Relaxed);
        if self.failures() == 0 {
            self.close();
        } else {
            // A trial of the ejection would stand for ever.
            self.trial_abandoned();
        }
    }

    /// Why the rank is ejected, if it is.
    #[must_use]
    pub fn ejected(&self) -> Option<EjectReason> {
        // ordering: a hint; pairs with `eject`.
        match self.ejection.load(Ordering::Relaxed) {
            0 => None,
            SLOW => Some(EjectReason::Slow),
            _ => Some(EjectReason::Stalled),
        }
    }

    /// Does the rank stand still, so that what waits there had better leave?
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        // ordering: a hint; pairs with `eject`.
        self.ejection.load(Ordering::Relaxed) == STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::super::BreakerClaim;
    use super::*;
    use std::time::Duration;

    const UNTIL: NanosSinceStart = NanosSinceStart(1_000);

    #[test]
    fn heads_of_answers_do_not_bring_an_ejected_rank_back() {
        let load = RankLoad::default();
        load.eject(EjectReason::Stalled, UNTIL);
        assert!(load.is_stalled() && !load.breaker_admits(NanosSinceStart(999)));
        load.succeeded();
        load.failed(NanosSinceStart(5), 1, Duration::from_nanos(10));
        assert!(!load.breaker_admits(NanosSinceStart(999)), "nor is the pause cut short");
        load.let_try();
        assert_eq!((load.is_stalled(), load.ejected()), (false, Some(EjectReason::Stalled)));
        assert_eq!(load.claim(UNTIL), Some(BreakerClaim::Trial));
        load.succeeded();
        assert_eq!(load.claim(UNTIL), None, "one at a time, whatever its head says");
        load.readmit();
        assert_eq!((load.ejected(), load.claim(UNTIL)), (None, Some(BreakerClaim::Free)));
    }

    #[test]
    fn a_breaker_with_failures_of_its_own_stays_half_open() {
        let load = RankLoad::default();
        load.eject(EjectReason::Slow, UNTIL);
        assert_eq!(load.claim(UNTIL), Some(BreakerClaim::Trial));
        load.failed(NanosSinceStart(0), 9, Duration::from_nanos(10));
        load.readmit();
        assert_eq!((load.claim(UNTIL), load.claim(UNTIL)), (Some(BreakerClaim::Trial), None));
        load.succeeded();
        assert_eq!(load.claim(UNTIL), Some(BreakerClaim::Free));
    }

    #[test]
    fn an_answer_at_the_same_moment_is_made_good() {
        let load = RankLoad::default();
        load.eject(EjectReason::Slow, UNTIL);
        assert_eq!(EjectReason::ALL.map(|reason| load.ejection_count(reason)), [0, 1]);
        load.close();
        assert!(load.breaker_admits(NanosSinceStart(0)));
        load.keep_ejected(UNTIL);
        assert!(!load.breaker_admits(NanosSinceStart(0)));
    }
}
