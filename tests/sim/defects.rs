//! What queues like these have got wrong elsewhere, each as one case. A fault that seeds find needs
//! no case: `docs/decisions/0071-queue-simulator.md` lists such faults.

use super::plan::MS;
use super::stage::{Ask, Stage, ranks};
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::WindowOrigin;
use forebay_board::account::Lease;
use forebay_config::QueueMode;
use forebay_mailbox::Verdict;
use forebay_prompt::parse::Reason;
use forebay_router::request::Action;
use std::collections::VecDeque;

const RANK: RankIndex = RankIndex(0);

#[test]
fn who_is_sent_on_leaves_room_to_those_behind() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[8], &[&[0]]);
    stage.fleet.ranks[0].room.kv_tokens_max = 1_000;
    let ask = stage.any();
    let _running = stage.bind(&Ask { prompt_bytes: 2_000, ..ask.clone() });
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..ask.clone() });
    stage.pass(5);
    // The large one has its turn: the rank is held back for it.
    stage.flow(|flow| flow.queue.overtaken_max = 0);
    let small = stage.wait(&ask);
    assert!(stage.look().is_empty());
    stage.pass(5);
    assert_eq!(ranks(&stage.look()), [(large.ticket, None)]);
    stage.settle(&large);
    // Nothing else will happen: no room is made, nobody joins.
    assert!(stage.home.has_news(&stage.board));
    assert_eq!(ranks(&stage.look()), [(small.ticket, Some(0))]);
}

#[test]
fn moving_keeps_the_clock_and_ends() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[1, 1], &[&[0, 1]]);
    stage.flow(|flow| {
        flow.queue.promote_after = std::time::Duration::ZERO;
        flow.queue.hops_max = 2;
    });
    let ask = stage.any();
    let leases = [stage.bind(&ask), stage.bind(&ask)];
    let mut old = stage.wait(&ask);
    for _ in 0..2 {
        stage.pass(10);
        assert_eq!(ranks(&stage.look()), [(old.ticket, None)]);
        old = stage.wait_on(old);
        assert_eq!(old.waiter.facts.arrived_at, ask.arrived_at);
    }
    // It has moved as often as it may. A younger one that stands in the same line comes after it.
    stage.flow(|flow| flow.queue.hops_max = 0);
    let younger = stage.any();
    let mut behind = stage.wait(&younger);
    if behind.waiter.queue != old.waiter.queue {
        behind = stage.wait(&younger);
    }
    assert_eq!(behind.waiter.queue, old.waiter.queue);
    stage.pass(10_000);
    assert!(stage.look().is_empty(), "nobody bounces for ever");
    drop(leases);
    let granted = ranks(&stage.look());
    let place = |ticket| granted.iter().position(|(granted, _)| *granted == ticket);
    assert_eq!(place(behind.ticket), None, "one place, one request");
    assert!(place(old.ticket).is_some());
}

#[test]
fn the_one_that_was_looked_at_is_the_one_that_goes() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let small = stage.wait(&Ask { prompt_bytes: 40, ..ask.clone() });
    assert!(stage.look().is_empty());
    // A better one comes after the look and before the place is free.
    let better = stage.wait(&Ask { class: 0, prompt_bytes: 4_000, ..ask });
    drop(lease);
    let granted = stage.look();
    assert_eq!(ranks(&granted), [(better.ticket, Some(0))]);
    assert_eq!(stage.board.rank(RANK).unwrap().kv_tokens(), 1_000, "its own cost");
    drop(granted);
    assert_eq!(ranks(&stage.look()), [(small.ticket, Some(0))]);
}

#[test]
fn a_large_prompt_is_not_passed_by_small_ones_for_ever() {
    // Two models on one rank; its cache is nearly full, and small requests come and go.
    let mut stage = Stage::new(QueueMode::Pool, &[8], &[&[0], &[0]]);
    stage.fleet.ranks[0].room.kv_tokens_max = 1_000;
    let small = Ask { prompt_bytes: 1_600, model: 1, ..stage.any() };
    let running = [stage.bind(&small), stage.bind(&small)];
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    // Smaller ones go before it until they were given its own tokens.
    stage.flow(|flow| flow.queue.overtaken_max = 1);
    let mut running = VecDeque::from(running);
    for _ in 0..3 {
        let before = stage.wait(&small);
        drop(running.pop_front());
        let mut granted = stage.look();
        assert_eq!(ranks(&granted), [(before.ticket, Some(0))]);
        if let Some((_, Verdict::Granted(lease))) = granted.pop() {
            running.push_back(lease);
        }
    }
    let behind = stage.wait(&small);
    drop(running.pop_front());
    assert!(stage.look().is_empty(), "room for the small one, and the large one's turn");
    drop(running);
    let granted = stage.look();
    assert_eq!(ranks(&granted), [(large.ticket, Some(0))]);
    drop(granted);
    assert_eq!(ranks(&stage.look()), [(behind.ticket, Some(0))]);
}

