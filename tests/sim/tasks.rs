//! The task of one request: what the machine of `forebay_router::request` says is done here on a
//! schedule instead of sockets.

use super::request::{Answer, Fate, Running, State};
use super::world::{Checked, Event, World};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::{Count, Lease};
use forebay_board::{BreakerRules, QueueDemand};
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{FleetSnapshot, Leg};
use forebay_mailbox::{Caller, MeshMessage, RequestFacts, Verdict, Waiter};
use forebay_prompt::parse::{Endpoint, Reason};
use forebay_router::dispatch::RelayError;
use forebay_router::request::{
    Action, ChosenRanks, FailedAttempt, Judgement, NewRequest, RequestEvent, RequestFlow, Scene,
    Stop, Wait, WaitEnd, engine_refused, hold_against, wait_deadline,
};
use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) const BREAKER_FAILURES: u32 = 2;
pub(crate) const BREAKER_OPEN: Duration = Duration::from_millis(30);

/// What is known of a step of the machine, before its action is done.
struct Step {
    fleet: Arc<FleetSnapshot>,
    /// It came from a queue, and still has its place there.
    is_moved: bool,
    /// It has the rank that it was granted; else the machine has chosen.
    is_granted: bool,
    is_failed: bool,
    /// Its decode rank before. A wait that is over gives the rank back.
    had: Option<RankIndex>,
    /// The machine sent it whole although its model has pairs.
    is_whole: bool,
}

impl World {
    pub(crate) fn task(&mut self, id: usize) -> Checked {
        match std::mem::replace(&mut self.requests[id].state, State::Done) {
            State::Coming if self.now < self.requests[id].facts.arrived_at => {
                self.requests[id].state = State::Coming;
                Ok(())
            }
            State::Coming => self.arrive(id),
            State::Waiting(wait) => self.wait(id, wait),
            State::Running(running) => self.go_on(id, running),
            State::Paired(paired) => self.go_on_with_pair(id, paired),
            State::Done => Ok(()),
        }
    }

    fn arrive(&mut self, id: usize) -> Checked {
        let now = self.now;
        let request = &mut self.requests[id];
        let shard = &mut self.shards[request.shard];
        if shard.draining {
            return self.answer(id, Answer::Draining);
        }
        let fleet = Arc::clone(&shard.fleet);
        let stages = &mut shard.stages;
        let mut facts = request.facts.clone();
        let Caller { tenant, weight, .. } = facts.caller;
        let mut new_request = NewRequest::of(TenantPart { tenant, weight, is_only: false });
        let pool = fleet.models[facts.model.index()].pool;
        if stages.let_in(&fleet, pool, now, &mut new_request, 0).is_err() {
            return self.answer(id, Answer::Window);
        }
        stages.drain_rates.observe(&fleet, &self.board, now);
        let RequestFacts { arrived_at, client_deadline, .. } = facts;
        facts.deadline = wait_deadline(&fleet, arrived_at, client_deadline);
        let endpoint = Endpoint::ChatCompletions;
        request.flow = Some(RequestFlow::new(facts, endpoint, request.body_bytes, new_request));
        self.step_request(id, RequestEvent::Ready, None)
    }

