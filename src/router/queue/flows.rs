//! One class of a queue: the requests of each tenant in a row, and the rows served in proportion to
//! their weights. Fair queueing by start tags (Goyal, Vin and Cheng, 1996): a row's tag counts the
//! tokens that it was given, divided by its weight; the row with the least tag is next. It serves
//! as deficit round robin with an endlessly small quantum does, without rounds to go through for a
//! prompt of 100,000 tokens.

use super::waiter::QueuedRequest;
use ahash::AHashMap;
use forebay_base::limits::IDLE_FLOWS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_fleet::mailbox::Waiter;
use forebay_fleet::worker::Leg;
use std::collections::{BTreeMap, BTreeSet};

/// A token of a tenant of weight 1, in units of tags.
const TAGS_PER_TOKEN: u64 = 1_000;

/// Where in the rows a request stands: its tenant's row, and in it among those that want the same
/// model. A tenant's share does not depend on how many models it uses; they are apart so that those
/// of a model for which there is no room are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowKey {
    pub(super) tenant: u64,
    pub(super) model: ModelIndex,
}

impl FlowKey {
    pub(super) const fn of(waiter: &Waiter) -> Self {
        Self { tenant: waiter.facts.caller.tenant, model: waiter.facts.model }
    }
}

/// Place in a row: by arrival at the router, then by the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) arrived_at: NanosSinceStart,
    pub(super) number: u64,
}

/// How far a turn through the rows has come. A row that is served goes back behind it, never before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnPosition {
    tag: u64,
    tenant: u64,
}

impl TurnPosition {
    /// Before all rows.
    pub(super) const START: Self = Self { tag: 0, tenant: 0 };
}

/// One class.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// By tenant.
    rows: AHashMap<u64, Row>,
    /// Rows that are not empty, by tag.
    ready: BTreeSet<TurnPosition>,
    /// Tag of the row served last: rows that come back start here.
    clock: u64,
}

#[derive(Debug, Default)]
struct Row {
    /// None of them is empty.
    models: BTreeMap<ModelIndex, OfModel>,
    tag: u64,
}

#[derive(Debug, Default)]
struct OfModel {
    waiting: BTreeMap<Order, QueuedRequest>,
    legs: LegCounts,
}

/// How many wait for each leg.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LegCounts {
    whole: usize,
    prefill: usize,
    decode: usize,
}

impl LegCounts {
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

impl OfModel {
    fn check_invariants(&self) {
        let LegCounts { whole, prefill, decode } = self.legs;
        debug_assert_eq!(whole + prefill + decode, self.waiting.len(), "each waits for one leg");
    }
}

impl Row {
    fn put(&mut self, model: ModelIndex, order: Order, waiting: QueuedRequest) {
        let of_model = self.models.entry(model).or_default();
        *of_model.legs.of(waiting.leg()) += 1;
        let before = of_model.waiting.insert(order, waiting);
        debug_assert!(before.is_none(), "two requests in one place");
        of_model.check_invariants();
    }

    fn take(&mut self, model: ModelIndex, order: Order) -> Option<QueuedRequest> {
        let of_model = self.models.get_mut(&model)?;
        let taken = of_model.waiting.remove(&order)?;
        let count = of_model.legs.of(taken.leg());
        debug_assert!(*count > 0, "a leg that was never counted");
        *count = count.saturating_sub(1);
        of_model.check_invariants();
        if of_model.waiting.is_empty() {
            self.models.remove(&model);
        }
        Some(taken)
    }