#[test]
fn the_window_closes_with_the_queue() {
    for (depth_max, low_water_percent, still_waiting) in [(4, 50, 2), (4, 0, 0), (1_000, 50, 4)] {
        let mut stage = Stage::new(QueueMode::Pool, &[4], &[&[0]]);
        stage.flow(|flow| {
            flow.queue.depth_max = depth_max;
            flow.rejection.low_water_percent = low_water_percent;
        });
        let ask = stage.any();
        let mut leases: Vec<_> = (0..4).map(|_| stage.bind(&ask)).collect();
        for _ in 0..4 {
            stage.wait(&ask);
        }
        let far = NanosSinceStart(u64::MAX);
        stage.board.windows().open(PoolIndex(0), WindowOrigin::Here, stage.now, far);
        let mut granted = Vec::new();
        let mut left = 4;
        loop {
            granted.extend(stage.look());
            let open = stage.board.windows().open_here_until(PoolIndex(0), stage.now).is_some();
            // Nobody has counted itself out yet: the grants are under way.
            assert_eq!(stage.board.queue(QueueIndex(0)).unwrap().waiting(), 4);
            assert_eq!(open, left > still_waiting, "{left} of {depth_max}");
            if left == 0 {
                break;
            }
            drop(leases.pop());
            left -= 1;
        }
    }
}

#[test]
fn a_window_of_large_bodies_stays_until_bytes_are_low() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    // Bodies of the stage have ten bytes.
    stage.flow(|flow| flow.queue.bytes_max = 35);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    for _ in 0..3 {
        stage.wait(&ask);
    }
    assert_eq!(stage.refused(&ask), Some(Reason::RejectedQueueFull));
    let far = NanosSinceStart(u64::MAX);
    stage.board.windows().open(PoolIndex(0), WindowOrigin::Here, stage.now, far);
    let open =
        |stage: &Stage| stage.board.windows().open_here_until(PoolIndex(0), stage.now).is_some();
    stage.look();
    assert!(open(&stage), "3 of 1,024 requests, but 30 of 35 bytes");
    stage.flow(|flow| flow.queue.bytes_max = 100);
    assert!(!open(&stage), "30 of 100 bytes, before the home has looked");
    drop(lease);
}

/// Ranks whose caches hold 1,000 tokens, and on each two requests of 400.
fn filled(ranks: usize) -> (Stage, Vec<Lease>) {
    let all: Vec<u16> = (0..).take(ranks).collect();
    let mut stage = Stage::new(QueueMode::Pool, &vec![16; ranks], &[&all, &all]);
    for rank in &mut stage.fleet.ranks {
        rank.room.kv_tokens_max = 1_000;
    }
    let ask = Ask { prompt_bytes: 1_600, ..stage.any() };
    let leases = (0..2 * ranks).map(|_| stage.bind(&ask)).collect();
    (stage, leases)
}

/// It is bound at once, or it waits.
fn come(stage: &mut Stage, ask: &Ask) -> Option<Lease> {
    match stage.ask(ask) {
        (_, Action::Send(chosen)) => Some(chosen.lease),
        waits => {
            stage.join(waits);
            None
        }
    }
}

#[test]
fn one_that_needs_much_room_holds_one_rank_back_and_the_others_serve() {
    let (mut stage, mut leases) = filled(8);
    stage.flow(|flow| flow.queue.overtaken_max = 0);
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    assert!(stage.look().is_empty());
    // The rank that is held back is the one that it waits for, where it has to wait least.
    let held_back = |stage: &Stage, target: RankIndex| {
        assert_eq!(stage.home.target(QueueIndex(0), large.ticket), Some(target));
        stage.home.last_turn(QueueIndex(0)).unwrap().held_back == [target]
    };
    // Of its own model and of another: two fit on each of the other ranks.
    let mut bound = Vec::new();
    for number in 0..40 {
        let small = Ask { model: number % 2, ..stage.any() };
        bound.extend(come(&mut stage, &small));
        let granted = stage.look();
        let target = stage.home.target(QueueIndex(0), large.ticket).unwrap();
        assert!(held_back(&stage, target));
        for (ticket, verdict) in granted {
            assert_ne!(ticket, large.ticket);
            let Verdict::Granted(lease) = verdict else { panic!("sent on") };
            assert_ne!(lease.rank(), target);
            bound.push(lease);
        }
    }
    assert!((14..=16).contains(&bound.len()), "{}", bound.len());
    // What ends on its rank is for no other. It goes where it waits least, which may change.
    leases.append(&mut bound);
    for _ in 0..3 {
        let target = stage.home.target(QueueIndex(0), large.ticket).unwrap();
        leases.retain(|lease| lease.rank() != target);
        let granted = ranks(&stage.look());
        if granted.iter().any(|(ticket, _)| *ticket == large.ticket) {
            return;
        }
    }
    panic!("it waits beside empty ranks");
}