    /// Feeds the machine, and does what it says. `wait`: its place in the queue that it comes from.
    pub(crate) fn step_request(
        &mut self,
        id: usize,
        event: RequestEvent,
        wait: Option<Wait>,
    ) -> Checked {
        let request = &mut self.requests[id];
        let shard = &mut self.shards[request.shard];
        shard.receive_reports();
        let flow = request.flow.as_mut().unwrap();
        let had = flow.decode_rank();
        let granted =
            if let RequestEvent::Granted(lease) = &event { Some(lease.rank()) } else { None };
        let is_whole = Cell::new(false);
        let mut step = Step {
            fleet: Arc::clone(&shard.fleet),
            is_moved: wait.is_some(),
            is_granted: granted.is_some(),
            is_failed: matches!(event, RequestEvent::Failed(_)),
            had: had.filter(|_| !matches!(event, RequestEvent::WaitOver(_))),
            is_whole: false,
        };
        let hops = flow.hop_count() + u32::from(matches!(event, RequestEvent::Reroute));
        let mut scene = Scene {
            fleet: &step.fleet,
            stages: &mut shard.stages,
            prompt: &request.prompt,
            text_bytes: request.body_bytes,
            body: &[],
            split: &mut request.split,
            count: &|count| is_whole.set(is_whole.get() || count == Count::SentWhole),
        };
        let action = flow.step(self.now, event, &mut scene);
        if flow.hop_count() > hops {
            // What it had been granted, or what it had, is not there any more.
            self.stats.lost_its_pair += 1;
            let has = match &action {
                Action::Send(chosen) => Some(chosen.lease.rank()),
                _ => flow.decode_rank(),
            };
            step.is_granted = false;
            step.had = step.had.filter(|had| Some(*had) == has);
        }
        // What it held, and what it holds now.
        let decode = flow.decode_rank();
        for rank in [granted, had].into_iter().flatten() {
            self.books.running[rank.index()] -= 1;
        }
        let ranks = match &action {
            Action::Send(chosen) => {
                [Some(chosen.lease.rank()), chosen.prefill.as_ref().map(|p| p.lease.rank())]
            }
            _ => [decode, None],
        };
        for rank in ranks.into_iter().flatten() {
            self.books.running[rank.index()] += 1;
        }
        step.is_whole = is_whole.get();
        let has_opened = self.watch_windows(&step.fleet)?;
        if let Some(wait) = wait {
            self.end_wait(id, &wait);
        }
        self.stats.stayed_whole += u64::from(step.is_whole);
        match action {
            Action::Send(chosen) => self.send(id, &step, *chosen),
            Action::Wait(waiter, wanted) => self.begin_to_wait(id, &step, waiter, wanted),
            Action::End(stop) => self.end(id, &step, &stop, has_opened),
        }
    }

    fn send(&mut self, id: usize, step: &Step, chosen: ChosenRanks) -> Checked {
        let ChosenRanks { lease, prefill, .. } = chosen;
        let ranks = [Some(lease.rank()), prefill.as_ref().map(|prefill| prefill.lease.rank())];
        for rank in ranks.into_iter().flatten() {
            self.check_there(id, &step.fleet, rank)?;
        }
        self.stats.bound += u64::from(!step.is_granted);
        let model = self.model_of(id);
        let Some(prefill) = prefill else {
            let has_pairs = step.fleet.models[model].prefill_pool.is_some();
            self.stats.instead_of_a_pair += u64::from(has_pairs && !step.is_whole);
            if !step.is_granted && step.had != Some(lease.rank()) {
                self.check_bound(id, &step.fleet, &lease, (Leg::Whole, None))?;
            }
            return self.start(id, lease);
        };
        if !step.is_granted && step.had.is_none() {
            self.check_bound(id, &step.fleet, &lease, (Leg::Decode, None))?;
        }
        if step.had.is_some_and(|had| had != lease.rank()) {
            return Err(format!("request {id} had {:?}, has {:?}", step.had, lease.rank()));
        }
        if !step.is_granted {
            let near = Some(lease.rank());
            self.check_bound(id, &step.fleet, &prefill.lease, (Leg::Prefill, near))?;
        }
        self.start_pair(id, lease, prefill.lease)
    }

    fn begin_to_wait(
        &mut self,
        id: usize,
        step: &Step,
        waiter: Box<Waiter>,
        wanted: QueueDemand,
    ) -> Checked {
        self.stats.waited += 1;
        let decode = self.requests[id].flow.as_ref().unwrap().decode_rank();
        let ticket = waiter.ticket;
        let queue = waiter.queue;
        let leg = waiter.leg;
        self.note(|| format!("request {id} waits in {queue:?} as {ticket:?}, {leg:?}"));
        match leg {
            Leg::Whole => {}
            Leg::Decode => {
                self.stats.waited_for_decode += 1;
                self.check_holds_nothing(id)?;
                self.check_nobody_is_free(&step.fleet, &waiter)?;
            }
            Leg::Prefill => {
                self.stats.waited_for_prefill += 1;
                if decode.is_none() || waiter.near != decode {
                    return Err(format!("{waiter:?} has {decode:?}"));
                }
                if step.had.is_none() && !step.is_granted {
                    self.check_nobody_is_free(&step.fleet, &waiter)?;
                }
            }
        }
        self.books.join(queue, wanted);
        self.books.tickets.insert(ticket, id);
        if !step.is_moved {
            self.check_bounds(&step.fleet, queue, wanted.tenant)?;
        }
        let wait = Wait::new(&waiter, wanted);
        self.at(wait.deadline, Event::Task(id));
        self.post_later(id, &wait, MeshMessage::Join(waiter));
        self.requests[id].state = State::Waiting(wait);
        Ok(())
    }

