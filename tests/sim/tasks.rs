//! The task of one request: what `shard/request.rs`, `choose.rs` and `wait.rs` do between two
//! awaits.

use super::request::{Answer, Fate, Running, State, Wait};
use super::world::{Checked, Event, World};
use forebay::account::Lease;
use forebay::base::{NanosSinceStart, PoolIndex, RankIndex, ShardIndex};
use forebay::mailbox::{MeshMessage, Verdict, Waiter};
use forebay::queue::{
    Entry, PairEntry, Turned, enter, enter_pair, enter_prefill, is_closed, is_relieved,
};
use forebay::select::{
    Binder, NoPair, PickRequest, Route, RouteRequest, RouteRules, WholeBecause, route,
};
use forebay::worker::{FleetSnapshot, Leg, Model, OpenedBy, QueueWanted};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// As in the shell.
const REFUSALS_MAX: u32 = 8;
pub(crate) const HOPS_MAX: u32 = 120;
const ATTEMPTS_MAX: usize = 3;
const ENGINE_BUSY: Duration = Duration::from_millis(20);
pub(crate) const BREAKER_FAILURES: u32 = 2;
pub(crate) const BREAKER_OPEN: Duration = Duration::from_millis(30);

/// What became of a request that looked for ranks.
enum Found {
    Whole(WholeBecause, Entry),
    Pair(PairEntry),
    NoPair(NoPair),
}

