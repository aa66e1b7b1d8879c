//! Placing the requests of one queue in one turn: the rank that a request waits for, and its lease.

use super::backlog::{Backlog, WaitingSum};
use super::flows::Way;
use super::line::{Placed, RankPlaces};
use super::waiter::{lay_out, waiting};
use forebay_base::{QueueIndex, RankIndex};
use forebay_config::{Policy, QueueMode};
use forebay_fleet::account::LeaseCost;
use forebay_fleet::admit::DrainRates;
use forebay_fleet::mailbox::{Ticket, Verdict, Waiter};
use forebay_fleet::worker::{Leg, Model, RankLoad};
use forebay_index::Overlaps;
use forebay_select::{Binder, Candidates, PickRequest, Prices, PromptSize, Seeking, lease_cost};

/// A prompt of so many tokens gives the speed of a rank.
const SPEED_TOKENS: u64 = 100_000;
/// Requests that run have this part of their time before them, in the mean.
const SERVICE_LEFT: f64 = 0.5;

/// Does a request wait for one rank? Where ranks are compared by what they hold.
pub(super) fn has_target(policy: Policy, leg: Leg) -> bool {
    matches!(policy, Policy::Kv | Policy::Session) && leg != Leg::Decode
}

/// Working memory of one turn.
#[derive(Debug)]
pub(super) struct PlacementMemory {
    pub(super) candidates: Candidates,
    pub(super) overlaps: Overlaps,
    /// Ranks that are left to requests without room there yet.
    pub(super) held_back: Vec<RankIndex>,
}

/// One turn of a queue.
pub(super) struct Placement<'a, 'b> {
    pub(super) queue: QueueIndex,
    pub(super) binder: &'a mut Binder<'b>,
    pub(super) memory: &'a mut PlacementMemory,
    pub(super) verdicts: &'a mut Vec<(Ticket, Verdict)>,
    pub(super) pace: PoolPace,
}

/// How fast the requests of a pool come and go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolPace {
    /// From a request's start to its end, in nanoseconds; 0: not known.
    service_ns: f64,
    /// Prompt tokens that a rank computes in a nanosecond; 0: not known.
    tokens_per_ns: f64,
}

/// The choice of a target.
struct Target {
    rank: Option<RankIndex>,
    has_room: bool,
}

impl PoolPace {
    /// The pace of the queue's pool at this moment.
    pub(super) fn of(binder: &Binder<'_>, rates: &DrainRates, queue: QueueIndex) -> Self {
        let Some(pool) = binder.fleet.pool_of(queue) else { return Self::default() };
        let ranks = binder.fleet.pool(pool).map_or(&[][..], |pool| &pool.ranks);
        let mut running = 0_u32;
        let mut speed = 0.0;
        let mut known = 0.0;
        for &rank in ranks {
            running += binder.board.rank(rank).map_or(0, |load| load.in_flight());
            let past = binder.board.past(rank);
            if let Some(time) = past.and_then(|past| past.prefill_time(SPEED_TOKENS)) {
                speed += float(SPEED_TOKENS) / (time.as_secs_f64() * 1e9).max(1.0);
                known += 1.0;
            }
        }
        let ends_per_s = rates.per_second(pool, binder.now).unwrap_or(0.0);
        let service_ns = if ends_per_s > 0.0 { f64::from(running) / ends_per_s * 1e9 } else { 0.0 };
        Self { service_ns, tokens_per_ns: if known > 0.0 { speed / known } else { 0.0 } }
    }

    /// Time until this part of what runs on a rank has ended, in prompt tokens of that time.
    fn wait_tokens(self, part: f64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate, not negative; too large is the largest"
        )]
        let tokens = (part * self.service_ns * SERVICE_LEFT * self.tokens_per_ns) as u64;
        tokens
    }
}

