//! The requests of a queue by tenant: each tenant has a row, and rows are served in proportion to
//! their weights. Start-time fair queueing (Goyal, Vin and Cheng, 1996): a row's tag counts its
//! served tokens divided by its weight; the row with the least tag is next. The result equals
//! deficit round robin with an arbitrarily small quantum, without a round per quantum for a prompt
//! of 100,000 tokens.
//!
//! # Classes
//! A request has a requested class and a promoted class, which improves with age. Between tenants,
//! a promoted request never passes a request with the same or a better requested class:
//!
//! | level of a request of requested class `c` | |
//! |---|---|
//! | no waiting request is promoted | `c` |
//! | else | the best promoted class of all requests of requested class `c` or worse |
//!
//! - Levels are served in order. Rows of the same level take turns by tag, whatever their classes.
//! - Within a row, the promoted class decides, then the prompt tokens to compute, then the arrival.
//!
//! So a tenant with old requests takes turns with the tenants of better classes, and never comes
//! before them. No class starves: a request of requested class `c` has level 0 after `c` times
//! `queue.promote_after`, and then waits for its tenant's turns alone.
//!
//! Rows are grouped by their best requested class. Each group has a clock, which runs while the
//! group is served. A group that waited for better classes therefore has no credit when it takes
//! turns with them.

use super::waiter::QueuedRequest;
use ahash::AHashMap;
use forebay_base::limits::IDLE_FLOWS_MAX;
use forebay_base::limits::QUEUE_CLASSES;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_fleet::worker::Leg;
use forebay_mailbox::Waiter;
use std::collections::{BTreeMap, BTreeSet};

/// A token of a tenant of weight 1, in units of tags.
const TAGS_PER_TOKEN: u64 = 1_000;
/// Number of classes, and of levels.
pub(super) const CLASSES: usize = QUEUE_CLASSES as usize;

/// Position of a request: its tenant's row, and the part of the row. A tenant's share does not
/// depend on the number of its models and classes. Models have parts of their own so that a turn
/// skips the requests of a model without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    pub(super) tenant: u64,
    pub(super) part: PartKey,
}

/// A part of a row. Parts are served in this order. Parts of the same promoted class are served by
/// the order of their first requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartKey {
    /// Class after promotion by age.
    pub(super) promoted: usize,
    /// Class that the requests came with.
    pub(super) requested: usize,
    pub(super) dest: Destination,
}

/// Model, leg and ranks that requests of a part wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Destination {
    pub(super) model: ModelIndex,
    pub(super) leg: Leg,
    /// Rank that the requests wait for; `None`: any rank that has room.
    pub(super) target: Option<RankIndex>,
    /// Only some ranks of the model and leg may take the requests: a pin, tried ranks, or a decode
    /// rank that must be near.
    pub(super) is_narrow: bool,
}

impl FlowKey {
    /// Key of a request that has not been promoted.
    pub(super) fn of(waiter: &Waiter) -> Self {
        let class = usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1));
        let dest = Destination {
            model: waiter.facts.model,
            leg: waiter.leg,
            target: waiter.prompt.target,
            is_narrow: waiter.near.is_some()
                || waiter.facts.pin.is_some()
                || !waiter.facts.tried.is_empty(),
        };
        let part = PartKey { promoted: class, requested: class, dest };
        Self { tenant: waiter.facts.caller.tenant, part }
    }

    /// The key with another target.
    pub(super) fn aimed(self, target: Option<RankIndex>) -> Self {
        let dest = Destination { target, ..self.part.dest };
        Self { part: PartKey { dest, ..self.part }, ..self }
    }

    /// The key promoted by a class.
    pub(super) const fn promoted(self) -> Self {
        let part = PartKey { promoted: self.part.promoted.saturating_sub(1), ..self.part };
        Self { part, ..self }
    }
}

/// Order in a row: fewest prompt tokens to compute, then arrival at the router, then joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    /// Prompt tokens to compute at the rank that holds most of the prompt.
    pub(super) tokens: u64,
    pub(super) arrived_at: NanosSinceStart,
    pub(super) number: u64,
}

/// Level of each requested class; [`CLASSES`] if no request of that class waits.
pub(super) type Levels = [usize; CLASSES];

