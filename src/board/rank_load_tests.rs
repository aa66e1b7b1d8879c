//! Limits of a rank: places, tokens, refusals, other replicas.

use crate::{ForeignOrigin, LoadBoard, RankLoad};
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_config::QueueMode;
use forebay_fleet::worker::{RoomDemand, RoomLimits};

const RANK: RankIndex = RankIndex(0);
const MODEL: ModelIndex = ModelIndex(0);
const ANY: Option<ModelIndex> = None;

fn wanted(kv_tokens: u64) -> RoomDemand {
    RoomDemand { kv_tokens, prefill_tokens: 0 }
}

#[test]
fn each_limit_holds_and_all_comes_back() {
    let board = LoadBoard::new();
    let load = board.rank(RANK).unwrap();
    let limits = RoomLimits { places_max: 3, kv_tokens_max: 100, prefill_tokens_max: 50 };
    assert_eq!(load.try_acquire(limits, wanted(60)), Some(60));
    assert_eq!(load.try_acquire(limits, wanted(41)), None, "tokens");
    assert_eq!(load.try_acquire(limits, wanted(40)), Some(40));
    assert_eq!(load.try_acquire(limits, wanted(0)), Some(0));
    assert_eq!(load.try_acquire(limits, wanted(0)), None, "places");
    for tokens in [60, 40, 0] {
        board.give_back(RANK, tokens, Some(MODEL));
    }
    assert_eq!((load.in_flight(), load.kv_tokens(), load.ended()), (0, 0, 3));
    load.add_prefill(50);
    assert_eq!(load.try_acquire(limits, wanted(0)), None, "prefill");
}

#[test]
fn prompts_whose_first_tokens_do_not_show_are_left_out_of_the_prefill_limit() {
    let load = RankLoad::default();
    let limits = RoomLimits { prefill_tokens_max: 100, ..RoomLimits::default() };
    let takes = || (load.takes_prefill(limits), load.has_room(limits, wanted(0)));
    load.add_prefill(99);
    assert_eq!(takes(), (true, true), "what one more adds does not matter");
    load.add_prefill(1);
    assert_eq!(takes(), (false, false));
    assert!(load.takes_prefill(RoomLimits::default()), "no limit");
    load.add_unseen(60);
    assert_eq!((takes(), load.prefill_tokens()), ((true, true), 100));
    load.add_prefill(60);
    assert_eq!(takes(), (false, false));
    load.sub_unseen(60);
    load.sub_prefill(60);
    assert_eq!(takes(), (false, false), "the others are still to be computed");
    load.sub_prefill(1);
    assert_eq!(takes(), (true, true));
}

#[test]
fn a_request_takes_more_or_less_than_it_asked_for() {
    let load = RankLoad::default();
    assert_eq!(load.try_acquire(RoomLimits::default(), wanted(30)), Some(30));
    for (before, after) in [(30, 130), (130, 130), (130, 0), (0, 20)] {
        load.correct(before, after);
        assert_eq!((load.in_flight(), load.kv_tokens()), (1, after));
    }
}

#[test]
fn the_prefill_limit_is_the_configured_one_else_that_of_the_speed_where_requests_wait() {
    let most = RoomLimits::prefill_tokens_max;
    let by_speed = RoomLimits::PREFILL_BY_SPEED;
    let modes = [QueueMode::Off, QueueMode::Pool, QueueMode::Endpoint];
    assert_eq!(modes.map(|mode| most(None, mode)), [0, by_speed, by_speed]);
    assert_eq!(modes.map(|mode| most(Some(70), mode)), [70; 3]);
    assert_eq!(modes.map(|mode| most(Some(0), mode)), [0; 3]);
}

