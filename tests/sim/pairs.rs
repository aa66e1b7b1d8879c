//! Both legs of a pair on their way: the schedule in place of `shard/pair.rs` and
//! `shard/prefill.rs`.

use super::plan::MS;
use super::request::{Answer, Fate, Paired, PrefillLeg, State};
use super::tasks::{BREAKER_FAILURES, BREAKER_OPEN};
use super::world::{Checked, Event, World};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::account::Lease;

/// `disaggregation.prefill_timeout`.
const PREFILL_TIMEOUT_NS: u64 = 80 * MS;

impl World {
    pub(crate) fn start_pair(&mut self, id: usize, decode: Lease, prefill: Lease) -> Checked {
        self.stats.pairs += 1;
        let (d, p) = (decode.rank(), prefill.rank());
        let (mut decode_fate, mut prefill_fate) = (self.fate(d), self.fate(p));
        if decode_fate == Fate::Serves && self.random.u32(..100) < self.plan.failers {
            decode_fate = Fate::Hangs;
        }
        if prefill_fate == Fate::Serves && self.random.u32(..100) < self.plan.failers {
            prefill_fate = Fate::Hangs;
        }
        self.note(|| {
            format!("request {id} runs on {p:?} ({prefill_fate:?}) and {d:?} ({decode_fate:?})")
        });
        let service = self.random.u64(1..=self.plan.service_ns);
        let prefill_ns = if prefill_fate == Fate::Hangs { PREFILL_TIMEOUT_NS } else { service };
        let ends_at = NanosSinceStart(self.now.0 + prefill_ns);
        let leg = self.legs.len();
        self.legs.push(PrefillLeg {
            request: id,
            rank: p,
            lease: Some(prefill),
            end_at: ends_at,
            fate: prefill_fate,
            cancelled_at: None,
            told: None,
        });
        self.at(ends_at, Event::Leg(leg));
        let is_eager = self.random.u32(..4) == 0;
        let begins_ns = self.random.u64(1..=self.plan.service_ns);
        let begins_at = NanosSinceStart(if is_eager { self.now.0 } else { ends_at.0 } + begins_ns);
        // Who fails may do so at any time; who serves ends after the prompt is computed.
        let end_at = match decode_fate {
            Fate::Serves => {
                NanosSinceStart(begins_at.0 + self.random.u64(1..=self.plan.service_ns))
            }
            Fate::Fails | Fate::Refuses => NanosSinceStart(self.now.0 + begins_ns),
            Fate::Hangs => NanosSinceStart(self.now.0 + 2 * PREFILL_TIMEOUT_NS),
        };
        self.at(begins_at, Event::Task(id));
        self.at(end_at, Event::Task(id));
        let fate = decode_fate;
        let paired = Paired { decode, leg, begins_at, end_at, fate, is_eager, has_begun: false };
        self.requests[id].state = State::Paired(paired);
        Ok(())
    }

    pub(crate) fn go_on_with_pair(&mut self, id: usize, mut paired: Paired) -> Checked {
        let told = self.legs[paired.leg].told;
        if self.now >= self.requests[id].leaves_at {
            self.cancel(paired.leg);
            self.let_go(id, paired.decode);
            return self.answer(id, Answer::Gone);
        }
        if !paired.has_begun
            && let Some(fate) = told.filter(|fate| *fate != Fate::Serves)
        {
            self.stats.prefill_failed += 1;
            self.note(|| format!("request {id}: its prefill {fate:?}"));
            let rank = self.legs[paired.leg].rank;
            if fate == Fate::Hangs {
                self.doubt(rank, paired.decode.rank());
            }
            let with = (fate == Fate::Hangs).then(|| paired.decode.rank());
            self.let_go(id, paired.decode);
            return self.try_again(id, rank, fate, with);
        }
        let is_computed = paired.is_eager || told == Some(Fate::Serves);
        let serves = matches!(paired.fate, Fate::Serves);
        if !paired.has_begun && serves && is_computed && self.now >= paired.begins_at {
            paired.has_begun = true;
            paired.decode.prefill_done();
        }
        if self.now < paired.end_at || serves && !paired.has_begun {
            self.requests[id].state = State::Paired(paired);
            return Ok(());
        }
        let (rank, fate) = (paired.decode.rank(), paired.fate);
        self.note(|| format!("request {id} ends on {rank:?}: {fate:?}"));
        match fate {
            // What is left of the prefill ends by itself.
            Fate::Serves => paired.decode.judge_success(),
            Fate::Refuses => {
                self.cancel(paired.leg);
                paired.decode.judge_refusal();
            }
            Fate::Hangs if told.is_none() => {
                self.cancel(paired.leg);
                self.doubt(self.legs[paired.leg].rank, rank);
            }
            Fate::Fails | Fate::Hangs => {
                self.cancel(paired.leg);
                paired.decode.judge_failure(self.now, BREAKER_FAILURES, BREAKER_OPEN);
            }
        }
        self.let_go(id, paired.decode);
        self.try_again(id, rank, fate, None)
    }

    /// The two waited for each other in vain.
    fn doubt(&self, prefill: RankIndex, decode: RankIndex) {
        if let Some(rank) = self.board.doubt(prefill, decode) {
            self.board.rank(rank).unwrap().failed(self.now, BREAKER_FAILURES, BREAKER_OPEN);
        }
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
        let (fate, id, end_at) = (leg.fate, leg.request, leg.end_at);
        if leg.cancelled_at.is_some_and(|at| at <= now) {
            if let Some(lease) = leg.lease.take() {
                self.let_go(id, lease);
            }
            return;
        }
        let Some(mut lease) = leg.lease.take_if(|_| end_at <= now) else { return };
        match fate {
            Fate::Serves => lease.judge_success(),
            Fate::Refuses => lease.judge_refusal(),
            Fate::Fails => lease.judge_failure(now, BREAKER_FAILURES, BREAKER_OPEN),
            // It may have waited for decode: the request's shard judges.
            Fate::Hangs => {}
        }
        leg.told = Some(fate);
        let rank = lease.rank();
        self.note(|| format!("the prefill of request {id} on {rank:?}: {fate:?}"));
        self.let_go(id, lease);
        let heard_at = NanosSinceStart(now.0 + self.random.u64(..MS));
        self.at(heard_at, Event::Task(id));
    }
}
