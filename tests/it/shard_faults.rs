//! A shard that hangs is seen, and one that dies ends the process.
#![cfg(debug_assertions)]

use crate::rig::truth::{get, metric};
use crate::rig::{ASK, Client, RouterProcess, Worker, admin_post, post, until};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

fn router(worker: &Worker, timeouts: &str) -> RouterProcess {
    RouterProcess::configured(&format!(
        "cores = [0, 1]\npolicy = \"round_robin\"\n[health]\nenabled = false\n\
         [timeouts]\n{timeouts}\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ))
}

fn plant(router: &RouterProcess, fault: &str) {
    let mut client = Client::connect(router.admin);
    client.send(&admin_post(&format!("/debug/plant?{fault}"), b""));
    assert_eq!(client.reply().status, 200);
}

fn readiness(router: &RouterProcess) -> (u16, String) {
    let reply = get(router.admin, "/readyz");
    (reply.status, reply.text())
}

#[test]
fn a_shard_that_hangs_takes_readyz_down_within_a_second_until_it_goes_on() {
    let worker = Worker::json("{}");
    let router = router(&worker, "");
    until("it is ready", || readiness(&router).0 == 200);
    plant(&router, "shard=1&hang_ms=3000");
    let planted = Instant::now();
    until("it is not ready", || readiness(&router).1.contains("shard 1 has made no progress"));
    let seen = planted.elapsed();
    println!("seen after {seen:?}");
    assert!(seen < Duration::from_millis(2_500), "{seen:?}, on a machine that may be busy");
    let stalled =
        |shard| metric(router.admin, &format!("forebay_shard_stalled{{shard=\"{shard}\"}}"));
    assert_eq!((stalled(0), stalled(1)), (0.0, 1.0));
    until("it is ready again", || readiness(&router).0 == 200);
    assert_eq!((stalled(0), stalled(1)), (0.0, 0.0));
    assert_eq!(router.logged("a shard makes no progress"), 1);
}

#[test]
fn a_shard_that_hangs_for_longer_than_allowed_aborts_the_process() {
    let worker = Worker::json("{}");
    let mut router = router(&worker, "stall_abort = \"1s\"");
    until("it is ready", || readiness(&router).0 == 200);
    plant(&router, "shard=0&hang_ms=60000");
    let ended = router.ended();
    assert_eq!(ended.signal(), Some(6), "{ended:?}");
    assert_eq!(router.logged("timeouts.stall_abort"), 2);
}

#[test]
fn a_shard_that_dies_ends_the_process_with_an_error_after_the_streams_of_the_others() {
    let worker = Worker::json("{}");
    let mut router = router(&worker, "drain = \"5s\"");
    until("it is ready", || readiness(&router).0 == 200);
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200);
    drop(client);
    plant(&router, "shard=1");
    assert_eq!(router.ended().code(), Some(1));
    assert_eq!(router.logged("planted by a test"), 1);
    assert!(router.logged("1 of 2 shards ended by a fault") >= 1);
}
