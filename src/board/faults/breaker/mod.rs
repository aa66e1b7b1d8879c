//! The breaker of a rank: passive outlier detection, in words of the rank's cell of the load board.
//! Each shard updates the words when a request ends. The control plane ejects a rank through the
//! same words; only the control plane ends an ejection ([`crate::EjectReason`]).
//!
//! | state | requests that the failures concern | next state |
//! |---|---|---|
//! | closed | all | half open, when the rank fails more than its siblings |
//! | half open | trials: [`RankLoad::claim`] | closed by successes, paused by a failed trial |
//! | paused | none | half open, when the pause ends |
//!
//! * **Score.** Each failure adds its weight, each success halves the score. The share of failures
//!   among the latest requests is counted separately: a rank that fails every second request has a
//!   low score.
//! * **Witnesses.** Failures of a single caller or model concern only requests of that caller or
//!   model. A failure of a second caller or model on the rank widens the scope.
//! * **Siblings.** A rank leaves the state *closed* only while a sibling does better; the best rank
//!   never leaves it: see [`LoadBoard::hold_against`].
//! * **Refusals.** A rank that has only refused requests (3xx, 4xx) as wrong is half open for any
//!   number of trials, which are not counted: the callers may be at fault. It takes requests as
//!   before until a sibling serves a request that it refused. Legs of pairs are not retried: ranks
//!   that serve them get single trials.
//! * **Trials.** Otherwise a single trial runs at first. Each trial that the rank serves in a row
//!   lets a further trial run beside it: 1, then 2, 4 and 8, as each round doubles the next (slow
//!   start of RFC 5681). A single trial at a time would leave a mended rank idle while requests
//!   wait.
//! * **Failed trials.** A trial that an engine answers with an error is retried on a sibling, and
//!   the client gets the sibling's answer. If the sibling serves it, the rank is to blame and is
//!   paused. If the sibling fails too, the request is to blame, and the next request is the trial.
//! * **Pauses** grow, until the rank has served [`STREAK_MAX`] requests in a row. The first success
//!   closes the breaker of a rank that was not paused, unless its share of failures is high. A rank
//!   that was paused has to serve more trials, so that a rank with occasional failures gets only
//!   trials.

mod failure;
mod trials;

pub use self::failure::{
    BreakerClaim, BreakerRules, FailureScope, FailureWeight, HeldFailures, RankFailure, is_refusal,
};

use super::tag::{Tag, Witness};
use crate::LoadBoard;
use crate::RankLoad;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::Requester;
use forebay_ring::sync::Ordering;
use std::time::Duration;

/// Each pause is this many times as long as the pause before.
const PAUSE_GROWTH: u32 = 4;
/// Longest pause, unless the first pause is longer. A failed trial delays its client only a moment,
/// and a recovered rank is missed while its siblings are full.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Most pauses that are counted.
const LEVEL_MAX: u32 = 15;
/// Trials in a row that a rank has to serve per pause before it serves all requests again.
const TRIALS_PER_LEVEL: u32 = 4;
/// Successes in a row after which the next pause is a first pause again.
const STREAK_MAX: u32 = 16;
/// A rank is worse than its best sibling if its score is this many times as high.
const WORSE_FACTOR: u32 = 3;
/// A rank is also worse than its best sibling if it fails this many more of its latest requests, of
/// 256.
const WORSE_SHARE: u32 = 64;
/// Number of requests that the share of failures averages over.
const SHARE_REQUESTS: u32 = 16;
/// Score that a rank keeps when another caller or model fails there: a single failure.
const SCORE_WIDENED: u32 = FailureWeight::Failed.points();

/// Layout of the word `history`, from the lowest bit: successes in a row since the last failure,
/// pauses (the level), the share of failures, doubts.
const LEVEL_BIT: u32 = 8;
const SHARE_BIT: u32 = 12;
pub(super) const DOUBTS_BIT: u32 = 20;
pub(super) const ONE_DOUBT: u32 = 1 << DOUBTS_BIT;
const STREAK_MASK: u32 = (1 << LEVEL_BIT) - 1;
const LEVEL_MASK: u32 = ((1 << SHARE_BIT) - 1) & !STREAK_MASK;
const DOUBTS_MASK: u32 = !(ONE_DOUBT - 1);
const SHARE_MASK: u32 = !(DOUBTS_MASK | LEVEL_MASK | STREAK_MASK);
const SHARE_MAX: u32 = SHARE_MASK >> SHARE_BIT;
const _: () = assert!(STREAK_MAX <= STREAK_MASK && LEVEL_MAX <= LEVEL_MASK >> LEVEL_BIT);

