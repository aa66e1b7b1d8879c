//! Properties of a line over random schedules, compared with a naive model.

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

/// The same rules in their simplest form, without indexes.
#[derive(Default)]
struct Naive {
    standing: Vec<Naively>,
    /// Tag and group, by tenant.
    rows: BTreeMap<u64, (u64, usize)>,
    /// Tokens served since the last oldest request left, by tenant.
    passed: BTreeMap<u64, u64>,
    clocks: [u64; CLASSES],
    next_number: u64,
    looks: u64,
    passed_over: Vec<Destination>,
}

#[derive(Clone)]
struct Naively {
    waiter: Waiter,
    number: u64,
    promoted: usize,
    target: Option<RankIndex>,
    /// Number of the last scan that examined the request.
    looked: u64,
}

/// Requests without room in a turn of the naive line.
#[derive(Default)]
struct Misses {
    requests: Vec<u64>,
    dests: Vec<Destination>,
    passed_over: Vec<Destination>,
}

impl Misses {
    fn is_closed(&self, dest: Destination) -> bool {
        let endless = dest.target.is_none() && dest.is_narrow;
        let is_tired = !endless && self.dests.iter().filter(|of| **of == dest).count() >= 8;
        is_tired || self.passed_over.contains(&dest)
    }
}

impl Naively {
    fn requested(&self) -> usize {
        usize::from(self.waiter.facts.caller.class.min(QUEUE_CLASSES - 1))
    }

    fn tenant(&self) -> u64 {
        self.waiter.facts.caller.tenant
    }

    fn dest(&self) -> Destination {
        FlowKey::of(&self.waiter).aimed(self.target).part.dest
    }

    fn order(&self) -> (u64, NanosSinceStart, u64) {
        (tokens_to_compute(&self.waiter), self.waiter.facts.arrived_at, self.number)
    }
}