#[test]
fn a_request_that_needs_much_room_does_not_starve_under_smaller_ones() {
    let (mut stage, leases) = filled(3);
    stage.flow(|flow| flow.queue.overtaken_max = 2);
    let mut running: VecDeque<Lease> = leases.into();
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    for end in 0..24 {
        // There is always one more than can be served, in either class that its own does not come
        // before.
        let small = Ask { prompt_bytes: 1_600, class: 1 + end % 2, ..stage.any() };
        running.extend(come(&mut stage, &small));
        drop(running.pop_front());
        for (ticket, verdict) in stage.look() {
            if ticket == large.ticket {
                return;
            }
            if let Verdict::Granted(lease) = verdict {
                running.push_back(lease);
            }
        }
    }
    panic!("each of the ranks was empty by now, had no other come");
}

#[test]
fn what_no_cache_could_hold_goes_on_to_its_engine() {
    let (mut stage, leases) = filled(2);
    let far_too_large = Ask { prompt_bytes: 1 << 20, ..stage.any() };
    let passed_on = stage.bind(&far_too_large);
    let load = stage.board.rank(passed_on.rank()).unwrap();
    assert_eq!((load.in_flight(), load.kv_tokens()), (3, 1_000), "what was left, and no more");
    let small = stage.bind(&stage.any());
    assert_ne!(small.rank(), passed_on.rank());
    drop((passed_on, small, leases));
    for rank in 0..2 {
        assert_eq!(stage.board.rank(RankIndex(rank)).unwrap().kv_tokens(), 0);
    }
    // Where one rank has a cache for it, it waits for that one.
    stage.fleet.ranks[1].room.kv_tokens_max = 1 << 20;
    let twice = Ask { prompt_bytes: 3 << 20, ..far_too_large };
    let on_large = stage.bind(&twice);
    assert_eq!(on_large.rank(), RankIndex(1));
    let waits = stage.wait(&twice);
    assert!(stage.look().is_empty(), "the other rank is empty, and no use to it");
    drop(on_large);
    assert_eq!(ranks(&stage.look()), [(waits.ticket, Some(1))]);
}

#[test]
fn who_is_too_late_depends_on_class_tenant_and_line() {
    let is_late = |stage: &mut Stage, class: u8, tenant: u64| {
        let client_deadline = Some(NanosSinceStart(stage.now.0 + 2_000 * MS));
        let ask = Ask { class, tenant, client_deadline, ..stage.any() };
        stage.refused(&ask) == Some(Reason::RejectedDeadline)
    };
    // Ten requests end in a second. The ranks stay full, unless they have `spare` places.
    let ends = |stage: &mut Stage, places: usize, spare: usize| {
        let ask = stage.any();
        let mut leases: VecDeque<_> = (spare..places).map(|_| stage.bind(&ask)).collect();
        for _ in 0..100 {
            stage.pass(100);
            leases.pop_front().unwrap().judge_success();
            leases.push_back(stage.bind(&ask));
            stage.stages.drain_rates.observe(&stage.fleet, &stage.board, stage.now);
        }
        leases
    };
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let leases = ends(&mut stage, 1, 0);
    let ask = stage.any();
    for _ in 0..50 {
        stage.wait(&Ask { class: 2, ..ask.clone() });
    }
    assert!(is_late(&mut stage, 2, 0), "behind 50 of its own, 10 a second");
    assert!(is_late(&mut stage, 3, 9));
    assert!(!is_late(&mut stage, 1, 0), "a better class is next");
    assert!(!is_late(&mut stage, 2, 9), "so is another tenant");
    drop(leases);
    // The same ends of a rank with room show the demand: a burst after them is late for nothing.
    let mut stage = Stage::new(QueueMode::Pool, &[2], &[&[0]]);
    let mut leases = ends(&mut stage, 2, 1);
    let ask = stage.any();
    leases.push_back(stage.bind(&ask));
    for _ in 0..50 {
        stage.wait(&Ask { class: 2, ..ask.clone() });
    }
    assert!(!is_late(&mut stage, 2, 0));
    drop(leases);
    // Four lines of ten, which share those ends.
    let mut stage = Stage::new(QueueMode::Endpoint, &[1, 1, 1, 1], &[&[0, 1, 2, 3]]);
    let leases = ends(&mut stage, 4, 0);
    let ask = stage.any();
    for _ in 0..40 {
        stage.wait(&ask);
    }
    assert!(is_late(&mut stage, 1, 0), "4.4 s, and not 1.1 s");
    drop(leases);
}

#[test]
fn a_limit_of_prompt_tokens_that_comes_later_holds_nobody_for_good() {
    let mut stage = Stage::new(QueueMode::Pool, &[8], &[&[0]]);
    let mut older = stage.bind(&Ask { prompt_bytes: 4_000, ..stage.any() });
    stage.fleet.ranks[0].room.prefill_tokens_max = 500;
    let ask = stage.any();
    let waits = stage.wait(&ask);
    assert!(stage.look().is_empty());
    // The first byte of one that began without the limit tells nobody; the home looks by itself.
    older.prefill_done(|| stage.now);
    let again = stage.home.look_again_at().expect("it looks again");
    stage.now = again;
    assert_eq!(ranks(&stage.look()), [(waits.ticket, Some(0))]);
}