impl LoadBoard {
    /// Counts a failure of a rank, and half-opens the rank if it does worse than `siblings`: other
    /// ranks that are up and serve the same model and leg.
    ///
    /// A rank is worse if its score exceeds [`WORSE_FACTOR`] times the score of its best sibling by
    /// [`BreakerRules::failures`] failures. It is also worse if its share of failures exceeds the
    /// share of that sibling by [`WORSE_SHARE`]. Failures of the sibling for other callers or
    /// models do not count. The breaker of the best rank is closed. So requests that fail
    /// everywhere remove no rank, and a rank that fails requests which other ranks serve is removed
    /// after few failures.
    ///
    /// A failed trial pauses the rank, and so does a failure with [`FailureScope::Rank`].
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
    /// May a request be sent to the rank now? In half-open state only trials get `true`; their
    /// outcome decides. Without a `requester`: does the rank accept some callers?
    #[must_use]
    #[inline]
    pub fn breaker_admits(&self, now: NanosSinceStart, requester: Option<Requester>) -> bool {
        !self.is_open() || self.admits_while_open(now, requester)
    }

    #[cold]
    fn admits_while_open(&self, now: NanosSinceStart, requester: Option<Requester>) -> bool {
        // ordering: a single word, monotone between successes; pairs with the store in `pause`.
        let open_until = self.open_until_ns.load(Ordering::Relaxed);
        open_until == 0
            || self.has_only_refused()
            || (now.0 >= open_until && self.trials() < self.trials_max())
            || self.are_trials_long(now)
            || (self.ejected().is_none() && !self.covers(requester))
    }

    /// Is the rank paused or half open for requests of this caller and model?
    #[must_use]
    pub fn is_open_for(&self, requester: Requester) -> bool {
        self.is_open() && (self.ejected().is_some() || self.covers(Some(requester)))
    }

    /// Is the breaker open for refusals alone, of which no sibling has served any? Then the callers
    /// may be at fault, and the rank takes requests as before.
    fn has_only_refused(&self) -> bool {
        self.ejected().is_none() && self.level() == 0 && self.witness().has_only_refused
    }

