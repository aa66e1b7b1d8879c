//! One queue: the rows of its tenants, and what is served when there is room. Sans-IO: time comes
//! in, requests come out through [`RankPlaces`].

use super::backlog::{Backlog, WaitingSum};
use super::flows::{
    CLASSES, FlowKey, Flows, LevelTurn, Levels, Looks, NextRequest, Order, TurnPosition, Way,
};
use super::waiter::{QueuedRequest, tokens_to_compute, waiting};
use ahash::{AHashMap, AHashSet};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::{Ticket, Waiter};
use std::collections::BTreeSet;
use std::time::Duration;

/// What came of an attempt to place a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It has its rank: it leaves the queue.
    Yes,
    /// It waits on, for this rank or for any.
    Waits(Option<RankIndex>),
    /// Nothing here can ever take it.
    Never,
}

/// Requests that are looked at in one turn, at most. Each is a look at all ranks.
const LOOKS_MAX: usize = 32;
/// Ranks that are looked at in one turn, at most: a turn takes no longer on a fleet of a thousand.
const RANK_LOOKS_MAX: usize = 8_192;
/// Requests that wait for the same and find no room in one turn, before the others that do are left
/// alone.
const MISSES_MAX: u32 = 8;
/// Requests in a turn whose target is chosen again.
const AIMS: usize = 8;

/// Where requests are placed.
pub(super) trait RankPlaces {
    /// May a rank have room for a request that waits for this, and has so many tokens to compute?
    fn is_open(&self, way: Way, tokens: u64) -> bool;

    /// The rank that a request with that target waits for from now on. Does not place it.
    fn aim(&mut self, waiter: &Waiter, target: Option<RankIndex>, backlog: &Backlog) -> Placed;

    /// Tries to place it.
    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, backlog: &Backlog) -> Placed;

    /// The rank to be left to a request that waits for any.
    fn to_hold_back(&mut self, waiter: &Waiter) -> Option<RankIndex>;

    /// Has some rank room for a request of some model?
    fn has_any_room(&self) -> bool;

    /// The rank is left to a request that it has no room for yet.
    fn hold_back(&mut self, rank: RankIndex);
}

/// What the last turn of a queue has left to requests without room yet, and where it has stopped
/// looking.
#[derive(Clone, Debug, Default)]
pub struct TurnEnd {
    /// Ranks that are left to a request that they have no room for yet.
    pub held_back: Vec<RankIndex>,
    /// Targets for which enough requests found no room.
    pub closed: Vec<Option<RankIndex>>,
    /// It has looked at as many requests as one turn may.
    pub is_cut: bool,
    /// Room was left, and requests have chosen their targets again for it.
    pub has_rest: bool,
    /// Requests are left that the next turn has to look at, whatever happens.
    pub is_partial: bool,
}

/// By what a turn is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) now: NanosSinceStart,
    /// Each such wait raises a request by one class; 0 never.
    pub(super) promote_after: Duration,
    /// Later requests of its tenant go before a request until they were given so many times its own
    /// tokens.
    pub(super) overtaken_max: u32,
    /// Ranks of the fleet.
    pub(super) ranks: usize,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// With the class that it asked for, and the class to which it has risen.
    flow: FlowKey,
    order: Order,
    waiting: WaitingSum,
    joined_at: NanosSinceStart,
    /// Number of the last look at it.
    looked: u64,
}

impl Standing {
    /// When it moves up: one class for each `after` that it has waited. Never out of the first.
    fn ripe_at(&self, after: Duration) -> Option<NanosSinceStart> {
        let part = self.flow.part;
        debug_assert!(part.risen <= part.asked, "a request never falls");
        // From its arrival, not from its last rise: who waits elsewhere first loses nothing.
        let steps = u32::try_from(part.asked.saturating_sub(part.risen) + 1).ok()?;
        let ripens = part.risen > 0 && !after.is_zero();
        ripens.then(|| self.order.arrived_at.plus(after.saturating_mul(steps)))
    }

    fn target(&self) -> Option<RankIndex> {
        self.flow.part.way.target
    }
}

/// One queue.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) flows: Flows,
    pub(super) standing: AHashMap<Ticket, Standing>,
    /// Requests that may look for another queue, by the time they joined this one.
    pub(super) movable: BTreeSet<(NanosSinceStart, Ticket)>,
    pub(super) ripening: Ripening,
    pub(super) next_number: u64,
    pub(super) looked: LookOrder,
    backlog: Backlog,
    turns: TurnRest,
}

