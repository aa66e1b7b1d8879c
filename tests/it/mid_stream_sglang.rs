//! O7, `retry.mid_stream`: completions of SGLang, as its Python server writes them (0.5.23).

use crate::rig::token_engine::{
    CHAT, Engine, HEAD, PROMPT, TEXT, USAGE, WHOLE, ask, body, continued, ends_with_error, events,
    keeping, not_continued, write_cut,
};
use crate::rig::{Worker, router};
use forebay::config::{Config, EngineKind};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

/// Ids that are a letter each in the vocabulary of the tests; id 100 is half a character.
const FIRST_ID: u64 = 30;

/// The events of vLLM as SGLang has them.
fn of_sglang(head: &str, body: &[u8], first_id: u64) -> Vec<String> {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let shaped = |event: String| {
        let Some(mut event) = serde_json::from_str::<Value>(&event["data: ".len()..]).ok() else {
            return event;
        };
        if event["usage"].is_null() {
            event["usage"] = Value::Null;
        }
        if let Some(choice) = event["choices"].get_mut(0).and_then(Value::as_object_mut) {
            choice.remove("stop_reason");
            let is_last = !choice["finish_reason"].is_null();
            choice.insert("matched_stop".into(), if is_last { json!(2) } else { Value::Null });
            choice.retain(|name, value| !name.ends_with("token_ids") || !value.is_null());
            if let Some(id) = choice.get("token_ids").map(|ids| ids[0].as_u64().unwrap()) {
                choice["token_ids"] = json!([id - 100 + first_id]);
            }
        }
        format!("data: {event}\n\n")
    };
    assert!(!head.contains("/v1/chat/") || asked.get("return_token_ids").is_none(), "refused");
    events(head, body).into_iter().map(shaped).collect()
}

fn engine(cut: usize, first_id: u64) -> Engine {
    let worker = Worker::start(move |seen, stream| {
        write_cut(stream, &of_sglang(&seen.head, &seen.body, first_id), cut)
    });
    Engine { worker, cuts: Arc::default() }
}

fn sglang(engines: &[&Engine]) -> Config {
    let mut config = keeping(engines);
    config.workers.iter_mut().for_each(|worker| worker.engine = Some(EngineKind::Sglang));
    config.model_dir = Some("tests/data/tokenizer".into());
    config
}

fn uncut(body: &str) -> String {
    of_sglang(&format!("POST {TEXT} "), body.as_bytes(), FIRST_ID).concat()
}

#[test]
fn a_completion_goes_on_at_another_sglang() {
    for more in ["", USAGE] {
        let body = body(TEXT, more);
        let length = uncut(&body).len();
        for cut in (100..length).step_by(331).chain([WHOLE]) {
            let engines = [engine(cut, FIRST_ID), engine(WHOLE, FIRST_ID)];
            let handle = router(sglang(&[&engines[0], &engines[1]]));
            let reply = ask(&handle, TEXT, &body);
            assert!(reply.complete, "{cut}: {}", reply.text());
            assert_eq!(reply.text(), uncut(&body), "{cut}");
            assert_eq!(continued(&handle), f64::from(cut != WHOLE), "{cut}");
            if cut > 1_000 && cut != WHOLE {
                let rest: Value = serde_json::from_slice(&engines[1].worker.next().body).unwrap();
                let ids = rest["prompt"].as_array().unwrap();
                assert!(ids.len() > PROMPT.len() && ids[PROMPT.len()] == FIRST_ID, "{rest}");
            }
        }
    }
}

/// The end that is missing is written as SGLang would.
#[test]
fn the_end_is_written_in_the_words_of_sglang() {
    let body = body(TEXT, USAGE).replace("\"max_tokens\":20", "\"max_tokens\":5");
    let all = of_sglang(&format!("POST {TEXT} "), body.as_bytes(), FIRST_ID);
    for left in 1..=3 {
        let first = Worker::start(move |seen, stream| {
            let all = of_sglang(&seen.head, &seen.body, FIRST_ID);
            stream.write_all(HEAD.as_bytes()).unwrap();
            write_events(stream, &all[..all.len() - left])
        });
        let engines = [Engine { worker: first, cuts: Arc::default() }, engine(WHOLE, FIRST_ID)];
        let handle = router(sglang(&[&engines[0], &engines[1]]));
        let text = ask(&handle, TEXT, &body).text();
        let last = text.split("\n\n").nth(all.len() - 3).unwrap();
        let last: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length", "{text}");
        assert!(last["choices"][0].get("matched_stop").is_some() && !text.contains("token_ids"));
        assert!(text.contains("\"completion_tokens\":5") && text.ends_with("data: [DONE]\n\n"));
    }
}

fn write_events(stream: &mut std::net::TcpStream, events: &[String]) -> bool {
    for event in events {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    false
}

/// SGLang sends a blank before half a character: only the vocabulary tells that the text is whole.
#[test]
fn without_a_whole_character_it_ends_as_before() {
    let body = body(TEXT, "");
    for (first_id, has_vocabulary) in [(100, true), (FIRST_ID, false)] {
        let engines = [engine(900, first_id), engine(WHOLE, first_id)];
        let mut config = sglang(&[&engines[0], &engines[1]]);
        if !has_vocabulary {
            config.model_dir = None;
        }
        let handle = router(config);
        let reply = ask(&handle, TEXT, &body);
        assert!(ends_with_error(&reply), "{first_id}: {}", reply.text());
        assert_eq!(not_continued(&handle, "character"), 1.0);
        assert!(engines[1].worker.seen.try_recv().is_err());
    }
}

/// A stream of a chat with `return_token_ids` is a 400 there.
#[test]
fn a_chat_of_sglang_is_not_asked_for_ids() {
    let engines = [engine(900, FIRST_ID), engine(WHOLE, FIRST_ID)];
    let handle = router(sglang(&[&engines[0], &engines[1]]));
    let body = body(CHAT, "");
    assert!(ends_with_error(&ask(&handle, CHAT, &body)));
    assert_eq!(engines[0].worker.next().body, body.as_bytes());
    assert_eq!(not_continued(&handle, "engine"), 1.0);
}

/// The rest stays with the engine that has begun.
#[test]
fn the_rest_goes_to_the_same_engine() {
    let body = body(TEXT, USAGE);
    for (kind, other) in
        [(EngineKind::Sglang, EngineKind::Vllm), (EngineKind::Vllm, EngineKind::Sglang)]
    {
        let engines = [engine(900, FIRST_ID), engine(900, FIRST_ID)];
        let mut config = sglang(&[&engines[0], &engines[1]]);
        config.workers[0].engine = Some(kind);
        config.workers[1].engine = Some(other);
        let handle = router(config);
        let reply = ask(&handle, TEXT, &body);
        assert!(ends_with_error(&reply), "{}", reply.text());
        let asked = engines.iter().map(|engine| engine.worker.seen.try_iter().count());
        assert_eq!(asked.sum::<usize>(), 1);
    }
}
