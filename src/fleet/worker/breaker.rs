//! The breaker of one rank: passive outlier detection, as words of the rank's cell of the load
//! board. Each shard writes the words when it sees how a request ended. The control plane ejects a
//! rank by the same words, and alone closes them then ([`super::EjectReason`]).
//!
//! | state | requests that the failures speak of | next state |
//! |---|---|---|
//! | closed | all | half open, when the rank fails more than its siblings |
//! | half open | one trial at a time | closed by successes, paused by a failed trial |
//! | paused | none | half open, when the pause ends |
//!
//! * **Score.** Each failure adds its weight, each success halves the score. The share of failures
//!   among the latest requests is counted beside it: a rank that fails one in two has a low score.
//! * **Witnesses.** The failures of one caller, or of one model, concern requests of that caller or
//!   that model alone. A second caller or model that fails there widens that.
//! * **Siblings.** A rank leaves the state *closed* only while a sibling does better, and the best
//!   of them never does: see [`LoadBoard::hold_against`].
//! * **Trials.** A trial that an engine answers with an error goes to a sibling, and the client
//!   gets that answer. Served there, the rank is to blame: it is paused. Failed there too, the
//!   request is to blame, and the next request is the trial.
//! * **Pauses** grow with each one, until the rank has served [`STREAK_MAX`] requests in a row. The
//!   first success closes the breaker of a rank that was not paused, unless its share of failures
//!   is high. A rank that was paused has to serve more trials, so that a rank that fails now and
//!   then gets trials alone.

use super::tag::{Requester, Tag, Witness};
use super::{LoadBoard, RankLoad};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_ring::sync::Ordering;
use std::time::Duration;

/// Each pause is so many times the one before.
const PAUSE_GROWTH: u32 = 4;
/// Longest pause, unless the first one is longer. A trial that fails costs its client nothing but a
/// moment, and a rank that is well again is missed where its siblings are full.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// A trial that takes longer keeps other trials waiting no more.
const TRIAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// Pauses that are counted.
const LEVEL_MAX: u32 = 15;
/// Trials in a row that a rank has to serve for each of its pauses before it serves all again.
const TRIALS_PER_LEVEL: u32 = 4;
/// Successes in a row that make the next pause the first again.
const STREAK_MAX: u32 = 16;
/// A rank is worse than its best sibling when its score is so many times as high.
const WORSE_FACTOR: u32 = 3;
/// A rank is worse than its best sibling too when it fails so many more of its latest requests, of
/// 256.
const WORSE_SHARE: u32 = 64;
/// The share of failures goes by about so many requests.
const SHARE_REQUESTS: u32 = 16;
/// Score that a rank keeps when another caller or model fails there: a failure.
const SCORE_WIDENED: u32 = FailureWeight::Failed as u32;

/// The parts of the word `history`: successes in a row since the last failure, pauses (the level)
/// above this bit, the share of failures above the next, doubts above the last.
const LEVEL_BIT: u32 = 8;
const SHARE_BIT: u32 = 12;
const DOUBTS_BIT: u32 = 20;
const ONE_DOUBT: u32 = 1 << DOUBTS_BIT;
const STREAK_MASK: u32 = (1 << LEVEL_BIT) - 1;
const LEVEL_MASK: u32 = ((1 << SHARE_BIT) - 1) & !STREAK_MASK;
const DOUBTS_MASK: u32 = !(ONE_DOUBT - 1);
const SHARE_MASK: u32 = !(DOUBTS_MASK | LEVEL_MASK | STREAK_MASK);
const SHARE_MAX: u32 = SHARE_MASK >> SHARE_BIT;
const _: () = assert!(STREAK_MAX <= STREAK_MASK && LEVEL_MAX <= LEVEL_MASK >> LEVEL_BIT);

/// How much a failure weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureWeight {
    /// The rank refused the request as wrong (4xx). Callers make most of these themselves.
    Refused = 1,
    /// The rank failed the request.
    Failed = 2,
}

