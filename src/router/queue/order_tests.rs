//! Properties of the order within a row, of targets, and of the duration of a turn.

use super::backlog::{Backlog, WaitingSum};
use super::flows::Destination;
use super::line::{Line, PlaceResult, RankPlaces, Rules};
use super::tests::{AFTER, waiter_with};
use super::waiter::prompt_tokens;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_mailbox::Waiter;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Ranks with places; some report possible room and have none.
struct Fleet {
    places: Vec<u32>,
    short: bool,
    /// Some rank has room, and the next examined request goes there.
    has_rest: bool,
    /// Requests that wait for this rank choose the next rank.
    gone: Option<RankIndex>,
    served: Vec<(u32, u64)>,
    place_calls: usize,
    aim_calls: usize,
    open_calls: Cell<usize>,
    held_back: Vec<RankIndex>,
}

impl Fleet {
    fn new(ranks: usize) -> Self {
        Self {
            places: vec![0; ranks],
            short: false,
            has_rest: false,
            gone: None,
            served: Vec::new(),
            place_calls: 0,
            aim_calls: 0,
            open_calls: Cell::new(0),
            held_back: Vec::new(),
        }
    }

    fn aimed(&self, target: Option<RankIndex>) -> Option<RankIndex> {
        let next = |rank: RankIndex| RankIndex(rank.0 + u16::from(self.gone == Some(rank)));
        target.map(next)
    }

    fn has_place(&self, rank: RankIndex) -> bool {
        self.places[rank.index()] > 0 && !self.held_back.contains(&rank)
    }

    fn slots(&self) -> Vec<u32> {
        self.served.iter().map(|(slot, _)| *slot).collect()
    }
}

impl RankPlaces for Fleet {
    fn is_open(&self, dest: Destination, _: u64) -> bool {
        self.open_calls.set(self.open_calls.get() + 1);
        self.short || self.has_place(dest.target.unwrap())
    }

    fn aim(&mut self, _: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        self.aim_calls += 1;
        PlaceResult::Waits(self.aimed(target))
    }

    fn place(&mut self, waiter: &Waiter, target: Option<RankIndex>, _: &Backlog) -> PlaceResult {
        self.place_calls += 1;
        let target = self.aimed(target);
        let free = (0..2).map(RankIndex).find(|rank| self.has_rest && self.has_place(*rank));
        let rank = free.unwrap_or(target.unwrap());
        if !self.has_place(rank) {
            return PlaceResult::Waits(target);
        }
        self.places[rank.index()] -= 1;
        self.served.push((waiter.ticket.slot, prompt_tokens(waiter)));
        PlaceResult::Bound
    }

    fn to_hold_back(&mut self, _: &Waiter) -> Option<RankIndex> {
        None
    }

    fn has_any_room(&self) -> bool {
        self.has_rest
    }

    fn hold_back(&mut self, rank: RankIndex) {
        self.held_back.push(rank);
    }
}

fn turn(line: &mut Line, fleet: &mut Fleet, overtaken_max: u32) {
    let now = NanosSinceStart(0);
    let ranks = fleet.places.len();
    fleet.held_back.clear();
    line.serve(Rules { now, promote_after: Duration::ZERO, overtaken_max, ranks }, fleet);
}

fn join(line: &mut Line, slot: u32, tokens: u64, rank: u16) {
    line.push(Box::new(waiter_with(slot, |waiter| {
        waiter.facts.arrived_at = NanosSinceStart(u64::from(slot));
        waiter.prompt.bytes = 4 * tokens;
        waiter.prompt.target = Some(RankIndex(rank));
    })));
}

