//! The routers of a run: one, or several replicas in front of the same ranks. A replica knows its
//! own leases at once and those of others by the reports of engines; with peers or NATS also by
//! their messages. Each replica hears all KV events. Guesses of prompts on their way are a
//! replica's own.

use crate::kv_cache::CacheChange;
use crate::messages::Messages;
use crate::plan::SimPlan;
use crate::rivals::{RivalState, Rule};
use crate::shipped::{PlacedAs, Shipped, TraceAsked};
use crate::trace::Trace;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_config::{Config, Policy};
use forebay_fleet::account::Lease;
use forebay_fleet::worker::LoadReading;

/// What the routers of a run have cost, all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RouterUse {
    /// Requests that came, and looks at queues after news.
    pub decisions: u64,
    /// Time of them on the clock of the caller.
    pub decision_ns: u64,
    /// Blocks that events told of.
    pub events: u64,
    /// Time that the index took for them.
    pub event_ns: u64,
    /// Memory of the largest index.
    pub index_bytes: u64,
}

/// The clock that a caller lends, in nanoseconds; a run itself has none.
pub type LentClock<'a> = &'a dyn Fn() -> u64;

/// Several routers of one kind.
pub(crate) struct Routers<'a> {
    sides: Vec<RouterSide>,
    /// By request: the router that it came to.
    came_to: Vec<u16>,
    messages: Messages,
    random: fastrand::Rng,
    clock: LentClock<'a>,
    used: RouterUse,
}

struct RouterSide {
    shipped: Shipped,
    rival: Option<RivalState>,
}

impl<'a> Routers<'a> {
    pub(crate) fn new(trace: &Trace, plan: &SimPlan, rule: Rule, clock: LentClock<'a>) -> Self {
        let SimPlan { replicas, seed, ref config, .. } = *plan;
        let side = |number: usize| {
            let seed = seed.wrapping_add(number as u64);
            let (policy, rival) = match rule {
                Rule::Own(policy) => (policy, None),
                Rule::Rival(rival) => (Policy::Kv, Some(RivalState::new(rival, seed))),
            };
            let config = Config { policy, ..config.clone() };
            RouterSide { shipped: Shipped::new(trace, plan, config, seed), rival }
        };
        let sides: Vec<RouterSide> = (0..replicas.max(1)).map(side).collect();
        let has_way = config.nats.url.is_some() || !config.replicas.peers.is_empty();
        let are_connected = replicas > 1 && has_way;
        let connected = sides.iter().filter(|_| are_connected).enumerate();
        let members =
            connected.map(|(number, side)| side.shipped.connected_replica(number)).collect();
        Self {
            sides,
            messages: Messages::new(members),
            came_to: vec![0; trace.requests.len()],
            random: fastrand::Rng::with_seed(!seed),
            clock,
            used: RouterUse::default(),
        }
    }

    /// A new request comes to one of the routers. `waiting`: see [`RivalState::choose`].
    pub(crate) fn place(&mut self, asked: TraceAsked<'_>, waiting: &[u32]) -> PlacedAs {
        let count = self.sides.len();
        let at = if count > 1 { self.random.usize(..count) } else { 0 };
        self.came_to[asked.id as usize] = at as u16;
        let began = (self.clock)();
        let side = &mut self.sides[at];
        let placed = match &mut side.rival {
            None => side.shipped.place(asked),
            Some(rival) => {
                let (rank, uncached) = rival.choose(asked, &mut side.shipped, waiting);
                let lease = side.shipped.lease(asked, rank, uncached);
                lease.map_or(PlacedAs::Refused, PlacedAs::Sent)
            }
        };
        self.used.decisions += 1;
        self.used.decision_ns += (self.clock)() - began;
        placed
    }

    /// A wait is over without a rank. `None`: the request waits no longer.
    pub(crate) fn late(&mut self, request: u32, now: NanosSinceStart) -> Option<PlacedAs> {
        self.side_of(request).shipped.late(request, now)
    }

    /// Serves the queues, where there is news or `is_due`. Adds who got a rank or an answer.
    pub(crate) fn serve(
        &mut self,
        now: NanosSinceStart,
        is_due: bool,
        placed: &mut Vec<(u32, PlacedAs)>,
    ) {
        if self.sides.iter().all(|side| side.shipped.has_empty_queues()) {
            return;
        }
        let began = (self.clock)();
        self.sides.iter_mut().for_each(|side| side.shipped.serve(now, is_due, placed));
        self.used.decisions += placed.len() as u64;
        self.used.decision_ns += (self.clock)() - began;
    }

    /// When the queues have to be looked at again.
    pub(crate) fn look_again_at(&self) -> Option<NanosSinceStart> {
        self.sides.iter().filter_map(|side| side.shipped.look_again_at()).min()
    }

    /// What the events of a rank say.
    pub(crate) fn hear(&mut self, rank: RankIndex, changes: &[CacheChange], now: NanosSinceStart) {
        let began = (self.clock)();
        self.sides.iter_mut().for_each(|side| side.shipped.hear(rank, changes, now));
        self.used.events += (changes.len() * self.sides.len()) as u64;
        self.used.event_ns += (self.clock)() - began;
    }

    /// What the engine of a rank reports of its load.
    pub(crate) fn report(&mut self, rank: RankIndex, now: NanosSinceStart, reading: LoadReading) {
        self.sides.iter_mut().for_each(|side| side.shipped.report(rank, now, reading));
    }

    /// The turns of the replicas that are due. When the next one is; `None` where nothing connects
    /// the replicas.
    pub(crate) fn exchange(&mut self, now: NanosSinceStart) -> Option<NanosSinceStart> {
        self.messages.turn(now)
    }

    /// Time has passed: what was written to caches long ago counts less.
    pub(crate) fn fade(&mut self, now: NanosSinceStart) {
        self.sides.iter_mut().for_each(|side| side.shipped.fade(now));
    }

    /// A request has ended: its lease goes back to its router.
    pub(crate) fn end(&mut self, request: u32, lease: Lease, now: NanosSinceStart) {
        self.side_of(request).shipped.end(lease, now);
    }

    pub(crate) fn used(&self) -> RouterUse {
        let bytes = self.sides.iter().map(|side| side.shipped.index_bytes());
        RouterUse { index_bytes: bytes.max().unwrap_or(0), ..self.used }
    }

    fn side_of(&mut self, request: u32) -> &mut RouterSide {
        let at = self.came_to[request as usize];
        &mut self.sides[usize::from(at)]
    }
}
