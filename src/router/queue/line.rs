//! A single queue: a row per tenant, and the order in which requests are placed when ranks have
//! room. Sans-IO: time is an argument, and requests are placed through [`RankPlaces`].

use super::backlog::{Backlog, WaitingSum};
use super::flows::{
    CLASSES, Destination, FlowKey, Flows, LevelTurn, Levels, NextRequest, Order, RowFilter,
    TurnPosition,
};
use super::waiter::{QueuedRequest, tokens_to_compute, waiting};
use ahash::{AHashMap, AHashSet};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_mailbox::{Ticket, Waiter};
use std::collections::BTreeSet;
use std::time::Duration;

/// Result of an attempt to place a request:
///
/// | result | the request | later requests of the turn |
/// |---|---|---|
/// | `Bound` | leaves the line with its lease | by tag; the row of the request moves back |
/// | `Waits` | keeps its place | same [`Destination`]: skipped after [`MISSES_MAX`] such results |
/// | `Waits`, overdue | keeps its place, holds its rank back | not placed on that rank |
/// | `Never` | leaves the line without a lease | not affected |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceResult {
    /// The request has a lease.
    Bound,
    /// No room yet. The request waits for this rank; `None`: for any rank.
    Waits(Option<RankIndex>),
    /// No rank of this queue can ever take the request, or its deadline has passed.
    Never,
}

/// Requests that a turn examines, at most. Each is compared with all ranks.
const SCANS_MAX: usize = 32;
/// Ranks that a turn examines, at most: bounds the time of a turn on a fleet of 1,000 ranks.
const RANK_SCANS_MAX: usize = 8_192;
/// Requests of a destination that find no room in a turn before the turn skips the rest.
const MISSES_MAX: u32 = 8;
/// Requests per turn that choose their target again.
const AIMS: usize = 8;

/// The ranks of a queue, as the line uses them.
pub(super) trait RankPlaces {
    /// May a rank of the destination have room for a request with `tokens` to compute?
    fn is_open(&self, dest: Destination, tokens: u64) -> bool;

    /// Chooses the next target of a request with the given target. Does not place the request.
    fn aim(&mut self, waiter: &Waiter, target: Option<RankIndex>, backlog: &Backlog)
    -> PlaceResult;

    fn place(
        &mut self,
        waiter: &Waiter,
        target: Option<RankIndex>,
        backlog: &Backlog,
    ) -> PlaceResult;

    /// The rank to hold back for an overdue request without a target.
    fn to_hold_back(&mut self, waiter: &Waiter) -> Option<RankIndex>;

    /// Has any rank room for a request of any model?
    fn has_any_room(&self) -> bool;

    /// Reserves the rank for an overdue request until the end of the turn.
    fn hold_back(&mut self, rank: RankIndex);
}

/// End of a queue's last turn: ranks held back, and where the turn stopped.
#[derive(Clone, Debug, Default)]
pub struct TurnEnd {
    /// Ranks held back for an overdue request.
    pub held_back: Vec<RankIndex>,
    /// Targets that the turn stopped examining: enough requests found no room there.
    pub closed: Vec<Option<RankIndex>>,
    /// The turn reached its limit of examined requests.
    pub is_cut: bool,
    /// Room was left over, and requests of any destination could choose it.
    pub has_rest: bool,
    /// The next turn has to examine the remaining requests, even without other changes.
    pub is_partial: bool,
}

/// Settings of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) now: NanosSinceStart,
    /// Wait that promotes a request by a class; 0: never.
    pub(super) promote_after: Duration,
    /// Later requests of the tenant may pass a request until they have computed this many times its
    /// own tokens.
    pub(super) overtaken_max: u32,
    pub(super) ranks: usize,
}

/// Position of a request in the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineEntry {
    flow: FlowKey,
    order: Order,
    waiting: WaitingSum,
    joined_at: NanosSinceStart,
    /// Number of the last scan that examined the request; 0: none yet.
    last_scan: u64,
}

impl LineEntry {
    /// Time of the next promotion: a class for each `after` since the arrival. `None` in class 0.
    fn promote_at(&self, after: Duration) -> Option<NanosSinceStart> {
        let part = self.flow.part;
        debug_assert!(part.promoted <= part.requested, "a request never falls");
        // From the arrival, not from the last promotion: a request that waited in another queue
        // first loses nothing.
        let steps = u32::try_from(part.requested.saturating_sub(part.promoted) + 1).ok()?;
        let is_promotable = part.promoted > 0 && !after.is_zero();
        is_promotable.then(|| self.order.arrived_at.plus(after.saturating_mul(steps)))
    }

