//! Workers that share a KV pool, with a real publisher each: what one of them wrote counts for all
//! of them, also when the writer is gone.

use crate::rig::{Client, admin, admin_post, metric, until};
use crate::tiers_and_adapters::{BASE, Publisher, ask, explain, kv_router_of, of, prompt, vllm};
use forebay::config::WorkerConfig;
use forebay::server::ServerHandle;
use serde_json::{Value, json};

/// Three workers, of which the first two share a pool.
fn shared(position: usize, worker: &mut WorkerConfig) {
    worker.kv_pool = (position < 2).then(|| "store".to_owned());
}

fn workers(handle: &ServerHandle) -> Value {
    let reply = admin(handle, "/workers");
    serde_json::from_slice(&reply.body).expect("JSON")
}

#[test]
fn what_one_worker_wrote_into_the_pool_draws_requests_to_each_of_its_workers() {
    let engines = [vllm(BASE), vllm(BASE), vllm(BASE)];
    let mut publishers = [Publisher::new(), Publisher::new(), Publisher::new()];
    let pairs: Vec<_> = engines.iter().zip(&publishers).collect();
    let handle = kv_router_of(&pairs, shared);
    publishers.iter_mut().for_each(|publisher| publisher.meet(&handle));
    // The first writes all of it, by way of vLLM's connector to a Mooncake store. The third has a
    // quarter on its device.
    publishers[0].store(&prompt(1), "cpu", None);
    publishers[2].store(&prompt(1)[..16], "GPU", None);
    let explained = || explain(&handle, "m", &prompt(1));
    until("both are in the index", || {
        let explained = explained();
        of(&explained, &engines[1])["kv_pool_overlap_bytes"].as_u64() > Some(0)
            && of(&explained, &engines[2])["overlap_bytes"].as_u64() > Some(0)
    });
    let found = explained();
    let bytes = |position: usize, name: &str| of(&found, &engines[position])[name].as_u64();
    let names = ["overlap_bytes", "host_overlap_bytes", "kv_pool_overlap_bytes"];
    for position in [0, 1] {
        assert_eq!(names.map(|name| bytes(position, name)), [Some(0), Some(0), Some(64)]);
        assert_eq!(bytes(position, "weighed_overlap_bytes"), Some(32), "half of it");
        assert_eq!(of(&found, &engines[position])["overlap_kind"], "upper_bound");
    }
    assert_eq!(names.map(|name| bytes(2, name)), [Some(16), Some(16), Some(16)]);
    assert_eq!(of(&found, &engines[2])["overlap_kind"], "exact");
    assert!((metric(&handle, r#"forebay_kv_pool_blocks{kv_pool="store""#) - 4.0).abs() < 0.1);
    let listed = workers(&handle);
    let shown = |position: usize| listed["workers"][position]["ranks"][0]["kv_pool"].clone();
    assert_eq!(shown(0), json!({ "name": "store", "blocks": 4 }));
    assert_eq!([shown(1), shown(2)], [shown(0), Value::Null]);
    for _ in 0..3 {
        let reply = ask(&handle, "m", &prompt(1));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let third = engines[2].address.to_string();
        assert_ne!(reply.field("x-forebay-worker"), Some(third.as_str()));
    }

    // The writer clears its cache, and then goes: what it wrote is there.
    publishers[0].store(&prompt(2), "GPU", None);
    let device = |seed: u32| {
        of(&explain(&handle, "m", &prompt(seed)), &engines[0])["overlap_bytes"].as_u64()
    };
    until("its device has another prompt", || device(2) == Some(64));
    publishers[0].clear();
    until("it has cleared", || device(2) == Some(0));
    let pool = || of(&explained(), &engines[1])["kv_pool_overlap_bytes"].as_u64();
    assert_eq!(pool(), Some(64));
    let [first, mut second, _third] = publishers;
    drop(first);
    until("its events are lost", || {
        let reply = admin(&handle, "/metrics");
        let lost = format!(r#"forebay_kv_feed_live{{worker="{}""#, engines[0].address);
        reply.text().lines().any(|line| line.starts_with(&lost) && line.ends_with(" 0"))
    });
    assert_eq!(pool(), Some(64));

    // Another one removes it.
    second.remove(4, "cpu");
    until("it is removed", || pool() == Some(0));
    assert!(metric(&handle, "forebay_kv_pool_blocks{").abs() < 0.1);
}

/// The last worker that shares a pool leaves: all that the pool held is taken out of the index, and
/// the worker that comes back at the same address without a pool is not matched against it.
#[test]
fn a_pool_ends_with_the_last_worker_that_shares_it() {
    let engines = [vllm(BASE), vllm(BASE)];
    let mut publishers = [Publisher::new(), Publisher::new()];
    let pairs: Vec<_> = engines.iter().zip(&publishers).collect();
    let handle = kv_router_of(&pairs, |position, worker| {
        worker.kv_pool = (position < 1).then(|| "store".to_owned());
    });
    publishers.iter_mut().for_each(|publisher| publisher.meet(&handle));
    publishers[0].store(&prompt(1), "cpu", None);
    let explained = || explain(&handle, "m", &prompt(1));
    let pool = || of(&explained(), &engines[0])["kv_pool_overlap_bytes"].as_u64();
    until("it is in the pool", || pool() == Some(64));
    let entries = || metric(&handle, "forebay_index_entries");
    assert!(entries() > 3.5);

    let mut client = Client::connect(handle.admin);
    let call =
        format!("DELETE /workers/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", engines[0].address);
    client.send(call.as_bytes());
    assert_eq!(client.reply().status, 202);
    until("the pool has ended", || {
        !admin(&handle, "/metrics").text().contains("forebay_kv_pool_blocks{") && entries() < 0.5
    });
    let table = json!({ "url": engines[0].url() });
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post("/workers", table.to_string().as_bytes()));
    let reply = client.reply();
    assert_eq!(reply.status, 201, "{}", reply.text());
    until("it is back without a pool", || {
        let ranks = &workers(&handle)["workers"];
        let same = |worker: &&Value| worker["url"] == engines[0].url();
        let Some(worker) = ranks.as_array().unwrap().iter().find(same) else { return false };
        worker["ranks"][0]["kv_pool"] == Value::Null
            && of(&explained(), &engines[0])["overlap_kind"] == "exact"
    });
}
