//! `queue.sse_comments`: a streaming client that waits sees where it stands, and how its request
//! ends, in one stream.

use crate::rig::gate::prompt;
use crate::rig::{Client, Gate, Worker, config, metric, router, until};
use forebay::config::{Config, QueueMode};
use forebay::server::ServerHandle;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n";
const QUEUED: &str = "15\r\n: queued position=1\n\n\r\n";
const TOKENS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                      1d\r\ndata: {\"n\":1}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n";
const NO: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 33\r\n\r\n\
                  {\"error\":\n{\"message\":\"too long\"}}";

/// One place on each worker, named `w0`, `w1`; long waits.
fn telling(workers: &[&Worker]) -> Config {
    let mut config = config(workers);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = Some(format!("w{number}"));
    }
    config.flow.rank_concurrency_max = Some(1);
    config.flow.queue.wait_max = Duration::from_secs(60);
    config.flow.queue.stale_after = Duration::from_secs(60);
    config.flow.queue.sse_comments = true;
    config
}

fn request(path: &str, version: &str, prompt: &str, stream: bool) -> String {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","stream":{stream}}}"#);
    format!(
        "POST {path} HTTP/{version}\r\nhost: router\r\nx-request-id: id-7\r\naccept-encoding: gzip\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn ask(address: SocketAddr, path: &str, prompt: &str, stream: bool) -> Client {
    let mut client = Client::connect(address);
    client.send(request(path, "1.1", prompt, stream).as_bytes());
    client
}

/// Takes the worker's only place.
fn busy(handle: &ServerHandle, gate: &Gate) -> Client {
    let client = ask(handle.listen, "/v1/completions", "busy", false);
    gate.holds(1);
    client
}

/// A streaming client that waits.
fn waiter(handle: &ServerHandle, path: &str) -> Client {
    let client = ask(handle.listen, path, "waits", true);
    waiting(handle, 1);
    client
}

fn waiting(handle: &ServerHandle, count: usize) {
    until("so many wait", || metric(handle, "forebay_queue_depth") == count as f64);
}

fn sees(client: &mut Client, wanted: &str) {
    let mut bytes = vec![0; wanted.len()];
    client.stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), wanted);
}

fn refused(handle: &ServerHandle, reason: &str, status: u16) {
    let reason = format!("forebay_rejected_total{{reason=\"{reason}\"");
    assert_eq!(metric(handle, &reason), 1.0, "{reason}");
    until("it is counted with its true status", || answered(handle, status) == 1.0);
}

fn answered(handle: &ServerHandle, status: u16) -> f64 {
    let name = "forebay_requests_total{endpoint=";
    ["chat_completions", "completions", "responses", "messages"]
        .map(|endpoint| metric(handle, &format!("{name}\"{endpoint}\",code=\"{status}\"")))
        .iter()
        .sum()
}

#[test]
fn a_queued_client_sees_comments_then_tokens_byte_for_byte() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let gate = Gate::answering(TOKENS);
        let mut config = telling(&[&gate.worker]);
        config.flow.queue.mode = mode;
        let handle = router(config);
        let mut first = busy(&handle, &gate);
        let mut client = waiter(&handle, "/v1/completions");
        sees(&mut client, HEAD);
        sees(&mut client, "transfer-encoding: chunked\r\nx-request-id: id-7\r\n\r\n");
        sees(&mut client, QUEUED);
        // Two seconds later.
        sees(&mut client, "14\r\n: queued waited=2s\n\n\r\n");
        gate.open();
        sees(&mut client, "15\r\n: prefill worker=w0\n\n\r\n");
        gate.open();
        sees(&mut client, "1d\r\ndata: {\"n\":1}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n");
        assert_eq!(first.reply().status, 200);
        // The connection goes on, and who need not wait gets the engine's answer as it is.
        client.send(request("/v1/completions", "1.1", "again", true).as_bytes());
        gate.open();
        let reply = client.reply();
        assert_eq!(reply.field("x-forebay-worker"), Some("w0"));
        assert_eq!(reply.text(), "data: {\"n\":1}\n\ndata: [DONE]\n\n");
        let encodings = [gate.worker.next(), gate.worker.next(), gate.worker.next()]
            .map(|seen| seen.head.contains("accept-encoding: identity\r\n"));
        assert_eq!(encodings, [false, true, false], "no coding that was not announced");
        handle.stop();
        handle.join().unwrap();
    }
}

