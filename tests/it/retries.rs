//! F7: what is sent to a second worker. Refused connections cost nothing. A request that a worker
//! may have read reaches no second one.

use crate::rig::pairs::{ask, pair_config, ready};
use crate::rig::stub::{Stub, answer};
use crate::rig::stub_pages::Pages;
use crate::rig::{ASK, Client, Worker, config, metric, post, router};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};

/// An address that nobody listens on.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn dead() -> Worker {
    let mut worker = Worker::json("{}");
    worker.address = nowhere();
    worker
}

/// Answers all prompts but `DIE`, at which it closes.
fn mortal() -> Worker {
    Worker::start(|seen, stream| {
        let lives = !String::from_utf8_lossy(&seen.body).contains("DIE");
        lives && stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    })
}

const DIE: &[u8] = br#"{"model":"m","prompt":"DIE"}"#;

fn status(client: &mut Client, body: &[u8]) -> u16 {
    client.send(&post("/v1/completions", body));
    client.reply().status
}

fn came(worker: &Worker) -> usize {
    worker.seen.try_iter().count()
}

/// S9: 7 of 640 requests were a 502 beside a healthy engine.
#[test]
fn refused_connections_are_no_attempts() {
    let bad = [dead(), dead(), dead(), dead()];
    let good = Worker::json("{}");
    let mut config = config(&[&bad[0], &bad[1], &bad[2], &bad[3], &good]);
    config.retry.attempts_max = 1;
    config.retry.budget_percent = 0;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    for _ in 0..40 {
        assert_eq!(status(&mut client, ASK), 200);
    }
}

#[test]
fn an_address_that_refuses_is_left_out_with_all_its_ranks() {
    let bad = dead();
    let good = Worker::json("{}");
    let mut config = config(&[&bad, &good]);
    config.workers[0].ranks = Some(8);
    config.retry.attempts_max = 1;
    config.retry.budget_percent = 0;
    let router = router(config);
    for _ in 0..9 {
        let before = metric(&router, "forebay_upstream_connects_total");
        assert_eq!(status(&mut Client::connect(router.listen), ASK), 200);
        assert!(metric(&router, "forebay_upstream_connects_total") - before <= 2.0);
    }
}

#[test]
fn refused_legs_are_no_attempts() {
    for (side, engine) in [(0, Pages::vllm as fn() -> Pages), (1, Pages::vllm)] {
        let stubs: Vec<Stub> = (0..6).map(|_| Stub::start(engine())).collect();
        let role = |index| ["role = \"prefill\"", "role = \"decode\""][index % 2];
        let workers: Vec<_> =
            stubs.iter().enumerate().map(|(index, stub)| (stub, role(index))).collect();
        let mut config = pair_config(&workers, "");
        config.retry.attempts_max = 1;
        config.retry.budget_percent = 0;
        let router = ready(config, &workers);
        for (index, stub) in stubs.iter().enumerate() {
            stub.always(answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#));
            if index % 2 == side && index < 4 {
                stub.vanish();
            }
        }
        for _ in 0..6 {
            let reply = ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#).reply();
            assert_eq!(reply.status, 200, "side {side}: {}", reply.text());
        }
    }
}

/// S9: one POST arrived 4 times at 2 workers.
#[test]
fn what_a_worker_has_read_reaches_no_other() {
    let workers = [mortal(), mortal(), mortal()];
    let router = router(config(&[&workers[0], &workers[1], &workers[2]]));
    let mut client = Client::connect(router.listen);
    assert_eq!(status(&mut client, DIE), 502, "on a fresh connection");
    assert_eq!(workers.iter().map(came).collect::<Vec<_>>(), [1, 0, 0]);
    for _ in 0..6 {
        assert_eq!(status(&mut client, ASK), 200);
    }
    workers.iter().map(came).for_each(drop);
    assert_eq!(status(&mut client, DIE), 502, "on a pooled connection");
    let mut counts: Vec<_> = workers.iter().map(came).collect();
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 2], "the second time on a fresh connection to the same worker");
}

