//! One queue: the rows of its tenants, and what is served when there is room. Sans-IO: time comes
//! in, requests come out through a closure that places them.

use super::flows::{
    CLASSES, FlowKey, Flows, LegCounts, LevelTurn, Levels, NextRequest, Order, TurnPosition,
};
use super::waiter::{QueuedRequest, held_tokens};
use ahash::AHashMap;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_fleet::mailbox::{Pin, Ticket, Waiter};
use forebay_fleet::worker::{FleetSnapshot, Leg};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What came of an attempt to place a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It has its rank: it leaves the queue.
    Yes,
    /// No rank has room for it; neither for those behind it that could only go where it can: same
    /// model, same leg, no nearer to anything, and they have tried the same ranks, or more.
    NoRoom,
    /// The same, but some ranks were left out because their caches could never hold it. Smaller
    /// ones can go there, and so can what is larger than this, the largest cache that was not left
    /// out: nothing could hold it anyway.
    NoRoomForLarge(u64),
    /// There are places, but no cache has room for it. This rank is kept for it from now on, and
    /// gets no other request of its class or a worse one until it fits; those behind it go on with
    /// the rest.
    Short(RankIndex),
    /// There is room, but where little of its prompt is held: it leaves that to those behind it, if
    /// one of them wants it.
    Declined,
    /// Nothing here can ever take it.
    Never,
}

/// Requests that may leave the same place to those behind them. Each is a look at all ranks.
const LOOK_AHEAD_MAX: usize = 32;
/// Ranks that are looked at for one place, times these requests: a turn takes no longer on a fleet
/// of a thousand ranks.
const LOOK_AHEAD_RANKS_MAX: usize = 8_192;

/// Ranks of one queue that are kept for requests at the same time. Each is one more look at all
/// ranks in each turn; whoever is short beyond them bars those behind it, and nobody passes a large
/// request of which there are many.
pub const KEPT_MAX: usize = 8;

/// How a request is offered what there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// It may leave a place to those behind it.
    pub(super) may_decline: bool,
    /// The rank that is kept for it.
    pub(super) own: Option<RankIndex>,
    /// One may be kept for it.
    pub(super) may_keep: bool,
    /// Ranks that are kept for others.
    kept: [Option<RankIndex>; KEPT_MAX],
}

impl Offer {
    /// Is the rank kept for somebody else?
    pub(super) fn is_kept(&self, rank: RankIndex) -> bool {
        self.kept.contains(&Some(rank))
    }
}

/// By what a turn is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// Tells who is near whom.
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) now: NanosSinceStart,
    /// Each such wait raises a request by one class; 0 never.
    pub(super) promote_after: Duration,
    /// So often a request lets others go first.
    pub(super) overtaken_max: u32,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// With the class that it asked for, and the class to which it has risen.
    flow: FlowKey,
    order: Order,
    joined_at: NanosSinceStart,
    /// How often it has let others go first.
    overtaken: u32,
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
}

/// One queue.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) flows: Flows,
    /// Level of each class that requests asked for, in this turn.
    levels: Levels,
    pub(super) standing: AHashMap<Ticket, Standing>,
    /// Requests that may look for another queue, by the time they joined this one.
    pub(super) movable: BTreeSet<(NanosSinceStart, Ticket)>,
    /// Requests that may rise, by the time they do.
    pub(super) ripening: BTreeSet<(NanosSinceStart, Ticket)>,
    promote_after: Duration,
    pub(super) next_number: u64,
    /// Who was short, and the rank that is kept for it; the oldest first, at most [`KEPT_MAX`].
    pub(super) kept: Vec<(Ticket, RankIndex)>,
}