impl RankPlaces for Placement<'_, '_> {
    fn is_open(&self, way: Way, tokens: u64) -> bool {
        let Self { binder, memory, .. } = self;
        let has_room = |rank: RankIndex| {
            let most = binder.fleet.room(rank).kv_tokens_max;
            // What no cache can hold needs a place alone.
            let tokens = if tokens > most { 0 } else { tokens };
            let cost = LeaseCost { decode_tokens: tokens, ..LeaseCost::default() };
            !memory.held_back.contains(&rank) && binder.has_room(rank, way.model, || cost)
        };
        let here = |rank: &&RankIndex| binder.fleet.queue_of(**rank) == Some(self.queue);
        match way.target {
            Some(rank) => has_room(rank),
            None => binder
                .fleet
                .models
                .get(way.model.index())
                .is_none_or(|model| model.ranks.iter().filter(here).any(|rank| has_room(*rank))),
        }
    }

    fn aim(&mut self, waiter: &Waiter, target: Option<RankIndex>, all: &Backlog) -> Placed {
        self.with_request(waiter, |placement, request| {
            if !has_target(placement.binder.policy, waiter.leg) {
                return Placed::Waits(None);
            }
            Placed::Waits(placement.target(waiter, target, request, all).rank)
        })
    }

    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, all: &Backlog) -> Placed {
        self.with_request(waiter, |placement, request| {
            let target = if has_target(placement.binder.policy, waiter.leg) {
                placement.target(waiter, target, request, all)
            } else {
                Target { rank: None, has_room: true }
            };
            placement.bind(waiter, request, &target)
        })
    }

    fn to_hold_back(&mut self, waiter: &Waiter) -> Option<RankIndex> {
        let mut emptiest = None;
        self.with_request(waiter, |placement, _| {
            let held =
                |rank: &RankIndex| placement.binder.board.rank(*rank).map(RankLoad::kv_tokens);
            emptiest = placement.memory.candidates.ranks().iter().copied().min_by_key(held);
            Placed::Waits(None)
        });
        emptiest
    }

    fn has_any_room(&self) -> bool {
        let Self { queue, binder, .. } = self;
        let mode = binder.fleet.config.flow.queue.mode;
        let pool = binder.fleet.pool_of(*queue).filter(|_| mode == QueueMode::Pool);
        let ranks = pool.and_then(|pool| binder.fleet.pool(pool)).map(|pool| &pool.ranks[..]);
        let has_room = |rank: &RankIndex| binder.has_room_for_some(*rank, LeaseCost::default);
        ranks.unwrap_or_default().iter().any(has_room)
    }

    fn hold_back(&mut self, rank: RankIndex) {
        self.memory.held_back.push(rank);
    }
}

