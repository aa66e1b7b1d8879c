//! Properties of one line over random schedules, held against a naive model where there is one.

use super::bounds::bounds;
use super::flows::{CLASSES, FlowKey, Flows, Order, TurnPosition};
use super::line::{Line, Placed, Rules};
use super::waiter::QueuedRequest;
use super::waiter::prompt_tokens;
use forebay_base::limits::IDLE_FLOWS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex, ShardIndex};
use forebay_config::{Config, FlowConfig, QUEUE_CLASSES, QueueMode};
use forebay_fleet::mailbox::{Caller, RequestFacts, Ticket, Waiter, WaitingPrompt};
use forebay_fleet::worker::test_support::three_ranks;
use forebay_fleet::worker::{FleetSnapshot, Leg, LoadBoard, QueueLimits, QueueWanted, pools};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

pub(super) const AFTER: Duration = Duration::from_nanos(100);
const NEVER: NanosSinceStart = NanosSinceStart(u64::MAX);

fn ticket(slot: u32) -> Ticket {
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
        prompt: WaitingPrompt { bytes: 400, bytes_per_token: 4.0, holdings: Vec::new() },
        movable: true,
    }
}

/// The usual one, but for what `change` changes.
pub(super) fn waiter_with(slot: u32, change: impl FnOnce(&mut Waiter)) -> Waiter {
    let mut waiter = waiter(slot);
    change(&mut waiter);
    waiter
}

fn cost(waiter: &Waiter) -> u64 {
    (prompt_tokens(waiter) + u64::from(waiter.facts.output_tokens)).max(1)
}

fn rules(now: u64, promote_after: Duration) -> Rules<'static> {
    let now = NanosSinceStart(now);
    Rules { fleet: &PARTS, now, promote_after, overtaken_max: 0 }
}

/// Serves until nothing more can be placed; the tickets in order.
fn serve(line: &mut Line, now: u64, mut room: impl FnMut(&Waiter) -> bool) -> Vec<u32> {
    let mut served = Vec::new();
    line.serve(rules(now, AFTER), |waiter, _| {
        if !room(waiter) {
            return Placed::NoRoom;
        }
        served.push(waiter.ticket.slot);
        Placed::Yes
    });
    served
}

/// Serves at most `count`.
pub(super) fn serve_some(line: &mut Line, now: u64, count: usize) -> Vec<u32> {
    let mut left = count;
    let room = |_: &Waiter| left.checked_sub(1).inspect(|&less| left = less).is_some();
    serve(line, now, room)
}

/// The same rules, word for word and slowly.
#[derive(Default)]
struct Naive {
    standing: Vec<Naively>,
    /// Tag and group, by tenant.
    rows: BTreeMap<u64, (u64, usize)>,
    clocks: [u64; CLASSES],
    next_number: u64,
}

struct Naively {
    waiter: Waiter,
    number: u64,
    risen: usize,
}

impl Naively {
    fn asked(&self) -> usize {
        usize::from(self.waiter.facts.caller.class.min(QUEUE_CLASSES - 1))
    }

