//! The requests of one queue by tenant: each tenant has a row, and rows are served in proportion to
//! their weights. Fair queueing by start tags (Goyal, Vin and Cheng, 1996): a row's tag counts the
//! tokens that it was given, divided by its weight; the row with the least tag is next. It serves
//! as deficit round robin with an endlessly small quantum does, without rounds to go through for a
//! prompt of 100,000 tokens.
//!
//! # Classes
//! A request has the class that it asked for, and the class to which it has risen by age. Between
//! tenants, age never passes a request that asked for the same or a better class:
//!
//! | level of a request that asked for class `c` | |
//! |---|---|
//! | nothing that waits has risen | `c` |
//! | else | the best risen class of all that asked for `c` or a worse class |
//!
//! - Levels are served in order. Rows of the same level take turns by tag, whatever they asked for.
//! - Within a row, the risen class decides, then the prompt tokens to compute, then the arrival.
//!
//! So a tenant whose requests are old takes its turns beside the tenants that it would have to wait
//! for, and never before them. No class starves: a request that asked for class `c` has level 0
//! after `c` times `queue.promote_after`, and then waits for its tenant's turns alone.
//!
//! Rows are grouped by the best class that a request of theirs asked for. Each group has a clock,
//! which runs while the group is served: a group that waited for better classes has saved nothing
//! up when it takes turns with them.

use super::waiter::QueuedRequest;
use ahash::AHashMap;
use forebay_base::limits::IDLE_FLOWS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_config::QUEUE_CLASSES;
use forebay_fleet::mailbox::Waiter;
use forebay_fleet::worker::Leg;
use std::collections::{BTreeMap, BTreeSet};

/// A token of a tenant of weight 1, in units of tags.
const TAGS_PER_TOKEN: u64 = 1_000;
/// Classes, and so many levels.
pub(super) const CLASSES: usize = QUEUE_CLASSES as usize;

/// Where in the rows a request stands: its tenant's row, and the part of the row. A tenant's share
/// does not depend on how many models and classes it uses; models are apart so that requests of a
/// model for which there is no room are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    pub(super) tenant: u64,
    pub(super) part: PartKey,
}

/// One part of a row. In the order in which parts are served, but for arrivals in parts of one
/// risen class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartKey {
    /// Class to which its requests have risen.
    pub(super) risen: usize,
    /// Class that they asked for.
    pub(super) asked: usize,
    pub(super) way: Way,
}

/// What the requests of one part wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Way {
    pub(super) model: ModelIndex,
    pub(super) leg: Leg,
    /// Rank that the requests wait for; `None`: any rank that has room.
    pub(super) target: Option<RankIndex>,
    /// Only some ranks may take the requests, for other reasons than their model and their leg.
    pub(super) is_narrow: bool,
}

impl FlowKey {
    /// Where a request stands that has not risen.
    pub(super) fn of(waiter: &Waiter) -> Self {
        let class = usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1));
        let way = Way {
            model: waiter.facts.model,
            leg: waiter.leg,
            target: waiter.prompt.target,
            is_narrow: waiter.near.is_some()
                || waiter.facts.pin.is_some()
                || !waiter.facts.tried.is_empty(),
        };
        let part = PartKey { risen: class, asked: class, way };
        Self { tenant: waiter.facts.caller.tenant, part }
    }

    /// The same with another target.
    pub(super) fn aimed(self, target: Option<RankIndex>) -> Self {
        let way = Way { target, ..self.part.way };
        Self { part: PartKey { way, ..self.part }, ..self }
    }

    /// The same, one class better.
    pub(super) const fn risen(self) -> Self {
        let part = PartKey { risen: self.part.risen.saturating_sub(1), ..self.part };
        Self { part, ..self }
    }
}

/// Place in a row: the fewest prompt tokens to compute first, then by arrival at the router, then
/// by the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    /// Prompt tokens to compute at the rank that holds most of the prompt.
    pub(super) tokens: u64,
    pub(super) arrived_at: NanosSinceStart,
    pub(super) number: u64,
}

/// Level of each class that requests may have asked for; [`CLASSES`] where none waits.
pub(super) type Levels = [usize; CLASSES];

/// One turn through the rows of one level, and of the levels before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelTurn {
    /// Requests that asked for a class below this one take part.
    classes_end: usize,
    /// The groups' clocks at its beginning. From there tags of different groups compare.
    begun: [u64; CLASSES],
    overtaken_max: u32,
}

/// How far a turn has come. A row that is served goes back behind it, never before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnPosition {
    /// Tag, from the clock of the row's group at the beginning of the turn.
    ahead: i128,
    tenant: u64,
}