impl Placement<'_, '_> {
    /// Does something for the request, with the ranks of this queue that could ever take it. If
    /// there is none, its own shard knows what to do: its workers are gone, or wait elsewhere now.
    fn with_request(
        &mut self,
        waiter: &Waiter,
        act: impl FnOnce(&mut Self, &PickRequest<'_>) -> Placed,
    ) -> Placed {
        let mut overlaps = std::mem::replace(&mut self.memory.overlaps, Overlaps::new(0));
        lay_out(waiter, &mut overlaps);
        let placed = self.binder.fleet.models.get(waiter.facts.model.index()).and_then(|model| {
            let request = asked(waiter, self.binder, model, &overlaps);
            self.collect(waiter, model, &request).then(|| act(self, &request))
        });
        self.memory.overlaps = overlaps;
        placed.unwrap_or_else(|| {
            self.verdicts.push((waiter.ticket, Verdict::Reroute));
            Placed::Never
        })
    }

    /// Collects the ranks of this queue that could ever take the request; false: there is none.
    fn collect(&mut self, waiter: &Waiter, model: &Model, request: &PickRequest<'_>) -> bool {
        let Self { queue, binder, memory, .. } = self;
        let fleet = binder.fleet;
        let facts = &waiter.facts;
        let candidates = &mut memory.candidates;
        let seeking = Seeking {
            requester: facts.requester(),
            leg: waiter.leg,
            near: waiter.near,
            pin: facts.pin,
            tried: &facts.tried,
        };
        let found = candidates.collect(fleet, model, binder.board, seeking, binder.now);
        candidates.retain(|rank| fleet.queue_of(rank) == Some(*queue));
        let _ = binder.keep_able(request, facts.output_tokens, candidates);
        found.is_ok() && !candidates.ranks().is_empty()
    }

    /// The candidate that costs least, full ones too, with what is served there before the request
    /// and the wait for room.
    fn target(
        &mut self,
        waiter: &Waiter,
        current: Option<RankIndex>,
        request: &PickRequest<'_>,
        backlog: &Backlog,
    ) -> Target {
        let Self { binder, memory, pace, .. } = self;
        let PlacementMemory { candidates, held_back, .. } = &**memory;
        let own = waiting(waiter);
        let cost = |rank| lease_cost(request, rank, waiter.facts.output_tokens);
        let board = binder.board;
        let fleet = binder.fleet;
        let short = |rank: RankIndex, before: WaitingSum| {
            let Some(load) = board.rank(rank) else { return 0.0 };
            let limits = fleet.room(rank);
            let running = f64::from(load.in_flight().max(1));
            let held = load.kv_tokens();
            let wanted = cost(rank).room_wanted().kv_tokens;
            let most = limits.kv_tokens_max;
            let is_short = most > 0 && wanted <= most && held.saturating_add(wanted) > most;
            let is_full = limits.places_max > 0 && load.in_flight() >= limits.places_max;
            let mut part = 0.0_f64;
            if is_short {
                let lack = held.saturating_add(wanted) - most;
                let lack = float(lack.saturating_add(before.held_tokens)) / float(held.max(1));
                part = lack.max(1.0 / running);
            }
            if is_full {
                part = part.max(float(before.requests + 1) / running);
            }
            part
        };
        let more = |rank: RankIndex| {
            let before = backlog.before(rank, own, current == Some(rank));
            before.tokens.saturating_add(pace.wait_tokens(short(rank, before)))
        };
        // A rank that has no room in its cache is chosen anew each time.
        let current = current.filter(|rank| short(*rank, WaitingSum::default()) == 0.0);
        let rank = binder.aim(request, candidates, current, more);
        let has_room = |rank: RankIndex| {
            !held_back.contains(&rank) && binder.has_room(rank, waiter.facts.model, || cost(rank))
        };
        let fits = rank.is_some_and(has_room);
        Target { rank, has_room: fits }
    }

    /// Takes a lease on the target, or on the best rank with room where there is no target.
    fn bind(&mut self, waiter: &Waiter, request: &PickRequest<'_>, target: &Target) -> Placed {
        let Self { queue, binder, memory, verdicts, .. } = self;
        let PlacementMemory { candidates, held_back, .. } = &mut **memory;
        if target.has_room {
            if let Some(rank) = target.rank {
                candidates.set_only(rank);
            }
            candidates.retain(|rank| !held_back.contains(&rank));
            if let Some(lease) = binder.bind(request, waiter.facts.output_tokens, candidates) {
                let of_queue = binder.fleet.queue_of(lease.rank());
                debug_assert_eq!(of_queue, Some(*queue), "a rank of another queue");
                debug_assert!(!held_back.contains(&lease.rank()), "a rank that is held back");
                verdicts.push((waiter.ticket, Verdict::Granted(lease)));
                return Placed::Yes;
            }
        }
        Placed::Waits(target.rank)
    }
}

/// What the waiter asks of a rank.
fn asked<'a>(
    waiter: &'a Waiter,
    binder: &Binder<'a>,
    model: &Model,
    overlaps: &'a Overlaps,
) -> PickRequest<'a> {
    PickRequest {
        requester: waiter.facts.requester(),
        leg: waiter.leg,
        ranks: &[],
        board: binder.board,
        reports: binder.reports,
        now: binder.now,
        overlaps,
        fleet: binder.fleet,
        prices: Prices::of(binder.policy, binder.fleet, binder.board, &model.ranks),
        prompt: PromptSize::new(waiter.prompt.bytes, waiter.prompt.bytes_per_token),
        marks: &waiter.prompt.marks,
        session: waiter.facts.caller.session,
        anchor: None,
    }
}

/// No count of tokens or requests has more than 53 bits.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(number: u64) -> f64 {
    number as f64
}
