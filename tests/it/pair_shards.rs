//! Prefill legs travel between shards: more shards than cores, every leg counted by its way, all
//! answered.

use crate::rig::pairs::{ask, idle, legs, pair_config, ready, room};
use crate::rig::stub::{Step, Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{metric, until};
use std::collections::HashSet;

const ASK: &str = r#"{"model":"m","prompt":"hi"}"#;
const SHARDS: usize = 4;
const REQUESTS: usize = 200;

#[test]
fn four_shards_on_two_cores_hand_legs_to_each_other() {
    let prefill: Vec<Stub> = (0..3).map(|_| Stub::start(Pages::sglang("prefill"))).collect();
    let decode: Vec<Stub> = (0..2).map(|_| Stub::start(Pages::sglang("decode"))).collect();
    let workers: Vec<_> = prefill.iter().chain(&decode).map(|stub| (stub, "")).collect();
    let mut config = pair_config(&workers, "");
    config.cores = (0..SHARDS).map(|shard| shard % 2).collect();
    let router = ready(config, &workers);
    for stub in prefill.iter().chain(&decode) {
        stub.always(answer(b"{}"));
    }
    idle(&router);
    let before = [legs(&router, "mesh"), legs(&router, "local")];
    // Each on a connection of its own: the kernel spreads them over the shards.
    let mut clients: Vec<_> = (0..REQUESTS).map(|_| ask(&router, "/v1/completions", ASK)).collect();
    for client in &mut clients {
        let reply = client.reply();
        assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
    }
    idle(&router);
    let rooms = |stubs: &[Stub]| -> HashSet<u64> {
        stubs.iter().flat_map(Stub::arrivals).map(|leg| room(leg.text())).collect()
    };
    assert_eq!(rooms(&prefill).len(), REQUESTS, "a room for each");
    assert_eq!(rooms(&prefill), rooms(&decode));
    let [mesh, local] = [legs(&router, "mesh") - before[0], legs(&router, "local") - before[1]];
    assert!((mesh + local - REQUESTS as f64).abs() < 0.5, "{mesh} + {local}");
    // A rank's home is one of four shards, a client's shard any of them: a quarter stays at home.
    assert!(mesh > REQUESTS as f64 / 4.0, "{mesh} of {REQUESTS} went over the rings");
    let hop = "forebay_stage_seconds_count{stage=\"prefill_hop\"";
    until("every hop is timed", || metric(&router, hop) >= mesh);
}

#[test]
fn a_client_on_one_shard_that_leaves_ends_the_leg_on_another() {
    let prefill: Vec<Stub> = (0..4).map(|_| Stub::start(Pages::sglang("prefill"))).collect();
    let decode = vec![Stub::start(Pages::sglang("decode"))];
    let workers: Vec<_> = prefill.iter().chain(&decode).map(|stub| (stub, "")).collect();
    let mut config = pair_config(&workers, "");
    config.cores = vec![0, 1, 0, 1];
    let router = ready(config, &workers);
    for stub in prefill.iter().chain(&decode) {
        stub.always(vec![Step::Word]);
    }
    let count = 24;
    let clients: Vec<_> = (0..count).map(|_| ask(&router, "/v1/completions", ASK)).collect();
    until("all legs have come", || {
        prefill.iter().chain(&decode).map(|stub| stub.arrivals().len()).sum::<usize>() == 2 * count
    });
    drop(clients);
    idle(&router);
    for stub in prefill.iter().chain(&decode) {
        for number in 0..stub.arrivals().len() {
            stub.closed(number);
        }
        until("every leg is aborted", || stub.aborts().len() == stub.arrivals().len());
    }
}

/// Hops between shards that sleep, one at a time. `tools/disaggregation_timing` measures where the
/// machine is quiet and the program optimised; here a bell that nobody heard would show.
/// `--nocapture` prints what they took.
#[test]
fn a_leg_wakes_the_shard_that_it_travels_to() {
    let prefill: Vec<Stub> = (0..3).map(|_| Stub::start(Pages::sglang("prefill"))).collect();
    let decode = vec![Stub::start(Pages::sglang("decode"))];
    let workers: Vec<_> = prefill.iter().chain(&decode).map(|stub| (stub, "")).collect();
    let mut config = pair_config(&workers, "");
    config.cores = vec![0, 1, 0, 1];
    let router = ready(config, &workers);
    for _ in 0..REQUESTS {
        assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200);
    }
    idle(&router);
    let mesh = legs(&router, "mesh");
    let up_to = |bound: &str| {
        metric(
            &router,
            &format!("forebay_stage_seconds_bucket{{stage=\"prefill_hop\",le=\"{bound}\""),
        )
    };
    until("every hop is timed", || up_to("+Inf") >= mesh);
    let bounds =
        ["0.00001", "0.00002", "0.00005", "0.0001", "0.0002", "0.0005", "0.001", "0.005", "0.02"];
    let shares: Vec<_> = bounds.iter().map(|bound| (*bound, up_to(bound) / mesh)).collect();
    println!("{mesh} hops; up to so many seconds this share: {shares:.3?}");
    // Nobody would look before the next request comes, or a timer ends.
    assert!(shares.last().is_some_and(|(_, share)| *share > 0.5), "{shares:?}");
}