/// A turn through the rows of a level and of all better levels.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelTurn {
    /// Requests with a requested class below this number take part.
    classes_end: usize,
    /// The groups' clocks at the start of the turn: tags of different groups compare relative to
    /// these.
    begun: [u64; CLASSES],
    overtaken_max: u32,
}

/// Progress of a turn. A served row moves behind this position, never before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnPosition {
    /// Tag, relative to the clock of the row's group at the start of the turn.
    ahead: i128,
    tenant: u64,
}

impl TurnPosition {
    /// Before all rows.
    pub(super) const START: Self = Self { ahead: i128::MIN, tenant: 0 };
}

/// The request that is served next.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextRequest {
    pub(super) at: TurnPosition,
    pub(super) key: FlowKey,
    pub(super) order: Order,
    /// Later requests of the tenant have passed it up to `queue.overtaken_max`.
    pub(super) is_overdue: bool,
}

/// All waiting requests of a queue.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// By tenant.
    rows: AHashMap<u64, Row>,
    /// By the best requested class of a row.
    groups: [ClassGroup; CLASSES],
    counts: ClassCounts,
}

/// Waiting requests, by requested class and promoted class.
#[derive(Debug, Default)]
struct ClassCounts([[usize; CLASSES]; CLASSES]);

/// Rows with the same best requested class.
#[derive(Debug, Default)]
struct ClassGroup {
    /// Rows that are not empty, by tag and tenant.
    ready: BTreeSet<(u64, u64)>,
    /// Tag of the row served last: a row that was empty restarts here.
    clock: u64,
}

#[derive(Debug, Default)]
struct Row {
    /// No part is empty.
    parts: BTreeMap<PartKey, RowPart>,
    /// All requests of the row by arrival.
    by_arrival: BTreeSet<(NanosSinceStart, u64, PartKey, Order)>,
    /// Tokens of requests that were served since the last oldest request left.
    passed_tokens: u64,
    tag: u64,
    /// The row's group, or the last group of an empty row. The tag refers to that group's clock.
    group: usize,
}

#[derive(Debug, Default)]
struct RowPart {
    waiting: BTreeMap<Order, QueuedRequest>,
}

impl ClassCounts {
    fn add(&mut self, part: PartKey) {
        if let Some(count) = self.of(part) {
            *count += 1;
        }
    }

    fn take(&mut self, part: PartKey) {
        if let Some(count) = self.of(part) {
            debug_assert!(*count > 0, "a class that was never counted");
            *count = count.saturating_sub(1);
        }
    }

    fn of(&mut self, part: PartKey) -> Option<&mut usize> {
        debug_assert!(part.promoted <= part.requested, "a request never falls");
        self.0.get_mut(part.requested)?.get_mut(part.promoted)
    }
}

impl Row {
    fn put(&mut self, key: PartKey, order: Order, waiting: QueuedRequest) {
        self.by_arrival.insert((order.arrived_at, order.number, key, order));
        let part = self.parts.entry(key).or_default();
        let before = part.waiting.insert(order, waiting);
        debug_assert!(before.is_none(), "two requests in one place");
    }

    fn take(&mut self, key: PartKey, order: Order) -> Option<QueuedRequest> {
        let part = self.parts.get_mut(&key)?;
        let taken = part.waiting.remove(&order)?;
        if part.waiting.is_empty() {
            self.parts.remove(&key);
        }
        self.by_arrival.remove(&(order.arrived_at, order.number, key, order));
        Some(taken)
    }

    fn requested_best(&self) -> Option<usize> {
        self.parts.keys().map(|key| key.requested).min()
    }

    /// Removes a request. `given_tokens`: tokens that it was served; 0: not served. Tokens that
    /// were served before the oldest request left do not count for the next oldest.
    fn leave(&mut self, key: PartKey, order: Order, given_tokens: u64) -> Option<QueuedRequest> {
        let is_oldest = self.oldest().is_some_and(|(_, oldest)| oldest == order);
        let taken = self.take(key, order)?;
        let passed_tokens = self.passed_tokens.saturating_add(given_tokens);
        self.passed_tokens = if is_oldest { 0 } else { passed_tokens };
        Some(taken)
    }

    fn oldest(&self) -> Option<(PartKey, Order)> {
        self.by_arrival.first().map(|&(_, _, key, order)| (key, order))
    }

