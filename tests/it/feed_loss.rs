//! Messages are lost between an engine and the router. After every fault the router's view is
//! compared with the engine's truth for every prompt that ever was: nothing is believed that is not
//! held, and where the engine can replay, nothing that is held is unknown.

use crate::rig::truth::{
    NONE, follower, losses, metric, replays, resets, timed_follower, until_difference, until_feed,
};
use crate::rig::{Proxy, Publisher, Replay, RouterProcess, until};
use forebay::kv_events::FeedTimers;
use std::time::Duration;

/// A busy engine behind a wire.
fn busy(mode: Replay) -> (Publisher, Proxy) {
    let publisher = Publisher::start(0, mode);
    let wire = Proxy::start(publisher.live);
    (publisher, wire)
}

fn churn(publisher: &mut Publisher, batches: usize) {
    (0..batches).for_each(|_| publisher.churn());
}

#[test]
fn losses_without_a_replay_leave_no_ghost() {
    let (mut publisher, wire) = busy(Replay::Topic);
    let handle = follower(&[wire.endpoint()], &[]);
    until("subscribed", || publisher.subscribers() == 1);
    wire.lose_one_in(100);
    for _ in 0..4 {
        churn(&mut publisher, 300);
        wire.settle();
        // The last message may have been lost: only the next one shows it.
        wire.lose_one_in(0);
        churn(&mut publisher, 1);
        until_difference(handle.admin, &publisher, |now| now.ghosts == 0);
        wire.lose_one_in(100);
    }
    assert!(wire.lost() > 1, "{} lost", wire.lost());
    let gaps = resets(handle.admin, "gap");
    assert!(gaps > 0.0 && gaps <= wire.lost() as f64, "{gaps} gaps, {} lost", wire.lost());
    assert!(
        (metric(handle.admin, "forebay_kv_missed_batches_total") - wire.lost() as f64).abs() < 0.5
    );
    assert!(resets(handle.admin, "restart") + resets(handle.admin, "undecodable") < 0.5);
    // What is new is known again.
    wire.lose_one_in(0);
    publisher.store(&[1_990, 1_991, 1_992, 1_993, 1_994, 1_995, 1_996, 1_997]);
    publisher.publish();
    let newest = publisher.prompts.last().unwrap().clone();
    let mut client = crate::rig::Client::connect(handle.admin);
    until("the new prompt is known", || {
        crate::rig::truth::believed(&mut client, &newest) == [publisher.held_blocks(&newest)]
    });
}

/// One line says what happens, however often it happens.
#[test]
fn a_stream_with_many_gaps_does_not_fill_the_log() {
    let (mut publisher, wire) = busy(Replay::Topic);
    let router = RouterProcess::start(&wire.address, None);
    until("subscribed", || publisher.subscribers() == 1);
    wire.lose_one_in(20);
    churn(&mut publisher, 400);
    wire.settle();
    until("the gaps are seen", || resets(router.admin, "gap") > 4.5);
    assert_eq!(router.logged("KV event batches were lost"), 1);
    wire.lead_to(([127, 0, 0, 1], 1).into());
    let before = wire.connections();
    wire.cut();
    until("tried again and again", || wire.connections() >= before + 4);
    assert_eq!(router.logged("no KV events:"), 1);
    wire.lead_to(publisher.live);
    until("subscribed again", || publisher.subscribers() == 2);
    until("said", || router.logged("following KV events") == 2);
    assert_eq!(router.logged("KV event batches were lost"), 1);
    assert_eq!(router.logged(" ERROR "), 0);
}

#[test]
fn losses_are_repaired_by_replays_of_either_form() {
    for mode in [Replay::Topic, Replay::Plain] {
        let (mut publisher, wire) = busy(mode);
        churn(&mut publisher, 200);
        let handle = follower(&[wire.endpoint()], &[format!("tcp://{}", publisher.replay)]);
        until_feed(handle.admin, "live");
        wire.lose_one_in(100);
        churn(&mut publisher, 1_200);
        wire.settle();
        wire.lose_one_in(0);
        churn(&mut publisher, 1);
        until_difference(handle.admin, &publisher, |now| now == NONE);
        assert!(wire.lost() > 1, "{} lost", wire.lost());
        assert!(resets(handle.admin, "") < 0.5, "nothing had to be forgotten");
        assert!(metric(handle.admin, "forebay_kv_missed_batches_total") < 0.5);
        assert!(replays(handle.admin, "complete") >= 2.0);
        assert!(replays(handle.admin, "incomplete") < 0.5);
        let held = metric(handle.admin, "forebay_kv_rank_blocks");
        assert!((held - publisher.held() as f64).abs() < 0.5, "{held} blocks");
    }
}

#[test]
fn a_replay_that_loses_messages_itself_is_asked_again() {
    let (mut publisher, wire) = busy(Replay::Topic);
    let replay = Proxy::start(publisher.replay);
    replay.lose_one_in(100);
    churn(&mut publisher, 300);
    let handle = follower(&[wire.endpoint()], &[replay.endpoint()]);
    until_feed(handle.admin, "live");
    wire.lose_one_in(100);
    churn(&mut publisher, 1_000);
    wire.settle();
    wire.lose_one_in(0);
    churn(&mut publisher, 1);
    // Lost ends of answers take two seconds each.
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!(wire.lost() > 0 && replay.lost() > 0);
}

#[test]
fn a_lost_last_message_is_found_in_the_silence_after_it() {
    let (mut publisher, wire) = busy(Replay::Topic);
    let handle = follower(&[wire.endpoint()], &[format!("tcp://{}", publisher.replay)]);
    until_feed(handle.admin, "live");
    until("subscribed", || publisher.subscribers() == 1);
    churn(&mut publisher, 50);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    publisher.store(&[7, 8, 9, 10]);
    wire.lose_next(1);
    publisher.publish();
    until("lost", || wire.lost() == 1);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    assert!(resets(handle.admin, "") < 0.5);
    assert!(losses(handle.admin, "") < 0.5, "one lost message does not make a connection dead");
}

#[test]
fn a_quiet_engine_is_left_in_peace() {
    let mut publisher = Publisher::start(1, Replay::Topic);
    churn(&mut publisher, 20);
    let place = |address| [format!("tcp://{address}")];
    let timers = FeedTimers::default().faster(10);
    let handle = timed_follower(&place(publisher.live), &place(publisher.replay), timers);
    until_difference(handle.admin, &publisher, |now| now == NONE);
    // At joining, right after it, after 0.5 s, after 1 s more. The next is due 2 s later.
    until("asked four times", || publisher.replays_asked() >= 4);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(publisher.replays_asked(), 4);
    assert!((replays(handle.admin, "nothing_missed") - 3.0).abs() < 0.5);
    assert!(losses(handle.admin, "") + resets(handle.admin, "") < 0.5);
    until_difference(handle.admin, &publisher, |now| now == NONE);
}