/// An interim head shows that the worker has read the request, as any other byte does.
#[test]
fn what_a_worker_has_begun_to_answer_is_not_sent_again() {
    let worker = Worker::start(|seen, stream| {
        let begins = String::from_utf8_lossy(&seen.body).contains("DIE");
        let answer: &[u8] = match begins {
            true => b"HTTP/1.1 103 Early Hints\r\n\r\n",
            false => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        };
        stream.write_all(answer).is_ok() && !begins
    });
    let router = router(config(&[&worker]));
    let mut client = Client::connect(router.listen);
    assert_eq!(status(&mut client, ASK), 200);
    came(&worker);
    assert_eq!(status(&mut client, DIE), 502, "on a pooled connection");
    assert_eq!(came(&worker), 1);
}

#[test]
fn a_refused_retry_is_named_in_the_error() {
    let bad = [Worker::start(|_, _| false), Worker::start(|_, _| false)];
    let mut config = config(&[&bad[0], &bad[1]]);
    config.retry.after_send = true;
    config.retry.budget_percent = 0;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    let allowed = (0..100).find(|_| {
        client.send(&post("/v1/completions", ASK));
        let reply = client.reply();
        assert_eq!(reply.status, 502);
        String::from_utf8(reply.body).unwrap().contains("(`retry.budget_percent`)")
    });
    assert!(allowed.is_some_and(|allowed| allowed < 50), "{allowed:?}: a reserve comes first");
    assert!(metric(&router, "forebay_retries_refused_total") >= 1.0);
}

#[test]
fn a_key_sends_it_to_another_all_the_same() {
    let bad = Worker::start(|_, _| false);
    let good = Worker::json("{}");
    let mut config = config(&[&bad, &good]);
    config.retry.after_send = true;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    for _ in 0..4 {
        assert_eq!(status(&mut client, ASK), 200);
    }
    assert!(came(&bad) > 0);
}

/// Engines send the head of a stream before they compute anything. It waits for the first event, so
/// that another worker can still answer.
#[test]
fn with_the_key_the_head_of_a_stream_is_no_first_byte() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let bad = Worker::start(|_, stream| {
        let _gone = stream.write_all(HEAD);
        false
    });
    let good = Worker::json("{}");
    let mut config = config(&[&bad, &good]);
    config.retry.after_send = true;
    let router = router(config);
    let mut client = Client::connect(router.listen);
    for _ in 0..4 {
        client.send(&post("/v1/completions", ASK));
        assert_eq!(client.reply().text(), "{}");
    }
    assert!(came(&bad) > 0);
}

/// The worker read the request and died of it. That its port refuses afterwards does not make the
/// request unsent.
#[test]
fn a_request_that_ends_its_worker_is_not_sent_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bad = Worker::json("{}");
    let good = Worker::json("{}");
    bad.address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..2 {
            let mut input = Vec::new();
            while !input.ends_with(b"}") {
                let mut buffer = [0; 4_096];
                let count = std::io::Read::read(&mut stream, &mut buffer).unwrap();
                input.extend_from_slice(&buffer[..count]);
            }
            if input.windows(3).all(|part| part != b"DIE") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            }
        }
        drop(listener);
    });
    let router = router(config(&[&bad, &good]));
    let mut client = Client::connect(router.listen);
    for body in [ASK, ASK] {
        assert_eq!(status(&mut client, body), 200);
    }
    assert_eq!(came(&good), 1);
    assert_eq!(status(&mut client, DIE), 502);
    assert_eq!(came(&good), 0);
}

/// A retry is a request that was sent again. The last worker that fails leaves none.
#[test]
fn a_failure_without_another_worker_is_no_retry() {
    for workers in 1..3 {
        let all: Vec<Worker> = (0..workers).map(|_| mortal()).collect();
        let mut config = config(&all.iter().collect::<Vec<_>>());
        config.retry.after_send = true;
        config.retry.attempts_max = 5;
        let router = router(config);
        let mut client = Client::connect(router.listen);
        assert_eq!(status(&mut client, DIE), 502);
        let sent: usize = all.iter().map(came).sum();
        assert_eq!(sent, all.len());
        let retries = metric(&router, "forebay_retries_total");
        assert_eq!(retries, (workers - 1) as f64, "{workers} workers");
    }
}