    /// The machine has no rank for it.
    fn end(&mut self, id: usize, step: &Step, stop: &Stop, has_opened: bool) -> Checked {
        self.note(|| format!("request {id}: {stop:?}"));
        let answer = answer_of(stop, step.is_failed);
        if answer == Answer::Full {
            if step.is_moved {
                return Err(format!("request {id} had a place in a queue, and hears {stop:?}"));
            }
            self.stats.turned_alone += u64::from(!has_opened);
        }
        let has_pairs = step.fleet.models[self.model_of(id)].prefill_pool.is_some();
        self.stats.no_pair += u64::from(answer == Answer::NoWorker && has_pairs);
        self.answer(id, answer)
    }

    pub(crate) fn model_of(&self, id: usize) -> usize {
        self.requests[id].facts.model.index()
    }

    fn wait(&mut self, id: usize, wait: Wait) -> Checked {
        let request = &self.requests[id];
        let gone = self.now >= request.leaves_at;
        let waker = Waker::from(Arc::clone(&request.woken));
        let shard = &mut self.shards[request.shard];
        // A connection that is torn down does not look for its verdict first.
        let looks = !gone || self.random.bool();
        let polled =
            looks.then(|| shard.stages.waits.poll(wait.ticket, &Context::from_waker(&waker)));
        let ended = match polled {
            Some(Poll::Ready(verdict)) => Ok(verdict),
            _ if gone => Err(WaitEnd::Gone),
            _ if shard.draining => Err(WaitEnd::Draining),
            _ if self.now >= wait.deadline => Err(WaitEnd::Late),
            _ => {
                self.requests[id].state = State::Waiting(wait);
                return Ok(());
            }
        };
        self.waited(id, wait, ended)
    }

    fn waited(&mut self, id: usize, mut wait: Wait, ended: Result<Verdict, WaitEnd>) -> Checked {
        if ended.is_ok() {
            self.books.delivered.remove(&wait.ticket);
        }
        if let Ok(Verdict::Granted(lease)) = &ended {
            let rank = lease.rank();
            match self.books.arrive(wait.ticket) {
                Some(granted) if granted == rank => self.books.running[rank.index()] += 1,
                other => return Err(format!("request {id} got {rank:?}, granted was {other:?}")),
            }
        }
        let (event, is_kept) = wait.event(ended);
        if is_kept {
            return self.step_request(id, event, Some(wait));
        }
        self.end_wait(id, &wait);
        self.step_request(id, event, None)
    }

    fn end_wait(&mut self, id: usize, wait: &Wait) {
        let shard = &mut self.shards[self.requests[id].shard];
        shard.receive_reports();
        let leave = shard.stages.end_wait(wait, &shard.fleet, self.now);
        self.books.tickets.remove(&wait.ticket);
        if self.books.delivered.remove(&wait.ticket) {
            // The verdict lay in the wait: its lease went with it.
            self.books.arrive(wait.ticket);
        }
        self.books.leave(wait.queue, wait.wanted);
        self.check_windows();
        if let Some(leave) = leave {
            self.post_later(id, wait, leave);
        }
    }

    fn post_later(&mut self, id: usize, wait: &Wait, message: MeshMessage) {
        let posting = &mut self.shards[self.requests[id].shard].posting;
        posting.push_back((id, wait.home(&self.board), message));
    }

    /// An attempt on a rank is over: its breaker hears of it, and the lease goes back.
    pub(crate) fn end_lease(&mut self, id: usize, mut lease: Lease, heard: Option<Judgement>) {
        let rank = lease.rank();
        match heard {
            Some(Judgement::Success) => lease.judge_success(),
            Some(Judgement::Taken) => lease.judge_taken(),
            Some(Judgement::Refusal) => self.board.rank(rank).unwrap().answered(),
            Some(judgement @ Judgement::Failure { .. }) => {
                self.hold_against(id, rank, judgement, lease.is_trial());
            }
            None => {}
        }
        drop(lease);
        self.books.running[rank.index()] -= 1;
        let request = &self.requests[id];
        let shard = &mut self.shards[request.shard];
        shard.receive_reports();
        shard.stages.relieve_model(&shard.fleet, request.facts.model, self.now);
        if heard == Some(Judgement::Refusal) {
            engine_refused(&shard.fleet, &self.board, rank, request.facts.model, self.now);
        }
        self.check_windows();
    }

