//! What a failed attempt leads to: another rank, or the end. Another part of the machine of a
//! request ([`RequestFlow`]).

use super::event::Action;
use super::flow::{InHand, REFUSALS_MAX, RequestFlow, gone, model};
use super::moving::pin_of_rest;
use super::scene::Scene;
use super::stages::Stages;
use super::stop::{self, Failed, Stop};
use crate::dispatch::RelayError;
use forebay_base::NanosSinceStart;
use forebay_fleet::account::Count;
use forebay_fleet::worker::Dialect;
use std::time::Duration;

impl RequestFlow {
    pub(super) fn attempt_failed(
        &mut self,
        now: NanosSinceStart,
        failed: Failed,
        scene: &mut Scene<'_>,
    ) -> Action {
        let rank = failed.rank;
        let with = failed.with;
        let error = failed.error;
        let Some(model) = model(&self.facts, scene.fleet) else { return gone() };
        if matches!(error, RelayError::CallerLimited | RelayError::TrialFailed) {
            return self.answered_with_error(now, failed, scene);
        }
        if failed.reply.answer.is_some() {
            return Action::End(stop::stop(scene.fleet, failed));
        }
        if error == RelayError::Moved {
            // By the operator's word: no failure, and no attempt. Each move waits for an event, so
            // the hops and refusals before it count no more.
            self.tries.hop_count = 0;
            self.tries.refused_count = 0;
            self.go_on(now, failed.only);
            self.failed = Some(scene.stages.failed(scene.fleet, model.pool, now, failed));
            return self.hop(now, InHand::default(), scene);
        }
        if error == RelayError::EngineBusy && self.tries.refused_count < REFUSALS_MAX {
            // The engine had no room: no failure; the rank is left alone for a moment. The retry
            // budget is for engines that fail, so it stays as it is.
            self.tries.refused_count += 1;
            return self.place(now, InHand::default(), scene);
        }
        let may_go_elsewhere = error.is_unsent() && now < self.gives_up_at(scene);
        if !may_go_elsewhere && !self.may_retry(&failed, scene) {
            return Action::End(scene.stages.failed(scene.fleet, model.pool, now, failed));
        }
        if failed.has_rest {
            self.go_on(now, failed.only);
        } else {
            (scene.count)(Count::Retries);
        }
        // Kept while others are tried: if none is left, this is what the client hears.
        self.failed = Some(scene.stages.failed(scene.fleet, model.pool, now, failed));
        if may_go_elsewhere {
            // Nothing of it can be connected to. Another one is asked, and this is no attempt.
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
        self.place(now, InHand::default(), scene)
    }

    /// The worker has answered with an error that may be its own: another worker is asked, and this
    /// is no attempt. If none is left, the client gets the answer.
    fn answered_with_error(
        &mut self,
        now: NanosSinceStart,
        failed: Failed,
        scene: &mut Scene<'_>,
    ) -> Action {
        self.facts.tried.push(failed.rank);
        self.tries.trial = failed.reply.trial;
        self.failed = failed.reply.answer.map(Stop::Engine);
        self.place(now, InHand::default(), scene)
    }

    /// Another worker may be asked if nothing reached the client, attempts are left, and the retry
    /// budget allows it. An engine that is full has not failed: that is not what the budget is for.
    /// What a worker may have read goes to another one only if that is configured, or it is the
    /// rest of a stream; the legs of a pair make no answer of their own.
    fn may_retry(&self, failed: &Failed, scene: &mut Scene<'_>) -> bool {
        let error = failed.error;
        let has_rest = failed.has_rest;
        let attempts = self.tries.failed_count.saturating_add(1);
        let Stages { rules, sends, .. } = &mut *scene.stages;
        let is_busy = error == RelayError::EngineBusy;
        let broke_off = has_rest && !error.before_head() && error.blames_worker();
        // The client of a rest has the beginning, and nothing else that it could try.
        let hangs = has_rest && error == RelayError::FirstByteTimedOut;
        (error.may_retry() || broke_off || hangs)
            && (is_busy || self.tries.is_pair || rules.retries_after_send || has_rest)
            && attempts < rules.attempts_max
            && (is_busy || sends.retry.withdraw())
    }

    /// The rest of a stream is a new request as far as waits go: how long the client had the
    /// beginning for takes nothing of its time. Ranks that cannot take it are left out.
    fn go_on(&mut self, now: NanosSinceStart, only: Option<Dialect>) {
        if let Some(dialect) = only {
            self.facts.pin = Some(pin_of_rest(self.facts.pin, dialect));
        }
        let wait_max = Duration::from_nanos(self.facts.deadline.since(self.facts.arrived_at));
        self.facts.arrived_at = now;
        self.facts.deadline = now.plus(wait_max);
        self.facts.client_deadline = None;
    }

    /// Whatever it waits for, it is not sent after this moment.
    fn gives_up_at(&self, scene: &Scene<'_>) -> NanosSinceStart {
        let first_byte = scene.stages.rules.first_byte_max;
        self.facts.client_deadline.unwrap_or_else(|| self.facts.arrived_at.plus(first_byte))
    }

    /// No other rank is left. True if there is one after all: it failed together with another.
    pub(super) fn spare(&mut self) -> bool {
        // Taken, so that it is asked once more and not for ever.
        let Some(spared) = self.tries.spared.take() else { return false };
        self.facts.tried.retain(|&tried| tried != spared);
        true
    }
}