impl TurnPosition {
    /// Before all rows.
    pub(super) const START: Self = Self { ahead: i128::MIN, tenant: 0 };
}

/// What is served next.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextRequest {
    pub(super) at: TurnPosition,
    pub(super) key: FlowKey,
    pub(super) order: Order,
    /// Enough others of its tenant went before it.
    pub(super) is_overdue: bool,
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// By tenant.
    rows: AHashMap<u64, Row>,
    /// By the best class that a request of the row asked for.
    groups: [ClassGroup; CLASSES],
    counts: ClassCounts,
}

/// How many wait, by the class that they asked for and the class to which they have risen.
#[derive(Debug, Default)]
struct ClassCounts([[usize; CLASSES]; CLASSES]);

/// Rows whose best request asked for the same class.
#[derive(Debug, Default)]
struct ClassGroup {
    /// Rows that are not empty, by tag and tenant.
    ready: BTreeSet<(u64, u64)>,
    /// Tag of the row served last: rows that come back start here.
    clock: u64,
}

#[derive(Debug, Default)]
struct Row {
    /// None of them is empty.
    parts: BTreeMap<PartKey, RowPart>,
    /// All of them by arrival.
    by_arrival: BTreeSet<(NanosSinceStart, u64, PartKey, Order)>,
    /// Tokens that other requests were given since the oldest request left.
    passed_tokens: u64,
    tag: u64,
    /// Its group, or the last one while it is empty. The tag is of that group's clock.
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
        debug_assert!(part.risen <= part.asked, "a request never falls");
        self.0.get_mut(part.asked)?.get_mut(part.risen)
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

    /// The best class that a request of the row asked for.
    fn asked_best(&self) -> Option<usize> {
        self.parts.keys().map(|key| key.asked).min()
    }

    /// Takes a request out for good, which was given so many tokens. What was given before the
    /// oldest left does not count against the next.
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

    /// The oldest request, if later ones were given so many times its own tokens.
    fn overdue(&self, overtaken_max: u32) -> Option<(PartKey, Order)> {
        let oldest = self.oldest()?;
        let most = oldest.1.tokens.max(1).saturating_mul(u64::from(overtaken_max));
        (self.passed_tokens >= most).then_some(oldest)
    }

    /// The first of the turn that `looks` asks for. A request that has risen above all classes that
    /// the row asked for stands with the best of them: age alone orders nothing within a class.
    fn first(&self, turn: &LevelTurn, looks: &impl Looks) -> Option<(PartKey, Order, bool)> {
        if let Some((key, order)) = self.overdue(turn.overtaken_max)
            && key.asked < turn.classes_end
            && looks.looks_at(order)
        {
            return Some((key, order, true));
        }
        let best_class = self.asked_best()?;
        let firsts = self.parts.iter().filter_map(|(key, part)| {
            let tokens = part.waiting.first_key_value().map_or(0, |(order, _)| order.tokens);
            if key.asked >= turn.classes_end || !looks.is_open(key.way, tokens) {
                return None;
            }
            let next = part.waiting.keys().find(|order| looks.looks_at(**order));
            next.map(|order| (key.risen.max(best_class), *order, *key))
        });
        firsts.min().map(|(_, order, key)| (key, order, false))
    }
}

/// What a turn looks at.
pub(super) trait Looks {
    /// May a request find room that waits for this, and has at least so many tokens to compute?
    fn is_open(&self, way: Way, tokens: u64) -> bool;

    /// Is the request to be looked at in this turn?
    fn looks_at(&self, order: Order) -> bool;
}

impl Flows {
    /// Puts a request into its row.
    pub(super) fn push(&mut self, key: FlowKey, order: Order, waiting: QueuedRequest) {
        let ready: usize = self.groups.iter().map(|group| group.ready.len()).sum();
        debug_assert!(ready <= self.rows.len(), "more rows wait than there are");
        // Idle rows stay for a while: a tenant that comes back at once must not start anew, before
        // who has had less.
        if self.rows.len().saturating_sub(ready) >= IDLE_FLOWS_MAX {
            self.rows.retain(|_, row| !row.parts.is_empty());
        }
        let row = self.rows.entry(key.tenant).or_default();
        if row.parts.is_empty() {
            // Not from its old tag: time in which a tenant asked for nothing earns it nothing.
            row.tag = row.tag.max(clock_of(&self.groups, row.group));
        }
        row.put(key.part, order, waiting);
        self.counts.add(key.part);
        self.regroup(key.tenant);
    }