    fn target(&self) -> Option<RankIndex> {
        self.flow.part.dest.target
    }
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) flows: Flows,
    pub(super) entries: AHashMap<Ticket, LineEntry>,
    /// Requests that may move to another queue, by the time at which they joined.
    pub(super) movable: BTreeSet<(NanosSinceStart, Ticket)>,
    pub(super) promotions: Promotions,
    pub(super) next_number: u64,
    pub(super) scan_order: ScanOrder,
    backlog: Backlog,
    turns: TurnRest,
}

/// Requests to be promoted by a class.
#[derive(Debug)]
pub(super) struct Promotions {
    /// By the time of promotion.
    pub(super) by_time: BTreeSet<(NanosSinceStart, Ticket)>,
    /// Wait that promotes a request by a class; 0: never.
    after: Duration,
}

/// All requests in the order of the last scan that examined them.
#[derive(Debug, Default)]
pub(super) struct ScanOrder {
    /// By the number of that scan; 0: none yet.
    pub(super) by_number: BTreeSet<(u64, Ticket)>,
    count: u64,
    /// The fleet changed after this scan number: requests at or below it are examined in the next
    /// turns.
    stale_until: Option<u64>,
}

/// State that a turn leaves to the next turn.
#[derive(Debug)]
struct TurnRest {
    /// Level of each requested class, in this turn.
    levels: Levels,
    last: TurnEnd,
    /// Destinations that cut turns have examined without success: the next turn examines the rest.
    passed_over: AHashSet<Destination>,
}

/// Requests and destinations that found no room in this turn.
#[derive(Debug, Default)]
struct TurnScan {
    /// Destinations that this turn skips.
    passed_over: AHashSet<Destination>,
    missed: Vec<Order>,
    dests: Vec<(Destination, u32)>,
    count: usize,
    /// All requests are examined, whatever their destination.
    is_rest: bool,
}

/// Filter of a turn: requests not yet missed, of destinations with room.
struct OpenDestinations<'a, P> {
    places: &'a P,
    scan: &'a TurnScan,
}

impl<P: RankPlaces> RowFilter for OpenDestinations<'_, P> {
    fn is_open(&self, dest: Destination, tokens: u64) -> bool {
        let is_open = || !self.scan.is_closed(dest) && self.places.is_open(dest, tokens);
        self.scan.is_rest || is_open()
    }

    fn includes(&self, order: Order) -> bool {
        !self.scan.missed.contains(&order)
    }
}

impl TurnScan {
    fn begin_rest(&mut self) {
        self.is_rest = true;
        self.count = 0;
    }

    fn miss(&mut self, dest: Destination, order: Order) {
        self.missed.push(order);
        match self.dests.iter_mut().find(|(of, _)| *of == dest) {
            Some((_, misses)) => *misses += 1,
            None => self.dests.push((dest, 1)),
        }
    }

    /// Have enough requests of the destination found no room? Requests for any rank differ if each
    /// can use other ranks (`is_narrow`), so no number of misses is enough there.
    fn is_closed(&self, dest: Destination) -> bool {
        if self.passed_over.contains(&dest) {
            return true;
        }
        let most = if dest.target.is_none() && dest.is_narrow { u32::MAX } else { MISSES_MAX };
        self.dests.iter().any(|(of, misses)| *of == dest && *misses >= most)
    }
}

impl Line {
    pub(super) fn new(promote_after: Duration) -> Self {
        Self {
            flows: Flows::default(),
            entries: AHashMap::new(),
            movable: BTreeSet::new(),
            promotions: Promotions { by_time: BTreeSet::new(), after: promote_after },
            next_number: 0,
            scan_order: ScanOrder::default(),
            backlog: Backlog::default(),
            turns: TurnRest {
                levels: [CLASSES; CLASSES],
                last: TurnEnd::default(),
                passed_over: AHashSet::new(),
            },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
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
        let entry = LineEntry { flow, order, waiting, joined_at, last_scan: 0 };
        // A ticket identifies a single wait. Should it come twice, the later request counts.
        drop(self.remove(ticket));
        if waiter.movable {
            self.movable.insert((joined_at, ticket));
        }
        if let Some(at) = entry.promote_at(self.promotions.after) {
            self.promotions.by_time.insert((at, ticket));
        }
        if let Some(target) = entry.target() {
            self.backlog.add(target, entry.waiting);
        }
        self.scan_order.by_number.insert((0, ticket));
        self.entries.insert(ticket, entry);
        self.flows.push(flow, order, QueuedRequest(waiter));
        self.check_invariants();
        self.check_count();
    }

    /// Removes a request that is not served. `None`: the request has already left.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Box<Waiter>> {
        let entry = self.forget(ticket)?;
        let removed = self.flows.remove(entry.flow, entry.order);
        debug_assert!(removed.is_some(), "{ticket:?} stands where it does not wait");
        self.check_invariants();
        removed.map(|waiting| waiting.0)
    }