/// Requests that may rise by a class.
#[derive(Debug)]
pub(super) struct Ripening {
    /// By the time they do.
    pub(super) by_time: BTreeSet<(NanosSinceStart, Ticket)>,
    /// Each such wait raises a request; 0 never.
    after: Duration,
}

/// All requests in the order of the last look at them.
#[derive(Debug, Default)]
pub(super) struct LookOrder {
    /// By the number of that look; 0: none yet.
    pub(super) by_number: BTreeSet<(u64, Ticket)>,
    count: u64,
    /// Requests whose last look has at most this number are looked at in the next turns: the fleet
    /// has changed since.
    stale_until: Option<u64>,
}

/// What turns leave to the next.
#[derive(Debug)]
struct TurnRest {
    /// Level of each class that requests asked for, in this turn.
    levels: Levels,
    last: TurnEnd,
    /// What turns that were cut have looked at in vain: the next turn looks at the rest.
    passed_over: AHashSet<Way>,
}

/// What has been looked at in one turn, and found no room.
#[derive(Debug, Default)]
struct TurnLooks {
    /// Ways that this turn passes over.
    passed_over: AHashSet<Way>,
    missed: Vec<Order>,
    ways: Vec<(Way, u32)>,
    count: usize,
    /// Requests are looked at whatever they wait for.
    is_rest: bool,
}

/// A turn, as the rows see it.
struct OpenWays<'a, P> {
    places: &'a P,
    looks: &'a TurnLooks,
}

impl<P: RankPlaces> Looks for OpenWays<'_, P> {
    fn is_open(&self, way: Way, tokens: u64) -> bool {
        let is_open = || !self.looks.is_closed(way) && self.places.is_open(way, tokens);
        self.looks.is_rest || is_open()
    }

    fn looks_at(&self, order: Order) -> bool {
        !self.looks.missed.contains(&order)
    }
}

impl TurnLooks {
    fn begin_rest(&mut self) {
        self.is_rest = true;
        self.count = 0;
    }

    fn miss(&mut self, way: Way, order: Order) {
        self.missed.push(order);
        match self.ways.iter_mut().find(|(of, _)| *of == way) {
            Some((_, misses)) => *misses += 1,
            None => self.ways.push((way, 1)),
        }
    }

    /// Have enough found no room? What waits for any rank and can go to each is alike.
    fn is_closed(&self, way: Way) -> bool {
        if self.passed_over.contains(&way) {
            return true;
        }
        let most = if way.target.is_none() && way.is_narrow { u32::MAX } else { MISSES_MAX };
        self.ways.iter().any(|(of, misses)| *of == way && *misses >= most)
    }
}

impl Line {
    /// Nobody waits. Each `promote_after` raises a request by one class; 0 never.
    pub(super) fn new(promote_after: Duration) -> Self {
        Self {
            flows: Flows::default(),
            standing: AHashMap::new(),
            movable: BTreeSet::new(),
            ripening: Ripening { by_time: BTreeSet::new(), after: promote_after },
            next_number: 0,
            looked: LookOrder::default(),
            backlog: Backlog::default(),
            turns: TurnRest {
                levels: [CLASSES; CLASSES],
                last: TurnEnd::default(),
                passed_over: AHashSet::new(),
            },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.standing.len()
    }

    pub(super) fn push(&mut self, waiter: Box<Waiter>) {
        let order = Order {
            tokens: tokens_to_compute(&waiter),
            arrived_at: waiter.facts.arrived_at,
            number: self.next_number,
        };
        self.next_number += 1;
        let flow = FlowKey::of(&waiter);
        let ticket = waiter.ticket;
        let joined_at = waiter.joined_at;
        let waiting = waiting(&waiter);
        let standing = Standing { flow, order, waiting, joined_at, looked: 0 };
        // A ticket names one wait; were it to come twice, the later one counts.
        drop(self.remove(ticket));
        if waiter.movable {
            self.movable.insert((joined_at, ticket));
        }
        if let Some(at) = standing.ripe_at(self.ripening.after) {
            self.ripening.by_time.insert((at, ticket));
        }
        if let Some(target) = standing.target() {
            self.backlog.add(target, standing.waiting);
        }
        self.looked.by_number.insert((0, ticket));
        self.standing.insert(ticket, standing);
        self.flows.push(flow, order, QueuedRequest(waiter));
        self.check_invariants();
        self.check_count();
    }

    /// Takes a request out, whatever it waits for. `None`: it is not here any more.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Box<Waiter>> {
        let standing = self.forget(ticket)?;
        let removed = self.flows.remove(standing.flow, standing.order);
        debug_assert!(removed.is_some(), "{ticket:?} stands where it does not wait");
        self.check_invariants();
        removed.map(|waiting| waiting.0)
    }

