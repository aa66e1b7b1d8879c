//! When a rejection window opens, and when it closes: single cases.

use super::stage::{Ask, Stage, ranks};
use forebay_base::{DpRank, PoolIndex};
use forebay_board::{WindowCause, WindowOrigin};
use forebay_config::QueueMode;
use forebay_mailbox::Pin;
use forebay_prompt::parse::Reason;
use std::time::Duration;

#[test]
fn a_pool_is_closed_when_neither_rank_nor_queue_has_room() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint, QueueMode::Off] {
        let mut stage = Stage::new(mode, &[1, 1], &[&[0, 1]]);
        stage.flow(|flow| flow.queue.depth_max = 2);
        let ask = stage.any();
        let first = stage.bind(&ask);
        assert!(!stage.is_closed(), "{mode:?}, a rank is free");
        let _second = stage.bind(&ask);
        let places = [(QueueMode::Pool, 2), (QueueMode::Endpoint, 4)];
        let places = places.iter().find(|(queued, _)| *queued == mode).map_or(0, |at| at.1);
        let waits: Vec<_> = (0..places)
            .map(|_| {
                assert!(!stage.is_closed(), "{mode:?}, the queue is not full");
                stage.wait(&ask)
            })
            .collect();
        assert!(stage.refused(&ask).is_some());
        assert!(stage.is_closed(), "{mode:?}");
        let cause = if places == 0 { WindowCause::Places } else { WindowCause::Depth };
        assert_eq!(stage.board.windows().cause(PoolIndex(0)), Some(cause), "{mode:?}");
        // A place that comes free is for who waits.
        assert!(stage.look().is_empty());
        drop(first);
        assert_eq!(stage.refused(&ask).is_some(), mode != QueueMode::Off);
        assert_eq!(stage.is_closed(), mode != QueueMode::Off);
        waits.iter().for_each(|waits| stage.settle(waits));
        assert!(!stage.is_closed());
    }
}

/// One rank with a bounded cache, and what a request of so many tokens asks for.
fn short_of_kv(mode: QueueMode) -> (Stage, impl Fn(u64, &Stage) -> Ask) {
    let mut stage = Stage::new(mode, &[4], &[&[0]]);
    stage.fleet.ranks[0].room.kv_tokens_max = 95_000;
    stage.fleet.pools[0].kv_tokens = 100_000;
    stage.flow(|flow| flow.kv_demand_percent = 125);
    (stage, |tokens, stage| Ask { prompt_bytes: 4 * tokens, ..stage.any() })
}

/// X wants more than anybody, and there is no room for that: others are served.
#[test]
fn a_request_of_its_own_size_closes_no_pool() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let (mut stage, ask) = short_of_kv(mode);
        let _running = [22_000, 22_000].map(|tokens| stage.bind(&ask(tokens, &stage)));
        let large = ask(94_000, &stage);
        assert_eq!(stage.refused(&large), Some(Reason::RejectedDemand));
        assert!(!stage.is_closed(), "{mode:?}, nobody waits, and there are free places");
        let _another = stage.bind(&ask(22_000, &stage));
        // Behind those who wait it is the same.
        let _waits = stage.wait(&ask(40_000, &stage));
        assert_eq!(stage.refused(&large), Some(Reason::RejectedDemand));
        let small = stage.wait(&ask(100, &stage));
        let granted = stage.look();
        assert_eq!(ranks(&granted), [(small.ticket, Some(0))]);
        // The one body that no queue could hold.
        stage.flow(|flow| flow.queue.bytes_max = 9);
        assert_eq!(stage.refused(&ask(100, &stage)), Some(Reason::RejectedQueueFull));
    }
}

/// Quality review: 37 refusals for want of KV closed the door for 393 requests that might have been
/// served.
#[test]
fn want_of_kv_closes_no_pool() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let (mut stage, ask) = short_of_kv(mode);
        let usual = ask(40_000, &stage);
        let _running = [stage.bind(&usual), stage.bind(&usual)];
        let waits = stage.wait(&usual);
        assert_eq!(stage.refused(&usual), Some(Reason::RejectedDemand));
        assert!(!stage.is_closed(), "{mode:?}: one more like those that are there finds no KV");
        let small = stage.wait(&ask(100, &stage));
        // The refusal ends when there is room.
        stage.settle(&waits);
        stage.wait(&usual);
        stage.settle(&small);
    }
}

