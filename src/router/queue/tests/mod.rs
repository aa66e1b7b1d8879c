//! Properties of a line over random schedules, compared with a naive model.

mod rules;

use super::backlog::{Backlog, WaitingSum};
use super::bounds::bounds;
use super::flows::{CLASSES, Destination, FlowKey, Flows, Order, RowFilter, TurnPosition};
use super::line::{Line, PlaceResult, RankPlaces, Rules};
use super::waiter::{QueuedRequest, prompt_tokens, tokens_to_compute, waiting};
use forebay_base::limits::{IDLE_FLOWS_MAX, QUEUE_CLASSES};
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex, ShardIndex};
use forebay_board::{LoadBoard, QueueDemand, QueueLimits};
use forebay_config::{Config, FlowConfig, QueueMode};
use forebay_fleet::worker::test_support::three_ranks;
use forebay_fleet::worker::{FleetSnapshot, Leg, pools};
use forebay_index::PrefixMarks;
use forebay_mailbox::{Caller, Holding, RequestFacts, Ticket, Waiter, WaitingPrompt};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) const AFTER: Duration = Duration::from_nanos(100);
const NEVER: NanosSinceStart = NanosSinceStart(u64::MAX);
const OVERTAKEN_MAX: u32 = 3;

pub(super) fn ticket(slot: u32) -> Ticket {
    Ticket { shard: ShardIndex(0), slot, life: 1 }
}

fn waiter(slot: u32) -> Waiter {
    Waiter {
        ticket: ticket(slot),
        queue: QueueIndex(0),
        leg: Leg::Whole,
        near: None,
        joined_at: NanosSinceStart(0),
        facts: RequestFacts {
            model: ModelIndex(0),
            caller: Caller { class: 1, tenant: 0, weight: 1, session: None, source: 0 },
            arrived_at: NanosSinceStart(0),
            deadline: NEVER,
            client_deadline: None,
            pin: None,
            tried: Vec::new(),
            output_tokens: 0,
        },
        prompt: WaitingPrompt {
            bytes: 400,
            bytes_per_token: 4.0,
            holdings: Vec::new(),
            marks: PrefixMarks::default(),
            target: None,
        },
        movable: true,
    }
}

/// The default waiter, modified by `change`.
pub(super) fn waiter_with(slot: u32, change: impl FnOnce(&mut Waiter)) -> Waiter {
    let mut waiter = waiter(slot);
    change(&mut waiter);
    waiter
}

fn cost(waiter: &Waiter) -> u64 {
    (prompt_tokens(waiter) + u64::from(waiter.facts.output_tokens)).max(1)
}

const RANKS: u16 = 4;

fn rules(now: u64, promote_after: Duration) -> Rules {
    let ranks = usize::from(RANKS);
    Rules { now: NanosSinceStart(now), promote_after, overtaken_max: OVERTAKEN_MAX, ranks }
}

/// Places requests that `room` admits, whatever their target.
struct PlacesBy<'a>(&'a mut dyn FnMut(&Waiter) -> bool);

impl RankPlaces for PlacesBy<'_> {
    fn is_open(&self, _: Destination, _: u64) -> bool {
        true
    }

    fn aim(&mut self, _: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        PlaceResult::Waits(target)
    }

    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        if (self.0)(waiter) { PlaceResult::Bound } else { PlaceResult::Waits(target) }
    }

    fn to_hold_back(&mut self, _: &Waiter) -> Option<RankIndex> {
        None
    }

    fn has_any_room(&self) -> bool {
        false
    }

    fn hold_back(&mut self, _: RankIndex) {}
}

/// Serves until nothing more can be placed; the tickets in order.
fn serve(line: &mut Line, now: u64, mut room: impl FnMut(&Waiter) -> bool) -> Vec<u32> {
    let mut served = Vec::new();
    let mut room = |waiter: &Waiter| {
        let has_room = room(waiter);
        served.extend(has_room.then_some(waiter.ticket.slot));
        has_room
    };
    line.serve(rules(now, AFTER), &mut PlacesBy(&mut room));
    served
}

/// Serves at most `count`.
pub(super) fn serve_some(line: &mut Line, now: u64, count: usize) -> Vec<u32> {
    let mut left = count;
    let room = |_: &Waiter| left.checked_sub(1).inspect(|&less| left = less).is_some();
    serve(line, now, room)
}

