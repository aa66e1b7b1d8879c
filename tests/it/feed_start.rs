//! Everything in another order: the router first, the engine first, the engine that connects, ranks
//! that come later.

use crate::rig::truth::{
    NONE, believed, feed, follower, following, replays, resets, until_difference, until_feed,
};
use crate::rig::{Client, Publisher, Replay, port_for_later, until};
use std::time::Duration;

#[test]
fn the_router_first_and_the_engine_port_for_later() {
    let places = [port_for_later(), port_for_later()];
    let [live, replay] = places.map(|place| format!("tcp://{place}"));
    let handle = follower(&[live], &[replay]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(feed(handle.admin, 0)["state"], "connecting");
    let mut publisher = Publisher::on(0, Replay::Topic, places);
    (0..50).for_each(|_| publisher.churn());
    until_feed(handle.admin, "live");
    (0..50).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
}

#[test]
fn a_history_longer_than_the_memory_of_it_is_incomplete_and_true() {
    let mut publisher = Publisher::start(0, Replay::Topic);
    publisher.remember(100);
    (0..600).for_each(|_| publisher.churn());
    let handle = following(&publisher, true);
    until_feed(handle.admin, "live");
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    until("that is counted", || (replays(handle.admin, "incomplete") - 1.0).abs() < 0.5);
    until("what is remembered is known", || feed(handle.admin, 0)["blocks"].as_u64() > Some(0));
    (0..300).for_each(|_| publisher.churn());
    until("the stream is read", || {
        let mut client = Client::connect(handle.admin);
        let newest = publisher.prompts.last().unwrap();
        believed(&mut client, newest) == [publisher.held_blocks(newest)]
            || publisher.held_blocks(newest) == 0
    });
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    // A machine under load may lose more of the stream than is remembered, or the connection. After
    // such a gap the rest of an old stream looks like another engine's.
    for reason in ["restart", "undecodable", "contradiction"] {
        let is_behind = reason == "restart" && resets(handle.admin, "gap") > 0.5;
        assert!(is_behind || resets(handle.admin, reason) < 0.5, "{reason}");
    }
}

/// A gap that goes further back than the engine remembers: what it does remember is known
/// afterwards.
#[test]
fn a_gap_beyond_memory_is_resynced_from_what_is_left() {
    let mut publisher = Publisher::start(0, Replay::Topic);
    let wire = crate::rig::Proxy::start(publisher.live);
    let handle = follower(&[wire.endpoint()], &[format!("tcp://{}", publisher.replay)]);
    until("subscribed", || publisher.subscribers() == 1);
    (0..100).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
    publisher.remember(60);
    wire.lose_next(120);
    (0..120).for_each(|_| publisher.churn());
    until("lost", || wire.lost() == 120);
    // Nothing refers to what was before.
    publisher.churn();
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    assert!((resets(handle.admin, "gap") - 1.0).abs() < 0.5);
    assert!((replays(handle.admin, "incomplete") - 1.0).abs() < 0.5);
    assert!(feed(handle.admin, 0)["blocks"].as_u64().unwrap() > 0);
}

#[test]
fn an_engine_that_connects_is_followed_through_its_restart() {
    let place = port_for_later();
    let handle = follower(&[format!("bind:tcp://{place}")], &[]);
    for life in 0..2_u32 {
        let mut publisher = Publisher::start(0, Replay::Topic);
        until("the router listens", || publisher.connect(place));
        until("subscribed", || publisher.subscribers() == 1);
        (0..50).for_each(|_| publisher.churn());
        until_difference(handle.admin, &publisher, |now| now == NONE);
        publisher.hang_up();
        until_feed(handle.admin, "connecting");
        assert_eq!(feed(handle.admin, 0)["blocks"], 0);
        assert_eq!(feed(handle.admin, 0)["connections_lost"], life + 1);
        // Nothing of it is believed any more.
        let prompts: Vec<Vec<u32>> = publisher.prompts.clone();
        let mut client = Client::connect(handle.admin);
        until("forgotten", || prompts.iter().all(|prompt| believed(&mut client, prompt) == [0]));
    }
}