    fn tenant(&self) -> u64 {
        self.waiter.facts.caller.tenant
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
        let risen = usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1));
        self.standing.push(Naively { waiter, number: self.next_number, risen });
        self.next_number += 1;
        self.regroup(tenant);
    }

    /// A row stands with the best class that it asks for, as far ahead of the clock as before.
    fn regroup(&mut self, tenant: u64) {
        let of = self.standing.iter().filter(|one| one.tenant() == tenant);
        if let Some(best) = of.map(Naively::asked).min() {
            let (tag, group) = self.rows[&tenant];
            let tag =
                i128::from(self.clocks[best]) + i128::from(tag) - i128::from(self.clocks[group]);
            self.rows.insert(tenant, (u64::try_from(tag.max(0)).unwrap(), best));
        }
    }

    fn remove(&mut self, slot: u32) -> bool {
        let index = self.standing.iter().position(|one| one.waiter.ticket.slot == slot);
        let Some(index) = index else { return false };
        let tenant = self.standing.remove(index).tenant();
        self.regroup(tenant);
        true
    }

    fn promote(&mut self, now: u64) {
        for one in &mut self.standing {
            let waited = now.saturating_sub(one.waiter.facts.arrived_at.0);
            let steps = waited / u64::try_from(AFTER.as_nanos()).unwrap();
            one.risen = one.asked().saturating_sub(usize::try_from(steps).unwrap());
        }
    }

    fn levels(&self) -> [usize; CLASSES] {
        std::array::from_fn(|class| {
            let at_least = self.standing.iter().filter(|one| one.asked() >= class);
            at_least.map(|one| one.risen).min().unwrap_or(CLASSES)
        })
    }

    fn serve(&mut self, now: u64, mut room: impl FnMut(&Waiter) -> bool) -> Vec<u32> {
        self.promote(now);
        let (mut served, mut barred) = (Vec::new(), Vec::<Waiter>::new());
        let levels = self.levels();
        for level in 0..CLASSES {
            loop {
                let free = |one: &&Naively| {
                    let barred = barred.iter().any(|before| {
                        (before.facts.model, before.leg) == (one.waiter.facts.model, one.waiter.leg)
                            && before.facts.tried.iter().all(|t| one.waiter.facts.tried.contains(t))
                            && leads_as_far(before.near, one.waiter.near)
                    });
                    levels[one.asked()] <= level && levels.contains(&level) && !barred
                };
                let place = |one: &&Naively| {
                    let (tag, group) = self.rows[&one.tenant()];
                    let ahead = i128::from(tag) - i128::from(self.clocks[group]);
                    (ahead, one.tenant(), one.risen, one.waiter.facts.arrived_at, one.number)
                };
                let next = self.standing.iter().filter(free).min_by_key(place);
                let Some(waiter) = next.map(|one| one.waiter.clone()) else { break };
                if waiter.facts.deadline.0 <= now {
                    self.remove(waiter.ticket.slot);
                } else if room(&waiter) {
                    let row = self.rows.get_mut(&waiter.facts.caller.tenant).unwrap();
                    let ahead = row.0.saturating_sub(self.clocks[row.1]);
                    row.0 += cost(&waiter) * 1_000 / u64::from(waiter.facts.caller.weight.max(1));
                    for (clock, _) in
                        self.clocks.iter_mut().zip(levels).filter(|(_, of)| *of <= level)
                    {
                        *clock += ahead;
                    }
                    served.push(waiter.ticket.slot);
                    self.remove(waiter.ticket.slot);
                } else {
                    barred.push(waiter);
                }
            }
        }
        served
    }
}

/// Ranks 0 and 1 have labels of their own, rank 2 has none.
static PARTS: LazyLock<FleetSnapshot> = LazyLock::new(|| {
    let mut fleet = three_ranks();
    for (rank, label) in fleet.ranks.iter_mut().zip([Some("x"), Some("y"), None]) {
        rank.topology = label.map(Into::into);
    }
    fleet
});

fn leads_as_far(before: Option<RankIndex>, near: Option<RankIndex>) -> bool {
    matches!(before, None | Some(RankIndex(2))) || before == near
}

/// Free places by rank; models 0 and 1 share ranks 1 and 2. Decode legs have the first two of four,
/// prefill legs of rank 0 the first, of rank 1 the second, of rank 2 both.
#[derive(Clone)]
struct Places([u8; 4]);

