//! Both legs of a pair on their way: the schedule in place of `dataplane/pair/begin.rs` and
//! `dataplane/thread/prefill_leg.rs`.

use super::plan::MS;
use super::request::{Answer, Paired, PrefillLeg, State};
use super::world::{Checked, Event, World};
use forebay_base::NanosSinceStart;
use forebay_board::account::Lease;
use forebay_mailbox::{PrefillFault, PrefillOutcome};
use forebay_router::dispatch::RelayError;
use forebay_router::request::{FailedAttempt, FailedPair, Judgement, LegEnd, RequestEvent};

/// `disaggregation.prefill_timeout`.
const PREFILL_TIMEOUT_NS: u64 = 80 * MS;

impl World {
    pub(crate) fn start_pair(&mut self, id: usize, decode: Lease, prefill: Lease) -> Checked {
        self.stats.pairs += 1;
        let d = decode.rank();
        let p = prefill.rank();
        let mut fate = self.fate(d);
        let prefill_fate = self.fate(p);
        let hangs = |world: &mut Self| world.random.u32(..100) < world.plan.failers;
        if fate.is_none() && hangs(self) {
            fate = Some(RelayError::FirstByteTimedOut);
        }
        let ended = match prefill_fate {
            None if hangs(self) && self.random.bool() => timed_out(),
            None if hangs(self) => PrefillOutcome::Failed(PrefillFault::Transfer(String::new())),
            None => PrefillOutcome::Done(None),
            Some(RelayError::EngineBusy) => PrefillOutcome::Failed(PrefillFault::Busy),
            Some(RelayError::ConnectFailed) => PrefillOutcome::Failed(PrefillFault::ConnectFailed),
            Some(_) => broken(),
        };
        self.note(|| format!("request {id} runs on {p:?} ({ended:?}) and {d:?} ({fate:?})"));
        let service = self.random.u64(1..=self.plan.service_ns);
        let prefill_ns = if ended == timed_out() { PREFILL_TIMEOUT_NS } else { service };
        let ends_at = NanosSinceStart(self.now.0 + prefill_ns);
        let leg = self.legs.len();
        self.legs.push(PrefillLeg {
            request: id,
            rank: p,
            lease: Some(prefill),
            end_at: ends_at,
            ended,
            cancelled_at: None,
            is_told: false,
        });
        self.at(ends_at, Event::Leg(leg));
        let is_eager = self.random.u32(..4) == 0;
        let begins_ns = self.random.u64(1..=self.plan.service_ns);
        let begins_at = NanosSinceStart(if is_eager { self.now.0 } else { ends_at.0 } + begins_ns);
        // Who fails may do so at any time; who serves ends after the prompt is computed.
        let end_ns = match fate {
            None => begins_at.since(self.now) + self.random.u64(1..=self.plan.service_ns),
            Some(RelayError::FirstByteTimedOut) => 2 * PREFILL_TIMEOUT_NS,
            Some(_) => begins_ns,
        };
        let end_at = NanosSinceStart(self.now.0 + end_ns);
        self.at(begins_at, Event::Task(id));
        self.at(end_at, Event::Task(id));
        let paired = Paired { decode, leg, begins_at, end_at, fate, is_eager, has_begun: false };
        self.requests[id].state = State::Paired(paired);
        Ok(())
    }

    pub(crate) fn go_on_with_pair(&mut self, id: usize, mut paired: Paired) -> Checked {
        if self.now >= self.requests[id].leaves_at {
            self.cancel(paired.leg);
            self.end_lease(id, paired.decode, None);
            return self.answer(id, Answer::Gone);
        }
        let leg = &self.legs[paired.leg];
        let is_done = leg.is_told && leg.ended == PrefillOutcome::Done(None);
        if !paired.has_begun && leg.is_told && !is_done {
            self.stats.prefill_failed += 1;
            return self.pair_failed(id, paired, RelayError::PrefillFailed);
        }
        let serves = paired.fate.is_none();
        if !paired.has_begun
            && serves
            && (paired.is_eager || is_done)
            && self.now >= paired.begins_at
        {
            paired.has_begun = true;
            let now = self.now;
            paired.decode.prefill_done(|| now);
        }
        if self.now < paired.end_at || serves && !paired.has_begun {
            self.requests[id].state = State::Paired(paired);
            return Ok(());
        }
        if let Some(error) = paired.fate {
            return self.pair_failed(id, paired, error);
        }
        // What is left of the prefill ends by itself.
        self.end_lease(id, paired.decode, Some(Judgement::Success));
        self.answer(id, Answer::Served)
    }

    fn pair_failed(&mut self, id: usize, paired: Paired, error: RelayError) -> Checked {
        self.note(|| format!("request {id}: its pair fails with {error:?}"));
        let leg = &self.legs[paired.leg];
        let prefill = leg.rank;
        let decode = paired.decode.rank();
        let ended = leg.is_told.then(|| leg.ended.clone());
        let known = FailedPair {
            error,
            accusation: None,
            leg: LegEnd::from(ended.as_ref()),
            is_concurrent: true,
            prefill_waits: true,
        };
        let judged = known.judged(&self.board, prefill, decode);
        if let Some(blame) = judged.filter(|blame| blame.rank == prefill) {
            self.hold_against(id, prefill, blame.judgement, blame.is_shown);
        }
        self.cancel(paired.leg);
        let heard = judged.filter(|blame| blame.rank == decode).map(|blame| blame.judgement);
        self.end_lease(id, paired.decode, heard);
        let failed = if error == RelayError::PrefillFailed {
            FailedAttempt::by_leg(ended.as_ref(), prefill, decode)
        } else {
            FailedAttempt::of(decode, error)
        };
        self.step_request(id, RequestEvent::Failed(failed), None)
    }

    /// Nobody wants the leg any more: its shard hears of it a moment later.
    fn cancel(&mut self, leg: usize) {
        if self.legs[leg].lease.is_some() {
            self.stats.cancelled += 1;
            let at = NanosSinceStart(self.now.0 + self.random.u64(..2 * MS));
            self.legs[leg].cancelled_at = Some(at);
            self.at(at, Event::Leg(leg));
        }
    }

    /// The shard that runs the leg.
    pub(crate) fn go_on_with_leg(&mut self, number: usize) {
        let now = self.now;
        let leg = &mut self.legs[number];
        let id = leg.request;
        let end_at = leg.end_at;
        if leg.cancelled_at.is_some_and(|at| at <= now) {
            if let Some(lease) = leg.lease.take() {
                self.end_lease(id, lease, None);
            }
            return;
        }
        let Some(lease) = leg.lease.take_if(|_| end_at <= now) else { return };
        leg.is_told = true;
        let rank = leg.rank;
        let ended = leg.ended.clone();
        self.note(|| format!("the prefill of request {id} on {rank:?}: {ended:?}"));
        self.end_lease(id, lease, Judgement::of_leg(&ended, true));
        let heard_at = NanosSinceStart(now.0 + self.random.u64(..MS));
        self.at(heard_at, Event::Task(id));
    }
}

/// A prefill leg of which the other may be the cause.
const fn timed_out() -> PrefillOutcome {
    PrefillOutcome::Failed(PrefillFault::TimedOut)
}

/// A prefill leg that fails by itself.
pub(crate) const fn broken() -> PrefillOutcome {
    PrefillOutcome::Failed(PrefillFault::Broken(String::new()))
}
