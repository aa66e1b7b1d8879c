//! Chat requests of a given size: a shared system prompt, then turns of user and assistant, as a
//! client sends them. The same on every run.

use serde_json::{Value, json};
use std::rc::Rc;

/// Different conversations per size, sent in turn.
const CONVERSATIONS: u64 = 16;
/// Bytes of one turn.
const TURN_BYTES: usize = 200;
const WORDS: [&str; 24] = [
    "the", "router", "sends", "each", "request", "to", "worker", "that", "holds", "its", "prefix",
    "and", "answers", "come", "back", "as", "they", "were", "written", "in", "order", "of", "time",
    "once",
];

/// Requests with bodies of exactly `body_bytes` (or the few hundred that the frame alone needs).
pub(crate) fn chat_bodies(body_bytes: usize, stream: bool) -> Vec<Vec<u8>> {
    (0..CONVERSATIONS).map(|seed| chat_body(seed, body_bytes, stream)).collect()
}

/// The whole request around a body.
pub(crate) fn request(body: &[u8]) -> Rc<[u8]> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench.local\r\nUser-Agent: bench\r\nAccept: application/json\r\nAuthorization: Bearer token\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat().into()
}

fn chat_body(seed: u64, body_bytes: usize, stream: bool) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut system = fastrand::Rng::with_seed(u64::MAX);
    let mut messages = vec![json!({"role": "system", "content": text(&mut system, TURN_BYTES)})];
    let frame = |messages: &[Value]| {
        let body = json!({
            "model": "bench", "messages": messages, "max_tokens": 64, "temperature": 0.7,
            "stream": stream
        });
        body.to_string().into_bytes()
    };
    let turn = |role: &str, content: String| json!({"role": role, "content": content});
    loop {
        let mut ended = messages.clone();
        ended.push(turn("user", String::new()));
        let room = body_bytes.saturating_sub(frame(&ended).len());
        if room < 3 * TURN_BYTES {
            messages.push(turn("user", text(&mut random, room)));
            return frame(&messages);
        }
        for role in ["user", "assistant"] {
            messages.push(turn(role, text(&mut random, TURN_BYTES)));
        }
    }
}

fn text(random: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(random.choice(WORDS).unwrap_or("a"));
        text.push(' ');
    }
    text.truncate(bytes);
    text
}
