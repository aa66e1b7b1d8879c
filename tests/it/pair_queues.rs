//! Legs are admitted like any request: no rank ever has more than its places, who finds none waits,
//! and a full queue says so.

use crate::rig::pairs::{ask, idle, pair_config, ready, reason};
use crate::rig::stub::{Step, Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, metric, until};
use forebay::config::{Config, QueueMode};
use forebay::server::ServerHandle;
use std::time::Duration;

const ASK: &str = r#"{"model":"m","prompt":"hi"}"#;

fn narrow(mut config: Config, mode: QueueMode, places: u32, depth: u32) -> Config {
    config.cores = vec![0, 1];
    config.flow.rank_concurrency_max = Some(places);
    config.flow.queue.mode = mode;
    config.flow.queue.depth_max = depth;
    config.flow.queue.wait_max = Duration::from_secs(60);
    config
}

fn many(mode: &'static str, count: usize) -> Vec<Stub> {
    (0..count).map(|_| Stub::start(Pages::sglang(mode))).collect()
}

fn listed<'a>(prefill: &'a [Stub], decode: &'a [Stub]) -> Vec<(&'a Stub, &'static str)> {
    prefill.iter().chain(decode).map(|stub| (stub, "")).collect()
}

/// Clients at once, and how they were answered: served, refused.
fn burst(router: &ServerHandle, count: usize) -> (usize, usize) {
    let mut clients: Vec<Client> =
        (0..count).map(|_| ask(router, "/v1/completions", ASK)).collect();
    let mut served = 0;
    let mut refused = 0;
    for client in &mut clients {
        let reply = client.reply();
        match reply.status {
            200 => served += 1,
            429 => refused += 1,
            other => panic!("{other} {}{}", reply.head, reply.text()),
        }
        assert!(reply.complete);
    }
    (served, refused)
}

#[test]
fn no_rank_has_more_than_its_places_whichever_leg_is_the_narrow_one() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        for (prefills, decodes) in [(1, 3), (3, 1), (2, 2)] {
            let prefill = many("prefill", prefills);
            let decode = many("decode", decodes);
            let workers = listed(&prefill, &decode);
            let config = narrow(pair_config(&workers, ""), mode, 2, 1_000);
            let router = ready(config, &workers);
            let slowly = |bytes: &[u8]| {
                [vec![Step::Pause(Duration::from_millis(10))], answer(bytes)].concat()
            };
            for stub in prefill.iter().chain(&decode) {
                stub.always(slowly(b"{}"));
            }
            let count = 60;
            assert_eq!(burst(&router, count), (count, 0), "{mode:?} {prefills} {decodes}");
            idle(&router);
            let legs =
                |stubs: &[Stub]| -> usize { stubs.iter().map(|stub| stub.arrivals().len()).sum() };
            assert_eq!((legs(&prefill), legs(&decode)), (count, count));
            for stub in prefill.iter().chain(&decode) {
                let peak = stub.in_flight_peak();
                assert!(peak <= 2, "{peak} at once, {mode:?} {prefills} {decodes}");
            }
            assert!(metric(&router, "forebay_queue_depth") == 0.0);
        }
    }
}

/// A pair with one place each whose named leg is held by a first request.
fn held(mode: QueueMode, hold_prefill: bool, depth: u32) -> (Stub, Stub, ServerHandle, Client) {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let mut config = narrow(pair_config(&workers, ""), mode, 1, depth);
    config.cores = vec![0];
    let router = ready(config, &workers);
    let (holds, goes) = if hold_prefill { (&prefill, &decode) } else { (&decode, &prefill) };
    holds.always([vec![Step::Word], answer(b"{}")].concat());
    goes.always(answer(b"{}"));
    let first = ask(&router, "/v1/completions", ASK);
    holds.arrival(0);
    goes.arrival(0);
    (prefill, decode, router, first)
}

#[test]
fn a_full_queue_of_either_leg_is_a_429() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        for hold_prefill in [true, false] {
            let what = format!("{mode:?}, prefill held: {hold_prefill}");
            let (prefill, decode, router, mut first) = held(mode, hold_prefill, 2);
            let mut waiters = Vec::new();
            // Those who wait for the prefill leg hold a decode lease each: there is one.
            for number in 1..=2 {
                waiters.push(ask(&router, "/v1/completions", ASK));
                until(&what, || metric(&router, "forebay_queue_depth") == f64::from(number));
            }
            if hold_prefill {
                // One waits for prefill and one behind it for decode; decode's queue has one more
                // place.
                waiters.push(ask(&router, "/v1/completions", ASK));
                until(&what, || metric(&router, "forebay_queue_depth") == 3.0);
            }
            let reply = ask(&router, "/v1/completions", ASK).reply();
            assert_eq!((reply.status, reason(&reply)), (429, "rejected-queue-full"), "{what}");
            assert_eq!(reply.field("x-should-retry"), Some("true"));
            let holds = if hold_prefill { &prefill } else { &decode };
            for _ in 0..=waiters.len() {
                holds.let_go();
            }
            assert_eq!(first.reply().status, 200);
            for waiter in &mut waiters {
                assert_eq!(waiter.reply().status, 200, "{what}");
            }
            idle(&router);
            assert!(prefill.in_flight_peak() <= 1 && decode.in_flight_peak() <= 1, "{what}");
        }
    }
}