    /// True while the breaker or an ejection keeps requests from the rank.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.ejected().is_some() || self.is_open() && !self.has_only_refused()
    }

    /// The same, for requests of all callers.
    #[must_use]
    pub fn is_restricted_to_all(&self) -> bool {
        self.is_restricted() && (self.ejected().is_some() || self.covers(None))
    }

    /// The same, for requests of this caller and model.
    #[must_use]
    pub fn is_restricted_to(&self, requester: Requester) -> bool {
        self.is_restricted() && self.is_open_for(requester)
    }

    /// The rank served a request. Failures of another model alone stay.
    #[inline]
    pub fn succeeded(&self, requester: Requester) {
        self.signs().show_service();
        // ordering: a hint; pairs with `count_failure`, `pause` and `doubted`.
        if self.failures() != 0 || self.is_open() || self.history.load(Ordering::Relaxed) != 0 {
            self.count_success(requester);
        }
    }

    #[cold]
    fn count_success(&self, requester: Requester) {
        self.signs().show_served();
        let model = Tag::of_model(requester.model);
        if self.failures() != 0 && !self.witness().model.covers(model) {
            return self.answered();
        }
        // A success after a flood of failures counts as much as a success after a few failures.
        let left = (self.failures() / 2).min(FailureWeight::Failed.points() * 2);
        // ordering: independent words, each a hint; of two successes at once the later store wins.
        self.failures.store(left, Ordering::Relaxed);
        let level = self.level();
        let is_tried = self.is_open() && self.ejected().is_none();
        let mut streak = 0;
        let mut share = 0;
        self.change_history(|word| {
            streak = (word & STREAK_MASK) + 1;
            share = (word & SHARE_MASK) >> SHARE_BIT;
            share -= share.div_ceil(SHARE_REQUESTS);
            match word & LEVEL_MASK {
                0 if is_tried => share << SHARE_BIT | streak.min(STREAK_MAX),
                0 => share << SHARE_BIT,
                _ if streak >= STREAK_MAX => share << SHARE_BIT,
                level => share << SHARE_BIT | level | streak,
            }
        });
        // The head of an answer may come from a server with a hanging engine.
        if is_tried {
            let is_enough = match level {
                0 => share < WORSE_SHARE,
                _ => streak >= level.saturating_mul(TRIALS_PER_LEVEL).min(STREAK_MAX),
            };
            if is_enough {
                self.close();
            }
        }
    }

    /// The rank answered that it has no room: it did not cause the failures that it shares with
    /// another rank.
    pub fn answered(&self) {
        self.change_history(|word| word & !DOUBTS_MASK);
    }

    pub(super) fn change_history(&self, mut change: impl FnMut(u32) -> u32) {
        // ordering: an independent word, read as a hint; the read-modify-write keeps its parts.
        let _ = self.history.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(change(word)).filter(|changed| *changed != word)
        });
    }

    /// Successes in a row since the last failure, at most [`STREAK_MAX`], while the rank is tried.
    fn streak(&self) -> u8 {
        // ordering: a hint; pairs with `change_history`.
        let streak = self.history.load(Ordering::Relaxed) & STREAK_MASK;
        u8::try_from(streak.min(STREAK_MAX)).unwrap_or(0)
    }

    fn level(&self) -> u32 {
        // ordering: a hint; pairs with `change_history`.
        (self.history.load(Ordering::Relaxed) & LEVEL_MASK) >> LEVEL_BIT
    }

    /// Score and share of failures that concern requests of this caller and model.
    fn record_of(&self, requester: Requester) -> (u32, u32) {
        if !self.covers(Some(requester)) {
            return (0, 0);
        }
        (self.failures(), self.share())
    }

    /// Share of failures among its latest requests, of [`SHARE_MAX`].
    fn share(&self) -> u32 {
        // ordering: a hint; pairs with `change_history`.
        (self.history.load(Ordering::Relaxed) & SHARE_MASK) >> SHARE_BIT
    }

    fn is_worse_than(&self, best: &Self, requester: Requester, rules: BreakerRules) -> bool {
        let (score, share) = self.record_of(requester);
        let (best_score, best_share) = best.record_of(requester);
        // After a pause a single failure is enough, until the rank has served [`STREAK_MAX`]
        // requests.
        let failures = if self.level() == 0 { rules.failures } else { 1 };
        let enough = failures.saturating_mul(FailureWeight::Failed.points());
        score >= enough.saturating_add(WORSE_FACTOR.saturating_mul(best_score))
            // A rank with few requests has an old share: its score is more reliable.
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
        // Blame of a paused rank stays until the rank has served [`STREAK_MAX`] requests in a row.
        let is_first = before == 0 && self.level() == 0 && self.share() == 0;
        let (caller, model) = match is_first {
            true => (caller, model),
            false => (seen.caller.with(caller), seen.model.with(model)),
        };
        let is_widened = !is_first && (caller, model) != (seen.caller, seen.model);
        // Most 4xx are caused by the request: they do not widen the scope of 5xx and broken
        // answers.
        let is_refused = failure.weight != FailureWeight::Failed;
        let is_milder = !is_first && is_refused && !is_refusal(seen.status);
        if is_milder && model != seen.model {
            return;
        }
        let has_only_refused =
            failure.weight == FailureWeight::Refused && (is_first || seen.has_only_refused);
        // Failures of a single caller or model are no evidence for other callers and models.
        let score = if is_widened { before.min(SCORE_WIDENED) } else { before };
        let weight = failure.weight.points();
        // ordering: independent words, each a hint; of two failures at once the count may miss the
        // first.
        self.failures.store(score.saturating_add(weight), Ordering::Relaxed);
        let witness = Witness { caller, model, status: failure.status, has_only_refused };
        // ordering: a hint; pairs with `covers`.
        self.witnesses.store(witness.word(), Ordering::Relaxed);
        // The streak of successes ends, the level stays.
        self.change_history(|word| {
            let share = if is_widened { 0 } else { (word & SHARE_MASK) >> SHARE_BIT };
            let more =
                (SHARE_MAX - share) * weight / (FailureWeight::Failed.points() * SHARE_REQUESTS);
            word & (DOUBTS_MASK | LEVEL_MASK) | (share + more) << SHARE_BIT
        });
    }

    /// Takes back a failure that the request itself caused: a sibling failed it too.
    pub fn forgive(&self) {
        let less = |score: u32| Some(score.saturating_sub(FailureWeight::Failed.points()));
        // ordering: a count; the read-modify-write makes it exact.
        let before = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.change_history(|word| {
            let share = (word & SHARE_MASK) >> SHARE_BIT;
            word & !SHARE_MASK | share.saturating_sub(SHARE_MAX / SHARE_REQUESTS) << SHARE_BIT
        });
        if before.is_ok_and(|before| before <= FailureWeight::Failed.points()) {
            let _ = self.reopen();
        }
    }

    /// Only trials are sent to the rank from now on.
    fn half_open(&self, now: NanosSinceStart) {
        // ordering: pairs with `breaker_admits`; a late reader sends an extra request. At least 1,
        // since 0 means closed.
        self.open_until_ns.fetch_max(now.0.max(1), Ordering::Relaxed);
        self.forget_trials();
    }

    /// Begins a pause, unless a pause is running. Failures during a pause are of earlier requests.
    fn pause(&self, first: Duration, now: NanosSinceStart) {
        // ordering: a hint; pairs with the store below.
        if self.open_until_ns.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let level = self.level();
        let long = first.saturating_mul(PAUSE_GROWTH.saturating_pow(level));
        let until = now.plus(long.min(PAUSE_MAX.max(first)));
        self.change_history(|word| word & DOUBTS_MASK | (level + 1).min(LEVEL_MAX) << LEVEL_BIT);
        // ordering: pairs with `breaker_admits`; a late reader sends an extra request. At least 1,
        // since 0 means closed. Not before the end of an ejection.
        self.open_until_ns.fetch_max(until.0.max(1), Ordering::Relaxed);
        self.forget_trials();
    }

    /// Closes the breaker of the best rank. False: it was closed, or the rank is ejected.
    #[must_use]
    pub fn reopen(&self) -> bool {
        let is_paused = self.is_open() && self.ejected().is_none();
        if is_paused {
            self.close();
        }
        is_paused
    }

    /// The score: weights of failures, halved by successes.
    #[must_use]
    pub fn failures(&self) -> u32 {
        // ordering: statistic; pairs with nothing.
        self.failures.load(Ordering::Relaxed)
    }

    /// True while the breaker is paused or half open, see [`Self::is_restricted`].
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // ordering: statistic; pairs with nothing.
        self.open_until_ns.load(Ordering::Relaxed) != 0
    }

    #[must_use]
    pub fn held(&self) -> Option<HeldFailures> {
        let score = self.failures();
        let Witness { caller, model, status, .. } = self.witness();
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

    pub(crate) fn close(&self) {
        // ordering: independent words, each a hint; pairs with `breaker_admits`.
        self.open_until_ns.store(0, Ordering::Relaxed);
        self.forget_trials();
    }

    fn witness(&self) -> Witness {
        // ordering: a hint; pairs with the store in `count_failure`.
        Witness::of(self.witnesses.load(Ordering::Relaxed))
    }

    /// Do the failures concern requests of this caller and model?
    fn covers(&self, requester: Option<Requester>) -> bool {
        let Witness { caller, model, .. } = self.witness();
        let Some(requester) = requester else { return caller == Tag::SEVERAL };
        model.covers(Tag::of_model(requester.model))
            && caller.covers(Tag::of_caller(requester.caller))
    }
}

#[cfg(test)]
mod tests;