impl Naive {
    fn push(&mut self, waiter: Waiter) {
        let tenant = waiter.facts.caller.tenant;
        // A row that was empty starts at the clock.
        let is_new = !self.standing.iter().any(|one| one.tenant() == tenant);
        let row = self.rows.entry(tenant).or_default();
        if is_new {
            row.0 = row.0.max(self.clocks[row.1]);
        }
        let promoted = usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1));
        let number = self.next_number;
        let target = waiter.prompt.target;
        self.standing.push(Naively { waiter, number, promoted, target, looked: 0 });
        self.next_number += 1;
        self.regroup(tenant);
    }

    /// A row joins the group of its best requested class, as far ahead of the clock as before.
    fn regroup(&mut self, tenant: u64) {
        let of = self.standing.iter().filter(|one| one.tenant() == tenant);
        let Some(best) = of.map(Naively::requested).min() else { return };
        let (tag, group) = self.rows[&tenant];
        let tag = i128::from(self.clocks[best]) + i128::from(tag) - i128::from(self.clocks[group]);
        self.rows.insert(tenant, (u64::try_from(tag.max(0)).unwrap(), best));
    }

    fn remove(&mut self, slot: u32) -> bool {
        let index = self.standing.iter().position(|one| one.waiter.ticket.slot == slot);
        let Some(index) = index else { return false };
        let tenant = self.standing[index].tenant();
        let is_oldest = self.oldest(tenant).is_some_and(|one| one.waiter.ticket.slot == slot);
        if is_oldest {
            self.passed.remove(&tenant);
        }
        self.standing.remove(index);
        self.regroup(tenant);
        true
    }

    fn promote(&mut self, now: u64) {
        for one in &mut self.standing {
            let waited = now.saturating_sub(one.waiter.facts.arrived_at.0);
            let steps = waited / u64::try_from(AFTER.as_nanos()).unwrap();
            one.promoted = one.requested().saturating_sub(usize::try_from(steps).unwrap());
        }
    }

    fn levels(&self) -> [usize; CLASSES] {
        std::array::from_fn(|class| {
            let at_least = self.standing.iter().filter(|one| one.requested() >= class);
            at_least.map(|one| one.promoted).min().unwrap_or(CLASSES)
        })
    }

    fn look(&mut self, slot: u32, target: Option<RankIndex>) {
        self.looks += 1;
        let looks = self.looks;
        let one = self.standing.iter_mut().find(|one| one.waiter.ticket.slot == slot).unwrap();
        one.looked = looks;
        one.target = target;
    }

    fn oldest(&self, tenant: u64) -> Option<&Naively> {
        let of_row = self.standing.iter().filter(|one| one.tenant() == tenant);
        of_row.min_by_key(|one| (one.waiter.facts.arrived_at, one.number))
    }

    /// The first of a row, and is it overdue?
    fn first(
        &self,
        tenant: u64,
        takes_part: &dyn Fn(&Naively) -> bool,
        misses: &Misses,
        (ranks, overtaken_max): (&RankSet, u32),
    ) -> Option<(Naively, bool)> {
        let oldest = self.oldest(tenant)?;
        let most = oldest.order().0.max(1) * u64::from(overtaken_max);
        let passed = self.passed.get(&tenant).copied().unwrap_or(0);
        if passed >= most && takes_part(oldest) && !misses.requests.contains(&oldest.number) {
            return Some((oldest.clone(), true));
        }
        let row = || self.standing.iter().filter(|one| one.tenant() == tenant);
        let best = row().map(Naively::requested).min()?;
        let is_open = |one: &Naively| {
            let same = row().filter(|other| {
                (other.dest(), other.requested(), other.promoted)
                    == (one.dest(), one.requested(), one.promoted)
            });
            let least = same.map(|other| other.order().0).min().unwrap();
            !misses.is_closed(one.dest()) && ranks.is_open(one.dest(), least)
        };
        let free = row().filter(|one| {
            takes_part(one) && !misses.requests.contains(&one.number) && is_open(one)
        });
        let first = free.min_by_key(|one| (one.promoted.max(best), one.order()))?;
        Some((first.clone(), false))
    }

    fn serve(&mut self, rules: Rules, ranks: &mut RankSet) {
        self.promote(rules.now.0);
        let mut by_look: Vec<_> =
            self.standing.iter().map(|one| (one.looked, one.waiter.ticket)).collect();
        by_look.sort_unstable();
        for (_, ticket) in by_look.into_iter().take(8) {
            let of = |one: &&Naively| one.waiter.ticket == ticket;
            let one = self.standing.iter().find(of).unwrap();
            self.look(ticket.slot, ranks.aimed(&one.waiter, one.target));
        }
        let levels = self.levels();
        let passed_over = std::mem::take(&mut self.passed_over);
        let mut misses = Misses { passed_over, ..Misses::default() };
        for level in (0..CLASSES).filter(|level| levels.contains(level)) {
            while misses.requests.len() < 32 {
                let takes_part = |one: &Naively| levels[one.requested()] <= level;
                let rows = self.rows.iter().filter_map(|(&tenant, &(tag, group))| {
                    let ranks = (&*ranks, rules.overtaken_max);
                    let (first, is_overdue) = self.first(tenant, &takes_part, &misses, ranks)?;
                    // A row ranks with its best requested class.
                    let takes_turns = levels[group] <= level;
                    let ahead = i128::from(tag) - i128::from(self.clocks[group]);
                    takes_turns.then_some(((ahead, tenant), first, is_overdue))
                });
                let Some((_, first, is_overdue)) = rows.min_by_key(|(at, ..)| *at) else { break };
                self.place(&first, is_overdue, (level, &levels), &mut misses, (rules, ranks));
            }
        }
        if misses.requests.len() >= 32 {
            self.passed_over = [misses.passed_over, misses.dests].concat();
        }
    }

    fn place(
        &mut self,
        first: &Naively,
        is_overdue: bool,
        (level, levels): (usize, &[usize; CLASSES]),
        misses: &mut Misses,
        (rules, ranks): (Rules, &mut RankSet),
    ) {
        let waiter = &first.waiter;
        let slot = first.waiter.ticket.slot;
        if waiter.facts.deadline <= rules.now {
            self.remove(slot);
            return;
        }
        match ranks.place(waiter, first.target, &Backlog::default()) {
            PlaceResult::Bound => {
                let passed = self.passed.get(&first.tenant()).copied().unwrap_or(0);
                self.passed.insert(first.tenant(), passed + first.order().0);
                let row = self.rows.get_mut(&first.tenant()).unwrap();
                let ahead = row.0.saturating_sub(self.clocks[row.1]);
                row.0 += cost(waiter) * 1_000 / u64::from(waiter.facts.caller.weight.max(1));
                for (clock, _) in self.clocks.iter_mut().zip(levels).filter(|(_, of)| **of <= level)
                {
                    *clock += ahead;
                }
                self.remove(slot);
            }
            PlaceResult::Waits(target) => {
                ranks.held_back.extend(target.filter(|_| is_overdue));
                misses.requests.push(first.number);
                misses.dests.push(first.dest());
                self.look(slot, target);
            }
            PlaceResult::Never => panic!("these ranks are always there"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join {
        class: u8,
        tenant: u64,
        bytes: u64,
        held: u32,
        tried: u8,
        late: u64,
        patience: Option<u64>,
        target: Option<u16>,
    },
    Leave(usize),
    Serve([u8; 4], [u64; 4], u32),
    Pass(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let join = (
        0..6_u8,
        0..3_u64,
        0..2_000_u64,
        0..2_500_u32,
        0..8_u8,
        0..50_u64,
        prop::option::of(1..200_u64),
        prop::option::weighted(0.8, 0..RANKS),
    );
    let join =
        join.prop_map(|(class, tenant, bytes, held, tried, late, patience, target)| Op::Join {
            class,
            tenant,
            bytes,
            held,
            tried: tried.saturating_sub(4),
            late,
            patience,
            target,
        });
    let places = [0..3_u8, 0..2, 0..2, 0..3];
    let tokens = [0..900_u64, 0..300, 0..2_000, 0..900];
    prop_oneof![
        8 => join,
        1 => (0..20_usize).prop_map(Op::Leave),
        3 => (places, tokens, 0..12_u32)
            .prop_map(|(places, tokens, turned)| Op::Serve(places, tokens, turned)),
        3 => (0..90_u64).prop_map(Op::Pass),
    ]
}

fn joining(op: &Op, slot: u32, now: u64) -> Option<Waiter> {
    let &Op::Join { class, tenant, bytes, held, tried, late, patience, target } = op else {
        return None;
    };
    let tried = (0..2_u16).filter(|rank| tried >> rank & 1 == 1).map(RankIndex).collect();
    Some(waiter_with(slot, |waiter| {
        waiter.facts.caller.class = class;
        waiter.facts.caller.tenant = tenant;
        waiter.prompt.bytes = bytes;
        let bytes = held.min(u32::try_from(bytes).unwrap());
        waiter.prompt.holdings = vec![Holding { rank: RankIndex(1), bytes }];
        waiter.facts.caller.weight = [1, 3, 0][usize::try_from(tenant).unwrap()];
        waiter.facts.arrived_at = NanosSinceStart(now.saturating_sub(late));
        waiter.joined_at = NanosSinceStart(now);
        waiter.facts.deadline = patience.map_or(NEVER, |patience| NanosSinceStart(now + patience));
        waiter.movable = tenant != 1;
        waiter.prompt.target = target.map(RankIndex);
        waiter.facts.tried = tried;
    }))
}

proptest! {
    #[test]
    fn a_line_serves_by_its_rules(ops in prop::collection::vec(any_op(), 1..160)) {
        let mut line = Line::new(AFTER);
        let mut naive = Naive::default();
        let mut now = 1_000_u64;
        let mut slot = 0;
        for op in ops {
            match &op {
                Op::Join { .. } => {
                    let waiter = joining(&op, slot, now).unwrap();
                    slot += 1;
                    naive.push(waiter.clone());
                    line.push(Box::new(waiter));
                }
                Op::Leave(index) => {
                    let left =
                        naive.standing.get(*index).map_or(u32::MAX, |one| one.waiter.ticket.slot);
                    let removed = line.remove(ticket(left));
                    prop_assert_eq!(
                        removed.map(|waiter| waiter.ticket.slot),
                        naive.remove(left).then_some(left)
                    );
                    prop_assert!(line.remove(ticket(left)).is_none(), "once");
                }
                Op::Serve(places, tokens, turned) => {
                    let mut here = RankSet::new(*places, *tokens, *turned);
                    let mut there = here.clone();
                    line.serve(rules(now, AFTER), &mut here);
                    naive.serve(rules(now, AFTER), &mut there);
                    prop_assert_eq!(&here.served, &there.served);
                    prop_assert_eq!(&here.held_back, &there.held_back);
                    prop_assert!(here.aims <= 8 && here.places_looks <= 32 + here.served.len());
                    prop_assert!(line.promote_at().0 > now, "the next look is in the future");
                }
                Op::Pass(time) => now += time,
            }
            prop_assert_eq!(line.len(), naive.standing.len());
            let movable = naive.standing.iter().filter(|one| one.waiter.movable);
            let oldest = movable.map(|one| one.waiter.joined_at).min();
            prop_assert_eq!(line.oldest_movable(), oldest);
            // The backlog of a rank is the sum of the requests that wait for it.
            for rank in (0..RANKS).map(RankIndex) {
                let there = naive.standing.iter().filter(|one| one.target == Some(rank));
                let mut sum = WaitingSum::default();
                there.for_each(|one| {
                    let one = waiting(&one.waiter);
                    sum.requests += one.requests;
                    sum.tokens += one.tokens;
                    sum.held_tokens += one.held_tokens;
                });
                prop_assert_eq!(line.backlog().all(rank), sum);
            }
            for one in &naive.standing {
                prop_assert_eq!(line.target(one.waiter.ticket), Some(one.target));
            }
        }
        // All that are left leave with the room, and only once.
        let left = line.len();
        let all = serve(&mut line, now, |waiter| waiter.facts.deadline.0 > now);
        prop_assert!(all.len() <= left && line.is_empty());
    }

    /// Two tenants with requests always waiting get tokens by their weights, up to a request each.
    #[test]
    fn shares_are_weights(
        sizes in prop::collection::vec((1..4_000_u64, 1..4_000_u64), 40..80),
        weights in prop::sample::select(vec![(1_u32, 3_u32), (1, 1), (2, 7)]),
    ) {
        let mut line = Line::new(AFTER);
        let mut cost_of = BTreeMap::new();
        let mut slot = 0;
        for (turn, (left, right)) in sizes.iter().enumerate() {
            for (tenant, bytes, weight) in [(0, *left, weights.0), (1, *right, weights.1)] {
                // The first asks for three models in turn, which makes no difference.
                let model =
                    ModelIndex(if tenant == 0 { u16::try_from(turn % 3).unwrap() } else { 0 });
                let waiter = waiter_with(slot, |waiter| {
                    waiter.facts.caller.tenant = tenant;
                    waiter.facts.caller.weight = weight;
                    waiter.facts.model = model;
                    waiter.prompt.bytes = bytes;
                });
                cost_of.insert(slot, (tenant, cost(&waiter)));
                line.push(Box::new(waiter));
                slot += 1;
            }
        }
        let mut got = [0_u64; 2];
        let mut left = [sizes.len(); 2];
        while left.iter().all(|&left| left > 0) {
            let served = serve_some(&mut line, 0, 1);
            let (tenant, tokens) = cost_of[&served[0]];
            got[usize::try_from(tenant).unwrap()] += tokens;
            left[usize::try_from(tenant).unwrap()] -= 1;
            let a = got[0] * 1_000 / u64::from(weights.0);
            let b = got[1] * 1_000 / u64::from(weights.1);
            let one_each = 1_000_000 / u64::from(weights.0) + 1_000_000 / u64::from(weights.1);
            prop_assert!(a.abs_diff(b) <= one_each + 2, "{got:?} by {weights:?}");
        }
    }

    /// A tenant with a single request waiting, now and then none, earns no credit against a tenant
    /// that always waits.
    #[test]
    fn coming_and_going_earns_no_credit(present in prop::collection::vec(any::<bool>(), 50..150)) {
        let mut line = Line::new(AFTER);
        for slot in 0..400 {
            line.push(Box::new(waiter(slot)));
        }
        let mut slot = 1_000;
        let mut waits = false;
        let mut steady = 0_usize;
        let mut visits = 0_usize;
        let mut since = (0, 0);
        for comes in present {
            if comes && !waits {
                line.push(Box::new(waiter_with(slot, |waiter| {
                    waiter.facts.caller.tenant = 1;
                })));
                slot += 1;
                waits = true;
                // Its share is measured from here on: the time before earns no credit.
                since = (steady, visits);
            }
            for served in serve_some(&mut line, 0, 1) {
                if served >= 1_000 {
                    visits += 1;
                    waits = false;
                } else {
                    steady += 1;
                }
            }
            prop_assert!(visits - since.1 <= steady - since.0 + 1);
        }
        prop_assert!(visits <= steady + 1, "{visits} visits, {steady} others");
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