#[test]
fn what_no_cache_could_hold_needs_a_place_and_takes_what_is_left() {
    let load = RankLoad::default();
    let limits = RoomLimits { places_max: 3, kv_tokens_max: 100, ..RoomLimits::default() };
    assert_eq!(load.try_acquire(limits, wanted(30)), Some(30));
    assert_eq!(load.try_acquire(limits, wanted(100)), None, "it may fit later");
    assert_eq!(load.try_acquire(limits, wanted(5_000)), Some(70));
    assert!(!load.has_room(limits, wanted(1)));
    assert_eq!(load.try_acquire(limits, wanted(u64::MAX)), Some(0));
    assert_eq!(load.try_acquire(limits, wanted(5_000)), None, "places");
    for tokens in [30, 70, 0] {
        load.release(tokens);
    }
    assert_eq!((load.in_flight(), load.kv_tokens()), (0, 0));
    assert_eq!(load.try_acquire(limits, wanted(100)), Some(100), "all of an empty one");
}

#[test]
fn after_a_refusal_an_end_lets_one_through_and_time_lets_more_try() {
    let board = LoadBoard::new();
    let load = board.rank(RANK).unwrap();
    let limits = RoomLimits { places_max: 64, ..RoomLimits::default() };
    let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
    let take = |ms, most: usize| {
        let one =
            |_: &usize| load.try_acquire(load.room_at(limits, ANY, at(ms)), wanted(0)).is_some();
        (0..most).take_while(one).count()
    };
    assert_eq!(take(10, 100), 64);
    // The engine takes four and refuses the rest, all at about the same time.
    for _ in 0..60 {
        board.give_back(RANK, 0, None);
        load.refused(MODEL, at(10));
    }
    assert_eq!(
        (load.places_now(ANY, at(10)), load.busy_until(ANY), take(11, 9)),
        (Some(4), at(60), 0)
    );
    board.give_back(RANK, 0, Some(MODEL));
    assert_eq!((load.busy_until(ANY), take(30, 9)), (NanosSinceStart(0), 1), "one end, one");
    assert_eq!((take(209, 9), take(210, 9)), (0, 1), "one tries");
    board.give_back(RANK, 0, None);
    load.refused(MODEL, at(215));
    assert_eq!((take(414, 9), load.places_now(ANY, at(415))), (0, Some(5)), "and is refused");
    // The limit has risen: 1, 2, 4 ... more each time, until it is gone.
    let more = [415, 615, 815, 1_015].map(|ms| take(ms, 99));
    assert_eq!(more, [1, 2, 4, 8]);
    assert_eq!((load.places_now(ANY, at(60_000)), take(60_000, 99)), (None, 64 - 19));
    assert_eq!(load.ended(), 1, "what was refused is no end");
}

#[test]
fn an_engine_that_refuses_with_nothing_to_do_is_tried_with_one() {
    let load = RankLoad::default();
    load.refused(MODEL, NanosSinceStart(5));
    let room = |ms: u64| {
        let now = NanosSinceStart(ms * 1_000_000);
        load.room_at(RoomLimits::default(), ANY, now).places_max
    };
    assert_eq!([room(0), room(201), room(401)], [1, 1, 3]);
}

/// I2: a refusal of a model does not affect the other models of the rank, until these are
/// refused as well.
#[test]
fn a_refusal_speaks_of_its_model_until_another_model_is_refused() {
    let board = LoadBoard::new();
    let load = board.rank(RANK).unwrap();
    let loading = ModelIndex(1);
    let served = ModelIndex(2);
    let at = NanosSinceStart(1_000_000);
    let is_held = |model| (load.busy_until(Some(model)) > at, load.places_now(Some(model), at));
    assert!(load.try_acquire(RoomLimits::default(), wanted(0)).is_some());
    load.refused(loading, at);
    assert_eq!((is_held(loading), is_held(served)), ((true, Some(1)), (false, None)));
    board.give_back(RANK, 0, Some(served));
    assert_eq!(is_held(loading), (true, Some(1)), "an answer of another model is no room");
    load.refused(served, at);
    assert_eq!((is_held(loading).0, is_held(served).0), (true, true), "the engine is full");
}