    /// The oldest request, if later requests were served `overtaken_max` times its own tokens.
    fn overdue(&self, overtaken_max: u32) -> Option<(PartKey, Order)> {
        let oldest = self.oldest()?;
        let most = oldest.1.tokens.max(1).saturating_mul(u64::from(overtaken_max));
        (self.passed_tokens >= most).then_some(oldest)
    }

    /// The row's first request of the turn that `filter` admits. A request promoted above all
    /// requested classes of the row ranks with the best of these: within a class, age alone does
    /// not order requests.
    fn first(&self, turn: &LevelTurn, filter: &impl RowFilter) -> Option<(PartKey, Order, bool)> {
        if let Some((key, order)) = self.overdue(turn.overtaken_max)
            && key.requested < turn.classes_end
            && filter.includes(order)
        {
            return Some((key, order, true));
        }
        let best_class = self.requested_best()?;
        let firsts = self.parts.iter().filter_map(|(key, part)| {
            let tokens = part.waiting.first_key_value().map_or(0, |(order, _)| order.tokens);
            if key.requested >= turn.classes_end || !filter.is_open(key.dest, tokens) {
                return None;
            }
            let next = part.waiting.keys().find(|order| filter.includes(**order));
            next.map(|order| (key.promoted.max(best_class), *order, *key))
        });
        firsts.min().map(|(_, order, key)| (key, order, false))
    }
}

/// Requests that a turn examines.
pub(super) trait RowFilter {
    /// May a request of the destination with at least `tokens` to compute find room?
    fn is_open(&self, dest: Destination, tokens: u64) -> bool;

    /// Does this turn still examine the request?
    fn includes(&self, order: Order) -> bool;
}

impl Flows {
    pub(super) fn push(&mut self, key: FlowKey, order: Order, waiting: QueuedRequest) {
        let ready: usize = self.groups.iter().map(|group| group.ready.len()).sum();
        debug_assert!(ready <= self.rows.len(), "more rows wait than there are");
        // Idle rows stay for a while: a tenant that returns at once must not restart before
        // tenants that were served less.
        if self.rows.len().saturating_sub(ready) >= IDLE_FLOWS_MAX {
            self.rows.retain(|_, row| !row.parts.is_empty());
        }
        let row = self.rows.entry(key.tenant).or_default();
        if row.parts.is_empty() {
            // Not from its old tag: a tenant earns no credit while it sends no requests.
            row.tag = row.tag.max(clock_of(&self.groups, row.group));
        }
        row.put(key.part, order, waiting);
        self.counts.add(key.part);
        self.regroup(key.tenant);
    }

    /// Level of each class, by the requests that wait now.
    pub(super) fn levels(&self) -> Levels {
        let mut levels = [CLASSES; CLASSES];
        let mut best = CLASSES;
        for (level, promoted) in levels.iter_mut().zip(&self.counts.0).rev() {
            best =
                promoted.iter().position(|&count| count > 0).map_or(best, |class| class.min(best));
            *level = best;
        }
        debug_assert!(levels.is_sorted(), "a better class has a better level");
        levels
    }

    /// A turn of the rows of that level and of all better levels.
    pub(super) fn turn(&self, level: usize, levels: &Levels, overtaken_max: u32) -> LevelTurn {
        let classes_end = levels.iter().take_while(|&&of_class| of_class <= level).count();
        let begun = self.groups.each_ref().map(|group| group.clock);
        LevelTurn { classes_end, begun, overtaken_max }
    }

    /// The next request from `from` on that `filter` admits.
    pub(super) fn next(
        &self,
        turn: &LevelTurn,
        from: TurnPosition,
        filter: &impl RowFilter,
    ) -> Option<NextRequest> {
        let groups = self.groups.iter().zip(turn.begun).take(turn.classes_end);
        let firsts = groups.filter_map(|(group, begun)| {
            let begun = i128::from(begun);
            let start = from.ahead.saturating_add(begun);
            let tag = u64::try_from(start.max(0)).unwrap_or(u64::MAX);
            group.ready.range((tag, 0)..).find_map(|&(tag, tenant)| {
                let at = TurnPosition { ahead: i128::from(tag) - begun, tenant };
                let row = self.rows.get(&tenant).filter(|_| at >= from)?;
                let (part, order, is_overdue) = row.first(turn, filter)?;
                Some(NextRequest { at, key: FlowKey { tenant, part }, order, is_overdue })
            })
        });
        firsts.min_by_key(|next| next.at)
    }

