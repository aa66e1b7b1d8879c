//! Replays that do not do what they should: whatever they answer, or do not, nothing untrue stays.

use crate::rig::truth::{
    NONE, feed, following, replays, resets, timed_follower, until_difference, until_feed,
};
use crate::rig::{Proxy, Publisher, Replay, until};
use forebay::kv_events::FeedTimers;
use forebay::server::ServerHandle;
use std::time::{Duration, Instant};

/// An engine with some history, followed through a wire; its replays worked until now.
fn followed(mode: Replay, timers: FeedTimers) -> (Publisher, Proxy, ServerHandle) {
    let mut publisher = Publisher::start(0, Replay::Topic);
    let wire = Proxy::start(publisher.live);
    (0..100).for_each(|_| publisher.churn());
    let replay = format!("tcp://{}", publisher.replay);
    let handle = timed_follower(&[wire.endpoint()], &[replay], timers);
    until_feed(handle.admin, "live");
    until("subscribed", || publisher.subscribers() == 1);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    publisher.answer_replays(mode);
    (publisher, wire, handle)
}

/// Loses three messages, then goes on.
fn gap(publisher: &mut Publisher, wire: &Proxy) {
    let before = wire.lost();
    wire.lose_next(3);
    (0..3).for_each(|_| publisher.churn());
    until("three messages are lost", || wire.lost() == before + 3);
    (0..3).for_each(|_| publisher.churn());
}

#[test]
fn one_that_never_answers_costs_its_patience_and_what_was_known() {
    let timers = FeedTimers {
        replay_silence_max: Duration::from_millis(200),
        replay_pause: Duration::from_secs(3),
        ..FeedTimers::default()
    };
    for mode in [Replay::Silent, Replay::Garbage] {
        let (mut publisher, wire, handle) = followed(mode, timers);
        gap(&mut publisher, &wire);
        let start = Instant::now();
        until("the gap is counted", || resets(handle.admin, "gap") > 0.5);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(4), "{mode:?} took {took:?}");
        assert!((replays(handle.admin, "incomplete") - 1.0).abs() < 0.5);
        if mode == Replay::Garbage {
            until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
            continue;
        }
        // The next gap does not wait for it again.
        gap(&mut publisher, &wire);
        until("the second gap is counted", || resets(handle.admin, "gap") > 1.5);
        assert!((replays(handle.admin, "incomplete") - 1.0).abs() < 0.5, "asked again at once");
        assert_eq!(feed(handle.admin, 0)["resets"], 2);
        until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
        // After the pause it is asked again, and all that it remembers is known again.
        publisher.answer_replays(Replay::Topic);
        until("it is asked again", || {
            publisher.churn();
            std::thread::sleep(Duration::from_millis(50));
            replays(handle.admin, "complete") > 1.5
        });
        until_difference(handle.admin, &publisher, |now| now == NONE);
    }
}

#[test]
fn one_that_answers_partly_is_asked_until_all_is_there() {
    for mode in [Replay::Partly(3), Replay::BreaksOff(4)] {
        let (mut publisher, wire, handle) = followed(mode, FeedTimers::default());
        gap(&mut publisher, &wire);
        until_difference(handle.admin, &publisher, |now| now == NONE);
        assert!(resets(handle.admin, "") < 0.5, "{mode:?}");
    }
}

#[test]
fn history_that_comes_in_pieces_is_put_together() {
    let mut publisher = Publisher::start(0, Replay::Partly(20));
    (0..200).for_each(|_| publisher.churn());
    let handle = following(&publisher, true);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!(publisher.replays_asked() > 5);
}

#[test]
fn one_that_breaks_off_half_way_through_the_history_leaves_nothing_of_it() {
    // Each answer brings one batch that is known already and says no more: nothing is to be had.
    let mut publisher = Publisher::start(0, Replay::BreaksOff(1));
    (0..50).for_each(|_| publisher.churn());
    let handle = following(&publisher, true);
    until("given up", || replays(handle.admin, "incomplete") > 0.5);
    until_feed(handle.admin, "live");
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    assert_eq!(feed(handle.admin, 0)["blocks"], 0, "what came is history");
}

#[test]
fn one_that_is_slower_than_the_stream_is_given_up() {
    let timers = FeedTimers { recovery_max: Duration::from_millis(1_500), ..FeedTimers::default() };
    let (mut publisher, wire, handle) = followed(Replay::Slow(Duration::from_millis(60)), timers);
    wire.lose_one_in(10);
    until("it is given up", || {
        for _ in 0..50 {
            publisher.churn();
            std::thread::sleep(Duration::from_millis(4));
        }
        replays(handle.admin, "incomplete") > 0.5
    });
    wire.lose_one_in(0);
    publisher.churn();
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    assert!(resets(handle.admin, "") > 0.5);
}

/// A replay socket that is not reachable is tried again now and then, but what the stream tells is
/// not given up for it.
#[test]
fn one_that_is_not_there_costs_nothing_that_is_known() {
    let mut publisher = Publisher::start(0, Replay::Topic);
    let live = format!("tcp://{}", publisher.live);
    let nothing = "tcp://127.0.0.1:1".to_owned();
    let handle = timed_follower(&[live], &[nothing], FeedTimers::default().faster(10));
    until("subscribed", || publisher.subscribers() == 1);
    (0..50).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
    until("tried again", || replays(handle.admin, "incomplete") > 1.5);
    (0..50).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!(resets(handle.admin, "") < 0.5);
}
