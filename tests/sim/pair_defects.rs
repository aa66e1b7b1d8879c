//! What pairs can get wrong, each as one case: ranks that are held while others are waited for,
//! lines in which one leg stops the other, halves that lose their other half.

use super::plan::MS;
use super::stage::{Ask, PREFILL_POOL, Stage, ranks};
use forebay_base::limits::QUEUE_RECHECK;
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_config::QueueMode;
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::{Ticket, Verdict};
use forebay_fleet::worker::{Leg, OpenedBy, QueueFull, Role, WorkerState};
use forebay_router::queue::{Entry, Turned};
use std::time::Duration;

fn stage(mode: QueueMode, words: &str) -> Stage {
    let places = vec![1; words.split(' ').count()];
    let all: Vec<u16> = (0..).zip(&places).map(|(rank, _)| rank).collect();
    Stage::new(mode, &places, &[&all]).roles(words)
}

fn in_flight(stage: &Stage, rank: u16) -> u32 {
    stage.board.rank(RankIndex(rank)).unwrap().in_flight()
}

fn granted(mut verdicts: Vec<(Ticket, Verdict)>) -> (Ticket, Lease) {
    match (verdicts.pop(), verdicts.pop()) {
        (Some((ticket, Verdict::Granted(lease))), None) => (ticket, lease),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_holds_a_prefill_rank_and_waits_for_a_decode_rank() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = stage(mode, "P P D");
        let ask = stage.any();
        let (decode, prefill) = stage.bind_pair(&ask);
        assert_eq!(decode.rank(), RankIndex(2));
        let waits = stage.wait_for_decode(&ask);
        assert_eq!(waits.waiter.leg, Leg::Decode);
        let free = RankIndex(1 - prefill.rank().0);
        assert_eq!(in_flight(&stage, free.0), 0, "{mode:?}");
        drop(decode);
        let (ticket, lease) = granted(stage.look());
        stage.settle(&waits);
        assert_eq!((ticket, lease.rank()), (waits.ticket, RankIndex(2)));
        let Entry::Pair { prefill, .. } = stage.pair(&ask, Some(lease)) else { panic!() };
        assert_eq!(prefill.rank(), free);
    }
}

#[test]
fn whole_requests_and_decode_legs_in_one_line_do_not_stop_each_other() {
    let mut stage = stage(QueueMode::Pool, "P D B");
    let ask = stage.any();
    let _on_both = stage.bind(&ask);
    let whole = stage.wait(&ask);
    // The line is not empty, so this one joins it, and is served at once: its rank is nobody
    // else's.
    let pair = stage.wait_for_decode(&ask);
    let verdicts = stage.look();
    assert_eq!(ranks(&verdicts), [(pair.ticket, Some(1))]);
    stage.settle(&pair);
    // The other way round: who waits for a pair leaves a whole request what only that can use.
    let mut stage = self::stage(QueueMode::Pool, "p d b");
    let ask = stage.any();
    let leases = [stage.bind(&ask), stage.bind(&ask)];
    let waits = stage.wait_for_decode(&ask);
    let behind = stage.wait(&ask);
    drop(leases);
    let mut served = ranks(&stage.look());
    served.sort_unstable();
    assert_eq!(served, [(waits.ticket, Some(1)), (behind.ticket, Some(2))]);
    drop(whole);
}

#[test]
fn who_waits_for_a_pair_takes_a_free_rank_that_serves_it_whole() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = stage(mode, "P D B");
        let ask = stage.any();
        let _pair = stage.bind_pair(&ask);
        let Entry::Bound(both) = stage.pair(&ask, None) else { panic!("rank 2 is free") };
        assert_eq!(both.rank(), RankIndex(2));
        let waits = [stage.wait_for_decode(&ask), stage.wait_for_decode(&ask)];
        assert_eq!(
            stage.board.rank(RankIndex(2)).unwrap().prefill_tokens(),
            100,
            "it computes the prompt"
        );
        drop(both);
        let (ticket, lease) = granted(stage.look());
        let waits = waits.iter().find(|waits| waits.ticket == ticket).unwrap();
        stage.settle(waits);
        assert_eq!(lease.rank(), RankIndex(2));
        assert!(matches!(stage.pair(&ask, Some(lease)), Entry::Bound(_)), "{mode:?}");
    }
}

#[test]
fn one_part_of_the_network_does_not_stop_the_other() {
    let mut stage = stage(QueueMode::Pool, "Px Py Dx Dx Dy Dy");
    let ask = stage.any();
    let pairs = [stage.bind_pair(&ask), stage.bind_pair(&ask)];
    let (first_decode, first) = stage.wait_for_prefill(&ask, None);
    let (second_decode, second) = stage.wait_for_prefill(&ask, None);
    assert_eq!(first.waiter.queue, QueueIndex(PREFILL_POOL.0));
    assert!(!stage.fleet.are_near(first_decode.rank(), second_decode.rank()), "one in each");
    let [one, other] = pairs;
    let of_second = stage.fleet.are_near(one.1.rank(), second_decode.rank());
    let (freed, kept) = if of_second { (one, other) } else { (other, one) };
    drop(freed.1);
    let (ticket, lease) = granted(stage.look());
    assert_eq!(ticket, second.ticket, "the first in the line has no use for that rank");
    assert!(stage.fleet.are_near(lease.rank(), second_decode.rank()));
    drop(kept);
    assert_eq!(granted(stage.look()).0, first.ticket);
}