impl Line {
    /// Nobody waits. Each `promote_after` raises a request by one class; 0 never.
    pub(super) fn new(promote_after: Duration) -> Self {
        Self {
            flows: Flows::default(),
            levels: [CLASSES; CLASSES],
            standing: AHashMap::new(),
            movable: BTreeSet::new(),
            ripening: BTreeSet::new(),
            promote_after,
            next_number: 0,
            kept: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.standing.len()
    }

    pub(super) fn push(&mut self, waiter: Box<Waiter>) {
        let order = Order { arrived_at: waiter.facts.arrived_at, number: self.next_number };
        self.next_number += 1;
        let flow = FlowKey::of(&waiter);
        let (ticket, joined_at) = (waiter.ticket, waiter.joined_at);
        let standing = Standing { flow, order, joined_at, overtaken: 0 };
        // A ticket names one wait; were it to come twice, the later one counts.
        drop(self.remove(ticket));
        if waiter.movable {
            self.movable.insert((joined_at, ticket));
        }
        if let Some(at) = standing.ripe_at(self.promote_after) {
            self.ripening.insert((at, ticket));
        }
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
        self.kept.retain(|(short, _)| *short != ticket);
        self.movable.remove(&(standing.joined_at, ticket));
        if let Some(at) = standing.ripe_at(self.promote_after) {
            self.ripening.remove(&(at, ticket));
        }
        Some(standing)
    }

    /// Places as many as there is room for, in order. A request that finds no place keeps its own
    /// and bars those behind it that could only go where it could: nobody overtakes. One that finds
    /// places and no cache with room for it has one rank kept for it: it is overtaken by those who
    /// need less, and does not starve. `place` is told whether the request may decline; what all
    /// have declined the first of them takes, so that no room is left unused.
    pub(super) fn serve(
        &mut self,
        rules: Rules<'_>,
        mut place: impl FnMut(&Waiter, Offer) -> Placed,
    ) {
        // Before the turn: who has risen must not be passed by the class it has left.
        self.promote(rules.now, rules.promote_after);
        self.levels = self.flows.levels();
        let mut bars =
            Bars { fleet: rules.fleet, full: Vec::new(), declined: Vec::new(), short: Vec::new() };
        let levels = self.levels;
        for level in (0..CLASSES).filter(|level| levels.contains(level)) {
            self.serve_short(level, rules, &mut bars, &mut place);
            self.serve_level(level, rules, &mut bars, &mut place);
            debug_assert!(bars.declined.is_empty(), "a level ends with a place that is left");
        }
        self.check_invariants();
    }

    /// Those first for whom ranks are kept: they were first in line when they were looked at, and
    /// did not fit.
    fn serve_short(
        &mut self,
        level: usize,
        rules: Rules<'_>,
        bars: &mut Bars<'_>,
        place: &mut impl FnMut(&Waiter, Offer) -> Placed,
    ) {
        let of_level = |(ticket, rank): &(Ticket, RankIndex)| {
            let standing = self.standing.get(ticket)?;
            let is_of_level = self.level_of(standing) == level;
            is_of_level.then_some((*ticket, *rank, standing.flow, standing.order))
        };
        let turn = self.flows.turn(level, &self.levels);
        // A copy: each that is placed takes its own entry out.
        let short: Vec<_> = self.kept.iter().filter_map(of_level).collect();
        for (ticket, rank, flow, order) in short {
            let Some(waiter) = self.flows.get(flow, order) else { continue };
            let offer = Offer { own: Some(rank), ..self.offer(ticket, level, false) };
            let is_late = waiter.0.facts.deadline <= rules.now;
            match if is_late { Placed::Never } else { place(&waiter.0, offer) } {
                Placed::Yes => self.served(&turn, flow, order, ticket),
                Placed::Short(rank) => self.keep(ticket, rank, bars),
                // Its rank is gone, and it stands in line as before.
                Placed::NoRoom | Placed::NoRoomForLarge(_) | Placed::Declined => {
                    self.kept.retain(|(short, _)| *short != ticket);
                }
                Placed::Never => drop(self.remove(ticket)),
            }
        }
    }

    /// The rank is not given to those behind it.
    fn keep(&mut self, ticket: Ticket, rank: RankIndex, bars: &mut Bars<'_>) {
        debug_assert!(self.standing.contains_key(&ticket), "kept for who does not wait");
        match self.kept.iter_mut().find(|(short, _)| *short == ticket) {
            Some((_, kept)) => *kept = rank,
            None => self.kept.push((ticket, rank)),
        }
        debug_assert!(!bars.short.contains(&ticket), "short twice in one turn");
        bars.short.push(ticket);
        debug_assert!(self.kept.len() <= KEPT_MAX, "more kept than may be");
    }

    /// What one of that level is offered. What is kept for worse levels is there for it, and, if it
    /// is short itself, what is kept for those of its level who were short later.
    fn offer(&self, ticket: Ticket, level: usize, may_decline: bool) -> Offer {
        let mut kept = [None; KEPT_MAX];
        let mut is_older = true;
        for (place, (short, rank)) in kept.iter_mut().zip(&self.kept) {
            if *short == ticket {
                is_older = false;
                continue;
            }
            let comes_before = |standing: &&Standing| {
                let of_short = self.level_of(standing);
                of_short < level || of_short == level && is_older
            };
            *place = self.standing.get(short).filter(comes_before).map(|_| *rank);
        }
        Offer { may_decline, own: None, may_keep: self.kept.len() < KEPT_MAX, kept }
    }

    /// Who was short, and the rank that is kept for it.
    pub(super) fn kept(&self) -> &[(Ticket, RankIndex)] {
        &self.kept
    }

    fn serve_level(
        &mut self,
        level: usize,
        rules: Rules<'_>,
        bars: &mut Bars<'_>,
        place: &mut impl FnMut(&Waiter, Offer) -> Placed,
    ) {
        let turn = self.flows.turn(level, &self.levels);
        let mut cursor = TurnPosition::START;
        let mut insists = false;
        loop {
            let ahead_max =
                LOOK_AHEAD_MAX.min(LOOK_AHEAD_RANKS_MAX / rules.fleet.ranks.len().max(1));
            debug_assert!(bars.declined.len() <= ahead_max, "looked further than it may");
            let looks_on = bars.declined.len() < ahead_max;
            let next = self.next(&turn, cursor, bars).filter(|_| looks_on);
            let Some(NextRequest { at, key: flow, order, waiter }) = next else {
                if bars.declined.is_empty() {
                    return;
                }
                // Nobody wanted what the first of them left. It takes that now: a place that stays
                // empty serves nobody.
                bars.declined.clear();
                (cursor, insists) = (TurnPosition::START, true);
                continue;
            };
            cursor = at;
            let ticket = waiter.ticket;
            let may_decline = !insists && self.overtaken(ticket) < rules.overtaken_max;
            // After its deadline its origin has answered it, or will in a moment.
            let is_late = waiter.facts.deadline <= rules.now;
            let offer = self.offer(ticket, level, may_decline);
            match if is_late { Placed::Never } else { place(waiter, offer) } {
                Placed::Yes => {
                    self.served(&turn, flow, order, ticket);
                    insists = false;
                    // Those who declined are asked again, first, for what else is free.
                    if !bars.declined.is_empty() {
                        cursor = TurnPosition::START;
                        self.overtake(&mut bars.declined);
                    }
                }
                Placed::Declined => bars.declined.push(ticket),
                Placed::NoRoom => bars.add(waiter, None),
                Placed::NoRoomForLarge(most) => bars.add(waiter, Some(held_tokens(waiter)..=most)),
                Placed::Short(rank) => self.keep(ticket, rank, bars),
                Placed::Never => drop(self.remove(ticket)),
            }
        }
    }

    fn overtaken(&self, ticket: Ticket) -> u32 {
        self.standing.get(&ticket).map_or(u32::MAX, |standing| standing.overtaken)
    }

    fn overtake(&mut self, declined: &mut Vec<Ticket>) {
        for ticket in declined.drain(..) {
            if let Some(standing) = self.standing.get_mut(&ticket) {
                // Counted when another request was placed, not when it declined.
                standing.overtaken += 1;
            }
        }
    }

    fn next(
        &self,
        turn: &LevelTurn,
        from: TurnPosition,
        bars: &Bars<'_>,
    ) -> Option<NextRequest<'_>> {
        let barred = |waiting: &QueuedRequest| bars.bar(&waiting.0);
        let model_barred = |model: ModelIndex, legs: LegCounts| bars.bar_all(model, legs);
        self.flows.next(turn, from, model_barred, barred)
    }

