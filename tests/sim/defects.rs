//! What queues like these have got wrong elsewhere, each as one case: a queue of one endpoint that
//! waits for itself, bodies compared when two clocks agree, percentages held against shares of one,
//! and the rest. (That a panic in one request leaves the others alone, and that an answer keeps its
//! content type, is seen on sockets: `tests/it`.)

use super::stage::{Ask, Stage, ranks};
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_config::QueueMode;
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::Verdict;
use forebay_fleet::worker::{OpenedBy, QueueFull, Role, RoomLimits, WorkerState};
use forebay_router::queue::{Entry, Turned};
use std::collections::VecDeque;

const RANK: RankIndex = RankIndex(0);

#[test]
fn one_endpoint_and_a_stale_request_go_on() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let first = stage.wait(&ask);
    stage.pass(11);
    assert_eq!(ranks(&stage.look()), [(first.ticket, None)], "it may look elsewhere");
    stage.settle(&first);
    // There is nowhere else: it is back at once, and has its turn when the place is free.
    let again = stage.wait(&Ask { movable: false, ..ask });
    stage.pass(1_000);
    assert!(stage.look().is_empty());
    drop(lease);
    assert_eq!(ranks(&stage.look()), [(again.ticket, Some(0))]);
}

#[test]
fn two_requests_in_one_clock_tick_keep_their_order() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let tickets: Vec<_> = (0..50).map(|_| stage.wait(&ask).ticket).collect();
    drop(lease);
    let mut served = Vec::new();
    for _ in 0..50 {
        served.extend(stage.look().into_iter().map(|(ticket, _)| ticket));
    }
    assert_eq!(served, tickets);
}

#[test]
fn one_free_place_lets_one_through() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    for _ in 0..10 {
        stage.wait(&ask);
    }
    drop(lease);
    let granted = stage.look();
    assert_eq!((granted.len(), stage.board.rank(RANK).unwrap().in_flight()), (1, 1));
    assert!(stage.look().is_empty(), "until its lease ends");
    drop(granted);
    assert_eq!(stage.look().len(), 1);
}

#[test]
fn a_cache_filled_to_960_of_1000_is_busy_at_95_percent() {
    for (permille, has_room) in [(960, false), (950, false), (949, true), (95, true), (1, true)] {
        let mut stage = Stage::new(QueueMode::Pool, &[8], &[&[0]]);
        stage.fleet.ranks[0].room = RoomLimits { kv_tokens_max: 1 << 30, ..stage.fleet.room(RANK) };
        let ask = stage.any();
        let _lease = stage.bind(&ask);
        stage.report(0, permille);
        assert_eq!(matches!(stage.ask(&ask), Entry::Bound(_)), has_room, "{permille}");
    }
}

#[test]
fn without_a_report_our_own_counts_decide() {
    let mut stage = Stage::new(QueueMode::Pool, &[2], &[&[0]]);
    stage.fleet.ranks[0].room = RoomLimits { kv_tokens_max: 1 << 30, ..stage.fleet.room(RANK) };
    let ask = stage.any();
    let _leases = [stage.bind(&ask), stage.bind(&ask)];
    assert!(matches!(stage.ask(&ask), Entry::Wait { .. }), "two places, two requests");
}

#[test]
fn an_idle_rank_that_reports_a_full_cache_is_asked_all_the_same() {
    let mut stage = Stage::new(QueueMode::Pool, &[2], &[&[0]]);
    stage.fleet.ranks[0].room = RoomLimits { kv_tokens_max: 1 << 30, ..stage.fleet.room(RANK) };
    stage.report(0, 1_000);
    let ask = stage.any();
    assert!(matches!(stage.ask(&ask), Entry::Bound(_)), "nothing of ours would ever end there");
}

#[test]
fn who_is_answered_while_waiting_leaves_nothing_behind() {
    // A shard that drains answers those who wait: it closes their waits and tells the home.
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let all: Vec<_> = (0..20).map(|_| stage.wait(&ask)).collect();
    for waits in &all {
        stage.settle(waits);
        stage.home.leave(waits.waiter.queue, waits.ticket);
    }
    drop(lease);
    assert!(stage.look().is_empty() && stage.home.is_empty());
    assert_eq!(stage.waits.waiting(), 0);
    assert_eq!(stage.board.queue(QueueIndex(0)).unwrap().waiting(), 0);
}