    fn forget(&mut self, ticket: Ticket) -> Option<Standing> {
        let standing = self.standing.remove(&ticket)?;
        self.movable.remove(&(standing.joined_at, ticket));
        if let Some(at) = standing.ripe_at(self.ripening.after) {
            self.ripening.by_time.remove(&(at, ticket));
        }
        if let Some(target) = standing.target() {
            self.backlog.sub(target, standing.waiting);
        }
        self.looked.by_number.remove(&(standing.looked, ticket));
        Some(standing)
    }

    /// Everything may be different: each request is looked at again.
    pub(super) fn fleet_changed(&mut self) {
        self.looked.stale_until = Some(self.looked.count);
    }

    /// Places as many as there is room for, in order. A request that finds no room at its target
    /// keeps its own place, and the requests behind it are looked at. An overdue request has its
    /// target held back for it.
    pub(super) fn serve(&mut self, rules: Rules, places: &mut impl RankPlaces) {
        // Before the turn: who has risen must not be passed by the class it has left.
        self.promote(rules.now, rules.promote_after);
        self.aim_again(places);
        self.turns.levels = self.flows.levels();
        self.turns.last = TurnEnd::default();
        let passed_over = std::mem::take(&mut self.turns.passed_over);
        let mut looks = TurnLooks { passed_over, ..TurnLooks::default() };
        let levels = self.turns.levels;
        for level in (0..CLASSES).filter(|level| levels.contains(level)) {
            self.serve_level(level, rules, &mut looks, places);
        }
        let closed = looks.ways.iter().filter(|(way, _)| looks.is_closed(*way));
        self.turns.last.closed = closed.map(|(way, _)| way.target).collect();
        self.turns.last.closed.extend(looks.passed_over.iter().map(|way| way.target));
        if self.turns.last.is_cut {
            let passed_over = looks.ways.iter().map(|(way, _)| *way);
            self.turns.passed_over = looks.passed_over.iter().copied().chain(passed_over).collect();
        } else {
            self.turns.last.is_partial = !looks.passed_over.is_empty();
        }
        self.looked.stale_until = self
            .looked
            .stale_until
            .filter(|until| self.looked.by_number.first().is_some_and(|(at, _)| at <= until));
        self.turns.last.is_partial |= self.looked.stale_until.is_some();
        // Room that no request has for its target goes to the first that choose it now.
        if places.has_any_room() {
            looks.begin_rest();
            self.turns.last.has_rest = true;
            for level in (0..CLASSES).filter(|level| levels.contains(level)) {
                self.serve_level(level, rules, &mut looks, places);
            }
        }
        self.check_invariants();
    }

    /// Those that were looked at longest ago choose their targets again.
    fn aim_again(&mut self, places: &mut impl RankPlaces) {
        let oldest: Vec<Ticket> =
            self.looked.by_number.iter().take(AIMS).map(|(_, ticket)| *ticket).collect();
        for ticket in oldest {
            let Some(standing) = self.standing.get(&ticket) else { continue };
            let Some(waiting) = self.flows.get(standing.flow, standing.order) else { continue };
            match places.aim(&waiting.0, standing.target(), &self.backlog) {
                Placed::Never => drop(self.remove(ticket)),
                Placed::Waits(target) => self.aim(ticket, target),
                Placed::Yes => debug_assert!(false, "a target is no place"),
            }
        }
    }

    /// The request has been looked at, and waits for that rank.
    fn aim(&mut self, ticket: Ticket, target: Option<RankIndex>) {
        let Self { standing, looked, flows, backlog, .. } = self;
        let Some(standing) = standing.get_mut(&ticket) else { return };
        looked.by_number.remove(&(standing.looked, ticket));
        looked.count += 1;
        standing.looked = looked.count;
        looked.by_number.insert((standing.looked, ticket));
        if standing.target() == target {
            return;
        }
        let from = standing.flow;
        let to = standing.flow.aimed(target);
        if let Some(rank) = standing.target() {
            backlog.sub(rank, standing.waiting);
        }
        if let Some(rank) = target {
            backlog.add(rank, standing.waiting);
        }
        flows.shift(from, to, standing.order);
        standing.flow = to;
    }