/// What a failure speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// The request alone: others of its caller may fail too.
    Caller,
    /// The model on the rank: the same request was served by another rank.
    Model,
    /// The rank: no request could have caused the failure.
    Rank,
}

/// A failure of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFailure {
    /// The rank that failed.
    pub rank: RankIndex,
    /// The request that shows the failure.
    pub requester: Requester,
    /// What the failure speaks of.
    pub scope: FailureScope,
    /// How much it weighs.
    pub weight: FailureWeight,
    /// Status of the answer; 0 without one.
    pub status: u16,
    /// The request tried the rank, and the rank is to blame.
    pub is_trial: bool,
}

/// When a rank is paused, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BreakerRules {
    /// Failures after which a rank may be paused.
    pub failures: u32,
    /// The first pause of a rank.
    pub open: Duration,
}

/// On what terms a request has its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerClaim {
    /// No pause covers the request.
    Free,
    /// It is half open, and this is its trial.
    Trial,
}

/// What is held against a rank, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFailures {
    /// Weights of failures, less what successes took off.
    pub score: u32,
    /// Status of the last failure; 0 for one without an answer.
    pub status: u16,
    /// True if all failures are of one model.
    pub is_one_model: bool,
    /// True if all failures are of one caller.
    pub is_one_caller: bool,
    /// End of the pause; 0: no pause.
    pub until: NanosSinceStart,
    /// Pauses since the rank last worked for a while.
    pub pauses: u32,
}

impl LoadBoard {
    /// Counts a failure of a rank, and tries the rank by single requests if it does worse than
    /// `siblings`: other ranks that are up and serve the same model and leg.
    ///
    /// The rule: a rank is worse when its score has reached [`BreakerRules::failures`] failures,
    /// and exceeds that by [`WORSE_FACTOR`] times the score of its best sibling. Or its share of
    /// failures exceeds that of the sibling by [`WORSE_SHARE`]. What is held against the sibling
    /// for other callers or models does not count. The best of all is opened. So requests that
    /// fail everywhere close no rank, and a rank that fails what others serve is left out after
    /// few failures.
    ///
    /// A failed trial pauses the rank, and so does a failure that speaks of the rank.
    pub fn hold_against(
        &self,
        failure: RankFailure,
        siblings: impl Iterator<Item = RankIndex>,
        rules: BreakerRules,
        now: NanosSinceStart,
    ) {
        let RankFailure { rank, requester, .. } = failure;
        let Some(load) = self.rank(rank) else { return };
        load.count_failure(failure);
        let best = siblings
            .filter(|sibling| *sibling != rank)
            .filter_map(|sibling| Some((sibling, self.rank(sibling)?)))
            .filter(|(_, load)| load.ejected().is_none())
            .min_by_key(|(_, load)| (load.record_of(requester), load.is_open_for(requester)));
        // Without a sibling the rank always serves: see `Requester::is_forced`.
        let Some((sibling, best)) = best else { return };
        if !load.is_worse_than(best, requester, rules) {
            if load.is_open_for(requester) && load.reopen() {
                self.room_made(rank);
            }
            return;
        }
        if failure.is_trial || failure.scope == FailureScope::Rank {
            load.pause(rules.open, now);
        } else if !load.is_open() {
            load.half_open(now);
        }
        if best.is_open_for(requester) && best.reopen() {
            self.room_made(sibling);
        }
    }
}

impl RankLoad {
    /// May a request go there now? In half-open state exactly one request gets `true`; its outcome
    /// decides. Without an `requester`: is the rank open to some callers?
    #[must_use]
    #[inline]
    pub fn breaker_admits(&self, now: NanosSinceStart, requester: Option<Requester>) -> bool {
        !self.is_open() || self.admits_while_open(now, requester)
    }

    #[cold]
    fn admits_while_open(&self, now: NanosSinceStart, requester: Option<Requester>) -> bool {
        // ordering: one word, monotone between successes; pairs with the store in `pause`.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        open_until == 0
            || (now.0 >= open_until && !self.trial_taken())
            || self.trial_is_long(now)
            || (self.ejected().is_none() && !self.covers(requester))
    }