    fn forget(&mut self, ticket: Ticket) -> Option<LineEntry> {
        let entry = self.entries.remove(&ticket)?;
        self.movable.remove(&(entry.joined_at, ticket));
        if let Some(at) = entry.promote_at(self.promotions.after) {
            self.promotions.by_time.remove(&(at, ticket));
        }
        if let Some(target) = entry.target() {
            self.backlog.sub(target, entry.waiting);
        }
        self.scan_order.by_number.remove(&(entry.last_scan, ticket));
        Some(entry)
    }

    /// Each request is examined again: ranks and models may have changed.
    pub(super) fn fleet_changed(&mut self) {
        self.scan_order.stale_until = Some(self.scan_order.count);
    }

    /// Places requests in order while ranks have room. A request without room at its target keeps
    /// its place, and the requests behind it are examined. The target of an overdue request is held
    /// back.
    pub(super) fn serve(&mut self, rules: Rules, places: &mut impl RankPlaces) {
        // Before the turn: the class that a request leaves must not pass the promoted request.
        self.promote(rules.now, rules.promote_after);
        self.aim_again(places);
        self.turns.levels = self.flows.levels();
        self.turns.last = TurnEnd::default();
        let passed_over = std::mem::take(&mut self.turns.passed_over);
        let mut scan = TurnScan { passed_over, ..TurnScan::default() };
        let levels = self.turns.levels;
        for level in (0..CLASSES).filter(|level| levels.contains(level)) {
            self.serve_level(level, rules, &mut scan, places);
        }
        let closed = scan.dests.iter().filter(|(dest, _)| scan.is_closed(*dest));
        self.turns.last.closed = closed.map(|(dest, _)| dest.target).collect();
        self.turns.last.closed.extend(scan.passed_over.iter().map(|dest| dest.target));
        if self.turns.last.is_cut {
            let passed_over = scan.dests.iter().map(|(dest, _)| *dest);
            self.turns.passed_over = scan.passed_over.iter().copied().chain(passed_over).collect();
        } else {
            self.turns.last.is_partial = !scan.passed_over.is_empty();
        }
        self.scan_order.stale_until = self
            .scan_order
            .stale_until
            .filter(|until| self.scan_order.by_number.first().is_some_and(|(at, _)| at <= until));
        self.turns.last.is_partial |= self.scan_order.stale_until.is_some();
        // Room at ranks that are no request's target goes to the next requests that choose it now.
        if places.has_any_room() {
            scan.begin_rest();
            self.turns.last.has_rest = true;
            for level in (0..CLASSES).filter(|level| levels.contains(level)) {
                self.serve_level(level, rules, &mut scan, places);
            }
        }
        self.check_invariants();
    }

    /// Chooses new targets for the requests with the oldest scans.
    fn aim_again(&mut self, places: &mut impl RankPlaces) {
        let oldest: Vec<Ticket> =
            self.scan_order.by_number.iter().take(AIMS).map(|(_, ticket)| *ticket).collect();
        for ticket in oldest {
            let Some(entry) = self.entries.get(&ticket) else { continue };
            let Some(waiting) = self.flows.get(entry.flow, entry.order) else { continue };
            match places.aim(&waiting.0, entry.target(), &self.backlog) {
                PlaceResult::Never => drop(self.remove(ticket)),
                PlaceResult::Waits(target) => self.aim(ticket, target),
                PlaceResult::Bound => debug_assert!(false, "a target is no place"),
            }
        }
    }

    /// Records a scan of the request, and its target.
    fn aim(&mut self, ticket: Ticket, target: Option<RankIndex>) {
        let Self { entries, scan_order, flows, backlog, .. } = self;
        let Some(entry) = entries.get_mut(&ticket) else { return };
        scan_order.by_number.remove(&(entry.last_scan, ticket));
        scan_order.count += 1;
        entry.last_scan = scan_order.count;
        scan_order.by_number.insert((entry.last_scan, ticket));
        if entry.target() == target {
            return;
        }
        let from = entry.flow;
        let to = entry.flow.aimed(target);
        if let Some(rank) = entry.target() {
            backlog.sub(rank, entry.waiting);
        }
        if let Some(rank) = target {
            backlog.add(rank, entry.waiting);
        }
        flows.shift(from, to, entry.order);
        entry.flow = to;
    }

