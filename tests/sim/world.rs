//! All there is in one run, and the order in which it happens: one step at a time, each chosen by
//! the seed.

use super::books::Books;
use super::fleets::Truth;
use super::pairs::broken;
use super::plan::{MS, Plan};
use super::request::{PrefillLeg, Request, State};
use super::shard::SimShard;
use super::stats::Stats;
use fastrand::Rng;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LoadBoard, LoadReading, LoadReport, OwnLoad};
use forebay_fleet::worker::FleetSnapshot;
use forebay_mailbox::MeshMessage;
use forebay_ring::{Bell, mesh};
use forebay_router::dispatch::RelayError;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::sync::Arc;

/// More steps than any run needs: somebody spins.
const STEPS_MAX: u64 = 400_000;

/// What is broken, in words.
pub(crate) type Checked = Result<(), String>;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Rng,
    pub(crate) now: NanosSinceStart,
    pub(crate) truth: Truth,
    pub(crate) board: Arc<LoadBoard>,
    pub(crate) bells: Vec<Arc<Bell>>,
    pub(crate) shards: Vec<SimShard>,
    pub(crate) requests: Vec<Request>,
    pub(crate) legs: Vec<PrefillLeg>,
    pub(crate) books: Books,
    pub(crate) stats: Stats,
    pub(crate) trace: Option<Vec<String>>,
    /// One byte decides one step, in place of the seed. At the end the seed decides again.
    pub(crate) tape: std::vec::IntoIter<u8>,
    /// By the time at which they happen, and by their number.
    events: BTreeMap<(NanosSinceStart, u64), Event>,
    next_number: u64,
}

/// What happens at a certain time.
pub(crate) enum Event {
    /// Something in the life of a request.
    Task(usize),
    /// The same of a prefill leg.
    Leg(usize),
    /// The sleeper of a home's alarm.
    Alarm(usize),
    Fleet(usize, Arc<FleetSnapshot>),
    FleetChange,
    Report,
    Elsewhere,
    Drain(usize),
    /// The core does something else for so long.
    Stall(usize, u64),
    /// It is back.
    Resume,
}

impl World {
    pub(crate) fn new(seed: u64, tracing: bool) -> Self {
        let mut random = Rng::with_seed(seed);
        let plan = Plan::draw(&mut random);
        let mut truth = Truth::draw(&mut random);
        let fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let bells: Vec<_> = (0..plan.shards).map(|_| Arc::new(Bell::new(fd()))).collect();
        let board = Arc::new(LoadBoard::with_bells(bells.clone()));
        let fleet = truth.snapshot();
        let ports = mesh::<MeshMessage>(plan.shards, plan.ring_slots);
        let shard =
            |(index, port)| SimShard::new(index, port, &fleet, &plan, &board, random.fork());
        let shards = ports.into_iter().enumerate().map(shard).collect();
        let models = truth.models.len();
        let ranks = truth.ranks.len();
        let requests: Vec<_> =
            (0..plan.requests).map(|_| Request::draw(&mut random, &plan, models, ranks)).collect();
        let mut world = Self {
            books: Books::new(ranks, models),
            plan,
            random,
            now: NanosSinceStart(0),
            truth,
            board,
            bells,
            shards,
            requests,
            legs: Vec::new(),
            stats: Stats::default(),
            trace: tracing.then(Vec::new),
            tape: Vec::new().into_iter(),
            events: BTreeMap::new(),
            next_number: 0,
        };
        world.board.set_queues(&fleet);
        world.plan_events();
        world
    }