    pub(super) fn get(&self, key: FlowKey, order: Order) -> Option<&QueuedRequest> {
        self.rows.get(&key.tenant)?.parts.get(&key.part)?.waiting.get(&order)
    }

    /// Removes a request that is served, and charges its row.
    pub(super) fn serve(
        &mut self,
        turn: &LevelTurn,
        key: FlowKey,
        order: Order,
    ) -> Option<QueuedRequest> {
        let row = self.rows.get_mut(&key.tenant)?;
        let served = row.leave(key.part, order, order.tokens)?;
        let tag = row.tag;
        let group = row.group;
        // By tokens, not by requests: a tenant with long prompts would get more than its share.
        let cost = served.cost_tokens().saturating_mul(TAGS_PER_TOKEN);
        row.tag = tag.saturating_add(cost / u64::from(served.weight().max(1)));
        self.counts.take(key.part);
        // All clocks of the turn advance together, so that tags of its groups stay comparable.
        let ahead = tag.saturating_sub(clock_of(&self.groups, group));
        for group in self.groups.iter_mut().take(turn.classes_end) {
            group.clock = group.clock.saturating_add(ahead);
        }
        if let Some(group) = self.groups.get_mut(group) {
            let was_ready = group.ready.remove(&(tag, key.tenant));
            debug_assert!(was_ready, "a row was served that was not ready");
        }
        self.regroup(key.tenant);
        Some(served)
    }

    /// Removes a request that is not served: the client left, or the wait was too long.
    pub(super) fn remove(&mut self, key: FlowKey, order: Order) -> Option<QueuedRequest> {
        let removed = self.rows.get_mut(&key.tenant)?.leave(key.part, order, 0)?;
        self.counts.take(key.part);
        self.regroup(key.tenant);
        Some(removed)
    }

    /// Moves a request within its row after a promotion or a change of target.
    pub(super) fn shift(&mut self, from: FlowKey, to: FlowKey, order: Order) {
        debug_assert_eq!(from.tenant, to.tenant, "a request that moves to another row");
        let Some(row) = self.rows.get_mut(&from.tenant) else { return };
        let Some(waiting) = row.take(from.part, order) else { return };
        row.put(to.part, order, waiting);
        self.counts.take(from.part);
        self.counts.add(to.part);
    }

    /// Moves a changed row to its group, or out of all groups if it is empty.
    fn regroup(&mut self, tenant: u64) {
        let Self { rows, groups, .. } = self;
        let Some(row) = rows.get_mut(&tenant) else { return };
        if let Some(group) = groups.get_mut(row.group) {
            group.ready.remove(&(row.tag, tenant));
        }
        let Some(best) = row.requested_best() else {
            // An empty row whose tag is behind the clock would restart at the clock anyway.
            if row.tag <= clock_of(groups, row.group) {
                rows.remove(&tenant);
            }
            return;
        };
        if best != row.group {
            // The row keeps its distance from the clock.
            let before = clock_of(groups, row.group);
            let after = clock_of(groups, best);
            let ahead = row.tag.saturating_sub(before);
            row.tag = after.saturating_add(ahead).saturating_sub(before.saturating_sub(row.tag));
            row.group = best;
        }
        if let Some(group) = groups.get_mut(best) {
            group.ready.insert((row.tag, tenant));
        }
    }

    /// Destinations of waiting requests, each at least once. Visits each row.
    pub(super) fn dests(&self) -> impl Iterator<Item = Destination> {
        self.rows.values().flat_map(|row| row.parts.keys().map(|key| key.dest))
    }

    /// Number of waiting requests. Visits each row.
    pub(super) fn len(&self) -> usize {
        let of_row = |row: &Row| row.parts.values().map(|part| part.waiting.len()).sum::<usize>();
        self.rows.values().map(of_row).sum()
    }

    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }
}

fn clock_of(groups: &[ClassGroup; CLASSES], group: usize) -> u64 {
    groups.get(group).map_or(0, |group| group.clock)
}