    fn serve_level(
        &mut self,
        level: usize,
        rules: Rules,
        looks: &mut TurnLooks,
        places: &mut impl RankPlaces,
    ) {
        let turn = self.flows.turn(level, &self.turns.levels, rules.overtaken_max);
        let mut cursor = TurnPosition::START;
        let looks_max = LOOKS_MAX.min(RANK_LOOKS_MAX / rules.ranks.max(1)).max(1);
        loop {
            if looks.count >= looks_max {
                self.turns.last.is_cut |= !looks.is_rest;
                return;
            }
            let open = OpenWays { places: &*places, looks };
            let Some(next) = self.flows.next(&turn, cursor, &open) else { return };
            let NextRequest { at, key: flow, order, is_overdue } = next;
            let Some(waiting) = self.flows.get(flow, order) else { return };
            let waiter = &waiting.0;
            let ticket = waiter.ticket;
            // After its deadline its origin has answered it, or will in a moment.
            let is_late = waiter.facts.deadline <= rules.now;
            let target = flow.part.way.target;
            let placed = match is_late {
                true => Placed::Never,
                false => places.place(waiter, target, &self.backlog),
            };
            match placed {
                Placed::Yes => {
                    cursor = at;
                    self.served(&turn, flow, order, ticket);
                }
                Placed::Waits(target) => {
                    if is_overdue && let Some(rank) = target.or_else(|| places.to_hold_back(waiter))
                    {
                        places.hold_back(rank);
                        self.turns.last.held_back.push(rank);
                    }
                    looks.count += 1;
                    looks.miss(flow.part.way, order);
                    self.aim(ticket, target);
                }
                Placed::Never => drop(self.remove(ticket)),
            }
        }
    }

    fn served(&mut self, turn: &LevelTurn, flow: FlowKey, order: Order, ticket: Ticket) {
        let served = self.flows.serve(turn, flow, order);
        debug_assert!(served.is_some(), "{ticket:?} was served, and did not wait");
        let standing = self.forget(ticket);
        debug_assert!(standing.is_some_and(|standing| standing.flow == flow), "stood elsewhere");
    }

    /// What the last turn has left.
    pub(super) const fn last_turn(&self) -> &TurnEnd {
        &self.turns.last
    }

    /// What a request waits for; `None`: it is not here.
    pub(super) fn target(&self, ticket: Ticket) -> Option<Option<RankIndex>> {
        self.standing.get(&ticket).map(Standing::target)
    }

    /// What requests wait for.
    pub(super) fn targets(&self) -> impl Iterator<Item = Option<RankIndex>> {
        self.flows.ways().map(|way| way.target)
    }

    /// One of those who may look elsewhere and joined at or before `since`, the oldest first.
    pub(super) fn joined_until(&self, since: NanosSinceStart) -> Option<Ticket> {
        let &(joined_at, ticket) = self.movable.first()?;
        (joined_at <= since).then_some(ticket)
    }

    /// When the one joined who has been here longest of those who may look elsewhere.
    pub(super) fn oldest_movable(&self) -> Option<NanosSinceStart> {
        self.movable.first().map(|&(joined_at, _)| joined_at)
    }

    /// When the next one moves up.
    pub(super) fn promote_at(&self) -> NanosSinceStart {
        self.ripening.by_time.first().map_or(NanosSinceStart(u64::MAX), |&(at, _)| at)
    }

    /// Moves those up who have waited long enough.
    fn promote(&mut self, now: NanosSinceStart, after: Duration) {
        if after != self.ripening.after {
            self.ripening.after = after;
            let ripe = |(ticket, at): (&Ticket, &Standing)| Some((at.ripe_at(after)?, *ticket));
            self.ripening.by_time = self.standing.iter().filter_map(ripe).collect();
        }
        while let Some(&(at, ticket)) = self.ripening.by_time.first().filter(|(at, _)| *at <= now) {
            self.ripening.by_time.remove(&(at, ticket));
            self.move_up(ticket);
        }
    }

    fn move_up(&mut self, ticket: Ticket) {
        let Some(standing) = self.standing.get_mut(&ticket) else { return };
        let risen = standing.flow.risen();
        self.flows.shift(standing.flow, risen, standing.order);
        standing.flow = risen;
        if let Some(at) = standing.ripe_at(self.ripening.after) {
            self.ripening.by_time.insert((at, ticket));
        }
    }

    /// What waits for each rank.
    #[cfg(test)]
    pub(super) const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Rows kept.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.flows.row_count()
    }
}