impl World {
    pub(crate) fn task(&mut self, id: usize) -> Checked {
        match std::mem::replace(&mut self.requests[id].state, State::Done) {
            State::Coming if self.now < self.requests[id].arrives => {
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
        let (now, model) = (self.now, self.requests[id].model);
        let shard = &self.shards[self.requests[id].shard];
        if shard.draining {
            return self.answer(id, Answer::Draining);
        }
        let fleet = Arc::clone(&shard.fleet);
        self.requests[id].wait_until =
            self.requests[id].arrives.plus(fleet.flow.queue.wait_max.unwrap());
        let pool = fleet.models[model.index()].pool;
        let open = self.board.windows().open_until(pool, now).is_some();
        if open && self.random.u32(..100) < fleet.flow.rejection.share_percent {
            return self.answer(id, Answer::Window);
        }
        self.find_rank(id, None)
    }

    /// Looks for ranks: from the beginning, or with the lease of a decode rank for a prefill rank
    /// near it.
    pub(crate) fn find_rank(&mut self, id: usize, held: Option<Lease>) -> Checked {
        self.moved = false;
        let decode = held.as_ref().map(Lease::rank);
        let (fleet, found) = self.choose(id, held);
        match found {
            Found::Whole(because, entry) => {
                self.stats.stayed_whole += u64::from(because != WholeBecause::NoRoles);
                self.leave_seat(id);
                self.entered(id, &fleet, entry)
            }
            Found::Pair(entry) => {
                // Half a pair that is gone is no choice.
                if !matches!(entry, PairEntry::Turned(Leg::Prefill, Turned::NoWorker)) {
                    self.leave_seat(id);
                }
                self.entered_pair(id, &fleet, entry, decode)
            }
            Found::NoPair(why) => {
                self.leave_seat(id);
                self.no_pair(id, why)
            }
        }
    }

    fn choose(&mut self, id: usize, held: Option<Lease>) -> (Arc<FleetSnapshot>, Found) {
        let request = &self.requests[id];
        let shard = &mut self.shards[request.shard];
        let fleet = shard.look_around(request);
        let asks = PickRequest {
            leg: Leg::Whole,
            ranks: &[],
            board: &self.board,
            reports: &shard.reports,
            now: self.now,
            overlaps: &shard.overlaps,
            on_the_way: &shard.on_the_way,
            prompt_bytes: request.prompt_bytes,
            bytes_per_token: 4.0,
        };
        let applicant = request.applicant(&fleet, asks);
        let mut binder = Binder {
            fleet: &fleet,
            board: &self.board,
            reports: &shard.reports,
            policy: self.plan.policy,
            now: self.now,
            turn: &mut shard.turn,
            random: &mut shard.random,
        };
        let drain_ns = self.plan.drain_ns;
        let projected = |ahead| drain_ns.map(|each| Duration::from_nanos(each * ahead));
        let of_leg = |_, ahead| projected(ahead);
        let (candidates, seat) = (&mut shard.candidates, || shard.desk.open());
        let asked = RouteRequest {
            fleet: &fleet,
            model: applicant.model,
            request: applicant.request,
            pin: applicant.pin,
            tried: applicant.tried,
            rules: RouteRules::of(&fleet.flow.disaggregation),
        };
        let found = if let Some(decode) = held {
            let entry = enter_prefill(&mut binder, candidates, &applicant, decode, seat, of_leg);
            Found::Pair(entry)
        } else {
            match route(&asked, candidates, |_| request.splits) {
                Ok(Route::Whole(because)) => {
                    let entry = enter(&mut binder, candidates, &applicant, seat, projected);
                    Found::Whole(because, entry)
                }
                Ok(Route::Pair) => {
                    Found::Pair(enter_pair(&mut binder, candidates, &applicant, seat, of_leg))
                }
                Err(why) => Found::NoPair(why),
            }
        };
        self.closed = closed(&binder, applicant.model, &found);
        (fleet, found)
    }

    pub(crate) fn leave_seat(&mut self, id: usize) {
        let seat = self.requests[id].seat.take();
        self.moved = seat.is_some();
        if let Some(seat) = seat {
            self.give_up_seat(id, &seat);
        }
    }

    fn no_pair(&mut self, id: usize, why: NoPair) -> Checked {
        self.stats.no_pair += 1;
        self.note(|| format!("request {id}: {why:?}"));
        self.answer(id, Answer::NoWorker)
    }

    fn entered(&mut self, id: usize, fleet: &FleetSnapshot, entry: Entry) -> Checked {
        match entry {
            Entry::Bound(lease) => {
                self.stats.bound += 1;
                self.check_bound(id, fleet, &lease, (Leg::Whole, None))?;
                self.take_up(&lease);
                self.start(id, lease)
            }
            Entry::Wait(waiter, wanted) => self.begin_to_wait(id, fleet, waiter, wanted, None),
            Entry::Turned(turned) => self.turned(id, fleet, turned),
        }
    }

    pub(crate) fn begin_to_wait(
        &mut self,
        id: usize,
        fleet: &FleetSnapshot,
        waiter: Box<Waiter>,
        wanted: QueueWanted,
        held: Option<Lease>,
    ) -> Checked {
        self.stats.waited += 1;
        let (ticket, queue, leg) = (waiter.ticket, waiter.queue, waiter.leg);
        self.note(|| format!("request {id} waits in {queue:?} as {ticket:?}, {leg:?}"));
        self.books.join(queue, wanted);
        self.books.tickets.insert(ticket, id);
        if !self.moved {
            self.check_bounds(fleet, queue)?;
        }
        let wait = Wait { ticket, queue, wanted, deadline: waiter.deadline, leg, held };
        self.at(wait.deadline, Event::Task(id));
        self.requests[id].state = State::Waiting(wait);
        self.post_later(id, MeshMessage::Join(waiter));
        Ok(())
    }

    pub(crate) fn turned(&mut self, id: usize, fleet: &FleetSnapshot, turned: Turned) -> Checked {
        let answer = match turned {
            Turned::NoWorker => Answer::NoWorker,
            Turned::NoRoom => Answer::NoRoom,
            Turned::Full(_) => Answer::Full,
            Turned::TooLate { .. } => Answer::TooLate,
        };
        self.note(|| format!("request {id}: {turned:?}"));
        if self.moved && matches!(turned, Turned::Full(_)) {
            return Err(format!("request {id} had a place in a queue, and hears {turned:?}"));
        }
        match self.closed.take() {
            Some(pool) => self.close(id, fleet, pool)?,
            None => self.stats.turned_alone += u64::from(answer == Answer::Full),
        }
        self.answer(id, answer)
    }

    /// Opens the window of a pool that is closed to all.
    fn close(&mut self, id: usize, fleet: &FleetSnapshot, pool: PoolIndex) -> Checked {
        let (now, length) = (self.now, fleet.flow.rejection_window);
        self.check_closed(fleet, pool)?;
        if length.is_zero() {
            return Ok(());
        }
        let until = now.plus(length);
        let opened = self.board.windows().open(pool, OpenedBy::Here, now, until);
        self.stats.opened += u64::from(opened);
        let known = self.books.windows.entry(pool.0).or_default();
        if opened != (*known <= now) {
            return Err(format!("{pool:?}: opened {opened}, though open until {known:?}"));
        }
        *known = until.max(*known);
        self.relieve(self.requests[id].shard, Some(pool));
        Ok(())
    }

    /// As in `shard/pressure.rs`: closes the window of a pool that has room again.
    pub(crate) fn relieve(&mut self, at: usize, pool: Option<PoolIndex>) {
        let shard = &mut self.shards[at];
        let fleet = Arc::clone(&shard.fleet);
        let binder = Binder {
            fleet: &fleet,
            board: &self.board,
            reports: &shard.reports,
            policy: self.plan.policy,
            now: self.now,
            turn: &mut shard.turn,
            random: &mut shard.random,
        };
        let windows = self.board.windows();
        let is_open =
            |pool: &PoolIndex| windows.open_by_until(*pool, OpenedBy::Here, self.now).is_some();
        for pool in pool.into_iter().filter(is_open) {
            if is_relieved(&binder, pool) {
                windows.close(pool, OpenedBy::Here, self.now);
            }
        }
        self.check_windows();
    }

    fn wait(&mut self, id: usize, wait: Wait) -> Checked {
        let at = self.requests[id].shard;
        let gone = self.now >= self.requests[id].leaves_at;
        // A connection that is torn down does not look for its verdict first.
        if gone && self.random.bool() {
            return self.stop_waiting(id, wait, Answer::Gone);
        }
        let waker = Waker::from(Arc::clone(&self.requests[id].woken));
        let polled = self.shards[at].desk.poll(wait.ticket, &Context::from_waker(&waker));
        if let Poll::Ready(verdict) = polled {
            self.books.delivered.remove(&wait.ticket);
            return self.decided(id, wait, verdict);
        }
        if gone {
            return self.stop_waiting(id, wait, Answer::Gone);
        }
        if self.shards[at].draining {
            return self.stop_waiting(id, wait, Answer::Draining);
        }
        if self.now >= wait.deadline {
            return self.stop_waiting(id, wait, Answer::Late);
        }
        self.requests[id].state = State::Waiting(wait);
        Ok(())
    }

    fn decided(&mut self, id: usize, wait: Wait, verdict: Verdict) -> Checked {
        match verdict {
            Verdict::Granted(lease) => {
                let granted = self.books.arrive(wait.ticket);
                self.give_up_seat(id, &wait);
                match granted {
                    Some(rank) if rank == lease.rank() => {}
                    other => {
                        let rank = lease.rank();
                        return Err(format!("request {id} got {rank:?}, granted was {other:?}"));
                    }
                }
                self.take_up(&lease);
                match (wait.leg, wait.held) {
                    (Leg::Whole, None) => self.start(id, lease),
                    (Leg::Decode, None) => self.find_rank(id, Some(lease)),
                    (Leg::Prefill, Some(decode)) => self.start_pair(id, decode, lease),
                    (leg, held) => Err(format!("request {id} waits for {leg:?} with {held:?}")),
                }
            }
            Verdict::Reroute if self.requests[id].hops >= HOPS_MAX => {
                self.give_up_seat(id, &wait);
                self.let_go(wait.held);
                self.answer(id, Answer::NoWorker)
            }
            Verdict::Reroute => {
                self.requests[id].hops += 1;
                let (mut wait, held) = (wait, None);
                let held = std::mem::replace(&mut wait.held, held);
                self.requests[id].seat = Some(wait);
                self.find_rank(id, held)
            }
        }
    }

    /// Ends a wait without a verdict: the home has to hear of it.
    fn stop_waiting(&mut self, id: usize, wait: Wait, answer: Answer) -> Checked {
        self.give_up_seat(id, &wait);
        let (queue, ticket) = (wait.queue, wait.ticket);
        self.let_go(wait.held);
        self.post_later(id, MeshMessage::Leave { queue, ticket });
        self.answer(id, answer)
    }

    /// A lease has come into the hands of a request.
    pub(crate) fn take_up(&mut self, lease: &Lease) {
        self.books.running[lease.rank().index()] += 1;
    }

    /// And leaves them.
    pub(crate) fn let_go(&mut self, held: Option<Lease>) {
        if let Some(lease) = held {
            let rank = lease.rank();
            drop(lease);
            self.books.running[rank.index()] -= 1;
            let newest = (0..self.shards.len()).max_by_key(|&at| self.shards[at].fleet.generation);
            let at = newest.unwrap();
            let pool = self.shards[at].fleet.ranks[rank.index()].pool;
            self.relieve(at, Some(pool));
        }
    }

    fn give_up_seat(&mut self, id: usize, wait: &Wait) {
        self.shards[self.requests[id].shard].desk.close(wait.ticket);
        self.books.tickets.remove(&wait.ticket);
        if self.books.delivered.remove(&wait.ticket) {
            // The verdict lay at the seat: its lease went with it.
            self.books.arrive(wait.ticket);
        }
        self.board.queue(wait.queue).unwrap().leave(wait.wanted);
        self.books.leave(wait.queue, wait.wanted);
        let at = self.requests[id].shard;
        let pool = self.shards[at].fleet.pool_of(wait.queue);
        self.relieve(at, pool);
    }

    fn post_later(&mut self, id: usize, message: MeshMessage) {
        let queue = match &message {
            MeshMessage::Join(waiter) => waiter.queue,
            MeshMessage::Leave { queue, .. } => *queue,
            _ => return,
        };
        let home = ShardIndex::try_from_index(self.board.home(queue)).unwrap();
        self.shards[self.requests[id].shard].posting = Some((id, home, message));
    }

    /// What will come of something that is sent to a rank.
    pub(crate) fn fate(&mut self, rank: RankIndex) -> Fate {
        let percent = self.random.u32(..100);
        if !self.truth.is_up(rank) || percent < self.plan.failers {
            Fate::Fails
        } else if percent < self.plan.failers + self.plan.refusers {
            Fate::Refuses
        } else {
            Fate::Serves
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
                running.lease.prefill_done();
            }
            self.requests[id].state = State::Running(running);
            return Ok(());
        }
        let fate = running.fate;
        if !gone {
            match fate {
                Fate::Serves => running.lease.judge_success(),
                Fate::Refuses => running.lease.judge_refusal(),
                Fate::Fails | Fate::Hangs => {
                    running.lease.judge_failure(self.now, BREAKER_FAILURES, BREAKER_OPEN);
                }
            }
        }
        self.note(|| format!("request {id} ends on {rank:?}: {fate:?}, gone {gone}"));
        self.let_go(Some(running.lease));
        if gone {
            return self.answer(id, Answer::Gone);
        }
        self.try_again(id, rank, fate)
    }

    /// What comes after a rank has ended a request, or its part of it.
    pub(crate) fn try_again(&mut self, id: usize, rank: RankIndex, fate: Fate) -> Checked {
        match fate {
            Fate::Serves => self.answer(id, Answer::Served),
            Fate::Refuses => {
                self.board.rank(rank).unwrap().refused(self.now, self.now.plus(ENGINE_BUSY));
                if self.requests[id].refusals >= REFUSALS_MAX {
                    return self.answer(id, Answer::Failed);
                }
                self.requests[id].refusals += 1;
                self.find_rank(id, None)
            }
            Fate::Fails | Fate::Hangs if self.requests[id].tried.len() + 1 < ATTEMPTS_MAX => {
                self.requests[id].tried.push(rank);
                self.find_rank(id, None)
            }
            Fate::Fails | Fate::Hangs => self.answer(id, Answer::Failed),
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

/// As in `shard/choose.rs`.
fn closed(binder: &Binder<'_>, model: &Model, found: &Found) -> Option<PoolIndex> {
    let (leg, turned) = match found {
        Found::Whole(_, Entry::Turned(turned)) => (Leg::Whole, *turned),
        Found::Pair(PairEntry::Turned(leg, turned)) => (*leg, *turned),
        _ => return None,
    };
    if !matches!(turned, Turned::NoRoom | Turned::Full(_)) {
        return None;
    }
    let pools = match leg {
        Leg::Whole => [Some(model.pool), None],
        Leg::Decode => [Some(model.pool), model.prefill_pool],
        Leg::Prefill => [model.prefill_pool, None],
    };
    pools.into_iter().flatten().find(|&pool| is_closed(binder, pool))
}