    /// Is the rank paused or half open for requests like this one?
    #[must_use]
    pub fn is_open_for(&self, requester: Requester) -> bool {
        self.is_open() && (self.ejected().is_some() || self.covers(Some(requester)))
    }

    /// Claims the one trial of a half-open rank, called when such a rank was picked. `None`:
    /// another request has the trial.
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
        // ordering: pairs with `pause`; a stale 0 sends one request more.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        let concerns = || !requester.is_forced && self.covers(Some(requester));
        if open_until == 0 || (self.ejected().is_none() && !concerns()) {
            return Some(BreakerClaim::Free);
        }
        // ordering: the swap picks one winner; nothing else is published through it.
        let won = now.0 >= open_until && !self.trial.swap(true, Ordering::Relaxed);
        if (won || self.trial_is_long(now)) && self.ejected().is_none() {
            let at = now.0.max(1);
            // ordering: as above. Time of the trial: of two that find it too long, one swap wins.
            let relaxed = Ordering::Relaxed;
            let next = self.open_until_ns.compare_exchange(open_until, at, relaxed, relaxed);
            return (won || next.is_ok()).then_some(BreakerClaim::Trial);
        }
        won.then_some(BreakerClaim::Trial)
    }

    /// A whole answer may take minutes: the next request is a trial too.
    fn trial_is_long(&self, now: NanosSinceStart) -> bool {
        // ordering: hints; pair with `claim`.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        let long = NanosSinceStart(open_until).plus(TRIAL_WAIT_MAX);
        self.ejected().is_none() && self.trial_taken() && now >= long
    }

    /// The rank served a request. What speaks of another model alone stays.
    #[inline]
    pub fn succeeded(&self, requester: Requester) {
        // ordering: a hint; pairs with `count_failure`, `pause` and `doubted`.
        if self.failures() != 0 || self.is_open() || self.history.load(Ordering::Relaxed) != 0 {
            self.count_success(requester);
        }
    }

    #[cold]
    fn count_success(&self, requester: Requester) {
        let witness = self.witness();
        if self.failures() != 0 && !witness.model.covers(Tag::of_model(requester.model)) {
            return self.answered();
        }
        // One success after a flood of failures shows as much as one after a few.
        let left = (self.failures() / 2).min(FailureWeight::Failed as u32 * 2);
        // ordering: independent words, each a hint; of two successes at once the later one counts.
        self.failures.store(left, Ordering::Relaxed);
        let level = self.level();
        let mut streak = 0;
        let mut share = 0;
        self.change_history(|word| {
            streak = (word & STREAK_MASK) + 1;
            share = (word & SHARE_MASK) >> SHARE_BIT;
            share -= share.div_ceil(SHARE_REQUESTS);
            match word & LEVEL_MASK {
                0 => share << SHARE_BIT,
                _ if streak >= STREAK_MAX => share << SHARE_BIT,
                level => share << SHARE_BIT | level | streak,
            }
        });
        // The head of an answer may come from a server whose engine stands still.
        if self.ejected().is_none() && self.is_open() {
            let is_enough = match level {
                0 => share < WORSE_SHARE,
                _ => streak >= level.saturating_mul(TRIALS_PER_LEVEL).min(STREAK_MAX),
            };
            if is_enough {
                self.close();
            } else {
                self.trial_abandoned();
            }
        }
    }

    /// The rank answered that it has no room: the rank is not what two ranks failed by together.
    pub fn answered(&self) {
        self.change_history(|word| word & !DOUBTS_MASK);
    }

    fn change_history(&self, mut change: impl FnMut(u32) -> u32) {
        // ordering: a word of its own, read as a hint; the read-modify-write keeps its parts.
        let _ = self.history.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(change(word)).filter(|changed| *changed != word)
        });
    }

    fn level(&self) -> u32 {
        // ordering: a hint; pairs with `change_history`.
        (self.history.load(Ordering::Relaxed) & LEVEL_MASK) >> LEVEL_BIT
    }

    /// Score and share of failures, as far as they concern requests like this one.
    fn record_of(&self, requester: Requester) -> (u32, u32) {
        if !self.covers(Some(requester)) {
            return (0, 0);
        }
        (self.failures(), self.share())
    }

    /// Failures of its latest requests, of [`SHARE_MAX`].
    fn share(&self) -> u32 {
        // ordering: a hint; pairs with `change_history`.
        (self.history.load(Ordering::Relaxed) & SHARE_MASK) >> SHARE_BIT
    }

    fn is_worse_than(&self, best: &Self, requester: Requester, rules: BreakerRules) -> bool {
        let (score, share) = self.record_of(requester);
        let (best_score, best_share) = best.record_of(requester);
        // After a pause one failure is enough, until the rank has served for a while.
        let failures = if self.level() == 0 { rules.failures } else { 1 };
        let enough = failures.saturating_mul(FailureWeight::Failed as u32);
        score >= enough.saturating_add(WORSE_FACTOR.saturating_mul(best_score))
            // The share of a rank that gets few requests is old: its score says more.
            || score >= best_score && share >= best_share + WORSE_SHARE
    }

    fn count_failure(&self, failure: RankFailure) {
        let Requester { caller, model, .. } = failure.requester;
        let (caller, model) = match failure.scope {
            FailureScope::Caller => (Tag::of_caller(caller), Tag::of_model(model)),
            FailureScope::Model => (Tag::SEVERAL, Tag::of_model(model)),
            FailureScope::Rank => (Tag::SEVERAL, Tag::SEVERAL),
        };
        let before = self.failures();
        let seen = self.witness();
        // What a paused rank was blamed for stays until the rank has served for a while.
        let is_first = before == 0 && self.level() == 0 && self.share() == 0;
        let (caller, model) = match is_first {
            true => (caller, model),
            false => (seen.caller.with(caller), seen.model.with(model)),
        };
        let is_widened = !is_first && (caller, model) != (seen.caller, seen.model);
        // Most 4xx are caused by the request: they widen no evidence of 5xx and broken answers.
        let is_refused = |status| (300..500).contains(&status);
        let is_other_model = !is_first && model != seen.model;
        if is_other_model && is_refused(failure.status) && !is_refused(seen.status) {
            return;
        }
        // What one caller or one model has failed is no evidence for the others.
        let score = if is_widened { before.min(SCORE_WIDENED) } else { before };
        let weight = failure.weight as u32;
        // ordering: independent words, each a hint; of two failures at once one may be lost.
        self.failures.store(score.saturating_add(weight), Ordering::Relaxed);
        let witness = Witness { caller, model, status: failure.status };
        // ordering: one word, a hint; pairs with `covers`.
        self.witnesses.store(witness.word(), Ordering::Relaxed);
        // The streak of successes ends, the level stays.
        self.change_history(|word| {
            let share = if is_widened { 0 } else { (word & SHARE_MASK) >> SHARE_BIT };
            let more =
                (SHARE_MAX - share) * weight / (FailureWeight::Failed as u32 * SHARE_REQUESTS);
            word & (DOUBTS_MASK | LEVEL_MASK) | (share + more) << SHARE_BIT
        });
    }

    /// A failure that was the request's own, as a sibling has shown: it is taken off again.
    pub fn forgive(&self) {
        let less = |score: u32| Some(score.saturating_sub(FailureWeight::Failed as u32));
        // ordering: a count; the read-modify-write makes it exact.
        let before = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.change_history(|word| {
            let share = (word & SHARE_MASK) >> SHARE_BIT;
            word & !SHARE_MASK | share.saturating_sub(SHARE_MAX / SHARE_REQUESTS) << SHARE_BIT
        });
        if before.is_ok_and(|before| before <= FailureWeight::Failed as u32) {
            let _ = self.reopen();
        }
    }

    /// Single requests try the rank from now on.
    fn half_open(&self, now: NanosSinceStart) {
        // ordering: pairs with `breaker_admits`; one word, a late reader sends one request more.
        // At least 1, since 0 means closed.
        self.open_until_ns.fetch_max(now.0.max(1), Ordering::Relaxed);
        // ordering: as above.
        self.trial.store(false, Ordering::Relaxed);
    }

    /// Begins a pause, unless one is running. Failures during a pause are of requests from before.
    fn pause(&self, first: Duration, now: NanosSinceStart) {
        // ordering: a hint; pairs with the store below.
        if self.open_until_ns.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let level = self.level();
        let long = first.saturating_mul(PAUSE_GROWTH.saturating_pow(level));
        let until = now.plus(long.min(PAUSE_MAX.max(first)));
        self.change_history(|word| word & DOUBTS_MASK | (level + 1).min(LEVEL_MAX) << LEVEL_BIT);
        // ordering: pairs with `breaker_admits`; one word, a late reader sends one request more.
        // At least 1, since 0 means closed. Not before the end of an ejection.
        self.open_until_ns.fetch_max(until.0.max(1), Ordering::Relaxed);
        // A trial that failed is over: the next half-open state has a new one.
        // ordering: as above.
        self.trial.store(false, Ordering::Relaxed);
    }

    /// Closes the breaker of a rank that is the best there is. False: it was closed, or the rank is
    /// ejected.
    #[must_use]
    pub fn reopen(&self) -> bool {
        let is_paused = self.is_open() && self.ejected().is_none();
        if is_paused {
            self.close();
        }
        is_paused
    }

    /// The trial ended without an outcome: the client left, or the request was to blame. The next
    /// request may try. Only for the request that has claimed it.
    pub fn trial_abandoned(&self) {
        // ordering: pairs with the swap in `claim`.
        self.trial.store(false, Ordering::Relaxed);
    }

    /// The score: weights of failures, less what successes took off.
    #[must_use]
    pub fn failures(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.failures.load(Ordering::Relaxed)
    }

    /// True while the breaker is paused or half open.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // ordering: statistic; pairs with nothing.
        self.open_until_ns.load(Ordering::Relaxed) != 0
    }

    /// What is held against the rank; `None`: nothing.
    #[must_use]
    pub fn held(&self) -> Option<HeldFailures> {
        let score = self.failures();
        let Witness { caller, model, status } = self.witness();
        (score > 0 || self.level() > 0).then(|| HeldFailures {
            score,
            status,
            is_one_model: model != Tag::SEVERAL,
            is_one_caller: caller != Tag::SEVERAL,
            // ordering: statistic; pairs with nothing.
            until: NanosSinceStart(self.open_until_ns.load(Ordering::Relaxed)),
            pauses: self.level(),
        })
    }

    /// It failed together with another rank. How often that had happened in a row before.
    pub(super) fn doubted(&self) -> u32 {
        // ordering: a count; pairs with the store in `change_history`.
        self.history.fetch_add(ONE_DOUBT, Ordering::Relaxed) >> DOUBTS_BIT
    }

    pub(super) fn close(&self) {
        // ordering: independent words, each a hint; pairs with `breaker_admits`.
        self.open_until_ns.store(0, Ordering::Relaxed);
        // ordering: as above.
        self.trial.store(false, Ordering::Relaxed);
    }

    /// Has a request claimed the trial?
    #[must_use]
    pub fn trial_taken(&self) -> bool {
        // ordering: a hint; `claim` decides.
        self.trial.load(Ordering::Relaxed)
    }

    fn witness(&self) -> Witness {
        // ordering: a hint; pairs with the store in `count_failure`.
        Witness::of(self.witnesses.load(Ordering::Relaxed))
    }

    /// Do the failures speak of requests like this one?
    fn covers(&self, requester: Option<Requester>) -> bool {
        let Witness { caller, model, .. } = self.witness();
        let Some(requester) = requester else { return caller == Tag::SEVERAL };
        model.covers(Tag::of_model(requester.model))
            && caller.covers(Tag::of_caller(requester.caller))
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