    fn level_of(&self, standing: &Standing) -> usize {
        self.levels.get(standing.flow.part.asked).copied().unwrap_or(CLASSES)
    }

    fn served(&mut self, turn: &LevelTurn, flow: FlowKey, order: Order, ticket: Ticket) {
        let served = self.flows.serve(turn, flow, order);
        debug_assert!(served.is_some(), "{ticket:?} was served, and did not wait");
        let standing = self.forget(ticket);
        debug_assert!(standing.is_some_and(|standing| standing.flow == flow), "stood elsewhere");
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
        self.ripening.first().map_or(NanosSinceStart(u64::MAX), |&(at, _)| at)
    }

    /// Moves those up who have waited long enough.
    fn promote(&mut self, now: NanosSinceStart, after: Duration) {
        if after != self.promote_after {
            self.promote_after = after;
            let ripe = |(ticket, at): (&Ticket, &Standing)| Some((at.ripe_at(after)?, *ticket));
            self.ripening = self.standing.iter().filter_map(ripe).collect();
        }
        while let Some(&(at, ticket)) = self.ripening.first().filter(|(at, _)| *at <= now) {
            self.ripening.remove(&(at, ticket));
            self.move_up(ticket);
        }
    }

    fn move_up(&mut self, ticket: Ticket) {
        let Some(standing) = self.standing.get_mut(&ticket) else { return };
        let risen = self.flows.rise(standing.flow, standing.order);
        debug_assert!(risen.is_some(), "{ticket:?} stands where it does not wait");
        standing.flow = risen.unwrap_or(standing.flow.risen());
        if let Some(at) = standing.ripe_at(self.promote_after) {
            self.ripening.insert((at, ticket));
        }
    }