#[test]
fn a_hundred_stale_at_once_all_move() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[1], &[&[0]]);
    let ask = stage.any();
    let _lease = stage.bind(&ask);
    let stale: Vec<_> = (0..100).map(|_| stage.wait(&ask).ticket).collect();
    stage.pass(5);
    let young = stage.wait(&Ask { arrived_at: stage.now, ..ask }).ticket;
    stage.pass(5);
    let moved = ranks(&stage.look());
    assert_eq!(moved, stale.iter().map(|&ticket| (ticket, None)).collect::<Vec<_>>());
    stage.pass(5);
    assert_eq!(ranks(&stage.look()), [(young, None)], "in its own time");
}

#[test]
fn who_is_sent_on_leaves_room_to_those_behind() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[8], &[&[0]]);
    stage.fleet.ranks[0].room =
        RoomLimits { places_max: 8, kv_tokens_max: 1_000, ..RoomLimits::default() };
    let ask = stage.any();
    let _running = stage.bind(&Ask { prompt_bytes: 2_000, ..ask.clone() });
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..ask.clone() });
    stage.pass(5);
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
    stage.flow(|flow| flow.queue.promote_after = std::time::Duration::ZERO);
    let ask = stage.any();
    let leases = [stage.bind(&ask), stage.bind(&ask)];
    let mut old = stage.wait(&ask);
    for _ in 0..2 {
        stage.pass(10);
        assert_eq!(ranks(&stage.look()), [(old.ticket, None)]);
        stage.settle(&old);
        old = stage.wait(&ask);
        assert_eq!(old.waiter.facts.arrived_at, ask.arrived_at);
    }
    // It has moved as often as it may. A younger one that stands in the same line comes after it.
    stage.settle(&old);
    stage.home.leave(old.waiter.queue, old.ticket);
    let old = stage.wait(&Ask { movable: false, ..ask.clone() });
    let mut younger = stage.any();
    younger.movable = false;
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
fn a_move_never_crosses_model_adapter_role_or_a_worker_that_failed() {
    // Model 0 on ranks 0 and 1, its adapter (a model of its own) on 1 alone, another model on 2;
    // rank 3 prefills only.
    let models: [&[u16]; 3] = [&[0, 1, 3], &[1], &[2]];
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = Stage::new(mode, &[1, 1, 1, 1], &models);
        stage.fleet.ranks[3].role = Role::Prefill;
        let ask = stage.any();
        let failed_at_0 = Ask { tried: vec![RankIndex(0)], ..ask.clone() };
        let adapter = Ask { model: 1, ..ask.clone() };
        let on_1 = stage.bind(&adapter);
        let on_0 = stage.bind(&ask);
        let waiting = [stage.wait(&adapter), stage.wait(&failed_at_0)];
        // Free places of other models, of a worker that failed it, and of another role are none for
        // them.
        drop(on_0);
        assert!(stage.look().is_empty(), "{mode:?}");
        stage.pass(20);
        for (ticket, verdict) in stage.look() {
            assert!(matches!(verdict, Verdict::Reroute), "{mode:?}");
            let waits = waiting.iter().find(|waits| waits.ticket == ticket).unwrap();
            stage.settle(waits);
            let again = if waits.waiter.facts.tried.is_empty() { &adapter } else { &failed_at_0 };
            assert_eq!(stage.wait(again).waiter.queue, waits.waiter.queue, "only rank 1 will do");
        }
        drop(on_1);
        let granted = stage.look();
        assert_eq!(granted.len(), 1);
        assert_eq!(ranks(&granted)[0].1, Some(1));
    }
}

