//! Trials of a half-open rank: claims, and their number at a time.

use super::BreakerClaim;
use crate::RankLoad;
use forebay_base::NanosSinceStart;
use forebay_fleet::worker::Requester;
use forebay_ring::sync::Ordering;
use std::time::Duration;

/// Trials that take longer than this no longer block other trials: a whole answer may take minutes.
const TRIAL_WAIT_MAX: Duration = Duration::from_secs(1);

impl RankLoad {
    /// Claims a trial of a half-open rank, after the rank was selected. `None`: other requests have
    /// all trials. [`Self::end_trial`] gives a trial back.
    #[must_use]
    #[inline]
    pub fn claim(&self, now: NanosSinceStart, requester: Requester) -> Option<BreakerClaim> {
        if self.is_open() {
            self.claim_while_open(now, requester)
        } else {
            Some(BreakerClaim::Free)
        }
    }

    #[cold]
    fn claim_while_open(&self, now: NanosSinceStart, requester: Requester) -> Option<BreakerClaim> {
        // ordering: pairs with `pause`; a stale 0 sends an extra request.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        let concerns = || !requester.is_forced && self.covers(Some(requester));
        if open_until == 0 || (self.ejected().is_none() && !concerns()) {
            return Some(BreakerClaim::Free);
        }
        if self.has_only_refused() {
            return Some(BreakerClaim::FreeTrial);
        }
        if now.0 < open_until {
            return None;
        }
        if self.are_trials_long(now) {
            // Of several requests that find the trials too long, a single request begins anew.
            let is_first = self.begin_trials(open_until, now);
            if is_first {
                // ordering: a count of hints; a claim at the same moment may be forgotten.
                self.trials.store(1, Ordering::Relaxed);
            }
            return is_first.then_some(BreakerClaim::Trial);
        }
        let most = self.trials_max();
        let more = |trials: u8| (trials < most).then(|| trials + 1);
        // ordering: the read-modify-write picks the last trial, and publishes nothing.
        let before = self.trials.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        if before == 0 && self.ejected().is_none() {
            self.begin_trials(open_until, now);
        }
        Some(BreakerClaim::Trial)
    }

    /// Notes the start of the first of the current trials; false: another request was faster, or
    /// the rank was paused meanwhile.
    fn begin_trials(&self, open_until: u64, now: NanosSinceStart) -> bool {
        // ordering: picks a single winner; pairs with the load in `are_trials_long`.
        let relaxed = Ordering::Relaxed;
        self.open_until_ns.compare_exchange(open_until, now.0.max(1), relaxed, relaxed).is_ok()
    }

    pub(super) fn are_trials_long(&self, now: NanosSinceStart) -> bool {
        // ordering: hints; pair with `claim`.
        let since = NanosSinceStart(self.open_until_ns.load(Ordering::Relaxed));
        self.ejected().is_none() && self.is_tried() && now >= since.plus(TRIAL_WAIT_MAX)
    }

    /// Trials at a time. The first byte of a body shows whether an ejected rank is well, and no
    /// head before that byte does.
    pub(super) fn trials_max(&self) -> u8 {
        match self.ejected() {
            Some(_) => 1,
            None => 1 + self.streak(),
        }
    }

    /// A trial has ended, or its answer has begun: another request may try the rank. Called once
    /// for each claim.
    pub fn end_trial(&self) {
        let less = |trials: u8| trials.checked_sub(1);
        // ordering: pairs with the update in `claim`.
        let _ = self.trials.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Forgets all trials: the next half-open state has trials of its own.
    pub(crate) fn forget_trials(&self) {
        // ordering: a hint; pairs with `breaker_admits`.
        self.trials.store(0, Ordering::Relaxed);
    }

    /// Does a request try the rank, without the begin of an answer?
    #[must_use]
    pub fn is_tried(&self) -> bool {
        self.trials() > 0
    }

    pub(super) fn trials(&self) -> u8 {
        // ordering: a hint; `claim` decides.
        self.trials.load(Ordering::Relaxed)
    }
}
