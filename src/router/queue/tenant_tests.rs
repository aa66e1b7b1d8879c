//! Properties of turns between tenants: what a tenant waits for, and that no class starves.

use super::line::Line;
use super::tests::{AFTER, serve_some, waiter_with};
use forebay_base::NanosSinceStart;
use proptest::prelude::*;
use std::collections::BTreeMap;

const AFTER_NS: u64 = 100;
const _: () = assert!(AFTER.as_nanos() == AFTER_NS as u128);

/// Requests of tenants, each with its requested class.
struct Tenants {
    line: Line,
    slot: u32,
    of: BTreeMap<u32, u64>,
}

impl Tenants {
    fn new() -> Self {
        Self { line: Line::new(AFTER), slot: 0, of: BTreeMap::new() }
    }

    fn join(&mut self, tenant: u64, class: u8, arrived_at: u64) {
        self.line.push(Box::new(waiter_with(self.slot, |waiter| {
            waiter.facts.caller.tenant = tenant;
            waiter.facts.caller.class = class;
            waiter.facts.arrived_at = NanosSinceStart(arrived_at);
        })));
        self.of.insert(self.slot, tenant);
        self.slot += 1;
    }

    /// Serves a request and returns its tenant.
    fn serve(&mut self, now: u64) -> u64 {
        self.of.remove(&serve_some(&mut self.line, now, 1)[0]).unwrap()
    }

    fn waiting(&self, tenant: u64) -> usize {
        self.of.values().filter(|of| **of == tenant).count()
    }
}

proptest! {
    /// Issue 35: 500 requests of a tenant were promoted by age, and each request of another tenant
    /// waited until its own promotion.
    #[test]
    fn a_backlog_of_the_same_or_a_worse_class_costs_a_turn_of_each_tenant(
        class in 0..4_u8,
        backlogs in prop::collection::vec((1..60_usize, 0..4_u8, 0..2_000_u64), 1..6),
        served_before in 0..40_usize,
        waits in 0..500_u64,
    ) {
        let mut tenants = Tenants::new();
        let now = 5_000;
        for (tenant, &(count, worse, age)) in (1_u64..).zip(&backlogs) {
            let worse = (class + worse).min(3);
            for turn in 0..count as u64 {
                tenants.join(tenant, worse, now - age + turn.min(age));
            }
        }
        let all = tenants.of.len();
        for _ in 0..served_before.min(all - 1) {
            tenants.serve(now);
        }
        let now = now + waits;
        tenants.join(0, class, now);
        let mut before = BTreeMap::<u64, usize>::new();
        loop {
            match tenants.serve(now) {
                0 => break,
                other => *before.entry(other).or_default() += 1,
            }
        }
        prop_assert!(before.values().all(|turns| *turns == 1), "{before:?}");
    }

    /// Whatever classes other tenants request, and however much: after `class` times
    /// `queue.promote_after`, a request waits for a turn of each other tenant.
    #[test]
    fn no_class_starves(
        class in 0..4_u8,
        floods in prop::collection::vec((0..4_u8, 1..20_usize), 1..6),
        arrives in 0..300_u64,
        own in 0..4_usize,
    ) {
        let mut tenants = Tenants::new();
        let mut served_after = 0;
        let mut is_served = false;
        for now in 1_000.. {
            for (tenant, &(better, count)) in (1_u64..).zip(&floods) {
                while tenants.waiting(tenant) < count {
                    tenants.join(tenant, better.min(class), now);
                }
            }
            if now == 1_000 + arrives {
                (0..=own).for_each(|_| tenants.join(0, class, now));
            }
            let is_first = tenants.serve(now) == 0;
            is_served |= is_first && tenants.waiting(0) == 0;
            if is_served {
                break;
            }
            if now >= 1_000 + arrives + u64::from(class) * AFTER_NS {
                served_after += 1;
                prop_assert!(served_after <= (own + 1) * (floods.len() + 1) + 1);
            }
        }
    }
}

/// A tenant that waited for better classes has no credit when it takes turns with them.
#[test]
fn a_group_that_waited_earns_no_credit() {
    let mut tenants = Tenants::new();
    (0..50).for_each(|_| tenants.join(1, 1, 0));
    for now in 0..AFTER_NS {
        tenants.join(2, 0, now);
        assert_eq!(tenants.serve(now), 2, "the better class, as long as nothing has risen");
    }
    let mut turns = [0_u32; 3];
    for _ in 0..60 {
        tenants.join(2, 0, AFTER_NS);
        tenants.join(3, 0, AFTER_NS);
        let tenant = usize::try_from(tenants.serve(AFTER_NS)).unwrap();
        turns[tenant - 1] += 1;
        assert!(turns.iter().max().unwrap() - turns.iter().min().unwrap() <= 2, "{turns:?}");
    }
}

/// Within a tenant, requests go by promoted class.
#[test]
fn age_reorders_classes_within_a_tenant() {
    let mut tenants = Tenants::new();
    tenants.join(1, 2, 0);
    tenants.join(1, 1, 150);
    tenants.join(1, 0, 290);
    let slots = |tenants: &mut Tenants, now| serve_some(&mut tenants.line, now, 1);
    assert_eq!(slots(&mut tenants, 50), [2], "nothing has risen");
    tenants.join(1, 0, 290);
    assert_eq!(slots(&mut tenants, 300), [0], "the oldest has risen twice");
    assert_eq!(slots(&mut tenants, 300), [1], "so has this one, once, and came earlier");
    assert_eq!(slots(&mut tenants, 300), [3]);
}

/// Age does not order requests of the same class: the fewest tokens go first.
#[test]
fn age_alone_orders_nothing_within_a_class() {
    let mut tenants = Tenants::new();
    for (slot, bytes) in [(0, 4_000), (1, 400), (2, 40)] {
        tenants.line.push(Box::new(waiter_with(slot, |waiter| {
            waiter.facts.caller.class = 2;
            waiter.facts.arrived_at = NanosSinceStart(u64::from(slot) * 100);
            waiter.prompt.bytes = bytes;
        })));
    }
    assert_eq!(serve_some(&mut tenants.line, 250, 9), [2, 1, 0]);
}