/// Four ranks with places and tokens; each may be gone.
#[derive(Clone)]
struct RankSet {
    places: [u8; RANKS as usize],
    tokens: [u64; RANKS as usize],
    /// Some requests choose another target, by this.
    turned: u32,
    held_back: Vec<RankIndex>,
    served: Vec<(u32, RankIndex)>,
    /// Calls of `place`, `aim` and `is_open`.
    places_looks: usize,
    aims: usize,
    open_looks: Cell<usize>,
}

impl RankSet {
    fn new(places: [u8; RANKS as usize], tokens: [u64; RANKS as usize], turned: u32) -> Self {
        Self {
            places,
            tokens,
            turned,
            held_back: Vec::new(),
            served: Vec::new(),
            places_looks: 0,
            aims: 0,
            open_looks: Cell::new(0),
        }
    }

    fn is_open_at(&self, rank: u16, tokens: u64) -> bool {
        let at = usize::from(rank);
        !self.held_back.contains(&RankIndex(rank))
            && self.places[at] > 0
            && self.tokens[at] >= tokens
    }

    fn aimed(&self, waiter: &Waiter, target: Option<RankIndex>) -> Option<RankIndex> {
        let slot = waiter.ticket.slot;
        let turns = (slot + self.turned).is_multiple_of(3);
        let other = u16::try_from((slot + self.turned) % u32::from(RANKS)).unwrap();
        target.map(|rank| if turns { RankIndex(other) } else { rank })
    }
}

impl RankPlaces for RankSet {
    fn is_open(&self, dest: Destination, tokens: u64) -> bool {
        self.open_looks.set(self.open_looks.get() + 1);
        match dest.target {
            Some(rank) => self.is_open_at(rank.0, tokens),
            None => (0..RANKS).any(|rank| self.is_open_at(rank, tokens)),
        }
    }

    fn aim(&mut self, waiter: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        self.aims += 1;
        PlaceResult::Waits(self.aimed(waiter, target))
    }

    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        self.places_looks += 1;
        let target = self.aimed(waiter, target);
        let wanted = prompt_tokens(waiter);
        let fits = |rank: &u16| {
            self.is_open_at(*rank, wanted) && !waiter.facts.tried.contains(&RankIndex(*rank))
        };
        let is_right = |rank: &u16| target.is_none_or(|target| target == RankIndex(*rank));
        let Some(rank) = (0..RANKS).find(|rank| is_right(rank) && fits(rank)) else {
            return PlaceResult::Waits(target);
        };
        self.places[usize::from(rank)] -= 1;
        self.tokens[usize::from(rank)] -= wanted;
        self.served.push((waiter.ticket.slot, RankIndex(rank)));
        PlaceResult::Bound
    }

    fn to_hold_back(&mut self, _: &Waiter) -> Option<RankIndex> {
        None
    }

    fn has_any_room(&self) -> bool {
        false
    }

    fn hold_back(&mut self, rank: RankIndex) {
        self.held_back.push(rank);
    }
}

#[test]
fn a_flood_of_the_best_class_starves_no_request() {
    let mut line = Line::new(AFTER);
    line.push(Box::new(waiter_with(0, |waiter| {
        waiter.facts.caller.class = 3;
        waiter.facts.caller.tenant = 1;
    })));
    let mut slot = 1;
    let mut served_at = None;
    for now in 0..600 {
        for _ in 0..3 {
            let at = NanosSinceStart(now);
            line.push(Box::new(waiter_with(slot, |waiter| {
                waiter.facts.caller.class = 0;
                waiter.facts.arrived_at = at;
            })));
            slot += 1;
        }
        if serve_some(&mut line, now, 1).contains(&0) {
            served_at = Some(now);
            break;
        }
    }
    // Three classes up, and then one turn each.
    assert!(matches!(served_at, Some(300..=302)), "{served_at:?}");
}

#[test]
fn each_step_up_has_its_own_moment() {
    let mut line = Line::new(AFTER);
    line.push(Box::new(waiter_with(0, |waiter| {
        waiter.facts.caller.class = 2;
    })));
    line.push(Box::new(waiter_with(1, |waiter| {
        waiter.facts.caller.class = 1;
        waiter.facts.arrived_at = NanosSinceStart(50);
    })));
    let mut moments = Vec::new();
    while line.promote_at() != NEVER {
        let moment = line.promote_at().0;
        moments.push(moment);
        serve_some(&mut line, moment, 0);
    }
    assert_eq!(moments, [100, 150, 200]);
}

/// A turn without room.
fn serve_at(line: &mut Line, now: u64, promote_after: Duration) {
    line.serve(rules(now, promote_after), &mut PlacesBy(&mut |_| false));
}