#[test]
fn an_http_1_0_client_reads_to_the_end() {
    let gate = Gate::answering(TOKENS);
    let handle = router(telling(&[&gate.worker]));
    let mut first = busy(&handle, &gate);
    let mut client = Client::connect(handle.listen);
    client.send(request("/v1/completions", "1.0", "waits", true).as_bytes());
    sees(&mut client, HEAD);
    sees(&mut client, "connection: close\r\nx-request-id: id-7\r\n\r\n: queued position=1\n\n");
    gate.open();
    gate.open();
    sees(&mut client, ": prefill worker=w0\n\ndata: {\"n\":1}\n\ndata: [DONE]\n\n");
    assert!(client.at_end());
    assert_eq!(first.reply().status, 200);
}

#[test]
fn a_refusal_after_queueing_is_the_last_event() {
    for (path, event, end) in [
        ("/v1/chat/completions", "data: {\"error\":{\"message\":", "}}\n\ndata: [DONE]\n\n"),
        (
            "/v1/responses",
            "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":",
            "}}\n\n",
        ),
        ("/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":", "}}\n\n"),
    ] {
        let gate = Gate::start();
        let mut config = telling(&[&gate.worker]);
        config.flow.queue.wait_max = Duration::from_millis(300);
        let handle = router(config);
        let mut first = busy(&handle, &gate);
        let mut client = ask(handle.listen, path, "waits", true);
        let reply = client.reply();
        let text = reply.text();
        assert_eq!((reply.status, reply.complete), (200, true));
        let start = ": queued position=1\n\n: status=429 reason=rejected-queue-wait";
        assert!(text.starts_with(start) && text.contains(&format!("\n\n{event}")), "{text}");
        assert!(text.contains("\"rate_limit_error\"") && text.ends_with(end), "{text}");
        refused(&handle, "rejected-queue-wait", 429);
        gate.open();
        assert_eq!(first.reply().status, 200);
        // The connection goes on.
        gate.open();
        client.send(request("/v1/completions", "1.1", "again", false).as_bytes());
        assert_eq!(client.reply().text(), "{}");
        handle.stop();
        handle.join().unwrap();
    }
}