    fn plan_events(&mut self) {
        for id in 0..self.requests.len() {
            let arrives = self.requests[id].facts.arrived_at;
            let leaves = self.requests[id].leaves_at;
            self.at(arrives, Event::Task(id));
            if leaves.0 != u64::MAX {
                self.at(leaves, Event::Task(id));
            }
        }
        let span = self.plan.span_ns + 50 * MS;
        for _ in 0..self.plan.fleet_changes {
            let at = NanosSinceStart(self.random.u64(..span));
            self.at(at, Event::FleetChange);
        }
        for _ in 0..self.plan.reports {
            let at = NanosSinceStart(self.random.u64(..span));
            let elsewhere = self.random.u32(..4) == 0;
            self.at(at, if elsewhere { Event::Elsewhere } else { Event::Report });
        }
        for _ in 0..self.plan.stalls {
            let at = self.random.u64(..span);
            let shard = self.random.usize(..self.shards.len());
            let time_ns = self.random.u64(..30 * MS);
            self.at(NanosSinceStart(at), Event::Stall(shard, time_ns));
        }
        if self.plan.drains {
            let at = self.random.u64(..span);
            for shard in 0..self.shards.len() {
                let late = self.random.u64(..5 * MS);
                self.at(NanosSinceStart(at + late), Event::Drain(shard));
            }
        }
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Checked {
        while self.step()? {}
        self.check_end()
    }

    /// False: nothing is left.
    fn step(&mut self) -> Result<bool, String> {
        self.stats.steps += 1;
        if self.stats.steps > STEPS_MAX {
            return Err("somebody spins: the run does not end".into());
        }
        if let Some(byte) = self.tape.next() {
            // The step's number keeps equal bytes from deciding alike.
            self.random = Rng::with_seed(self.stats.steps << 8 | u64::from(byte));
        }
        let weight = |shard| self.weight(shard);
        let busy: u32 = (0..self.shards.len()).map(weight).sum();
        let asleep = (0..self.shards.len()).all(|shard| !self.has_something_to_do(shard));
        let time_passes = busy == 0 || self.random.u32(..self.plan.patience) == 0;
        let due = self.events.first_key_value().is_some_and(|(next, _)| next.0 <= self.now);
        if asleep && !due {
            self.check_quiet()?;
        }
        if time_passes && let Some(((at, _), event)) = self.events.pop_first() {
            self.now = self.now.max(at);
            self.happen(event);
        } else if busy == 0 {
            return Ok(false);
        } else {
            let mut chosen = self.random.u32(..busy);
            for shard in 0..self.shards.len() {
                let weight = self.weight(shard);
                if chosen < weight {
                    self.step_shard(shard)?;
                    break;
                }
                chosen -= weight;
            }
        }
        self.check_step()?;
        Ok(true)
    }

    fn weight(&self, shard: usize) -> u32 {
        let runs = self.now >= self.shards[shard].stalled_until && self.has_something_to_do(shard);
        if runs { self.plan.weights[shard] } else { 0 }
    }

    pub(crate) fn at(&mut self, at: NanosSinceStart, event: Event) {
        self.next_number += 1;
        self.events.insert((at.max(self.now), self.next_number), event);
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9} us  {}", now.0 / 1_000, what()));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Task(id) => {
                let shard = self.requests[id].shard;
                self.shards[shard].tasks.push_back(id);
            }
            Event::Leg(leg) => self.go_on_with_leg(leg),
            Event::Alarm(shard) => {
                self.note(|| format!("alarm of shard {shard}"));
                let now = self.now;
                if self.shards[shard].alarm.is_some_and(|at| at <= now) {
                    self.shards[shard].alarm = None;
                }
                self.bells[shard].ring();
            }
            Event::Fleet(shard, fleet) => {
                // The newest wins: an older one that is late is not seen any more.
                let known = &mut self.shards[shard];
                let newest = known.slot.as_ref().unwrap_or(&known.fleet);
                if newest.generation < fleet.generation {
                    known.slot = Some(fleet);
                }
                self.bells[shard].ring();
            }
            Event::FleetChange => self.change_fleet(),
            Event::Report => self.report(),
            Event::Elsewhere => {
                let rank = self.any_rank();
                let places = self.random.u32(..3);
                self.note(|| format!("others have {places} on {rank:?}"));
                self.board.rank(rank).unwrap().set_elsewhere(places, 0);
                self.board.room_made(rank);
            }
            Event::Stall(shard, time_ns) => {
                let until = NanosSinceStart(self.now.0 + time_ns);
                self.note(|| format!("shard {shard} stalls until {} us", until.0 / 1_000));
                self.shards[shard].stalled_until = until;
                self.at(until, Event::Resume);
            }
            Event::Resume => {}
            Event::Drain(shard) => {
                self.note(|| format!("shard {shard} drains"));
                self.shards[shard].draining = true;
                let here = (0..self.requests.len()).filter(|&id| self.requests[id].shard == shard);
                let here: Vec<_> = here.collect();
                self.shards[shard].tasks.extend(here);
            }
        }
    }

    /// The control plane: where room is told of changes at once, the shards hear of it one by one.
    fn change_fleet(&mut self) {
        let what = self.truth.change(&mut self.random);
        let fleet = self.truth.snapshot();
        self.note(|| format!("fleet {}: {what}", fleet.generation));
        self.board.set_queues(&fleet);
        for shard in 0..self.shards.len() {
            let at = self.now.0 + self.random.u64(..20 * MS);
            self.at(NanosSinceStart(at), Event::Fleet(shard, Arc::clone(&fleet)));
        }
        // Who runs on a worker that went down fails soon.
        for id in 0..self.requests.len() {
            let soon = NanosSinceStart(self.now.0 + self.random.u64(..MS));
            let (rank, end) = match &mut self.requests[id].state {
                State::Running(at) => (at.lease.rank(), (&mut at.end_at, &mut at.fate)),
                State::Paired(at) => (at.decode.rank(), (&mut at.end_at, &mut at.fate)),
                State::Coming | State::Waiting(_) | State::Done => continue,
            };
            if !self.truth.is_up(rank) {
                *end.0 = soon;
                *end.1 = Some(RelayError::ClosedInHead);
                self.at(soon, Event::Task(id));
            }
        }
        for id in 0..self.legs.len() {
            let soon = NanosSinceStart(self.now.0 + self.random.u64(..MS));
            let leg = &mut self.legs[id];
            if leg.lease.as_ref().is_some_and(|lease| !self.truth.is_up(lease.rank())) {
                leg.end_at = soon;
                leg.ended = broken();
                self.at(soon, Event::Leg(id));
            }
        }
    }

    /// An engine says something, true or not.
    fn report(&mut self) {
        let rank = self.any_rank();
        let reading = LoadReading {
            running: self.random.u32(..40),
            waiting: self.random.u32(..10),
            kv_permille: Some(self.random.u16(800..=1_000)),
            ..LoadReading::default()
        };
        self.note(|| format!("{rank:?} reports {:?} permille", reading.kv_permille));
        let own = OwnLoad::of(self.board.rank(rank).unwrap());
        for shard in &mut self.shards {
            shard.reports_sent.push(LoadReport::new(rank, self.now, &reading, own));
        }
    }

    fn any_rank(&mut self) -> RankIndex {
        RankIndex::try_from_index(self.random.usize(..self.truth.ranks.len())).unwrap()
    }
}