    /// By the fleet that the request's shard knows.
    pub(crate) fn hold_against(
        &self,
        id: usize,
        rank: RankIndex,
        judgement: Judgement,
        is_trial: bool,
    ) {
        let request = &self.requests[id];
        let rules = BreakerRules { failures: BREAKER_FAILURES, open: BREAKER_OPEN };
        let failure = judgement.against(rank, request.facts.requester(), is_trial).unwrap();
        hold_against(&self.shards[request.shard].fleet, &self.board, failure, rules, self.now);
    }

    /// What will come of something that is sent to a rank.
    pub(crate) fn fate(&mut self, rank: RankIndex) -> Fate {
        let percent = self.random.u32(..100);
        if !self.truth.is_up(rank) || percent < self.plan.failers {
            let is_unsent = self.random.bool();
            Some(if is_unsent { RelayError::ConnectFailed } else { RelayError::ClosedInHead })
        } else {
            let is_busy = percent < self.plan.failers + self.plan.refusers;
            is_busy.then_some(RelayError::EngineBusy)
        }
    }

    pub(crate) fn start(&mut self, id: usize, lease: Lease) -> Checked {
        let rank = lease.rank();
        let fate = self.fate(rank);
        let end_ns = self.random.u64(1..=self.plan.service_ns);
        let prefill_at = NanosSinceStart(self.now.0 + self.random.u64(..end_ns));
        let end_at = NanosSinceStart(self.now.0 + end_ns);
        self.note(|| format!("request {id} runs on {rank:?} and {fate:?}"));
        self.at(prefill_at, Event::Task(id));
        self.at(end_at, Event::Task(id));
        self.requests[id].state = State::Running(Running { lease, prefill_at, end_at, fate });
        Ok(())
    }

    fn go_on(&mut self, id: usize, mut running: Running) -> Checked {
        let rank = running.lease.rank();
        let gone = self.now >= self.requests[id].leaves_at;
        if !gone && self.now < running.end_at {
            if self.now >= running.prefill_at {
                self.note(|| format!("request {id} is computed on {rank:?}"));
                let now = self.now;
                running.lease.prefill_done(|| now);
            }
            self.requests[id].state = State::Running(running);
            return Ok(());
        }
        let fate = running.fate;
        let heard = match fate {
            _ if gone => None,
            None => Some(Judgement::Success),
            Some(error) => Judgement::of_error(error),
        };
        self.note(|| format!("request {id} ends on {rank:?}: {fate:?}, gone {gone}"));
        self.end_lease(id, running.lease, heard);
        match fate {
            _ if gone => self.answer(id, Answer::Gone),
            None => self.answer(id, Answer::Served),
            Some(error) => {
                self.step_request(id, RequestEvent::Failed(FailedAttempt::of(rank, error)), None)
            }
        }
    }

    pub(crate) fn answer(&mut self, id: usize, answer: Answer) -> Checked {
        self.note(|| format!("request {id}: {answer:?}"));
        *self.stats.answers.entry(answer).or_default() += 1;
        self.requests[id].answers.push(answer);
        match &self.requests[id].answers[..] {
            [_] => Ok(()),
            several => Err(format!("request {id} is answered {several:?}")),
        }
    }
}

fn answer_of(stop: &Stop, is_failed: bool) -> Answer {
    let Stop::Refused(refusal) = stop else {
        return if matches!(stop, Stop::ClientGone) { Answer::Gone } else { Answer::Failed };
    };
    match refusal.reason() {
        Reason::RejectedBusy if is_failed => Answer::Failed,
        Reason::RejectedBusy => Answer::NoRoom,
        Reason::RejectedWindow => Answer::Window,
        Reason::RejectedQueueFull | Reason::RejectedDemand => Answer::Full,
        Reason::RejectedDeadline => Answer::TooLate,
        Reason::NoHealthyWorker | Reason::BadRequest => Answer::NoWorker,
        Reason::RejectedQueueWait | Reason::RequestDeadline => Answer::Late,
        Reason::Draining => Answer::Draining,
        _ => Answer::Failed,
    }
}