proptest! {
    /// While a request is the oldest of its tenant, later requests are served `overtaken_max` times
    /// its tokens, plus a request.
    #[test]
    fn a_request_is_overtaken_by_so_many_times_its_tokens(
        overtaken_max in 0..5_u32,
        tokens in prop::collection::vec(1..400_u64, 2..60),
        joins in prop::collection::vec(0..3_usize, 1..60),
    ) {
        let mut line = Line::new(AFTER);
        let mut fleet = Fleet::new(1);
        let mut coming = (0_u32..).zip(&tokens);
        let mut joins = joins.into_iter();
        let mut waits = BTreeSet::new();
        let mut given = 0;
        let mut oldest = None;
        let mut all = 0;
        loop {
            let many = joins.next().unwrap_or(usize::MAX).min(tokens.len());
            for (slot, &tokens) in coming.by_ref().take(many) {
                join(&mut line, slot, tokens, 0);
                waits.insert(slot);
            }
            if waits.is_empty() && all == tokens.len() {
                break;
            }
            if oldest != waits.first().copied() {
                oldest = waits.first().copied();
                given = 0;
            }
            fleet.places[0] = 1;
            turn(&mut line, &mut fleet, overtaken_max);
            for (slot, tokens_given) in fleet.served.drain(..) {
                prop_assert!(waits.remove(&slot), "once");
                all += 1;
                given += tokens_given;
                if let Some(of) = oldest.filter(|of| *of != slot) {
                    let most = u64::from(overtaken_max) * tokens[of as usize] + tokens_given;
                    prop_assert!(given <= most, "{of} let {given} go before it, of {most}");
                    prop_assert!(overtaken_max > 0, "in the order of arrival");
                }
            }
        }
        prop_assert!(line.is_empty());
    }

    /// Requests go by tokens, then by arrival, whatever their target; a request without room blocks
    /// no request behind it.
    #[test]
    fn the_first_that_fit_go_in_order(
        asks in prop::collection::vec((1..5_u64, 0..4_u16), 1..40),
        places in [0..6_u32, 0..6, 0..6, 0..6],
    ) {
        let mut line = Line::new(AFTER);
        let mut fleet = Fleet::new(4);
        fleet.places = places.to_vec();
        let ask = |(slot, ask): (u32, &(u64, u16))| (ask.0, slot, ask.1);
        let mut expected: Vec<_> = (0..).zip(&asks).map(ask).collect();
        expected.sort_unstable();
        let mut left = places;
        expected.retain(|(.., rank)| {
            let place = &mut left[usize::from(*rank)];
            place.checked_sub(1).inspect(|less| *place = *less).is_some()
        });
        for (slot, &(tokens, rank)) in (0..).zip(&asks) {
            join(&mut line, slot, tokens, rank);
        }
        turn(&mut line, &mut fleet, u32::MAX);
        let expected: Vec<u32> = expected.into_iter().map(|(_, slot, _)| slot).collect();
        prop_assert_eq!(fleet.slots(), expected);
    }
}

#[test]
fn an_overdue_request_has_its_target_held_back_and_other_requests_go_on() {
    let mut line = Line::new(AFTER);
    let mut fleet = Fleet::new(2);
    join(&mut line, 0, 100, 0);
    (1..=3).for_each(|slot| join(&mut line, slot, 100, 1));
    fleet.places[1] = 1;
    turn(&mut line, &mut fleet, 2);
    assert_eq!((fleet.slots(), fleet.held_back.len()), (vec![1], 0));
    // At 200 tokens, twice its own, not even a small request of its rank may pass any more. Other
    // ranks go on.
    join(&mut line, 4, 1, 0);
    fleet.places[1] = 1;
    turn(&mut line, &mut fleet, 2);
    assert_eq!((fleet.slots(), &fleet.held_back[..]), (vec![1, 2], &[RankIndex(0)][..]));
    fleet.places[1] = 1;
    turn(&mut line, &mut fleet, 2);
    assert_eq!((fleet.slots(), &fleet.held_back[..]), (vec![1, 2, 3], &[RankIndex(0)][..]));
    fleet.places[0] = 1;
    turn(&mut line, &mut fleet, 2);
    assert_eq!(fleet.slots(), [1, 2, 3, 0], "not the small one");
}

/// Room at ranks that are no request's target goes to the first requests that choose it now.
#[test]
fn room_that_is_left_goes_to_the_first_that_choose_it() {
    let mut line = Line::new(AFTER);
    let mut fleet = Fleet::new(2);
    fleet.has_rest = true;
    fleet.places[1] = 3;
    (0..20).for_each(|slot| join(&mut line, slot, u64::from(100 - slot), 0));
    turn(&mut line, &mut fleet, 1_000);
    assert_eq!(fleet.slots(), [19, 18, 17]);
    fleet.has_rest = false;
    fleet.places[1] = 1;
    turn(&mut line, &mut fleet, 1_000);
    assert_eq!(fleet.served.len(), 3, "without room that is left none is looked at");
}

/// A cut turn that found no room at some ranks leaves the next turn to the other ranks.
#[test]
fn a_rank_with_room_is_found_behind_ranks_that_are_short() {
    for ranks in [4_u16, 8, 64] {
        let mut line = Line::new(AFTER);
        let mut fleet = Fleet::new(usize::from(ranks));
        fleet.short = true;
        for slot in 0..u32::from(ranks) * 16 {
            let rank = u16::try_from(slot).unwrap() % ranks;
            // Requests for the last rank have a token more.
            join(&mut line, slot, 10 + u64::from(rank + 1 == ranks), rank);
        }
        let mut turns = 0;
        while fleet.served.is_empty() {
            fleet.places[usize::from(ranks) - 1] = 1;
            turn(&mut line, &mut fleet, 16);
            turns += 1;
            assert!(turns <= ranks.div_ceil(4), "{ranks} ranks");
        }
    }
}