/// Requests for whose prompts nobody has time are refused before they take a decode rank.
#[test]
fn the_window_of_the_prefill_ranks_refuses_pairs_until_they_have_room() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, "concurrency_max = 1"), (&decode, "concurrency_max = 8")];
    let mut config = narrow(pair_config(&workers, ""), QueueMode::Pool, 8, 1);
    config.flow.rejection_window = Duration::from_secs(60);
    let router = ready(config, &workers);
    prefill.always([vec![Step::Word], answer(b"{}")].concat());
    let mut first = ask(&router, "/v1/completions", ASK);
    prefill.arrival(0);
    decode.arrival(0);
    let mut waiter = ask(&router, "/v1/completions", ASK);
    until("it waits", || metric(&router, "forebay_queue_depth") == 1.0);
    for wanted in ["rejected-queue-full", "rejected-window", "rejected-window"] {
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert_eq!((reply.status, reason(&reply)), (429, wanted));
    }
    prefill.let_go();
    prefill.let_go();
    assert_eq!((first.reply().status, waiter.reply().status), (200, 200));
    prefill.always(answer(b"{}"));
    assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200, "nobody waits");
    idle(&router);
}

#[test]
fn who_leaves_while_a_leg_waits_leaves_nothing_behind() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        for hold_prefill in [true, false] {
            let what = format!("{mode:?}, prefill held: {hold_prefill}");
            let (prefill, decode, router, mut first) = held(mode, hold_prefill, 8);
            let gone = ask(&router, "/v1/completions", ASK);
            until(&what, || metric(&router, "forebay_queue_depth") == 1.0);
            drop(gone);
            until(&what, || metric(&router, "forebay_queue_depth") == 0.0);
            let holds = if hold_prefill { &prefill } else { &decode };
            holds.let_go();
            assert_eq!(first.reply().status, 200);
            idle(&router);
            assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (1, 1), "{what}");
        }
    }
}

#[test]
fn without_a_queue_a_leg_without_room_is_a_429() {
    for hold_prefill in [true, false] {
        let (prefill, decode, router, mut first) = held(QueueMode::Off, hold_prefill, 8);
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert_eq!(reply.status, 429, "{}", reply.text());
        let holds = if hold_prefill { &prefill } else { &decode };
        holds.let_go();
        assert_eq!(first.reply().status, 200);
        idle(&router);
        assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (1, 1));
    }
}

#[test]
fn a_wait_for_the_prefill_leg_ends_with_the_clients_deadline() {
    let (prefill, decode, router, mut first) = held(QueueMode::Pool, true, 8);
    let mut late = crate::rig::pairs::ask_with(
        &router,
        "/v1/completions",
        "x-forebay-timeout-ms: 150\r\n",
        ASK,
    );
    let reply = late.reply();
    assert_eq!((reply.status, reason(&reply)), (408, "request-deadline"), "{}", reply.text());
    prefill.let_go();
    assert_eq!(first.reply().status, 200);
    idle(&router);
    assert_eq!((prefill.arrivals().len(), decode.arrivals().len()), (1, 1));
}

#[test]
fn who_waits_for_a_prefill_rank_and_loses_its_decode_rank_is_routed_anew() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let prefill = many("prefill", 1);
        let decode = many("decode", 2);
        let workers = listed(&prefill, &decode);
        let mut config = narrow(pair_config(&workers, ""), mode, 1, 8);
        config.cores = vec![0];
        config.health.interval = Duration::from_millis(100);
        config.health.unhealthy_after = 1;
        // Nobody moves for having waited long.
        config.flow.queue.stale_after = Duration::from_secs(60);
        let router = ready(config, &workers);
        for stub in prefill.iter().chain(&decode) {
            stub.always([vec![Step::Word], answer(b"{}")].concat());
        }
        let mut first = ask(&router, "/v1/completions", ASK);
        prefill[0].arrival(0);
        until("the first decodes", || decode.iter().any(|stub| !stub.arrivals().is_empty()));
        let (used, other): (Vec<&Stub>, Vec<&Stub>) =
            decode.iter().partition(|stub| !stub.arrivals().is_empty());
        // The second has the other decode rank, and waits for the prefill rank.
        let mut second = ask(&router, "/v1/completions", ASK);
        until("the second waits", || metric(&router, "forebay_queue_depth") == 1.0);
        other[0].vanish();
        until("its half is known to be gone", || {
            metric(&router, "forebay_queue_reroutes_total") > 0.0
        });
        for stub in [&prefill[0], &prefill[0], used[0], used[0]] {
            stub.let_go();
        }
        assert_eq!((first.reply().status, second.reply().status), (200, 200), "{mode:?}");
        assert_eq!(used[0].arrivals().len(), 2);
        let moves = metric(&router, "forebay_queue_reroutes_total");
        assert!(moves < 5.0, "it was sent on {moves} times");
        idle(&router);
    }
}