#[test]
fn a_removed_endpoint_is_no_candidate() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = Stage::new(mode, &[1, 1], &[&[0, 1]]);
        let ask = stage.any();
        let leases = [stage.bind(&ask), stage.bind(&ask)];
        let waits = [stage.wait(&ask), stage.wait(&ask)];
        stage.fleet.workers[0].state = WorkerState::Down;
        stage.home.fleet_changed();
        drop(leases);
        let mut verdicts = stage.look();
        if mode == QueueMode::Endpoint {
            // Who stands in the line of the dead one chooses again.
            let sent_on = ranks(&verdicts).iter().filter(|(_, rank)| rank.is_none()).count();
            assert_eq!(sent_on, 1);
        }
        verdicts.retain(|(_, verdict)| matches!(verdict, Verdict::Granted(_)));
        assert_eq!(ranks(&verdicts).iter().map(|(_, rank)| *rank).collect::<Vec<_>>(), [Some(1)]);
        stage.fleet.workers[1].state = WorkerState::Down;
        stage.home.fleet_changed();
        assert!(stage.look().iter().all(|(_, verdict)| matches!(verdict, Verdict::Reroute)));
        assert!(stage.home.is_empty());
        for waits in waits {
            stage.settle(&waits);
        }
        assert_eq!(stage.turned(&ask), Turned::NoWorker);
    }
}

#[test]
fn whose_client_has_left_is_not_sent() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let (gone, stays) = (stage.wait(&ask), stage.wait(&ask));
    stage.settle(&gone);
    stage.home.leave(gone.waiter.queue, gone.ticket);
    drop(lease);
    assert_eq!(ranks(&stage.look()), [(stays.ticket, Some(0))]);
    // Gone while its verdict is on the way: nobody takes it, and the place is free again.
    let late = stage.wait(&ask);
    let mut verdicts = stage.look();
    stage.settle(&late);
    let (ticket, verdict) = verdicts.pop().unwrap();
    assert!(!stage.waits.deliver(ticket, verdict));
    assert_eq!(stage.board.rank(RANK).unwrap().in_flight(), 0);
}

#[test]
fn whose_time_is_over_is_not_sent() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    stage.wait(&Ask { deadline: NanosSinceStart(stage.now.0 + 1), ..ask.clone() });
    let other = stage.wait(&ask);
    stage.pass(1);
    drop(lease);
    assert_eq!(ranks(&stage.look()), [(other.ticket, Some(0))]);
}

#[test]
fn arrivals_do_not_overtake_and_a_full_queue_refuses() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    stage.flow(|flow| flow.queue.depth_max = 2);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    let first = stage.wait(&ask);
    drop(lease);
    // The place is free, and the first has not been served yet.
    let second = stage.wait(&ask);
    assert_eq!(stage.turned(&ask), Turned::Full(QueueFull::Depth));
    assert_eq!(ranks(&stage.look()), [(first.ticket, Some(0))]);
    assert_eq!(
        ranks(&stage.look()),
        [(second.ticket, Some(0))],
        "the lease of the first was dropped"
    );
}

#[test]
fn a_large_prompt_is_not_passed_by_small_ones_for_ever() {
    // Two models on one rank; its cache is nearly full, and small requests come and go.
    let mut stage = Stage::new(QueueMode::Pool, &[8], &[&[0], &[0]]);
    stage.fleet.ranks[0].room =
        RoomLimits { places_max: 8, kv_tokens_max: 1_000, ..RoomLimits::default() };
    let small = Ask { prompt_bytes: 1_600, model: 1, ..stage.any() };
    let running = [stage.bind(&small), stage.bind(&small)];
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    let behind = stage.wait(&small);
    let [one, other] = running;
    drop(one);
    assert!(stage.look().is_empty(), "room for the small one, and the large one's turn");
    drop(other);
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
        stage.board.windows().open(PoolIndex(0), OpenedBy::Here, stage.now, far);
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
    let waits: Vec<_> = (0..3).map(|_| stage.wait(&ask)).collect();
    assert_eq!(stage.turned(&ask), Turned::Full(QueueFull::Bytes));
    let far = NanosSinceStart(u64::MAX);
    stage.board.windows().open(PoolIndex(0), OpenedBy::Here, stage.now, far);
    let open =
        |stage: &Stage| stage.board.windows().open_here_until(PoolIndex(0), stage.now).is_some();
    stage.look();
    assert!(open(&stage), "3 of 1,024 requests, but 30 of 35 bytes");
    for waits in waits.iter().take(2) {
        stage.settle(waits);
        stage.home.leave(waits.waiter.queue, waits.ticket);
    }
    stage.look();
    assert!(!open(&stage), "10 of 35 bytes");
    drop(lease);
}