#[test]
fn holds_grow_while_an_engine_refuses_each_request() {
    let board = LoadBoard::new();
    let load = board.rank(RANK).unwrap();
    let mut now = NanosSinceStart(0);
    let mut holds = Vec::new();
    for _ in 0..8 {
        load.refused(MODEL, now);
        holds.push(load.busy_until(ANY).since(now) / 1_000_000);
        now = load.busy_until(ANY);
    }
    assert_eq!(holds, [50, 100, 200, 400, 800, 1_600, 1_600, 1_600]);
    assert!(load.try_acquire(RoomLimits::default(), wanted(0)).is_some());
    board.give_back(RANK, 0, Some(MODEL));
    load.refused(MODEL, now);
    assert_eq!(load.busy_until(ANY).since(now) / 1_000_000, 50, "one was served between");
}

#[test]
fn what_other_replicas_have_counts() {
    let load = RankLoad::default();
    let limits = RoomLimits { places_max: 4, ..RoomLimits::default() };
    load.set_elsewhere(3, 77);
    assert!(load.try_acquire(limits, wanted(0)).is_some());
    assert!(load.try_acquire(limits, wanted(0)).is_none());
    assert_eq!((load.in_flight(), load.places_elsewhere()), (1, 3));
    load.set_elsewhere(0, 0);
    assert!(load.try_acquire(limits, wanted(0)).is_some());
}

/// Issue 39: a worker that took over an engine had a full limit beside running requests.
#[test]
fn requests_of_other_replicas_and_of_a_worker_that_left_add_up() {
    let board = LoadBoard::new();
    let load = board.rank(RANK).unwrap();
    let limits = RoomLimits { places_max: 4, ..RoomLimits::default() };
    board.set_elsewhere(RANK, ForeignOrigin::Replicas, 1, 10);
    board.set_elsewhere(RANK, ForeignOrigin::SameEngine, 2, 7);
    assert_eq!((load.places_elsewhere(), load.kv_tokens_elsewhere()), (3, 17));
    assert!(load.try_acquire(limits, wanted(0)).is_some());
    assert!(load.try_acquire(limits, wanted(0)).is_none(), "4 in flight of 4");
    board.set_elsewhere(RANK, ForeignOrigin::SameEngine, 0, 0);
    assert_eq!((load.places_elsewhere(), load.kv_tokens_elsewhere()), (1, 10));
    assert!(load.try_acquire(limits, wanted(0)).is_some());
}

#[test]
fn the_whole_router_has_a_limit_too() {
    let board = LoadBoard::new();
    assert!(board.in_flight().enter(1) && !board.in_flight().enter(1));
    board.in_flight().exit();
    assert!(board.in_flight().enter(1));
    // Requests are counted without a limit too: a new limit applies to the next request.
    assert!(board.in_flight().enter(0) && board.in_flight().enter(0));
    assert!(!board.in_flight().enter(3));
    board.in_flight().exit();
    assert!(board.in_flight().enter(3) && !board.in_flight().enter(3));
}

#[test]
fn a_closed_room_takes_nobody_and_the_widest_takes_all() {
    let load = RankLoad::default();
    let wanted = RoomDemand::default();
    assert!(!load.has_room(RoomLimits::CLOSED, wanted));
    assert_eq!(load.try_acquire(RoomLimits::CLOSED, wanted), None);
    load.refused(ModelIndex(0), NanosSinceStart(0));
    assert_eq!(load.room_at(RoomLimits::CLOSED, None, NanosSinceStart(1)), RoomLimits::CLOSED);
    let widest = RoomLimits { places_max: RoomLimits::PLACES_MAX, ..RoomLimits::default() };
    assert!(load.try_acquire(widest, wanted).is_some());
    assert!(load.has_room(widest, wanted) && !load.has_room(RoomLimits::CLOSED, wanted));
}
