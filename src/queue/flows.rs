//! One class of a queue: the requests of each tenant and model in a row, and the rows served in proportion to their
//! weights. Fair queueing by start tags (Goyal, Vin and Cheng, 1996): a row's tag counts the tokens that it was given,
//! divided by its weight; the row with the least tag is next. It serves as deficit round robin with an endlessly small
//! quantum does, without rounds to go through for a prompt of 100,000 tokens.

use super::Waiting;
use crate::base::ModelIndex;
use crate::base::NanosSinceStart;
use crate::base::limits::IDLE_FLOWS_MAX;
use crate::worker::Leg;
use ahash::AHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A token of a tenant of weight 1, in units of tags.
const TAGS_PER_TOKEN: u64 = 1_000;

/// Whose requests stand in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowKey {
    pub(super) tenant: u64,
    pub(super) model: ModelIndex,
}

/// Place in a row: by arrival at the router, then by the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) arrived_at: NanosSinceStart,
    pub(super) number: u64,
}

/// How far a turn through the rows has come. A row that is served goes back behind it, never before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cursor {
    tag: u64,
    pub(super) key: FlowKey,
}

impl Cursor {
    /// Before all rows.
    pub(super) const START: Self =
        Self { tag: 0, key: FlowKey { tenant: 0, model: ModelIndex(0) } };
}

/// One class.
#[derive(Debug, Default)]
pub(super) struct Flows {
    rows: AHashMap<FlowKey, Row>,
    /// Rows that are not empty, by tag.
    ready: BTreeSet<Cursor>,
    /// Tag of the row served last: rows that come back start here.
    clock: u64,
}

#[derive(Debug, Default)]
struct Row {
    waiting: BTreeMap<Order, Waiting>,
    legs: Legs,
    tag: u64,
}

/// How many wait for each leg.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Legs {
    whole: usize,
    prefill: usize,
    decode: usize,
}

impl Legs {
    fn of(&mut self, leg: Leg) -> &mut usize {
        match leg {
            Leg::Whole => &mut self.whole,
            Leg::Prefill => &mut self.prefill,
            Leg::Decode => &mut self.decode,
        }
    }

    /// Does it hold for each leg that somebody waits for?
    pub(super) fn all(self, holds: impl Fn(Leg) -> bool) -> bool {
        (self.whole == 0 || holds(Leg::Whole))
            && (self.prefill == 0 || holds(Leg::Prefill))
            && (self.decode == 0 || holds(Leg::Decode))
    }
}

impl Row {
    fn take(&mut self, order: Order) -> Option<Waiting> {
        let taken = self.waiting.remove(&order)?;
        let count = self.legs.of(taken.leg());
        *count = count.saturating_sub(1);
        Some(taken)
    }
}

impl Flows {
    /// Puts a request into its row.
    pub(super) fn push(&mut self, key: FlowKey, order: Order, waiting: Waiting) {
        if self.rows.len() - self.ready.len() >= IDLE_FLOWS_MAX {
            self.rows.retain(|_, row| !row.waiting.is_empty());
        }
        let clock = self.clock;
        let row = self.rows.entry(key).or_default();
        if row.waiting.is_empty() {
            row.tag = row.tag.max(clock);
            self.ready.insert(Cursor { tag: row.tag, key });
        }
        *row.legs.of(waiting.leg()) += 1;
        row.waiting.insert(order, waiting);
    }

    /// The request that is served next, from `from` on, of those that are not barred. `row_barred` bars whole rows, so that
    /// nobody in them is looked at.
    pub(super) fn next(
        &self,
        from: Cursor,
        row_barred: impl Fn(FlowKey, Legs) -> bool,
        barred: impl Fn(&Waiting) -> bool,
    ) -> Option<(Cursor, Order, &Waiting)> {
        let rows = self.ready.range(from..);
        let rows = rows.filter_map(|place| Some((*place, self.rows.get(&place.key)?)));
        rows.filter(|(place, row)| !row_barred(place.key, row.legs)).find_map(|(place, row)| {
            let (order, waiting) = row.waiting.iter().find(|(_, waiting)| !barred(waiting))?;
            Some((place, *order, waiting))
        })
    }

    /// The request that stands there.
    pub(super) fn get(&self, key: FlowKey, order: Order) -> Option<&Waiting> {
        self.rows.get(&key)?.waiting.get(&order)
    }

    /// Takes a request out because it is served: its row has had its turn.
    pub(super) fn serve(&mut self, key: FlowKey, order: Order) -> Option<Waiting> {
        let row = self.rows.get_mut(&key)?;
        let served = row.take(order)?;
        let before = row.tag;
        self.clock = self.clock.max(before);
        let cost = served.cost_tokens().saturating_mul(TAGS_PER_TOKEN);
        row.tag = before.saturating_add(cost / u64::from(served.weight().max(1)));
        self.ready.remove(&Cursor { tag: before, key });
        if !row.waiting.is_empty() {
            self.ready.insert(Cursor { tag: row.tag, key });
        }
        self.forget_if_behind(key);
        Some(served)
    }

    /// Takes a request out that is not served: it left, waited too long, or moves up.
    pub(super) fn remove(&mut self, key: FlowKey, order: Order) -> Option<Waiting> {
        let row = self.rows.get_mut(&key)?;
        let removed = row.take(order)?;
        if row.waiting.is_empty() {
            self.ready.remove(&Cursor { tag: row.tag, key });
            self.forget_if_behind(key);
        }
        Some(removed)
    }

    /// Rows kept, waiting or idle.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// An empty row whose tag the others have passed would start at the clock anyway.
    fn forget_if_behind(&mut self, key: FlowKey) {
        let behind = |row: &Row| row.waiting.is_empty() && row.tag <= self.clock;
        if self.rows.get(&key).is_some_and(behind) {
            self.rows.remove(&key);
        }
    }
}
