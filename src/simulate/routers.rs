//! The routers of a run: a single router, or several replicas in front of the same ranks. A replica
//! sees its own leases at once, and the leases of other replicas in the reports of engines, and
//! with peers or NATS in messages. Each replica receives all KV events. Predictions for in-flight
//! prompts stay in their replica.

use crate::messages::Messages;
use crate::plan::SimPlan;
use crate::production_router::{PlaceOutcome, ProductionRouter, TraceArrival};
use crate::ranks::kv_cache::CacheChange;
use crate::rivals::{RivalState, Rule};
use crate::traces::trace::Trace;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::LoadReading;
use forebay_board::account::Lease;
use forebay_config::{Config, Policy};

/// Cost of all routers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RouterUse {
    /// Arrivals, and requests that a scan of a queue placed or refused.
    pub decisions: u64,
    /// Time of the decisions, on the caller's clock.
    pub decision_ns: u64,
    /// Blocks in KV events.
    pub events: u64,
    /// Time of the index for these events.
    pub event_ns: u64,
    /// Memory of the largest index.
    pub index_bytes: u64,
}

/// Nanosecond clock of the caller; a run itself reads no clock.
pub type LentClock<'a> = &'a dyn Fn() -> u64;

/// Several routers of the same kind.
pub(crate) struct Routers<'a> {
    sides: Vec<RouterSide>,
    /// Router of each request.
    router_of: Vec<u16>,
    messages: Messages,
    random: fastrand::Rng,
    clock: LentClock<'a>,
    used: RouterUse,
}

struct RouterSide {
    production: ProductionRouter,
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
            RouterSide { production: ProductionRouter::new(trace, plan, config, seed), rival }
        };
        let sides: Vec<RouterSide> = (0..replicas.max(1)).map(side).collect();
        let has_way = config.nats.url.is_some() || !config.replicas.peers.is_empty();
        let are_connected = replicas > 1 && has_way;
        let connected = sides.iter().filter(|_| are_connected).enumerate();
        let members =
            connected.map(|(number, side)| side.production.connected_replica(number)).collect();
        Self {
            sides,
            messages: Messages::new(members),
            // A single router needs no list.
            router_of: if replicas > 1 { vec![0; trace.requests.len()] } else { Vec::new() },
            random: fastrand::Rng::with_seed(!seed),
            clock,
            used: RouterUse::default(),
        }
    }

    /// Places a new request through its router. `waiting`: see [`RivalState::choose`].
    pub(crate) fn place(&mut self, arrival: TraceArrival<'_>, waiting: &[u32]) -> PlaceOutcome {
        let count = self.sides.len();
        let at = if count > 1 { self.random.usize(..count) } else { 0 };
        if count > 1 {
            self.router_of[arrival.id as usize] = at as u16;
        }
        let began = (self.clock)();
        let side = &mut self.sides[at];
        let placed = match &mut side.rival {
            None => side.production.place(arrival),
            Some(rival) => {
                let (rank, uncached) = rival.choose(arrival, &mut side.production, waiting);
                let lease = side.production.lease(arrival, rank, uncached);
                lease.map_or(PlaceOutcome::Refused, PlaceOutcome::Sent)
            }
        };
        self.used.decisions += 1;
        self.used.decision_ns += (self.clock)() - began;
        placed
    }

    /// The deadline of a wait has passed. `None`: the request no longer waits.
    pub(crate) fn late(&mut self, request: u32, now: NanosSinceStart) -> Option<PlaceOutcome> {
        self.side_of(request).production.late(request, now)
    }

    /// Serves the queues if a rank or queue changed, or `is_due`. Appends the requests that got a
    /// rank or a refusal.
    pub(crate) fn serve(
        &mut self,
        now: NanosSinceStart,
        is_due: bool,
        placed: &mut Vec<(u32, PlaceOutcome)>,
    ) {
        if self.sides.iter().all(|side| side.production.has_empty_queues()) {
            return;
        }
        let began = (self.clock)();
        self.sides.iter_mut().for_each(|side| side.production.serve(now, is_due, placed));
        self.used.decisions += placed.len() as u64;
        self.used.decision_ns += (self.clock)() - began;
    }

    /// Time of the next scan of the queues.
    pub(crate) fn next_scan_at(&self) -> Option<NanosSinceStart> {
        self.sides.iter().filter_map(|side| side.production.next_scan_at()).min()
    }

    /// Applies the KV events of a rank.
    pub(crate) fn apply_events(
        &mut self,
        rank: RankIndex,
        changes: &[CacheChange],
        now: NanosSinceStart,
    ) {
        let began = (self.clock)();
        self.sides.iter_mut().for_each(|side| side.production.apply_events(rank, changes, now));
        self.used.events += (changes.len() * self.sides.len()) as u64;
        self.used.event_ns += (self.clock)() - began;
    }

    /// Applies a load report of a rank.
    pub(crate) fn report(&mut self, rank: RankIndex, now: NanosSinceStart, reading: LoadReading) {
        self.sides.iter_mut().for_each(|side| side.production.report(rank, now, reading));
    }

    /// Runs the turns of the replicas that are due. Returns the time of the next turn; `None` where
    /// the replicas are not connected.
    pub(crate) fn exchange(&mut self, now: NanosSinceStart) -> Option<NanosSinceStart> {
        self.messages.turn(now)
    }

    /// Decays the cache writes over time.
    pub(crate) fn fade(&mut self, now: NanosSinceStart) {
        self.sides.iter_mut().for_each(|side| side.production.fade(now));
    }

    /// Returns the lease of an ended request to its router.
    pub(crate) fn end(&mut self, request: u32, lease: Lease, now: NanosSinceStart) {
        self.side_of(request).production.end(lease, now);
    }

    /// Sets the path of a block of a growing trace.
    pub(crate) fn name_block(&mut self, block: u32, parent: u32) {
        self.sides.iter_mut().for_each(|side| side.production.name_block(block, parent));
    }

    pub(crate) fn used(&self) -> RouterUse {
        let bytes = self.sides.iter().map(|side| side.production.index_bytes());
        RouterUse { index_bytes: bytes.max().unwrap_or(0), ..self.used }
    }

    fn side_of(&mut self, request: u32) -> &mut RouterSide {
        let at = if self.sides.len() > 1 { self.router_of[request as usize] } else { 0 };
        &mut self.sides[usize::from(at)]
    }
}
