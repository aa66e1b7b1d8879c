//! I9: a stream that is cut inside an event ends behind a whole event, and then with the error of
//! its API. Official clients parse each event that they read, and raise their own error only for
//! the one with `error`.

use crate::rig::{Client, Reply, Worker, config, post, router};
use forebay::server::ServerHandle;
use serde_json::Value;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
const CHAT: &str = "/v1/chat/completions";

/// A path, and two events of its API.
const STREAMS: [(&str, &str); 4] = [
    (
        CHAT,
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\\n\"}}]}\n\ndata: {\"choices\":[]}\n\n",
    ),
    ("/v1/completions", "data: {\"choices\":[{\"text\":\"é\"}]}\r\n\r\n: ping\r\ndata: {}\r\n\r\n"),
    ("/v1/messages", "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: x\ndata: {\"a\":1}\n\n"),
    ("/v1/responses", "event: a\ndata: {\"response\":\ndata: {}}\n\nid: 1\rdata: {\"b\":2}\r\r"),
];

fn ask(handle: &ServerHandle, path: &str) -> Reply {
    let mut client = Client::connect(handle.listen);
    client.send(&post(path, br#"{"model":"m","stream":true,"input":"","messages":[]}"#));
    client.reply()
}

fn chunked(part: &[u8]) -> Vec<u8> {
    let size = format!("{:x}\r\n", part.len());
    if part.is_empty() { Vec::new() } else { [size.as_bytes(), part, b"\r\n"].concat() }
}

/// What a client reads: the data of each event, and what stands behind the last one.
fn events(text: &str) -> (Vec<String>, String) {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut all = Vec::new();
    let mut data = String::new();
    let mut open = String::new();
    for line in text.split_inclusive('\n') {
        open.push_str(line);
        if line == "\n" {
            open.clear();
            all.push(std::mem::take(&mut data));
        } else if let Some(line) = line.strip_prefix("data:") {
            data.push_str(line);
        }
    }
    all.retain(|data| !data.is_empty());
    (all, open)
}

#[test]
fn wherever_a_stream_is_cut_the_client_reads_whole_events_and_the_error() {
    for (path, stream) in STREAMS {
        let cuts = Mutex::new(0..stream.len());
        let worker = Worker::start(move |_, socket| {
            let part = &stream.as_bytes()[..cuts.lock().unwrap().next().unwrap()];
            // In two reads, or in one.
            let (first, second) = part.split_at(part.len() / 2);
            let parts = [HEAD.as_bytes(), &chunked(first), &chunked(second)].concat();
            let _ = socket.write_all(&parts);
            false
        });
        let mut config = config(&[&worker]);
        config.breaker.failures = 100_000;
        let handle = router(config);
        let whole = events(stream).0;
        for cut in 0..stream.len() {
            let reply = ask(&handle, path);
            let text = String::from_utf8(reply.body.clone()).expect("no half character");
            assert!(!reply.complete && reply.status == 200, "{path} at {cut}: {text}");
            let (mut read, open) = events(&text);
            assert_eq!(open, "", "{path} at {cut}: {text}");
            let error: Value = serde_json::from_str(&read.pop().unwrap()).expect("JSON");
            assert!(error["error"]["message"].is_string(), "{path} at {cut}: {text}");
            // The end of an event may lack its last LF.
            let sent = events(&String::from_utf8_lossy(&stream.as_bytes()[..cut])).0;
            assert_eq!(read, sent, "{path} at {cut}: {text}");
            assert!(whole.starts_with(&read), "{path} at {cut}: {text}");
        }
    }
}

/// Pieces of all sizes, lines with all ends, and events above the limit.
#[test]
fn what_is_not_cut_passes_byte_for_byte() {
    let mut random = fastrand::Rng::with_seed(7);
    for turn in 0..20 {
        let lines = ["data: {\"a\":1}", ": ping", "id: 7", "", "event: x", "data: \"é\"", "x"];
        let ends = [["\n"; 3], ["\r\n"; 3], ["\r"; 3], ["\n", "\r\n", "\r"]];
        let ends = ends[random.usize(..ends.len())];
        let mut stream = String::new();
        for _ in 0..random.usize(0..40) {
            stream.push_str(lines[random.usize(..lines.len())]);
            stream.push_str(ends[random.usize(..3)]);
        }
        if turn == 0 {
            stream.push_str(&format!("data: {}\n\ndata: 1\n", "x".repeat(700_000)));
        }
        let sent = stream.clone();
        let seed = random.u64(..);
        let is_chunked = random.bool();
        let worker = Worker::start(move |_, socket| {
            let mut random = fastrand::Rng::with_seed(seed);
            let head = HEAD.replace("transfer-encoding: chunked\r\n", "");
            let head = if is_chunked { HEAD } else { &head };
            socket.write_all(head.as_bytes()).unwrap();
            let mut rest = sent.as_bytes();
            while !rest.is_empty() {
                let most = if rest.len() > 10_000 { 60_000 } else { 60 };
                let (piece, behind) = rest.split_at(random.usize(1..=most).min(rest.len()));
                let piece = if is_chunked { chunked(piece) } else { piece.to_vec() };
                socket.write_all(&piece).unwrap();
                rest = behind;
                if random.u8(..4) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            let _ = is_chunked && socket.write_all(b"0\r\n\r\n").is_ok();
            false
        });
        let handle = router(config(&[&worker]));
        let reply = ask(&handle, CHAT);
        assert!(reply.complete);
        assert_eq!(reply.text(), stream);
    }
}

/// An event that is too long to be held back breaks off without an error event: no client reads an
/// event without its end, and the body has no proper end.
#[test]
fn behind_a_part_of_a_long_event_nothing_follows() {
    let worker = Worker::start(|_, socket| {
        let part = format!("data: {{\"a\":\"{}", "x".repeat(600_000));
        let _ = socket.write_all(&[HEAD.as_bytes(), &chunked(part.as_bytes())].concat());
        false
    });
    let handle = router(config(&[&worker]));
    let reply = ask(&handle, CHAT);
    assert!(!reply.complete && reply.body.len() > 300_000);
    assert!(!reply.text().contains("\n"), "{}", &reply.text()[reply.body.len() - 300..]);
}

/// Comments keep a connection open: they pass before the event that they stand before.
#[test]
fn comments_are_not_held_back() {
    let worker = Worker::start(|_, socket| {
        let begin = [HEAD.as_bytes(), &chunked(b": ping\n"), &chunked(b"data: 1")].concat();
        socket.write_all(&begin).unwrap();
        let _ = std::io::Read::read(socket, &mut [0; 16]);
        false
    });
    let handle = router(config(&[&worker]));
    let mut client = Client::connect(handle.listen);
    client.send(&post(CHAT, br#"{"model":"m","stream":true,"messages":[]}"#));
    client.until_body(b": ping\n");
}
