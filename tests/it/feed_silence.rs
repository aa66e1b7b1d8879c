//! Connections that are dead without having been closed, and peers that stop in other ways.

use crate::rig::truth::{
    NONE, difference, feed, losses, replays, resets, timed_follower, until_difference, until_feed,
};
use crate::rig::{Proxy, Publisher, Replay, until};
use forebay::kv_events::FeedTimers;
use forebay::server::ServerHandle;
use std::time::{Duration, Instant};

/// Half a second where a feed has five. An audit comes late enough to find all that was published.
fn fast() -> FeedTimers {
    FeedTimers { audit_after: Duration::from_secs(2), ..FeedTimers::default().faster(10) }
}

/// An engine that is followed through a wire; its history is known.
fn followed(minor: u8, with_replay: bool) -> (Publisher, Proxy, ServerHandle) {
    let mut publisher = Publisher::start(minor, Replay::Topic);
    let wire = Proxy::start(publisher.live);
    let replay = with_replay.then(|| format!("tcp://{}", publisher.replay));
    let handle = timed_follower(&[wire.endpoint()], replay.as_slice(), fast());
    until("subscribed", || publisher.subscribers() == 1);
    (0..100).for_each(|_| publisher.churn());
    until_difference(handle.admin, &publisher, |now| now == NONE);
    (publisher, wire, handle)
}

/// A publisher that speaks ZMTP 3.1, as libzmq: it is asked for a sign of life.
#[test]
fn a_dead_connection_is_noticed_by_its_silence() {
    let (mut publisher, wire, handle) = followed(1, false);
    wire.freeze();
    let start = Instant::now();
    assert!(losses(handle.admin, "") < 0.5, "the router cannot know yet");
    (0..50).for_each(|_| publisher.churn());
    until("it is found silent", || losses(handle.admin, "silent") > 0.5);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
    assert!((losses(handle.admin, "silent") - 1.0).abs() < 0.5);
    assert!((resets(handle.admin, "disconnect") - 1.0).abs() < 0.5);
    until("connected again", || wire.connections() == 2);
    until_feed(handle.admin, "live");
    assert_eq!(feed(handle.admin, 0)["connections_lost"], 1);
    until("subscribed again", || publisher.subscribers() == 2);
    publisher.store(&[1, 2, 3, 4, 5, 6, 7, 8]);
    publisher.publish();
    let prompt = publisher.prompts.last().unwrap().clone();
    let mut client = crate::rig::Client::connect(handle.admin);
    until("followed again", || crate::rig::truth::believed(&mut client, &prompt) == [2]);
}

/// One that does not answer PING, but replays: what the stream does not bring is found there, and
/// the second time the connection is opened anew.
#[test]
fn a_dead_connection_is_noticed_by_what_it_does_not_bring() {
    let (mut publisher, wire, handle) = followed(0, true);
    let found = replays(handle.admin, "complete");
    wire.freeze();
    // One message: two audits cannot each find a part.
    publisher.store(&[5, 6, 7, 8]);
    publisher.publish();
    let start = Instant::now();
    until("a replay finds it", || replays(handle.admin, "complete") > found);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(7), "{took:?}");
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!(losses(handle.admin, "") < 0.5);
    until("connected again", || {
        publisher.churn();
        std::thread::sleep(Duration::from_millis(20));
        wire.connections() == 2
    });
    assert!((losses(handle.admin, "silent") - 1.0).abs() < 0.5);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    until_feed(handle.admin, "live");
    // And the new connection carries.
    until("it brings everything without a replay", || {
        // An audit that finds nothing new is no replay.
        let before = replays(handle.admin, "complete");
        (0..20).for_each(|_| publisher.churn());
        until_difference(handle.admin, &publisher, |now| now == NONE);
        replays(handle.admin, "complete") == before
    });
}

/// A quiet engine that answers PING is no dead one.
#[test]
fn an_idle_publisher_keeps_its_connection() {
    let (publisher, wire, handle) = followed(1, false);
    until("four heartbeats", || feed(handle.admin, 0)["quiet_s"].as_u64().unwrap() >= 2);
    assert_eq!((wire.connections(), publisher.subscribers()), (1, 1));
    assert_eq!(difference(handle.admin, &publisher, 0), NONE);
    assert!(losses(handle.admin, "") < 0.5);
}

/// A peer that takes connections and drops them at once is neither hammered nor logged at each
/// turn.
#[test]
fn a_flapping_peer_is_tried_with_growing_pauses() {
    let publisher = Publisher::start(0, Replay::Topic);
    let wire = Proxy::start(publisher.live);
    let timers = FeedTimers::default().faster(4);
    let handle = timed_follower(&[wire.endpoint()], &[], timers);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        wire.cut();
        std::thread::sleep(Duration::from_millis(5));
    }
    // 25, 50, 100, 200, 400, 500 ms.
    assert!((3..=8).contains(&wire.connections()), "{} connections", wire.connections());
    until_feed(handle.admin, "live");
}