    /// Level of each class, of what waits at this moment.
    pub(super) fn levels(&self) -> Levels {
        let mut levels = [CLASSES; CLASSES];
        let mut best = CLASSES;
        for (level, risen) in levels.iter_mut().zip(&self.counts.0).rev() {
            best = risen.iter().position(|&count| count > 0).map_or(best, |class| class.min(best));
            *level = best;
        }
        debug_assert!(levels.is_sorted(), "a better class has a better level");
        levels
    }

    /// A turn of the rows of that level, and of the levels before it.
    pub(super) fn turn(&self, level: usize, levels: &Levels, overtaken_max: u32) -> LevelTurn {
        let classes_end = levels.iter().take_while(|&&of_class| of_class <= level).count();
        let begun = self.groups.each_ref().map(|group| group.clock);
        LevelTurn { classes_end, begun, overtaken_max }
    }

    /// The request that is served next, from `from` on, of those that `looks` asks for.
    pub(super) fn next(
        &self,
        turn: &LevelTurn,
        from: TurnPosition,
        looks: &impl Looks,
    ) -> Option<NextRequest> {
        let groups = self.groups.iter().zip(turn.begun).take(turn.classes_end);
        let firsts = groups.filter_map(|(group, begun)| {
            let begun = i128::from(begun);
            let start = from.ahead.saturating_add(begun);
            let tag = u64::try_from(start.max(0)).unwrap_or(u64::MAX);
            group.ready.range((tag, 0)..).find_map(|&(tag, tenant)| {
                let at = TurnPosition { ahead: i128::from(tag) - begun, tenant };
                let row = self.rows.get(&tenant).filter(|_| at >= from)?;
                let (part, order, is_overdue) = row.first(turn, looks)?;
                Some(NextRequest { at, key: FlowKey { tenant, part }, order, is_overdue })
            })
        });
        firsts.min_by_key(|next| next.at)
    }

    /// The request that stands there.
    pub(super) fn get(&self, key: FlowKey, order: Order) -> Option<&QueuedRequest> {
        self.rows.get(&key.tenant)?.parts.get(&key.part)?.waiting.get(&order)
    }

    /// Takes a request out because it is served: its row has had its turn.
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
        // By what it costs, not by requests: a tenant with long prompts would get more.
        let cost = served.cost_tokens().saturating_mul(TAGS_PER_TOKEN);
        row.tag = tag.saturating_add(cost / u64::from(served.weight().max(1)));
        self.counts.take(key.part);
        // Together: from here on too, tags of groups that take turns compare.
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

    /// Takes a request out that is not served: it left, or waited too long.
    pub(super) fn remove(&mut self, key: FlowKey, order: Order) -> Option<QueuedRequest> {
        let removed = self.rows.get_mut(&key.tenant)?.leave(key.part, order, 0)?;
        self.counts.take(key.part);
        self.regroup(key.tenant);
        Some(removed)
    }

    /// Moves a request within its row: it has risen, or has another target.
    pub(super) fn shift(&mut self, from: FlowKey, to: FlowKey, order: Order) {
        debug_assert_eq!(from.tenant, to.tenant, "a request that moves to another row");
        let Some(row) = self.rows.get_mut(&from.tenant) else { return };
        let Some(waiting) = row.take(from.part, order) else { return };
        row.put(to.part, order, waiting);
        self.counts.take(from.part);
        self.counts.add(to.part);
    }

    /// Puts the row where it belongs after a change: among the rows of its group, or nowhere if it
    /// is empty.
    fn regroup(&mut self, tenant: u64) {
        let Self { rows, groups, .. } = self;
        let Some(row) = rows.get_mut(&tenant) else { return };
        if let Some(group) = groups.get_mut(row.group) {
            group.ready.remove(&(row.tag, tenant));
        }
        let Some(best) = row.asked_best() else {
            // An empty row whose tag the others have passed would start at the clock anyway.
            if row.tag <= clock_of(groups, row.group) {
                rows.remove(&tenant);
            }
            return;
        };
        if best != row.group {
            // As far ahead, or behind, as it was.
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

    /// What requests wait for. Costs a look at each row.
    pub(super) fn ways(&self) -> impl Iterator<Item = Way> {
        self.rows.values().flat_map(|row| row.parts.keys().map(|key| key.way))
    }

    /// How many wait. Costs a look at each row.
    pub(super) fn len(&self) -> usize {
        let of_row = |row: &Row| row.parts.values().map(|part| part.waiting.len()).sum::<usize>();
        self.rows.values().map(of_row).sum()
    }

    /// Rows kept, waiting or idle.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }
}

fn clock_of(groups: &[ClassGroup; CLASSES], group: usize) -> u64 {
    groups.get(group).map_or(0, |group| group.clock)
}