#[test]
fn a_new_pace_counts_for_waiting_requests() {
    let mut line = Line::new(Duration::ZERO);
    line.push(Box::new(waiter_with(0, |waiter| {
        waiter.facts.caller.class = 3;
    })));
    assert_eq!(line.promote_at(), NEVER);
    serve_at(&mut line, 10, AFTER);
    assert_eq!(line.promote_at(), NanosSinceStart(100));
    serve_at(&mut line, 250, Duration::ZERO);
    assert_eq!(line.promote_at(), NEVER, "no promotion is due any more");
    serve_at(&mut line, 250, AFTER);
    assert_eq!(line.promote_at(), NanosSinceStart(300), "all that was missed at once");
}

#[test]
fn only_movable_requests_are_found_stale_and_all_at_once() {
    let mut line = Line::new(AFTER);
    for slot in 0..200 {
        line.push(Box::new(waiter_with(slot, |waiter| {
            waiter.movable = slot % 2 == 0;
        })));
    }
    let mut moved = Vec::new();
    while let Some(ticket) = line.joined_until(NanosSinceStart(0)) {
        line.remove(ticket);
        moved.push(ticket.slot);
    }
    assert!(moved.iter().copied().eq((0..200).step_by(2)));
    assert_eq!((line.len(), line.oldest_movable()), (100, None));
}

#[test]
fn tokens_that_wait_in_the_other_queues_of_a_pool_count() {
    let mut flow = FlowConfig { kv_demand_percent: 100, ..FlowConfig::default() };
    flow.queue.mode = QueueMode::Endpoint;
    let mut fleet =
        FleetSnapshot { config: Arc::new(Config { flow, ..Config::default() }), ..three_ranks() };
    pools::assign(&mut fleet);
    let board = LoadBoard::new();
    let wanted = QueueDemand { bytes: 1, tokens: 300, ..QueueDemand::default() };
    board.queue(QueueIndex(1)).unwrap().join(QueueLimits::NONE, wanted).unwrap();
    let tokens_max = |queue| bounds(&fleet, &board, PoolIndex(0), QueueIndex(queue)).tokens_max;
    assert_eq!(tokens_max(1) - tokens_max(0), 300);
}

#[test]
fn tenants_that_come_once_are_forgotten() {
    let mut line = Line::new(AFTER);
    // A tenant that always waits, far ahead in tags, so that the other rows are not behind the
    // clock when they end.
    for slot in 0..20_000_u32 {
        let tenant = u64::from(slot);
        line.push(Box::new(waiter_with(slot, |waiter| {
            waiter.facts.caller.tenant = tenant;
            waiter.prompt.bytes = 4 << 20;
        })));
        assert_eq!(serve_some(&mut line, 0, 1).len(), 1);
        assert!(line.row_count() <= IDLE_FLOWS_MAX + 1);
    }
    assert!(line.is_empty());
}

#[test]
fn a_ticket_that_comes_twice_is_one_wait() {
    let mut line = Line::new(AFTER);
    line.push(Box::new(waiter(0)));
    line.push(Box::new(waiter_with(0, |waiter| {
        waiter.facts.caller.class = 3;
    })));
    assert_eq!((line.len(), serve_some(&mut line, 0, 9)), (1, vec![0]));
    assert!(line.is_empty());
}

/// Admits all requests.
struct All;

impl RowFilter for All {
    fn is_open(&self, _: Destination, _: u64) -> bool {
        true
    }

    fn includes(&self, _: Order) -> bool {
        true
    }
}

/// A row whose requests are free is served in place: its tag does not change by a weight larger
/// than the request.
#[test]
fn the_cursor_finds_a_row_that_did_not_move() {
    let mut flows = Flows::default();
    let order = |number| Order { tokens: 1, arrived_at: NanosSinceStart(0), number };
    let mut line = Line::new(AFTER);
    for slot in 0..3 {
        let free = waiter_with(slot, |waiter| {
            waiter.facts.caller.weight = u32::MAX;
            waiter.prompt.bytes = 1;
            waiter.facts.caller.tenant = 1;
        });
        let key = FlowKey::of(&free);
        flows.push(key, order(u64::from(slot)), QueuedRequest::new(free.clone()));
        line.push(Box::new(free));
    }
    let turn = flows.turn(1, &flows.levels(), OVERTAKEN_MAX);
    let first = flows.next(&turn, TurnPosition::START, &All).unwrap();
    let at = first.at;
    let key = first.key;
    let order = first.order;
    assert!(flows.serve(&turn, key, order).is_some());
    assert!(flows.next(&turn, at, &All).is_some());
    assert_eq!(serve_some(&mut line, 0, 9), [0, 1, 2]);
}