/// Two ranks, of which the request can have one: a data-parallel rank that it asks for, or the only
/// one with its adapter.
#[test]
fn a_request_for_some_of_the_ranks_closes_no_pool() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint, QueueMode::Off] {
        for is_pinned in [true, false] {
            let what = format!("{mode:?}, pinned: {is_pinned}");
            let mut stage = Stage::new(mode, &[1, 1], &[&[0, 1], &[1]]);
            stage.fleet.ranks[1].dp_rank = DpRank(1);
            stage.flow(|flow| flow.queue.depth_max = 1);
            let pin = is_pinned.then_some(Pin::Number(DpRank(1)));
            let picky = Ask { pin, model: u16::from(!is_pinned), ..stage.any() };
            let _busy = stage.bind(&picky);
            let _waits = (mode != QueueMode::Off).then(|| stage.wait(&picky));
            stage.look();
            assert!(stage.refused(&picky).is_some(), "{what}");
            assert!(!stage.is_closed(), "{what}");
            // One queue for both ranks is full of those for the other one.
            let _free = stage.bind(&stage.any());
            assert!(stage.refused(&stage.any()).is_some() || mode == QueueMode::Endpoint);
        }
    }
}

/// Issue 35: the window that one tenant's backlog opened refused all tenants.
#[test]
fn a_window_is_open_to_a_tenant_below_its_share() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = Stage::new(mode, &[1], &[&[0]]);
        stage.flow(|flow| flow.queue.depth_max = 4);
        let greedy = stage.any();
        let _running = stage.bind(&greedy);
        let _waits: Vec<_> = (0..4).map(|_| stage.wait(&greedy)).collect();
        assert_eq!(stage.refused(&greedy), Some(Reason::RejectedQueueFull));
        assert!(!stage.lets_in(0, false) && stage.lets_in(1, false), "{mode:?}");
        assert!(!stage.lets_in(1, true), "{mode:?}: without tenants it refuses all");
        let other = Ask { tenant: 1, ..stage.any() };
        let _others: Vec<_> = (0..2).map(|_| stage.wait(&other)).collect();
        assert!(!stage.lets_in(1, false) && stage.lets_in(2, false), "{mode:?}");
        let now = stage.now;
        let until = stage.now.plus(Duration::from_secs(1));
        for origin in WindowOrigin::BY_HAND {
            stage.board.windows().open(PoolIndex(0), origin, now, until);
            assert!(!stage.lets_in(2, false), "{mode:?}: what an operator closes is closed");
            stage.board.windows().close(PoolIndex(0), origin, now);
        }
    }
}

/// Another replica's queue is full of a tenant that this one does not know.
#[test]
fn a_window_of_another_replica_leaves_each_tenant_half_of_the_queue() {
    let mut stage = Stage::new(QueueMode::Pool, &[1], &[&[0]]);
    stage.flow(|flow| flow.queue.depth_max = 4);
    let now = stage.now;
    let until = stage.now.plus(Duration::from_secs(1));
    stage.board.windows().open(PoolIndex(0), WindowOrigin::Elsewhere, now, until);
    assert!(!stage.lets_in(0, true));
    let ask = stage.any();
    let _running = stage.bind(&ask);
    for _ in 0..2 {
        assert!(stage.lets_in(0, false));
        stage.wait(&ask);
    }
    assert!(!stage.lets_in(0, false));
    assert!(stage.lets_in(1, false));
}

/// Both have waited so long that they look for another rank, and there is none.
#[test]
fn who_is_sent_on_keeps_its_place_until_it_has_another() {
    let mut stage = Stage::new(QueueMode::Endpoint, &[1, 1], &[&[0, 1]]);
    stage.flow(|flow| flow.queue.depth_max = 1);
    let ask = stage.any();
    let _leases = [stage.bind(&ask), stage.bind(&ask)];
    let old = [stage.wait(&ask), stage.wait(&ask)];
    stage.pass(11);
    assert_eq!(stage.look().len(), 2);
    let [moved, other] = old.map(|waits| {
        assert_eq!(stage.refused(&ask), Some(Reason::RejectedQueueFull), "who comes now");
        let moved = stage.wait_on(waits);
        assert_eq!(stage.board.queue(moved.waiter.queue).unwrap().waiting(), 1);
        moved
    });
    assert_eq!(stage.refused(&ask), Some(Reason::RejectedQueueFull));
    stage.settle(&other);
    let queue = moved.waiter.queue;
    assert_eq!(stage.wait_on(moved).waiter.queue, queue, "its own place does not fill it");
}