#[test]
fn requests_leave_a_target_that_is_gone() {
    let mut line = Line::new(AFTER);
    let mut fleet = Fleet::new(3);
    (0..40).for_each(|slot| join(&mut line, slot, 10, 0));
    fleet.gone = Some(RankIndex(0));
    for turns in 1..=5 {
        turn(&mut line, &mut fleet, 9);
        let moved = (0..40)
            .filter(|&slot| line.target(super::tests::ticket(slot)) == Some(Some(RankIndex(1))));
        assert_eq!(moved.count(), 8 * turns, "those that were looked at longest ago");
    }
    assert_eq!(line.backlog().all(RankIndex(0)), WaitingSum::default());
    assert_eq!(line.backlog().all(RankIndex(1)).tokens, 400);
    fleet.places[1] = 40;
    turn(&mut line, &mut fleet, 9);
    assert!(line.is_empty() && fleet.served.len() == 40);
}

#[test]
fn what_waits_before_a_request_is_what_is_smaller_and_half_of_its_size() {
    let mut backlog = Backlog::default();
    let rank = RankIndex(3);
    let of = |tokens| WaitingSum { requests: 1, tokens, held_tokens: 2 * tokens };
    for tokens in [10, 100, 1_000, 1_010, 9_000] {
        backlog.add(rank, of(tokens));
    }
    let before = |backlog: &Backlog, tokens, waits_there| {
        let WaitingSum { requests, tokens, held_tokens } =
            backlog.before(rank, of(tokens), waits_there);
        (requests, tokens, held_tokens)
    };
    assert_eq!(before(&backlog, 1_005, false), (3, 1_115, 2_230));
    assert_eq!(before(&backlog, 1_000, true), (2, 615, 1_230), "not itself");
    assert_eq!(before(&backlog, 10, true), (0, 0, 0));
    backlog.sub(rank, of(10));
    assert_eq!(before(&backlog, 5_000, false), (3, 2_110, 4_220));
    for tokens in [100, 1_000, 1_010, 9_000] {
        backlog.sub(rank, of(tokens));
    }
    assert_eq!(backlog.all(rank), WaitingSum::default());
}

/// A turn stays short with a full queue, on few ranks and on many, of one tenant and of many.
/// `cargo test -p forebay-router --release -- --nocapture a_turn_is_short` prints the figures; the
/// bound of time is for a debug build on a busy machine: the quickest of a few tries counts.
#[test]
fn a_turn_is_short() {
    const WAITERS: u32 = 4_096;
    const TURNS: u32 = 20;
    for (ranks, tenants, short) in [
        (8, 1, false),
        (8, 500, false),
        (1_000, 1, false),
        (1_000, 500, false),
        (8, 1, true),
        (8, 500, true),
        (1_000, 1, true),
        (1_000, 500, true),
    ] {
        let mut line = Line::new(AFTER);
        let mut fleet = Fleet::new(ranks);
        fleet.short = short;
        let of_ranks = u32::try_from(ranks).unwrap();
        let mut dests = BTreeSet::new();
        for slot in 0..WAITERS {
            let rank = u16::try_from(slot.wrapping_mul(2_654_435_761) % of_ranks).unwrap();
            let tenant = u64::from(slot % tenants);
            dests.insert((rank, tenant));
            line.push(Box::new(waiter_with(slot, |waiter| {
                waiter.facts.caller.tenant = tenant;
                waiter.facts.model = ModelIndex(0);
                waiter.prompt.bytes = u64::from(slot % 997) * 40;
                waiter.prompt.target = Some(RankIndex(rank));
            })));
        }
        let mut quickest = Duration::MAX;
        for event in 0..TURNS {
            let at = (event * 389 % of_ranks) as usize;
            fleet.places[at] = u32::from(!short);
            fleet.place_calls = 0;
            fleet.aim_calls = 0;
            fleet.open_calls.set(0);
            fleet.served.clear();
            #[expect(clippy::disallowed_methods, reason = "a measurement")]
            let begun = Instant::now();
            turn(&mut line, &mut fleet, 16);
            quickest = quickest.min(begun.elapsed());
            // To examine a request, a line compares all ranks.
            let misses = fleet.place_calls - fleet.served.len();
            let most = if ranks == 8 { 32 } else { 8 };
            assert!(misses <= most && fleet.served.len() <= 1 && fleet.aim_calls <= 8);
            // Each scan visits each destination once, at most.
            let opens = fleet.open_calls.get();
            assert!(opens <= (fleet.place_calls + 1) * dests.len(), "{opens}");
        }
        println!(
            "{ranks} ranks, {tenants} tenants, short {short}: {quickest:?}, {} tests of room",
            fleet.open_calls.get()
        );
        assert!(quickest < Duration::from_millis(100), "{ranks} ranks: {quickest:?}");
    }
}