impl Places {
    fn take(&mut self, waiter: &Waiter) -> bool {
        let ranks = if waiter.facts.model == ModelIndex(0) { 0..3 } else { 1..4_u16 };
        let open = |rank: &u16| {
            let is_near = match (waiter.leg, waiter.near) {
                (Leg::Whole, _) => true,
                (Leg::Decode, _) => *rank < 2,
                (_, near) => near == Some(RankIndex(*rank)) || near == Some(RankIndex(2)),
            };
            is_near
                && self.0[usize::from(*rank)] > 0
                && !waiter.facts.tried.contains(&RankIndex(*rank))
        };
        let Some(rank) = ranks.into_iter().find(open) else { return false };
        self.0[usize::from(rank)] -= 1;
        true
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join {
        class: u8,
        tenant: u64,
        model: u16,
        bytes: u64,
        tried: u8,
        late: u64,
        patience: Option<u64>,
        leg: u8,
    },
    Leave(usize),
    Serve([u8; 4]),
    Pass(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let join = (
        0..6_u8,
        0..3_u64,
        0..2_u16,
        0..2_000_u64,
        0..8_u8,
        0..50_u64,
        prop::option::of(1..200_u64),
        0..8_u8,
    );
    let join =
        join.prop_map(|(class, tenant, model, bytes, tried, late, patience, leg)| Op::Join {
            class,
            tenant,
            model,
            bytes,
            tried: tried.saturating_sub(4),
            late,
            patience,
            leg,
        });
    prop_oneof![
        6 => join,
        1 => (0..20_usize).prop_map(Op::Leave),
        3 => [0..3_u8, 0..2, 0..2, 0..3].prop_map(Op::Serve),
        3 => (0..90_u64).prop_map(Op::Pass),
    ]
}

fn joining(op: &Op, slot: u32, now: u64) -> Option<Waiter> {
    let &Op::Join { class, tenant, model, bytes, tried, late, patience, leg } = op else {
        return None;
    };
    let (leg, near) = match leg {
        0..3 => (Leg::Whole, None),
        3..5 => (Leg::Decode, None),
        near => (Leg::Prefill, Some(RankIndex(u16::from(near - 5)))),
    };
    let tried = (0..2_u16).filter(|rank| tried >> rank & 1 == 1).map(RankIndex).collect();
    Some(waiter_with(slot, |waiter| {
        waiter.facts.caller.class = class;
        waiter.facts.caller.tenant = tenant;
        waiter.facts.model = ModelIndex(model);
        waiter.prompt.bytes = bytes;
        waiter.facts.caller.weight = [1, 3, 0][usize::try_from(tenant).unwrap()];
        waiter.facts.arrived_at = NanosSinceStart(now.saturating_sub(late));
        waiter.joined_at = NanosSinceStart(now);
        waiter.facts.deadline = patience.map_or(NEVER, |patience| NanosSinceStart(now + patience));
        waiter.movable = tenant != 1;
        waiter.leg = leg;
        waiter.near = near;
        waiter.facts.tried = tried;
    }))
}

proptest! {
    #[test]
    fn a_line_serves_as_its_rules_say(ops in prop::collection::vec(any_op(), 1..120)) {
        let (mut line, mut naive) = (Line::new(AFTER), Naive::default());
        let (mut now, mut slot) = (1_000_u64, 0);
        for op in ops {
            match &op {
                Op::Join { .. } => {
                    let waiter = joining(&op, slot, now).unwrap();
                    slot += 1;
                    naive.push(waiter.clone());
                    line.push(Box::new(waiter));
                }
                Op::Leave(index) => {
                    let who =
                        naive.standing.get(*index).map_or(u32::MAX, |one| one.waiter.ticket.slot);
                    let removed = line.remove(ticket(who));
                    prop_assert_eq!(
                        removed.map(|waiter| waiter.ticket.slot),
                        naive.remove(who).then_some(who)
                    );
                    prop_assert!(line.remove(ticket(who)).is_none(), "once");
                }
                Op::Serve(places) => {
                    let (mut here, mut there) = (Places(*places), Places(*places));
                    let served = serve(&mut line, now, |waiter| here.take(waiter));
                    prop_assert_eq!(served, naive.serve(now, |waiter| there.take(waiter)));
                    prop_assert!(line.promote_at().0 > now, "the next look is in the future");
                }
                Op::Pass(time) => now += time,
            }
            prop_assert_eq!(line.len(), naive.standing.len());
            let movable = naive.standing.iter().filter(|one| one.waiter.movable);
            let oldest = movable.map(|one| one.waiter.joined_at).min();
            prop_assert_eq!(line.oldest_movable(), oldest);
        }
        // Everybody who is left leaves with the room, and only once.
        let left = line.len();
        let all = serve(&mut line, now, |waiter| waiter.facts.deadline.0 > now);
        prop_assert!(all.len() <= left && line.is_empty());
    }

    /// Two tenants that always have something waiting get tokens as their weights say, up to one
    /// request of each.
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
            let (a, b) =
                (got[0] * 1_000 / u64::from(weights.0), got[1] * 1_000 / u64::from(weights.1));
            let one_each = 1_000_000 / u64::from(weights.0) + 1_000_000 / u64::from(weights.1);
            prop_assert!(a.abs_diff(b) <= one_each + 2, "{got:?} by {weights:?}");
        }
    }