#[test]
fn room_made_while_the_home_is_awake_is_news() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    stage.wait(&ask);
    assert!(stage.home.has_news(&stage.board), "it joined");
    assert!(stage.look().is_empty());
    assert!(!stage.home.has_news(&stage.board));
    // Its shard is still awake: no bell rings, and this is what it looks at before it sleeps.
    drop(lease);
    assert!(stage.home.has_news(&stage.board));
    assert_eq!(stage.look().len(), 1);
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

#[test]
fn one_that_needs_much_room_keeps_one_rank_and_the_others_serve() {
    let (mut stage, mut leases) = filled(8);
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    assert!(stage.look().is_empty());
    let kept = stage.home.kept(QueueIndex(0)).to_vec();
    assert!(matches!(kept[..], [(ticket, _)] if ticket == large.ticket), "{kept:?}");
    let kept = kept[0].1;
    // Of its own model and of another: two fit on each of the other ranks.
    let small: Vec<_> =
        (0..20).map(|number| stage.wait(&Ask { model: number % 2, ..stage.any() })).collect();
    let granted = ranks(&stage.look());
    assert_eq!(granted.len(), 14, "{granted:?}");
    assert!(granted.iter().all(|(_, rank)| *rank != Some(kept.0)), "{granted:?}");
    for (waits, (ticket, _)) in small.iter().zip(&granted) {
        assert_eq!(waits.ticket, *ticket, "in order");
    }
    // What ends on its rank is for nobody else.
    let mut on_kept = leases.extract_if(.., |lease| lease.rank() == kept);
    drop(on_kept.next());
    assert!(stage.look().iter().all(|(ticket, _)| *ticket != large.ticket));
    drop(on_kept);
    leases.retain(|lease| lease.rank() != kept);
    let granted = stage.look();
    assert_eq!(ranks(&granted)[0], (large.ticket, Some(kept.0)));
    assert!(stage.home.kept(QueueIndex(0)).is_empty());
}

#[test]
fn who_is_short_does_not_starve_under_those_who_go_on() {
    let (mut stage, leases) = filled(3);
    let mut running: VecDeque<Lease> = leases.into();
    let large = stage.wait(&Ask { prompt_bytes: 3_600, ..stage.any() });
    for end in 0..12 {
        // There is always one more than can be served, in either class that its own does not come
        // before.
        stage.wait(&Ask { prompt_bytes: 1_600, class: 1 + end % 2, ..stage.any() });
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
    panic!("each of the ranks was empty by now, had nobody come");
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
        let ask = Ask { class, ..stage.any() };
        matches!(
            stage.ask_in_time(&ask, tenant, (2_000, 100)),
            Entry::Turned(_, Turned::TooLate { .. })
        )
    };
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    let ask = stage.any();
    let lease = stage.bind(&ask);
    for _ in 0..50 {
        stage.wait(&Ask { class: 2, ..ask.clone() });
    }
    assert!(is_late(&mut stage, 2, 0), "behind 50 of its own, 10 a second");
    assert!(is_late(&mut stage, 3, 9));
    assert!(!is_late(&mut stage, 1, 0), "a better class is next");
    assert!(!is_late(&mut stage, 2, 9), "so is another tenant");
    drop(lease);
    // Four lines of ten, which share those ends.
    let mut stage = Stage::new(QueueMode::Endpoint, &[1, 1, 1, 1], &[&[0, 1, 2, 3]]);
    let leases: Vec<_> = (0..4).map(|_| stage.bind(&ask)).collect();
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
    older.prefill_done();
    let again = stage.home.look_again_at().expect("it looks again");
    stage.now = again;
    assert_eq!(ranks(&stage.look()), [(waits.ticket, Some(0))]);
}