#[test]
fn a_decode_rank_is_looked_at_again_when_its_prefill_may_be_used_again() {
    let mut stage = stage(QueueMode::Pool, "Px Py Dx Dy");
    let ask = stage.any();
    let opened = Duration::from_millis(30);
    stage.board.rank(RankIndex(0)).unwrap().failed(stage.now, 1, opened);
    let pair = stage.bind_pair(&ask);
    assert_eq!(pair.0.rank(), RankIndex(3), "x has no prefill for now");
    let waits = stage.wait_for_decode(&ask);
    assert!(stage.look().is_empty());
    // Nothing happens but time; no lease ends, no fleet comes.
    let again = stage.home.look_again_at().expect("somebody looks");
    assert!(again <= stage.now.plus(QUEUE_RECHECK));
    stage.now = again.max(stage.now.plus(opened));
    let (ticket, lease) = granted(stage.look());
    assert_eq!((ticket, lease.rank()), (waits.ticket, RankIndex(2)));
}

#[test]
fn half_a_pair_whose_other_half_is_gone_does_not_wait_on() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        for new_role in [None, Some(Role::Prefill)] {
            let mut stage = stage(mode, "P D D");
            let ask = stage.any();
            let pair = stage.bind_pair(&ask);
            let (decode, waits) = stage.wait_for_prefill(&ask, None);
            let rank = decode.rank();
            match new_role {
                None => stage.fleet.workers[rank.index()].state = WorkerState::Down,
                Some(role) => stage.fleet.ranks[rank.index()].role = role,
            }
            stage.home.fleet_changed();
            assert_eq!(ranks(&stage.look()), [(waits.ticket, None)], "{mode:?}");
            stage.settle(&waits);
            let entry = stage.pair(&ask, Some(decode));
            assert!(matches!(entry, Entry::Turned(Leg::Prefill, Turned::NoWorker)), "{entry:?}");
            assert_eq!(in_flight(&stage, rank.0), 0, "its lease is back");
            drop(pair);
        }
    }
}

#[test]
fn a_prefill_leg_that_moves_keeps_its_decode_rank() {
    let mut stage = stage(QueueMode::Endpoint, "Px Px Py Dx Dx Dx");
    let ask = stage.any();
    let _pairs = [stage.bind_pair(&ask), stage.bind_pair(&ask)];
    let (decode, waits) = stage.wait_for_prefill(&ask, None);
    let held = decode.rank();
    stage.pass(11);
    assert_eq!(ranks(&stage.look()), [(waits.ticket, None)], "it may look elsewhere");
    stage.settle(&waits);
    let (decode, again) = stage.wait_for_prefill(&ask, Some(decode));
    assert_eq!((decode.rank(), again.waiter.near), (held, Some(held)));
    assert_ne!(again.waiter.queue, QueueIndex(2), "that part of the network is free, and too far");
}

#[test]
fn a_refused_prefill_leg_gives_its_decode_rank_back() {
    let mut stage = stage(QueueMode::Pool, "P D D D");
    stage.flow(|flow| flow.queue.depth_max = 1);
    let ask = stage.any();
    let _pair = stage.bind_pair(&ask);
    let (decode, _waits) = stage.wait_for_prefill(&ask, None);
    let entry = stage.pair(&ask, None);
    let full = Turned::Full(QueueFull::Depth);
    assert!(matches!(entry, Entry::Turned(Leg::Prefill, turned) if turned == full), "{entry:?}");
    let third = [1, 2, 3].into_iter().filter(|&rank| in_flight(&stage, rank) == 0);
    assert_eq!(third.count(), 1, "two decode ranks are held");
    drop(decode);
}

#[test]
fn without_queues_nobody_waits_with_half_a_pair() {
    let mut stage = stage(QueueMode::Off, "P D D");
    let ask = stage.any();
    let _pair = stage.bind_pair(&ask);
    let entry = stage.pair(&ask, None);
    assert!(matches!(entry, Entry::Turned(Leg::Decode, Turned::NoRoom)), "{entry:?}");
    assert_eq!(in_flight(&stage, 1) + in_flight(&stage, 2), 1);
}

#[test]
fn the_window_of_a_prefill_pool_is_its_own_and_closes_with_its_queue() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = stage(mode, "P D D");
        let ask = stage.any();
        let (_decode, prefill) = stage.bind_pair(&ask);
        let (_held, _waits) = stage.wait_for_prefill(&ask, None);
        let far = NanosSinceStart(u64::MAX);
        for pool in [PoolIndex(0), PREFILL_POOL] {
            stage.board.windows().open(pool, OpenedBy::Here, stage.now, far);
        }
        drop(prefill);
        let _granted = granted(stage.look());
        let open = |pool| stage.board.windows().open_here_until(pool, stage.now).is_some();
        assert_eq!((open(PoolIndex(0)), open(PREFILL_POOL)), (true, false), "{mode:?}");
    }
}

#[test]
fn a_plain_request_never_reaches_a_rank_that_needs_a_room() {
    let mut stage = stage(QueueMode::Pool, "P D B");
    let ask = stage.any();
    let both = stage.bind(&ask);
    assert_eq!(both.rank(), RankIndex(2));
    let waits = stage.wait(&ask);
    stage.pass(1_000);
    assert!(stage.look().is_empty(), "decode is idle, and would answer 400");
    stage.fleet.workers[2].state = WorkerState::Down;
    stage.home.fleet_changed();
    assert_eq!(ranks(&stage.look()), [(waits.ticket, None)]);
    stage.settle(&waits);
    assert_eq!(stage.turned(&ask), Turned::NoWorker);
    let late = NanosSinceStart(stage.now.0 + MS);
    let entry = stage.pair(&Ask { deadline: late, ..ask }, None);
    assert!(matches!(entry, Entry::Pair { .. }));
}
