//! The part of [`RequestFlow`] that handles a failed attempt: another rank, or the end.

use super::event::Action;
use super::flow::{HeldLeases, REFUSALS_MAX, RequestFlow, gone, model};
use super::moving::pin_of_rest;
use super::scene::Scene;
use super::stages::Stages;
use super::stop::{self, FailedAttempt, Stop};
use crate::dispatch::RelayError;
use forebay_base::NanosSinceStart;
use forebay_board::account::Count;
use forebay_board::is_refusal;
use forebay_fleet::worker::Dialect;
use std::time::Duration;

impl RequestFlow {
    pub(super) fn attempt_failed(
        &mut self,
        now: NanosSinceStart,
        mut failed: FailedAttempt,
        scene: &mut Scene<'_>,
    ) -> Action {
        let rank = failed.rank;
        let with = failed.partner;
        let error = failed.error;
        let Some(model) = model(&self.facts, scene.fleet) else { return gone() };
        if matches!(error, RelayError::CallerLimited | RelayError::TrialFailed) {
            return self.answered_with_error(now, failed, scene);
        }
        if failed.reply.answer.is_some() {
            return Action::End(stop::end_of_failure(scene.fleet, failed));
        }
        if error == RelayError::Moved {
            // Moved by the operator: neither a failure nor an attempt. Each move waits for an
            // event, so hops and refusals before the move no longer count.
            self.tries.hop_count = 0;
            self.tries.refused_count = 0;
            self.go_on(now, failed.dialect_of_rest);
            self.failed = Some(scene.stages.failed(scene.fleet, model.pool, now, failed));
            return self.hop(now, HeldLeases::default(), scene);
        }
        if error == RelayError::EngineBusy && self.tries.refused_count < REFUSALS_MAX {
            // The engine had no room: no failure, and the rank is paused for a moment. The retry
            // budget is for engines that fail, so this takes nothing from it.
            self.tries.refused_count += 1;
            return self.place(now, HeldLeases::default(), scene);
        }
        let may_go_elsewhere = error.is_unsent() && now < self.gives_up_at(scene);
        if !may_go_elsewhere && !self.may_retry(&mut failed, scene) {
            let end = scene.stages.failed(scene.fleet, model.pool, now, failed);
            return Action::End(stop::end_after(self.failed.take(), end));
        }
        if failed.is_resumable {
            self.go_on(now, failed.dialect_of_rest);
        } else {
            self.tries.has_failed_unseen = true;
        }
        // Stored while other ranks are tried: if none is left, the client gets this error.
        let end = scene.stages.failed(scene.fleet, model.pool, now, failed);
        self.failed = Some(stop::end_after(self.failed.take(), end));
        if may_go_elsewhere {
            // No rank of this worker accepts a connection. The next worker is tried, and this does
            // not count as an attempt.
            self.facts.tried.extend(scene.fleet.ranks_beside(rank));
        } else {
            self.tries.failed_count += 1;
            let attempts_max = scene.stages.rules.attempts_max;
            debug_assert!(self.tries.failed_count < attempts_max, "more attempts than allowed");
            debug_assert!(!self.facts.tried.contains(&rank), "failed where it was not sent");
            self.facts.tried.push(rank);
            self.facts.tried.extend(with);
            self.tries.spared = with;
            self.tries.failed_at = (!self.tries.is_pair).then_some((rank, error));
        }
        self.place(now, HeldLeases::default(), scene)
    }

    /// The worker answered with an error that may be its own: another worker is tried, and this is
    /// not counted as an attempt. If none is left, the client gets the answer.
    fn answered_with_error(
        &mut self,
        now: NanosSinceStart,
        failed: FailedAttempt,
        scene: &mut Scene<'_>,
    ) -> Action {
        self.facts.tried.push(failed.rank);
        self.tries.trial = failed.reply.trial;
        let is_refused = failed.reply.answer.as_ref().is_some_and(|it| is_refusal(it.status));
        if is_refused && failed.error == RelayError::TrialFailed {
            // The client has an answer: no wait for a place.
            self.facts.deadline = now;
        }
        self.failed = failed.reply.answer.map(Stop::Engine);
        self.place(now, HeldLeases::default(), scene)
    }

    /// A retry needs three things: no byte reached the client, attempts are left, and the retry
    /// budget of the caller allows it. A full engine has not failed, so it does not draw on the
    /// budget. A request that a worker may have read is retried only if `retry.after_send` is set,
    /// or for the rest of a stream, or after a pair: the legs of a pair produce no answer of their
    /// own.
    fn may_retry(&self, failed: &mut FailedAttempt, scene: &mut Scene<'_>) -> bool {
        let error = failed.error;
        let has_rest = failed.is_resumable;
        let attempts = self.tries.failed_count.saturating_add(1);
        let Stages { rules, sends, .. } = &mut *scene.stages;
        let is_busy = error == RelayError::EngineBusy;
        let broke_off = has_rest && !error.before_head() && error.blames_worker();
        // The client of a broken stream has the beginning and cannot retry the rest itself.
        let hangs = has_rest && error == RelayError::FirstByteTimedOut;
        let is_allowed = (error.may_retry() || broke_off || hangs)
            && (is_busy || self.tries.is_pair || rules.retries_after_send || has_rest)
            && attempts < rules.attempts_max;
        if !is_allowed || is_busy {
            return is_allowed;
        }
        let has_budget = sends.retry.withdraw(self.facts.caller.source);
        if !has_budget {
            failed.is_over_budget = true;
            (scene.count)(Count::RetriesRefused);
        }
        has_budget
    }

    /// Prepares the rest of a stream. Its waits start anew: the time that the stream has run does
    /// not count. `only` restricts the ranks to an engine family that can continue the stream.
    fn go_on(&mut self, now: NanosSinceStart, only: Option<Dialect>) {
        if let Some(dialect) = only {
            self.facts.pin = Some(pin_of_rest(self.facts.pin, dialect));
        }
        let wait_max = Duration::from_nanos(self.facts.deadline.since(self.facts.arrived_at));
        self.facts.arrived_at = now;
        self.facts.deadline = now.plus(wait_max);
        self.facts.client_deadline = None;
    }

    /// The request is not sent after this moment.
    fn gives_up_at(&self, scene: &Scene<'_>) -> NanosSinceStart {
        let first_byte = scene.stages.rules.first_byte_max;
        self.facts.client_deadline.unwrap_or_else(|| self.facts.arrived_at.plus(first_byte))
    }

    /// Called when no other rank is left. Makes the rank that failed as part of a pair eligible
    /// again; false: there is none.
    pub(super) fn spare(&mut self) -> bool {
        // Taken, so that the rank is tried once more and not for ever.
        let Some(spared) = self.tries.spared.take() else { return false };
        self.facts.tried.retain(|&tried| tried != spared);
        true
    }
}
