//! Placement of a queue's requests in a turn: the target rank of each request, and its lease.

use super::backlog::{Backlog, WaitingSum};
use super::flows::Destination;
use super::line::{PlaceResult, RankPlaces};
use super::waiter::{lay_out, waiting};
use forebay_base::{QueueIndex, RankIndex};
use forebay_board::RankLoad;
use forebay_board::account::LeaseCost;
use forebay_board::admit::DrainRates;
use forebay_config::{Policy, QueueMode};
use forebay_fleet::worker::{Leg, Model};
use forebay_index::Overlaps;
use forebay_mailbox::{Ticket, Verdict, Waiter};
use forebay_select::{Binder, Candidates, PickRequest, Prices, PromptSize, RankSearch, lease_cost};

/// Prompt size at which the speed of a rank is measured.
const SPEED_TOKENS: u64 = 100_000;
/// Mean part of its service time that a running request still needs.
const SERVICE_LEFT: f64 = 0.5;

/// Does a request wait for a target rank? Only under policies that compare ranks by their caches.
pub(super) fn has_target(policy: Policy, leg: Leg) -> bool {
    policy.has_target() && leg != Leg::Decode
}

/// Working memory of a turn.
#[derive(Debug)]
pub(super) struct PlacementMemory {
    pub(super) candidates: Candidates,
    pub(super) overlaps: Overlaps,
    /// Ranks held back for overdue requests.
    pub(super) held_back: Vec<RankIndex>,
}

/// [`RankPlaces`] of a turn of a queue.
pub(super) struct Placement<'a, 'b> {
    pub(super) queue: QueueIndex,
    pub(super) binder: &'a mut Binder<'b>,
    pub(super) memory: &'a mut PlacementMemory,
    pub(super) verdicts: &'a mut Vec<(Ticket, Verdict)>,
    pub(super) pace: PoolPace,
}

/// Service time and prefill speed of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolPace {
    /// Mean time from a request's start to its end, in nanoseconds; 0: unknown.
    service_ns: f64,
    /// Prompt tokens that a rank computes per nanosecond; 0: unknown.
    tokens_per_ns: f64,
}

struct Target {
    rank: Option<RankIndex>,
    has_room: bool,
}

impl PoolPace {
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
        let ends_per_s = rates.ends_per_second(pool, binder.now).unwrap_or(0.0);
        let service_ns = if ends_per_s > 0.0 { f64::from(running) / ends_per_s * 1e9 } else { 0.0 };
        Self { service_ns, tokens_per_ns: if known > 0.0 { speed / known } else { 0.0 } }
    }

    /// Time until this part of a rank's running requests has ended, in prompt tokens that a rank
    /// computes in that time.
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
    fn is_open(&self, dest: Destination, tokens: u64) -> bool {
        let Self { binder, memory, .. } = self;
        let has_room = |rank: RankIndex| {
            let most = binder.fleet.room(rank).kv_tokens_max;
            // A request larger than the cache needs only a free place.
            let tokens = if tokens > most { 0 } else { tokens };
            let cost = LeaseCost { decode_tokens: tokens, ..LeaseCost::default() };
            !memory.held_back.contains(&rank) && binder.has_room(rank, dest.model, || cost)
        };
        let here = |rank: &&RankIndex| binder.fleet.queue_of(**rank) == Some(self.queue);
        match dest.target {
            Some(rank) => has_room(rank),
            None => binder
                .fleet
                .models
                .get(dest.model.index())
                .is_none_or(|model| model.ranks.iter().filter(here).any(|rank| has_room(*rank))),
        }
    }

    fn aim(&mut self, waiter: &Waiter, target: Option<RankIndex>, all: &Backlog) -> PlaceResult {
        self.with_request(waiter, |placement, request| {
            if !has_target(placement.binder.policy, waiter.leg) {
                return PlaceResult::Waits(None);
            }
            PlaceResult::Waits(placement.target(waiter, target, request, all).rank)
        })
    }

    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, all: &Backlog) -> PlaceResult {
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
            PlaceResult::Waits(None)
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
    /// Runs `act` with the ranks of this queue that could ever take the request. Without such a
    /// rank, the request is rerouted: its workers are gone or belong to another queue now.
    fn with_request(
        &mut self,
        waiter: &Waiter,
        act: impl FnOnce(&mut Self, &PickRequest<'_>) -> PlaceResult,
    ) -> PlaceResult {
        let mut overlaps = std::mem::replace(&mut self.memory.overlaps, Overlaps::new(0));
        lay_out(waiter, &mut overlaps);
        let placed = self.binder.fleet.models.get(waiter.facts.model.index()).and_then(|model| {
            let request = pick_request(waiter, self.binder, model, &overlaps);
            self.collect(waiter, model, &request).then(|| act(self, &request))
        });
        self.memory.overlaps = overlaps;
        placed.unwrap_or_else(|| {
            self.verdicts.push((waiter.ticket, Verdict::Reroute));
            PlaceResult::Never
        })
    }

    /// Collects the ranks of this queue that could ever take the request; false: no rank can.
    fn collect(&mut self, waiter: &Waiter, model: &Model, request: &PickRequest<'_>) -> bool {
        let Self { queue, binder, memory, .. } = self;
        let fleet = binder.fleet;
        let facts = &waiter.facts;
        let candidates = &mut memory.candidates;
        let seeking = RankSearch {
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

    /// The candidate with the least cost. Full ranks count too, with the cost of requests that are
    /// served there first and of the wait for room.
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
        // A target without room in its cache gets no preference: the choice is made anew.
        let current = current.filter(|rank| short(*rank, WaitingSum::default()) == 0.0);
        let rank = binder.aim(request, candidates, current, more);
        let has_room = |rank: RankIndex| {
            !held_back.contains(&rank) && binder.has_room(rank, waiter.facts.model, || cost(rank))
        };
        let fits = rank.is_some_and(has_room);
        Target { rank, has_room: fits }
    }

    /// Takes a lease on the target, or without a target on the best rank with room.
    fn bind(&mut self, waiter: &Waiter, request: &PickRequest<'_>, target: &Target) -> PlaceResult {
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
                return PlaceResult::Bound;
            }
        }
        PlaceResult::Waits(target.rank)
    }
}

fn pick_request<'a>(
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