    /// The first that is not barred.
    fn first(
        &self,
        model_barred: impl Fn(ModelIndex, LegCounts) -> bool,
        barred: impl Fn(&QueuedRequest) -> bool,
    ) -> Option<(Order, &QueuedRequest)> {
        let models = self.models.iter().filter(|(model, of)| !model_barred(**model, of.legs));
        let firsts = models.filter_map(|(_, of)| of.waiting.iter().find(|(_, one)| !barred(one)));
        firsts.min_by_key(|(order, _)| **order).map(|(order, waiting)| (*order, waiting))
    }
}

impl Flows {
    /// Puts a request into its row.
    pub(super) fn push(&mut self, key: FlowKey, order: Order, waiting: QueuedRequest) {
        debug_assert!(self.ready.len() <= self.rows.len(), "more rows wait than there are");
        // Idle rows stay for a while: a tenant that comes back at once must not start anew, before
        // who has had less.
        if self.rows.len().saturating_sub(self.ready.len()) >= IDLE_FLOWS_MAX {
            self.rows.retain(|_, row| !row.models.is_empty());
        }
        let clock = self.clock;
        let row = self.rows.entry(key.tenant).or_default();
        if row.models.is_empty() {
            // Not from its old tag: time in which a tenant asked for nothing earns it nothing.
            row.tag = row.tag.max(clock);
            let is_new = self.ready.insert(TurnPosition { tag: row.tag, tenant: key.tenant });
            debug_assert!(is_new, "an empty row was ready");
        }
        row.put(key.model, order, waiting);
    }

    /// The request that is served next, from `from` on, of those that are not barred.
    /// `model_barred` bars all of a tenant that want one model, so that none of them is looked at.
    pub(super) fn next(
        &self,
        from: TurnPosition,
        model_barred: impl Fn(ModelIndex, LegCounts) -> bool,
        barred: impl Fn(&QueuedRequest) -> bool,
    ) -> Option<(TurnPosition, Order, &QueuedRequest)> {
        self.ready.range(from..).find_map(|place| {
            let row = self.rows.get(&place.tenant)?;
            let (order, waiting) = row.first(&model_barred, &barred)?;
            Some((*place, order, waiting))
        })
    }

    /// The request that stands there.
    pub(super) fn get(&self, key: FlowKey, order: Order) -> Option<&QueuedRequest> {
        self.rows.get(&key.tenant)?.models.get(&key.model)?.waiting.get(&order)
    }

    /// Takes a request out because it is served: its row has had its turn.
    pub(super) fn serve(&mut self, key: FlowKey, order: Order) -> Option<QueuedRequest> {
        let row = self.rows.get_mut(&key.tenant)?;
        let served = row.take(key.model, order)?;
        let before = row.tag;
        self.clock = self.clock.max(before);
        // By what it costs, not by requests: a tenant with long prompts would get more.
        let cost = served.cost_tokens().saturating_mul(TAGS_PER_TOKEN);
        row.tag = before.saturating_add(cost / u64::from(served.weight().max(1)));
        let was_ready = self.ready.remove(&TurnPosition { tag: before, tenant: key.tenant });
        debug_assert!(was_ready, "a row was served that was not ready");
        if !row.models.is_empty() {
            self.ready.insert(TurnPosition { tag: row.tag, tenant: key.tenant });
        }
        self.forget_if_behind(key.tenant);
        Some(served)
    }

    /// Takes a request out that is not served: it left, waited too long, or moves up.
    pub(super) fn remove(&mut self, key: FlowKey, order: Order) -> Option<QueuedRequest> {
        let row = self.rows.get_mut(&key.tenant)?;
        let removed = row.take(key.model, order)?;
        if row.models.is_empty() {
            let was_ready = self.ready.remove(&TurnPosition { tag: row.tag, tenant: key.tenant });
            debug_assert!(was_ready, "a row that waited was not ready");
            self.forget_if_behind(key.tenant);
        }
        Some(removed)
    }

    /// How many wait. Costs a look at each row.
    pub(super) fn len(&self) -> usize {
        let of_row = |row: &Row| row.models.values().map(|of| of.waiting.len()).sum::<usize>();
        self.rows.values().map(of_row).sum()
    }

    /// Rows kept, waiting or idle.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// An empty row whose tag the others have passed would start at the clock anyway.
    fn forget_if_behind(&mut self, tenant: u64) {
        let behind = |row: &Row| row.models.is_empty() && row.tag <= self.clock;
        if self.rows.get(&tenant).is_some_and(behind) {
            self.rows.remove(&tenant);
        }
    }
}