    fn serve_level(
        &mut self,
        level: usize,
        rules: Rules,
        scan: &mut TurnScan,
        places: &mut impl RankPlaces,
    ) {
        let turn = self.flows.turn(level, &self.turns.levels, rules.overtaken_max);
        let mut cursor = TurnPosition::START;
        let scans_max = SCANS_MAX.min(RANK_SCANS_MAX / rules.ranks.max(1)).max(1);
        loop {
            if scan.count >= scans_max {
                self.turns.last.is_cut |= !scan.is_rest;
                return;
            }
            let open = OpenDestinations { places: &*places, scan };
            let Some(next) = self.flows.next(&turn, cursor, &open) else { return };
            let NextRequest { at, key: flow, order, is_overdue } = next;
            let Some(waiting) = self.flows.get(flow, order) else { return };
            let waiter = &waiting.0;
            let ticket = waiter.ticket;
            // After the deadline, the shard of the request answers the client.
            let is_late = waiter.facts.deadline <= rules.now;
            let target = flow.part.dest.target;
            let placed = match is_late {
                true => PlaceResult::Never,
                false => places.place(waiter, target, &self.backlog),
            };
            match placed {
                PlaceResult::Bound => {
                    cursor = at;
                    self.served(&turn, flow, order, ticket);
                }
                PlaceResult::Waits(target) => {
                    if is_overdue && let Some(rank) = target.or_else(|| places.to_hold_back(waiter))
                    {
                        places.hold_back(rank);
                        self.turns.last.held_back.push(rank);
                    }
                    scan.count += 1;
                    scan.miss(flow.part.dest, order);
                    self.aim(ticket, target);
                }
                PlaceResult::Never => drop(self.remove(ticket)),
            }
        }
    }

    fn served(&mut self, turn: &LevelTurn, flow: FlowKey, order: Order, ticket: Ticket) {
        let served = self.flows.serve(turn, flow, order);
        debug_assert!(served.is_some(), "{ticket:?} was served, and did not wait");
        let entry = self.forget(ticket);
        debug_assert!(entry.is_some_and(|entry| entry.flow == flow), "stood elsewhere");
    }

    pub(super) const fn last_turn(&self) -> &TurnEnd {
        &self.turns.last
    }

    /// Target of a request; `None`: the request is not in the line.
    pub(super) fn target(&self, ticket: Ticket) -> Option<Option<RankIndex>> {
        self.entries.get(&ticket).map(LineEntry::target)
    }

    /// Targets of the waiting requests, each at least once.
    pub(super) fn targets(&self) -> impl Iterator<Item = Option<RankIndex>> {
        self.flows.dests().map(|dest| dest.target)
    }

    /// The oldest movable request, if it joined at or before `since`.
    pub(super) fn joined_until(&self, since: NanosSinceStart) -> Option<Ticket> {
        let &(joined_at, ticket) = self.movable.first()?;
        (joined_at <= since).then_some(ticket)
    }

    /// When the oldest movable request joined.
    pub(super) fn oldest_movable(&self) -> Option<NanosSinceStart> {
        self.movable.first().map(|&(joined_at, _)| joined_at)
    }

    /// Time of the next promotion.
    pub(super) fn promote_at(&self) -> NanosSinceStart {
        self.promotions.by_time.first().map_or(NanosSinceStart(u64::MAX), |&(at, _)| at)
    }

    /// Promotes requests that have waited long enough.
    fn promote(&mut self, now: NanosSinceStart, after: Duration) {
        if after != self.promotions.after {
            self.promotions.after = after;
            let due = |(ticket, at): (&Ticket, &LineEntry)| Some((at.promote_at(after)?, *ticket));
            self.promotions.by_time = self.entries.iter().filter_map(due).collect();
        }
        while let Some(&(at, ticket)) = self.promotions.by_time.first().filter(|(at, _)| *at <= now)
        {
            self.promotions.by_time.remove(&(at, ticket));
            self.promote_one(ticket);
        }
    }

    fn promote_one(&mut self, ticket: Ticket) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let promoted = entry.flow.promoted();
        self.flows.shift(entry.flow, promoted, entry.order);
        entry.flow = promoted;
        if let Some(at) = entry.promote_at(self.promotions.after) {
            self.promotions.by_time.insert((at, ticket));
        }
    }

    #[cfg(test)]
    pub(super) const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.flows.row_count()
    }
}