#[test]
fn an_engines_error_is_the_last_event() {
    let gate = Gate::answering(NO);
    let handle = router(telling(&[&gate.worker]));
    let mut first = busy(&handle, &gate);
    let mut client = waiter(&handle, "/v1/completions");
    gate.open();
    gate.open();
    let reply = client.reply();
    assert!(reply.complete);
    assert_eq!(
        reply.text(),
        ": queued position=1\n\n: prefill worker=w0\n\n: status=400\n\n\
         data: {\"error\":{\"message\":\"too long\"}}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(first.reply().status, 400);
    until("both are counted", || answered(&handle, 400) == 2.0);
    assert_eq!(answered(&handle, 200), 0.0);
    // Its connection to the worker was used again and can be once more.
    assert_eq!(metric(&handle, "forebay_upstream_connects"), 1.0);
    gate.open();
    client.send(request("/v1/completions", "1.1", "again", true).as_bytes());
    assert_eq!(client.reply().status, 400);
    assert_eq!(metric(&handle, "forebay_upstream_connects"), 1.0);
}

#[test]
fn an_answer_that_is_no_stream_is_an_error() {
    let gate = Gate::start();
    let handle = router(telling(&[&gate.worker]));
    let mut first = busy(&handle, &gate);
    let mut client = waiter(&handle, "/v1/completions");
    gate.open();
    gate.open();
    let text = client.reply().text();
    assert!(text.contains("\n\n: status=200\n\ndata: {\"error\":{"), "{text}");
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    assert_eq!(first.reply().status, 200);
}

#[test]
fn a_broken_worker_is_replaced_before_its_first_byte() {
    let broken = Gate::answering("");
    let good = Gate::answering(TOKENS);
    let mut config = telling(&[&broken.worker, &good.worker]);
    config.retry.after_send = true;
    let handle = router(config);
    let paths = ["/v1/completions"; 2];
    let mut busy = paths.map(|path| ask(handle.listen, path, "busy", false));
    broken.holds(1);
    good.holds(1);
    let mut client = waiter(&handle, "/v1/completions");
    // The first one fails and waits for the other worker; the place that it leaves is the client's.
    broken.open();
    broken.prompt();
    assert_eq!(broken.prompt(), "waits");
    broken.open();
    // Both wait now. Were the other worker free before, the client would not be queued again.
    waiting(&handle, 2);
    for _ in 0..3 {
        good.open();
    }
    let reply = client.reply();
    let text = reply.text();
    assert!(reply.complete);
    assert!(
        text.starts_with(": queued position=1\n\n: prefill worker=w0\n\n: queued position="),
        "{text}"
    );
    let end = "\n\n: prefill worker=w1\n\ndata: {\"n\":1}\n\ndata: [DONE]\n\n";
    assert!(text.ends_with(end), "{text}");
    busy.iter_mut().for_each(|client| assert_eq!(client.reply().status, 200));
}

#[test]
fn a_worker_that_breaks_and_has_no_successor_is_the_last_event() {
    let gate = Gate::answering("");
    let handle = router(telling(&[&gate.worker]));
    let mut first = busy(&handle, &gate);
    let mut client = waiter(&handle, "/v1/completions");
    gate.open();
    gate.open();
    let text = client.reply().text();
    assert!(
        text.contains("\n\n: status=502 reason=upstream-failed\n\ndata: {\"error\":{"),
        "{text}"
    );
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    assert_eq!(first.reply().status, 502);
}

#[test]
fn a_shutdown_is_the_last_event() {
    let gate = Gate::answering(TOKENS);
    let mut config = telling(&[&gate.worker]);
    config.timeouts.drain = Duration::from_secs(3);
    let handle = router(config);
    let mut first = busy(&handle, &gate);
    let mut client = waiter(&handle, "/v1/completions");
    handle.stop();
    let reply = client.reply();
    let text = reply.text();
    assert!(reply.complete && client.at_end());
    // It was told that it still waits while the router drained.
    let start =
        ": queued position=1\n\n: queued waited=2s\n\n: status=503 reason=draining\n\ndata: ";
    assert!(text.starts_with(start) && text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    gate.open();
    assert_eq!(first.reply().status, 200);
    handle.join().unwrap();
}

#[test]
fn a_client_that_leaves_after_the_head_costs_the_worker_nothing() {
    let gate = Gate::answering(TOKENS);
    let handle = router(telling(&[&gate.worker]));
    let mut first = busy(&handle, &gate);
    let mut gone = waiter(&handle, "/v1/completions");
    sees(&mut gone, HEAD);
    drop(gone);
    waiting(&handle, 0);
    let mut last = ask(handle.listen, "/v1/completions", "last", true);
    waiting(&handle, 1);
    let worker = gate.open_for_good();
    assert_eq!(first.reply().status, 200);
    assert!(last.reply().complete);
    assert_eq!([prompt(&worker), prompt(&worker)], ["busy", "last"]);
    assert!(worker.seen.try_recv().is_err(), "nothing of the other one");
}

#[test]
fn others_get_the_same_bytes_with_the_key_and_without() {
    let answer = |key: bool, path: &str, stream: bool, waits: bool| {
        let gate = Gate::answering(TOKENS);
        let mut config = telling(&[&gate.worker]);
        config.flow.queue.sse_comments = key;
        let handle = router(config);
        let mut first = waits.then(|| busy(&handle, &gate));
        let mut client = ask(handle.listen, path, "asks", stream);
        if let Some(first) = &mut first {
            waiting(&handle, 1);
            gate.open();
            assert_eq!(first.reply().status, 200);
        }
        gate.open();
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("x-forebay-worker")), (200, Some("w0")));
        handle.stop();
        handle.join().unwrap();
        reply
    };
    for (path, stream, waits) in [
        ("/v1/completions", true, false),
        ("/v1/completions", false, true),
        // Not an endpoint that streams.
        ("/v1/embeddings", true, true),
    ] {
        assert_eq!(answer(true, path, stream, waits), answer(false, path, stream, waits), "{path}");
    }
    // Without the key nobody is told anything.
    let silent = answer(false, "/v1/completions", true, true);
    assert_eq!(silent.text(), "data: {\"n\":1}\n\ndata: [DONE]\n\n");
}