    /// One who has a single request waiting, now and then none, against one who always waits: it
    /// saves nothing up.
    #[test]
    fn who_comes_and_goes_gains_nothing(present in prop::collection::vec(any::<bool>(), 50..150)) {
        let mut line = Line::new(AFTER);
        for slot in 0..400 {
            line.push(Box::new(waiter(slot)));
        }
        let (mut slot, mut waits) = (1_000, false);
        let (mut steady, mut visits) = (0_usize, 0_usize);
        let mut since = (0, 0);
        for comes in present {
            if comes && !waits {
                line.push(Box::new(waiter_with(slot, |waiter| {
                    waiter.facts.caller.tenant = 1;
                })));
                (slot, waits) = (slot + 1, true);
                // What it gets from here on is measured from here on: the time before earns
                // nothing.
                since = (steady, visits);
            }
            for served in serve_some(&mut line, 0, 1) {
                if served >= 1_000 {
                    (visits, waits) = (visits + 1, false);
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
fn a_flood_of_the_best_class_starves_nobody() {
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

#[test]
fn a_new_pace_counts_for_those_who_wait() {
    let mut line = Line::new(Duration::ZERO);
    line.push(Box::new(waiter_with(0, |waiter| {
        waiter.facts.caller.class = 3;
    })));
    assert_eq!(line.promote_at(), NEVER);
    line.serve(rules(10, AFTER), |_, _| Placed::NoRoom);
    assert_eq!(line.promote_at(), NanosSinceStart(100));
    line.serve(rules(250, Duration::ZERO), |_, _| Placed::NoRoom);
    assert_eq!(line.promote_at(), NEVER, "nobody rises any more, and nobody looks for it");
    line.serve(rules(250, AFTER), |_, _| Placed::NoRoom);
    assert_eq!(line.promote_at(), NanosSinceStart(300), "all that was missed at once");
}

#[test]
fn only_who_may_move_is_found_stale_and_all_at_once() {
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
fn one_that_failed_somewhere_bars_only_those_who_could_go_where_it_can() {
    let mut line = Line::new(AFTER);
    let tried = |slot: u32, tried: &[u16]| {
        let tried = tried.iter().copied().map(RankIndex).collect();
        Box::new(waiter_with(slot, |waiter| {
            waiter.facts.tried = tried;
            waiter.facts.arrived_at = NanosSinceStart(u64::from(slot));
        }))
    };
    line.push(tried(0, &[7]));
    line.push(tried(1, &[7, 8]));
    line.push(tried(2, &[]));
    let mut asked = Vec::new();
    line.serve(rules(5, AFTER), |waiter, _| {
        asked.push(waiter.ticket.slot);
        if waiter.facts.tried.is_empty() { Placed::Yes } else { Placed::NoRoom }
    });
    assert_eq!(asked, [0, 2], "where 0 finds no room 1 need not look; 2 has rank 7");
    assert_eq!(line.len(), 2);
}

#[test]
fn legs_bar_those_who_could_only_go_where_they_can() {
    let mut line = Line::new(AFTER);
    let ask = |slot: u32, leg: Leg, near: Option<u16>| {
        let near = near.map(RankIndex);
        Box::new(waiter_with(slot, |waiter| {
            waiter.leg = leg;
            waiter.near = near;
            waiter.facts.arrived_at = NanosSinceStart(slot.into());
        }))
    };
    let all = [
        (Leg::Whole, None),
        (Leg::Decode, None),
        (Leg::Whole, None),
        (Leg::Decode, None),
        (Leg::Prefill, Some(0)),
        (Leg::Prefill, Some(0)),
        (Leg::Prefill, Some(1)),
        (Leg::Prefill, Some(2)),
        (Leg::Prefill, Some(1)),
        (Leg::Prefill, Some(2)),
    ];
    for (slot, (leg, near)) in (0..).zip(all) {
        line.push(ask(slot, leg, near));
    }
    let mut asked = Vec::new();
    line.serve(rules(50, Duration::ZERO), |waiter, _| {
        asked.push(waiter.ticket.slot);
        Placed::NoRoom
    });
    assert_eq!(asked, [0, 1, 4, 6, 7], "one of each kind; rank 2 has no label, all are near it");
    asked.clear();
    for slot in [4, 5, 6] {
        line.remove(ticket(slot));
    }
    line.serve(rules(50, Duration::ZERO), |waiter, _| {
        asked.push(waiter.ticket.slot);
        Placed::NoRoom
    });
    assert_eq!(asked, [0, 1, 7], "who finds nothing anywhere bars those who look in one part");
}

#[test]
fn a_rank_that_its_request_has_lost_is_kept_no_longer() {
    let mut line = Line::new(AFTER);
    line.push(Box::new(waiter(0)));
    line.serve(rules(0, AFTER), |_, _| Placed::Short(RankIndex(3)));
    assert_eq!(line.kept(), [(ticket(0), RankIndex(3))]);
    line.serve(rules(0, AFTER), |_, _| Placed::NoRoom);
    assert!(line.kept().is_empty());
}

#[test]
fn tokens_that_wait_in_the_other_queues_of_a_pool_count() {
    let mut flow = FlowConfig { kv_demand_percent: 100, ..FlowConfig::default() };
    flow.queue.mode = QueueMode::Endpoint;
    let mut fleet =
        FleetSnapshot { config: Arc::new(Config { flow, ..Config::default() }), ..three_ranks() };
    pools::assign(&mut fleet);
    let board = LoadBoard::new();
    let wanted = QueueWanted { bytes: 1, tokens: 300, ..QueueWanted::default() };
    board.queue(QueueIndex(1)).unwrap().join(QueueLimits::NONE, wanted).unwrap();
    let tokens_max = |queue| bounds(&fleet, &board, PoolIndex(0), QueueIndex(queue)).tokens_max;
    assert_eq!(tokens_max(1) - tokens_max(0), 300);
}

#[test]
fn tenants_that_come_once_are_forgotten() {
    let mut line = Line::new(AFTER);
    // One that always waits, far ahead in tags, so that the others' rows are not behind the clock
    // when they end.
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

/// A turn stays short with a full queue of many tenants.
/// `cargo test -p forebay-router --release -- --nocapture a_turn_is_short` prints the figures; the
/// bound is for a debug build on a busy machine. The quickest of a few tries counts: neighbors only
/// make a try slower.
#[test]
fn a_turn_is_short() {
    const WAITERS: u32 = 1_024;
    const TRIES: usize = 5;
    let fill = |line: &mut Line| {
        for slot in 0..WAITERS {
            let model = ModelIndex(u16::from(slot % 500 >= 250));
            line.push(Box::new(waiter_with(slot, |waiter| {
                waiter.facts.caller.tenant = u64::from(slot % 500);
                waiter.facts.model = model;
            })));
        }
    };
    let time = |what: &str, room: fn(&Waiter, &mut u32) -> bool| {
        let mut line = Line::new(AFTER);
        fill(&mut line);
        #[expect(clippy::disallowed_methods, reason = "a measurement")]
        let begun = Instant::now();
        let mut turns = 0;
        while line.len() > 500 && turns < 500 {
            let mut left = 1;
            serve(&mut line, 0, |waiter| room(waiter, &mut left));
            turns += 1;
        }
        let each = begun.elapsed() / turns;
        println!("{what}: {each:?} a turn, {} left", line.len());
        each
    };
    let timed = |what: &str, room: fn(&Waiter, &mut u32) -> bool| {
        let is_short = (0..TRIES).any(|_| time(what, room) < Duration::from_millis(2));
        assert!(is_short, "{what}: each of {TRIES} tries was longer");
    };
    let one =
        |_: &Waiter, left: &mut u32| left.checked_sub(1).inspect(|&less| *left = less).is_some();
    timed("one place", one);
    timed("one place, the other model barred", |waiter, left| {
        waiter.facts.model == ModelIndex(1)
            && left.checked_sub(1).inspect(|&less| *left = less).is_some()
    });
    timed("no place", |_, _| false);
    let mut line = Line::new(AFTER);
    fill(&mut line);
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let begun = Instant::now();
    assert_eq!(serve(&mut line, 0, |_| true).len(), 1_024);
    println!("all at once: {:?} a grant", begun.elapsed() / WAITERS);
}

/// A row whose requests are free is served in place: its tag does not change by a weight larger
/// than the request.
#[test]
fn the_cursor_finds_a_row_that_did_not_move() {
    let mut flows = Flows::default();
    let order = |number| Order { arrived_at: NanosSinceStart(0), number };
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
    let turn = flows.turn(1, &flows.levels());
    let first = flows.next(&turn, TurnPosition::START, |_, _| false, |_| false).unwrap();
    let (at, key, order) = (first.at, first.key, first.order);
    assert!(flows.serve(&turn, key, order).is_some());
    assert!(flows.next(&turn, at, |_, _| false, |_| false).is_some());
    assert_eq!(serve_some(&mut line, 0, 9), [0, 1, 2]);
}

/// One place gets free at a time, on either of two ranks, and each request wants one of them.
fn serve_wishes(overtaken_max: u32, wishes: &[usize], free: &[usize]) -> Vec<u32> {
    let mut line = Line::new(AFTER);
    for (slot, _) in (0..).zip(wishes) {
        line.push(Box::new(waiter_with(slot, |waiter| {
            waiter.facts.arrived_at = NanosSinceStart(u64::from(slot));
        })));
    }
    let mut served = Vec::new();
    for &rank in free {
        let mut left = 1;
        line.serve(Rules { overtaken_max, ..rules(50, Duration::ZERO) }, |waiter, offer| {
            if left == 0 {
                return Placed::NoRoom;
            }
            if offer.may_decline && wishes[waiter.ticket.slot as usize] != rank {
                return Placed::Declined;
            }
            left -= 1;
            served.push(waiter.ticket.slot);
            Placed::Yes
        });
    }
    served
}

#[test]
fn a_place_goes_to_the_first_who_wants_it_and_to_the_first_of_all_if_nobody_does() {
    let wishes = [0, 0, 1, 0, 1];
    assert_eq!(serve_wishes(0, &wishes, &[1, 1, 1]), [0, 1, 2], "strictly in order");
    assert_eq!(
        serve_wishes(9, &wishes, &[1, 0, 1, 1, 0]),
        [2, 0, 4, 1, 3],
        "1 takes what nobody wants"
    );
    assert_eq!(
        serve_wishes(1, &wishes, &[1, 1, 0]),
        [2, 0, 1],
        "0 has let one go first, and no more"
    );
}

proptest! {
    #[test]
    fn nobody_is_overtaken_more_often_than_it_lets(
        overtaken_max in 0_u32..4,
        wishes in prop::collection::vec(0_usize..3, 1..40),
        free in prop::collection::vec(0_usize..3, 40..60),
    ) {
        let served = serve_wishes(overtaken_max, &wishes, &free);
        let mut all = served.clone();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..u32::try_from(wishes.len()).unwrap()), "each once, no place unused");
        for (turn, slot) in served.iter().enumerate() {
            let overtakers = served[..turn].iter().filter(|other| *other > slot).count();
            prop_assert!(overtakers <= overtaken_max as usize, "{slot} was overtaken {overtakers} times");
        }
    }
}
