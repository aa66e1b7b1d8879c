//! Bytes through the router equal bytes sent, at random split points and with slow readers.

use crate::rig::{Client, Worker, config, post, router};
use std::io::Write;
use std::time::Duration;

/// Repeatable randomness from the request's own text.
fn rng(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed)
}

fn seed_of(body: &[u8]) -> u64 {
    let text = std::str::from_utf8(body).unwrap();
    text.rsplit("seed ").next().unwrap().trim_end_matches("\"}").parse().unwrap()
}

fn body_of(seed: u64) -> Vec<u8> {
    let mut random = rng(seed);
    let length = [0, 1, 200, 5_000, 60_000, 300_000][random.usize(..6)];
    (0..length).map(|_| random.u8(..)).collect()
}

/// Writes `bytes` in random pieces, now and then with a pause.
fn dribble(stream: &mut impl Write, bytes: &[u8], random: &mut fastrand::Rng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = random.usize(1..=rest.len().min(20_000));
        stream.write_all(&rest[..piece]).unwrap();
        rest = &rest[piece..];
        if random.u8(..8) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn answer(seed: u64) -> Vec<u8> {
    let body = body_of(seed);
    let mut random = rng(seed ^ 1);
    let mut out = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n".to_vec();
    if random.bool() {
        out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        out.extend_from_slice(&body);
        return out;
    }
    out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
    let mut rest = &body[..];
    while !rest.is_empty() {
        let piece = random.usize(1..=rest.len().min(9_000));
        out.extend_from_slice(format!("{piece:x}\r\n").as_bytes());
        out.extend_from_slice(&rest[..piece]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[piece..];
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

fn equal_through(cores: Vec<usize>) {
    let worker = Worker::start(|seen, stream| {
        let Ok(text) = std::str::from_utf8(&seen.body) else { return false };
        if !text.contains("seed ") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok();
        }
        let seed = seed_of(&seen.body);
        dribble(stream, &answer(seed), &mut rng(seed ^ 2));
        true
    });
    let mut config = config(&[&worker]);
    config.cores = cores;
    let router = router(config);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let listen = router.listen;
            scope.spawn(move || {
                let mut client = Client::connect(listen);
                for round in 0..60 {
                    let seed = thread * 1_000 + round;
                    let mut random = rng(seed ^ 3);
                    let padding = "é\\n".repeat(random.usize(..8_000));
                    let body = format!("{{\"model\":\"m\",\"prompt\":\"{padding} seed {seed}\"}}");
                    dribble(
                        &mut client.stream,
                        &post("/v1/completions", body.as_bytes()),
                        &mut random,
                    );
                    let reply = client.reply();
                    assert_eq!(reply.status, 200);
                    assert!(reply.complete && reply.body == body_of(seed), "seed {seed} differs");
                }
            });
        }
    });
}

#[test]
fn one_shard() {
    equal_through(vec![0]);
}

#[test]
fn four_shards_on_two_cores() {
    equal_through(vec![0, 1, 0, 1]);
}
