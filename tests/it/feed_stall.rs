//! A router that does not read for a while: the publisher drops what it cannot send, the router
//! sees that it did.

use crate::rig::truth::{NONE, feed, get, replays, resets, until_difference, until_feed};
use crate::rig::{PATIENCE, Publisher, Replay, RouterProcess, until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[test]
fn a_stopped_router_resyncs_when_it_goes_on() {
    for with_replay in [false, true] {
        let mut publisher = Publisher::start(1, Replay::Topic);
        let router =
            RouterProcess::start(&publisher.live, with_replay.then_some(&publisher.replay));
        until_feed(router.admin, "live");
        until("subscribed", || publisher.subscribers() == 1);
        (0..100).for_each(|_| publisher.churn());
        until_difference(router.admin, &publisher, |now| now == NONE);

        let joined = replays(router.admin, "complete");
        router.signal(Signal::STOP);
        publisher.remember(1_000_000);
        let mut batches = 0;
        while publisher.dropped() < 200 {
            publisher.pad(400);
            batches += 1;
            if batches % 10 == 0 {
                publisher.churn();
            }
            assert!(batches < 50_000, "the publisher never had to drop");
        }
        router.signal(Signal::CONT);
        // What waits is sent with the next message; then the gap shows.
        let start = Instant::now();
        while resets(router.admin, "gap") < 0.5 && replays(router.admin, "complete") < 0.5 + joined
        {
            assert!(start.elapsed() < PATIENCE, "the gap is not seen");
            publisher.churn();
            std::thread::sleep(Duration::from_millis(5));
        }
        let good = |now: crate::rig::truth::Difference| {
            if with_replay { now == NONE } else { now.ghosts == 0 }
        };
        until_difference(router.admin, &publisher, good);
        assert_eq!(feed(router.admin, 0)["connections_lost"], 0);
        assert_eq!(get(router.admin, "/readyz").status, 200);
    }
}
