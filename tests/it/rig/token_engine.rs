//! A vLLM that returns token ids, and dies where a test wants it, for `retry.mid_stream`.

use super::{Client, PATIENCE, Reply, Worker, config, metric, post};
use forebay::config::{Config, EngineKind};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// A vLLM whose answer is the same words whatever the prompt; so many, then it stops by itself.
pub(crate) struct Engine {
    pub(crate) worker: Worker,
    /// For the next requests: after so many bytes of the body the connection is reset.
    pub(crate) cuts: Arc<Mutex<VecDeque<usize>>>,
}

pub(crate) const WHOLE: usize = usize::MAX;
pub(crate) const WORDS: usize = 12;
pub(crate) const PROMPT: [u64; 3] = [11, 12, 13];
pub(crate) const HEAD: &str = "HTTP/1.1 200 OK\r\n\
    content-type: text/event-stream; charset=utf-8\r\n\
    transfer-encoding: chunked\r\n\r\n";

impl Engine {
    pub(crate) fn start(cuts: impl IntoIterator<Item = usize>) -> Self {
        Self::sharing(&Arc::new(Mutex::new(cuts.into_iter().collect())))
    }

    pub(crate) fn sharing(cuts: &Arc<Mutex<VecDeque<usize>>>) -> Self {
        let cuts = Arc::clone(cuts);
        let planned = Arc::clone(&cuts);
        let worker = Worker::start(move |seen, stream| {
            let cut = planned.lock().unwrap().pop_front().unwrap_or(WHOLE);
            write_cut(stream, &events(&seen.head, &seen.body), cut)
        });
        Self { worker, cuts }
    }
}

/// A vLLM that writes an event for each word of the test, and all once the test says no more.
pub(crate) struct Paced {
    pub(crate) engine: Engine,
    /// False: the connection breaks off.
    next: Sender<bool>,
}

impl Paced {
    pub(crate) fn start() -> Self {
        let (next, awaited) = channel::<bool>();
        let awaited = Mutex::new(awaited);
        let worker = Worker::start(move |seen, stream| {
            stream.write_all(HEAD.as_bytes()).unwrap();
            for event in events(&seen.head, &seen.body) {
                // An error: all may follow.
                let goes_on = awaited.lock().unwrap().recv_timeout(PATIENCE).unwrap_or(true);
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                if !goes_on || stream.write_all(chunk.as_bytes()).is_err() {
                    return false;
                }
            }
            stream.write_all(b"0\r\n\r\n").is_ok()
        });
        Self { engine: Engine { worker, cuts: Arc::default() }, next }
    }

    pub(crate) fn write(&self, count: usize) {
        (0..count).for_each(|_| self.next.send(true).unwrap());
    }

    pub(crate) fn cut(&self) {
        self.next.send(false).unwrap();
    }
}

/// Writes one event after the other, each as a chunk; false if the answer broke off.
pub(crate) fn write_cut(stream: &mut TcpStream, events: &[String], cut: usize) -> bool {
    if stream.write_all(HEAD.as_bytes()).is_err() {
        return false;
    }
    let mut left = cut;
    for event in events {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        let part = chunk.len().min(left);
        if stream.write_all(&chunk.as_bytes()[..part]).is_err() || part < chunk.len() {
            return false;
        }
        left -= part;
    }
    left >= 5 && stream.write_all(b"0\r\n\r\n").is_ok()
}

/// As vLLM 0.32 writes them.
pub(crate) fn events(head: &str, body: &[u8]) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let is_chat = head.contains("/v1/chat/");
    let has_ids = body["return_token_ids"] == true;
    let prompt = match body["prompt"].as_array() {
        Some(ids) => ids.iter().map(|id| id.as_u64().unwrap()).collect(),
        None => PROMPT.to_vec(),
    };
    let max = usize::try_from(body["max_tokens"].as_u64().unwrap_or(16)).unwrap();
    let from = prompt.len() - PROMPT.len();
    let (until, finish) = if from + max < WORDS { (from + max, "length") } else { (WORDS, "stop") };
    let shown = |ids: Value| if has_ids { ids } else { Value::Null };
    let (name, object) = match is_chat {
        true => ("chatcmpl-7", "chat.completion.chunk"),
        false => ("cmpl-7", "text_completion"),
    };
    let event = |choices: Value, more: Value| {
        let mut event = json!({
            "id": name, "object": object, "created": 170 + from, "model": "m", "choices": choices,
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("data: {event}\n\n")
    };
    let mut out = Vec::new();
    if is_chat {
        let delta = json!({ "role": "assistant", "content": "" });
        let role = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null });
        let more = json!({ "prompt_token_ids": shown(json!(prompt)), "prompt_text": null });
        out.push(event(json!([role]), more));
    }
    for at in from..until {
        let is_last = at + 1 == until;
        let text = format!(" \"w{at}\u{e9}");
        let mut choice = match is_chat {
            true => json!({ "index": 0, "delta": { "content": text } }),
            false => json!({ "index": 0, "text": text }),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = if is_last { finish.into() } else { Value::Null };
        if is_last || !is_chat {
            choice["stop_reason"] = Value::Null;
        }
        if !is_chat {
            let is_first = at == from;
            choice["prompt_token_ids"] = if is_first { shown(json!(prompt)) } else { Value::Null };
        }
        choice["token_ids"] = shown(json!([100 + at]));
        out.push(event(json!([choice]), json!({})));
    }
    if body["stream_options"]["include_usage"] == true {
        let prompt = prompt.len();
        let output = until - from;
        let usage = json!({
            "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
        });
        out.push(event(json!([]), json!({ "usage": usage })));
    }
    out.push("data: [DONE]\n\n".into());
    out
}

pub(crate) fn keeping(engines: &[&Engine]) -> Config {
    let workers: Vec<_> = engines.iter().map(|engine| &engine.worker).collect();
    let mut config = config(&workers);
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.engine = Some(EngineKind::Vllm);
        worker.name = Some(format!("w{number}"));
    }
    config.retry.mid_stream = true;
    config
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

pub(crate) fn body(path: &str, more: &str) -> String {
    let prompt = match path {
        CHAT => r#""messages":[{"role":"user","content":"hi"}]"#,
        _ => r#""prompt":"hi""#,
    };
    format!(r#"{{"model":"m",{prompt},"stream":true,"max_tokens":20{more}}}"#)
}

pub(crate) const USAGE: &str = r#","stream_options":{"include_usage":true}"#;

pub(crate) fn ask(handle: &ServerHandle, path: &str, body: &str) -> Reply {
    let mut client = Client::connect(handle.listen);
    client.send(&post(path, body.as_bytes()));
    client.reply()
}

/// What the client would see of an engine that lives, without the key.
pub(crate) fn uncut(path: &str, body: &str) -> String {
    events(&format!("POST {path} "), body.as_bytes()).concat()
}

pub(crate) fn continued(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_streams_continued_total")
}

pub(crate) fn not_continued(handle: &ServerHandle, reason: &str) -> f64 {
    metric(handle, &format!("forebay_streams_not_continued_total{{reason=\"{reason}\"}}"))
}

pub(crate) fn ends_with_error(reply: &Reply) -> bool {
    let end = "data: {\"error\":{\"message\":\"The worker failed in the middle of the answer: ";
    let text = reply.text();
    !reply.complete && text.rsplit("\n\n").nth(1).unwrap_or_default().starts_with(end)
}