    /// Rows kept.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.flows.row_count()
    }
}

/// Who is not looked at any more in this turn.
#[derive(Debug)]
struct Bars<'a> {
    fleet: &'a FleetSnapshot,
    /// Who found no room.
    full: Vec<Way>,
    /// Who has declined what there is.
    declined: Vec<Ticket>,
    /// Who has a rank kept for it.
    short: Vec<Ticket>,
}

/// What a request asked for, and the ranks that were out of the question.
#[derive(Debug)]
struct Way {
    model: ModelIndex,
    leg: Leg,
    near: Option<RankIndex>,
    pin: Option<Pin>,
    tried: Vec<RankIndex>,
    /// Ranks were left out whose caches could never hold it; those left are all there is for
    /// whoever holds so many tokens.
    large: Option<RangeInclusive<u64>>,
}

impl Way {
    /// Who needs less may have more ranks, and so may who has others to choose from: if none of his
    /// could hold it, any will do.
    fn is_all_for(&self, waiter: &Waiter) -> bool {
        self.large.as_ref().is_none_or(|large| {
            large.contains(&held_tokens(waiter))
                && (self.near, self.pin) == (waiter.near, waiter.facts.pin)
                && self.tried == waiter.facts.tried
        })
    }
}

impl Bars<'_> {
    fn add(&mut self, waiter: &Waiter, large: Option<RangeInclusive<u64>>) {
        self.full.push(Way {
            large,
            model: waiter.facts.model,
            leg: waiter.leg,
            near: waiter.near,
            pin: waiter.facts.pin,
            tried: waiter.facts.tried.clone(),
        });
    }

    /// Has it declined, is a rank kept for it, or could it only go where somebody before it found
    /// no room?
    fn bar(&self, waiter: &Waiter) -> bool {
        self.declined.contains(&waiter.ticket)
            || self.short.contains(&waiter.ticket)
            || self.full.iter().any(|way| {
                way.model == waiter.facts.model
                    && way.leg == waiter.leg
                    && way.tried.iter().all(|rank| waiter.facts.tried.contains(rank))
                    && way.pin.is_none_or(|pin| waiter.facts.pin == Some(pin))
                    && way.is_all_for(waiter)
                    && self.leads_as_far(way.near, waiter.near)
            })
    }

    /// Can whoever has to be near the second only go where the first could?
    fn leads_as_far(&self, one: Option<RankIndex>, other: Option<RankIndex>) -> bool {
        match (one, other) {
            (None, _) => true,
            (Some(one), Some(other)) => one == other || self.fleet.is_at_least_as_near(one, other),
            (Some(_), None) => false,
        }
    }

    /// Is everybody in a row barred who wants the model? Who has to be near somebody is looked at
    /// one by one.
    fn bar_all(&self, model: ModelIndex, legs: LegCounts) -> bool {
        let found_none = |leg: Leg| {
            let any = |way: &Way| {
                way.model == model
                    && way.leg == leg
                    && way.near.is_none()
                    && way.pin.is_none()
                    && way.tried.is_empty()
                    && way.large.is_none()
            };
            self.full.iter().any(any)
        };
        !self.full.is_empty() && legs.all(found_none)
    }
}
