//! Streams of an engine that is written out here, cut wherever they can be cut.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// How an engine of these tests writes: the token at a place of the output, id and text.
fn word(at: usize) -> (u32, String) {
    match at % 5 {
        // Half a character: its text comes with the next id.
        2 => (700, String::new()),
        3 => (701, "é\n".into()),
        _ => (u32::try_from(100 + at).unwrap(), format!(" w{at}")),
    }
}

const PROMPT: [u32; 3] = [11, 12, 13];

/// The events of an engine for a body that it has been sent.
fn events(body: &[u8], is_chat: bool, name: &str) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(body["return_token_ids"], true);
    let prompt: Vec<u32> = match &body["prompt"] {
        Value::Array(ids) => {
            ids.iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
        }
        _ => PROMPT.to_vec(),
    };
    let max = usize::try_from(body["max_tokens"].as_u64().unwrap()).unwrap();
    let from = prompt.len() - PROMPT.len();
    let object = if is_chat { "chat.completion.chunk" } else { "text_completion" };
    let event = |choices: Value, more: Value| {
        let mut event = json!({
            "id": name, "object": object, "created": name.len(), "model": "m", "choices": choices,
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("data: {event}\n\n")
    };
    let mut out = Vec::new();
    if is_chat {
        let delta = json!({ "role": "assistant", "content": "" });
        let role = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null });
        let more = json!({ "prompt_token_ids": prompt, "prompt_text": null });
        out.push(event(json!([role]), more));
    }
    for at in from..from + max {
        let (id, text) = word(at);
        let is_last = at + 1 == from + max;
        let mut choice = match is_chat {
            true => json!({ "index": 0, "delta": { "content": text } }),
            false => json!({ "index": 0, "text": text }),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = if is_last { "length".into() } else { Value::Null };
        if is_last || !is_chat {
            choice["stop_reason"] = Value::Null;
        }
        if !is_chat {
            choice["prompt_token_ids"] = if at == from { json!(prompt) } else { Value::Null };
        }
        choice["token_ids"] = json!([id]);
        out.push(event(json!([choice]), json!({})));
    }
    let usage = json!({
        "prompt_tokens": prompt.len(), "total_tokens": prompt.len() + max,
        "completion_tokens": max, "prompt_tokens_details": { "cached_tokens": 2 },
    });
    out.push(event(json!([]), json!({ "usage": usage, "system_fingerprint": "f" })));
    out.push("data: [DONE]\n\n".into());
    out
}

fn body_of(is_chat: bool, more: &str) -> Vec<u8> {
    let prompt = match is_chat {
        true => r#""messages":[{"role":"user","content":"hi"}]"#,
        false => r#""prompt":"hi""#,
    };
    let rest = r#""max_tokens":12,"stream_options":{"include_usage":true}"#;
    format!(r#"{{"model":"m","stream":true,{prompt},{rest}{more}}}"#).into_bytes()
}

fn transcript(is_chat: bool, body: &[u8]) -> Result<Transcript, NoContinuation> {
    let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
    Transcript::of(endpoint, body)
}

fn first_body(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let rest = ask_for_ids(body, &mut out).to_vec();
    [out, rest].concat()
}

/// What the client sees if the stream is cut at these bytes, each counted from the beginning of its
/// leg. Reads are of `piece` bytes.
fn cut_at(is_chat: bool, cuts: &[usize], piece: usize) -> String {
    let body = body_of(is_chat, "");
    let mut transcript = transcript(is_chat, &body).unwrap();
    let mut out = Vec::new();
    let mut sent = first_body(&body);
    for (leg, cut) in cuts.iter().copied().chain([usize::MAX]).enumerate() {
        let is_first = !transcript.goes_on_by_ids();
        let is_again = transcript.has_begun();
        let name = if is_again { format!("n{}", "x".repeat(leg)) } else { "n".into() };
        let stream = events(&sent, is_chat && is_first, &name).concat();
        let cut = cut.min(stream.len());
        for part in stream.as_bytes()[..cut].chunks(piece) {
            transcript.feed(part, &mut out);
        }
        if cut == stream.len() || transcript.end(&mut out) {
            break;
        }
        transcript.break_off();
        transcript.settle(None, |_, _| false);
        assert_eq!(transcript.may_go_on(), Ok(()));
        sent = if transcript.goes_on_by_ids() {
            let mut next = Vec::new();
            transcript.go_on(&mut next);
            next
        } else {
            transcript.start_over();
            first_body(&body)
        };
    }
    String::from_utf8(out).unwrap()
}

/// Text, last finish reason and usage of a stream.
fn told(stream: &str) -> (String, String, Value) {
    let mut text = String::new();
    let mut finish = String::new();
    let mut usage = Value::Null;
    for line in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            assert_eq!(line, "[DONE]");
            continue;
        };
        if let Some(choice) = event["choices"].get(0) {
            let part = choice.get("text").unwrap_or(&choice["delta"]["content"]);
            text.push_str(part.as_str().unwrap());
            finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
        }
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    assert_eq!(stream.matches("[DONE]").count(), 1, "{stream}");
    assert!(!stream.contains("token_ids\":["), "{stream}");
    (text, finish, usage)
}

#[test]
fn an_uncut_stream_is_as_without_ids() {
    for is_chat in [true, false] {
        let body = body_of(is_chat, "");
        let asked = events(&first_body(&body), is_chat, "n").concat();
        let ids = regex_free(&asked);
        assert_eq!(cut_at(is_chat, &[], 7), ids);
    }
}

/// Lists of ids replaced by null, by hand.
fn regex_free(stream: &str) -> String {
    let mut out = String::new();
    let mut rest = stream;
    while let Some(at) = rest.find("token_ids\":[") {
        let at = at + "token_ids\":".len();
        out.push_str(&rest[..at]);
        out.push_str("null");
        rest = &rest[at + rest[at..].find(']').unwrap() + 1..];
    }
    out + rest
}

#[test]
fn wherever_it_is_cut_the_stream_is_the_same() {
    for is_chat in [true, false] {
        let whole = cut_at(is_chat, &[], 1_000);
        let wanted = told(&whole);
        let length = events(&first_body(&body_of(is_chat, "")), is_chat, "n").concat().len();
        for cut in 0..length {
            let stream = cut_at(is_chat, &[cut], 64);
            let (text, finish, usage) = told(&stream);
            assert_eq!((&text, &finish), (&wanted.0, &wanted.1), "cut at {cut}");
            for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(usage[name], wanted.2[name], "cut at {cut}");
            }
            assert_eq!(stream.matches("assistant").count(), usize::from(is_chat));
            assert!(!stream.contains("\"nx\""), "the name of another stream: {stream}");
        }
    }
}

#[test]
fn a_cut_between_whole_characters_leaves_the_same_bytes() {
    for is_chat in [true, false] {
        let whole = cut_at(is_chat, &[], 1_000);
        let events = events(&first_body(&body_of(is_chat, "")), is_chat, "n");
        let mut length = 0;
        for (number, event) in events[..events.len() - 2].iter().enumerate() {
            length += event.len();
            let is_half = event.contains("[700]");
            // The first event of a leg for `/v1/completions` tells the prompt.
            let is_last = number + 3 == events.len();
            if !is_half && !is_last {
                assert_eq!(cut_at(is_chat, &[length], 50), whole, "after {event}");
                assert_eq!(cut_at(is_chat, &[length + 9], 50), whole, "in the event after {event}");
            }
        }
    }
}

#[test]
fn what_is_left_is_asked_for() {
    let body = body_of(true, r#","min_tokens":9,"temperature":0,"seed":7,"top_k":3"#);
    let mut transcript = transcript(true, &body).unwrap();
    let all = events(&first_body(&body), true, "n");
    transcript.feed(all[..5].concat().as_bytes(), &mut Vec::new());
    let mut next = Vec::new();
    transcript.go_on(&mut next);
    assert_eq!(
        String::from_utf8(next).unwrap(),
        concat!(
            r#"{"return_token_ids":true,"stream":true,"model":"m","#,
            r#""stream_options":{"include_usage":true},"temperature":0,"top_k":3,"#,
            r#""max_tokens":8,"min_tokens":5,"prompt":[11,12,13,100,101,700,701]}"#
        )
    );
}

/// A chat without a limit may fill the context.
#[test]
fn the_context_is_the_last_limit() {
    let body = br#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let role = r#"{"choices":[{"index":0,"delta":{}}],"prompt_token_ids":[1,2,3]}"#;
    let text = r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[4]}]}"#;
    for context_tokens in [None, Some(20), Some(4)] {
        let mut transcript = transcript(true, body).unwrap();
        // How long the prompt is says its first event.
        transcript.settle(context_tokens, |_, _| false);
        for event in [role, text] {
            transcript.feed(format!("data: {event}\n\n").as_bytes(), &mut Vec::new());
        }
        transcript.break_off();
        transcript.settle(context_tokens, |_, _| false);
        if context_tokens.is_none() {
            assert_eq!(transcript.may_go_on(), Err(NoContinuation::Request));
            continue;
        }
        let mut out = Vec::new();
        assert_eq!(transcript.end(&mut out), context_tokens == Some(4));
        transcript.go_on(&mut out);
        let left = format!("\"max_tokens\":{},", context_tokens.unwrap() - 4);
        assert!(String::from_utf8(out).unwrap().contains(&left));
    }
}

/// The card of a model has the smallest context of its workers. A stream of a worker with a larger
/// one was taken for whole there, and its client got a part of the answer as all of it.
#[test]
fn a_stream_longer_than_the_smallest_context_is_not_taken_for_whole() {
    let body = br#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let mut transcript = transcript(true, body).unwrap();
    let role = r#"{"choices":[{"index":0,"delta":{}}],"prompt_token_ids":[1,2,3]}"#;
    let text = |id: u32| {
        format!(r#"{{"choices":[{{"delta":{{"content":"a"}},"index":0,"token_ids":[{id}]}}]}}"#)
    };
    let feed = |event: &str, transcript: &mut Transcript| {
        transcript.feed(format!("data: {event}\n\n").as_bytes(), &mut Vec::new());
        transcript.settle(Some(5), |_, _| false);
    };
    feed(role, &mut transcript);
    feed(&text(4), &mut transcript);
    assert!(transcript.may_move(), "one token is left");
    feed(&text(5), &mut transcript);
    assert!(!transcript.may_move(), "the context is full");
    feed(&text(6), &mut transcript);
    transcript.break_off();
    transcript.settle(Some(5), |_, _| false);
    assert_eq!(transcript.may_go_on(), Err(NoContinuation::Request));
    assert!(!transcript.end(&mut Vec::new()));
}

/// The first tokens may be those of a parser: the engine that goes on needs the chat.
#[test]
fn a_chat_without_text_is_sent_again() {
    let event = |name: &str, choice: &str, more: &str| {
        let choice = format!(r#"{{"index":0,{choice}}}"#);
        format!("data: {{\"id\":\"{name}\",\"choices\":[{choice}]{more}}}\n\n")
    };
    let role = |name| event(name, r#""delta":{"role":"assistant"}"#, r#","prompt_token_ids":[1]"#);
    let think = |name| event(name, r#""delta":{},"token_ids":[9]"#, "");
    let text = |name| event(name, r#""delta":{"reasoning":"a"},"token_ids":[5]"#, "");
    let mut transcript = transcript(true, &body_of(true, "")).unwrap();
    let mut out = Vec::new();
    for name in ["n", "nx", "nxx"] {
        transcript.feed((role(name) + &think(name)).as_bytes(), &mut out);
        transcript.break_off();
        transcript.settle(None, |_, _| panic!("no text"));
        assert_eq!(transcript.may_go_on(), Ok(()));
        assert!(!transcript.end(&mut out) && !transcript.goes_on_by_ids());
        transcript.start_over();
    }
    transcript.feed((role("n4") + &think("n4") + &text("n4")).as_bytes(), &mut out);
    assert_eq!(transcript.may_go_on(), Err(NoContinuation::Answer));
    let wanted = role("n") + &think("n").repeat(4) + &text("n");
    assert_eq!(String::from_utf8(out).unwrap(), regex_free(&wanted));
}

#[test]
fn only_known_requests_are_continued() {
    for (is_chat, more) in [
        (true, ""),
        (true, r#","n":1,"tools":null,"stop":[],"response_format":{"type":"text"}"#),
        (true, r#","chat_template_kwargs":{"a":[1]},"max_completion_tokens":4"#),
        (false, r#","echo":false,"logprobs":null,"best_of":1,"suffix":null,"user":"u""#),
        (false, r#","seed":3,"temperature":0.0"#),
        (true, r#","metadata":{"team":"a"},"store":true,"service_tier":"auto""#),
        (false, r#","prompt_cache_key":"k","safety_identifier":"s""#),
    ] {
        assert!(transcript(is_chat, &body_of(is_chat, more)).is_ok(), "{more}");
    }
    for more in [
        r#","n":2"#,
        r#","best_of":2"#,
        r#","echo":true"#,
        r#","tools":[{}]"#,
        r#","response_format":{"type":"json_object"}"#,
        r#","guided_json":{}"#,
        r#","structured_outputs":{}"#,
        r#","logprobs":true"#,
        r#","logprobs":0"#,
        r#","stop":"x""#,
        r#","presence_penalty":0.5"#,
        r#","suffix":"x""#,
        r#","seed":3"#,
        r#","seed":3,"temperature":0.1"#,
        r#","return_token_ids":true"#,
        r#","return_token_ids":false"#,
        r#","max_tokens":-1"#,
        r#","max_tokens":"3""#,
        r#","stream_options":{"x":1}"#,
        r#","x":1"#,
        r#","n\u0020":1"#,
    ] {
        for is_chat in [true, false] {
            let body = body_of(is_chat, more);
            assert_eq!(transcript(is_chat, &body).err(), Some(NoContinuation::Request), "{more}");
        }
    }
    for body in [
        "",
        "[]",
        "{",
        r#"{"model":"m","max_tokens":1}"#,
        r#"{"model":"m","max_tokens":1,"prompt":["a"]}"#,
        r#"{"model":"m","max_tokens":1,"prompt":[[1]]}"#,
        r#"{"model":"m","max_tokens":1,"prompt":[]}"#,
    ] {
        assert!(transcript(false, body.as_bytes()).is_err(), "{body}");
    }
    for messages in [
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]"#,
        r#"[{"role":"user","content":{"type":"text"}}]"#,
        r#"["x"]"#,
        r#""x""#,
    ] {
        let body = format!(r#"{{"messages":{messages},"max_tokens":1}}"#);
        assert!(transcript(true, body.as_bytes()).is_err(), "{body}");
    }
    let ids = br#"{"prompt":[1, 2,3],"stream":true}"#;
    assert_eq!(transcript(false, ids).unwrap().ids_bytes(), 64, "vLLM's own limit");
}

/// After these events, sent whole.
fn may_go_on(is_chat: bool, events: &[&str]) -> Result<(), NoContinuation> {
    let mut transcript = transcript(is_chat, &body_of(is_chat, ""))?;
    let mut out = Vec::new();
    for event in events {
        transcript.feed(format!("data: {event}\n\n").as_bytes(), &mut out);
    }
    transcript.may_go_on()
}

#[test]
fn what_is_not_plain_text_is_not_continued() {
    let role =
        r#"{"id":"n","choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1]}"#;
    let chat = |choice: &str| {
        let event = format!(r#"{{"id":"n","choices":[{{"index":0,{choice}}}]}}"#);
        may_go_on(true, &[role, &event])
    };
    assert_eq!(may_go_on(true, &[role]), Ok(()));
    assert_eq!(chat(r#""delta":{"content":"a"},"token_ids":[5]"#), Ok(()));
    assert_eq!(
        chat(r#""delta":{"content":"a","tool_calls":[],"reasoning":null},"token_ids":[5]"#),
        Ok(())
    );
    let answer = Err(NoContinuation::Answer);
    assert_eq!(chat(r#""delta":{"reasoning":"a"},"token_ids":[5]"#), answer);
    assert_eq!(chat(r#""delta":{"reasoning_content":"a"},"token_ids":[5]"#), answer);
    assert_eq!(chat(r#""delta":{"tool_calls":[{}]},"token_ids":[5]"#), answer);
    assert_eq!(chat(r#""delta":{"content":"a"}"#), answer, "no ids");
    assert_eq!(chat(r#""delta":{"content":"a"},"token_ids":[5],"logprobs":{}"#), answer);
    assert_eq!(
        chat(r#""delta":{"content":"a"},"token_ids":[5,6]"#),
        Err(NoContinuation::Character)
    );
    assert_eq!(
        may_go_on(true, &[r#"{"choices":[{"index":0,"delta":{}}]}"#]),
        Err(NoContinuation::Engine)
    );
    assert_eq!(may_go_on(true, &[role, r#"{"error":{"message":"x","code":400}}"#]), answer);
    assert_eq!(may_go_on(true, &[role, r#"{"error":{"message":"x","code":500}}"#]), Ok(()));
    assert_eq!(may_go_on(true, &[role, "x"]), answer);
    let twice_text = r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5,6]}]}"#;
    let ends = |bytes: &'static [u8]| {
        let mut transcript = transcript(true, &body_of(true, "")).unwrap();
        for event in [role, twice_text] {
            transcript.feed(format!("data: {event}\n\n").as_bytes(), &mut Vec::new());
        }
        transcript.break_off();
        transcript.settle(None, |ids, out| {
            assert_eq!(ids, [5, 6]);
            out.extend_from_slice(bytes);
            !bytes.is_empty()
        });
        transcript.may_go_on()
    };
    assert_eq!(ends("aé".as_bytes()), Ok(()));
    assert_eq!(ends(b"a\xc3"), Err(NoContinuation::Character));
    assert_eq!(ends(b"a\xff"), Err(NoContinuation::Character));
    assert_eq!(ends(b""), Err(NoContinuation::Character), "an unknown id");
    // Behind the next safe place it can go on again.
    let once = r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}]}"#;
    assert_eq!(may_go_on(true, &[role, twice_text, once]), Ok(()));
}

#[test]
fn an_end_that_says_nothing_is_not_continued() {
    let role = r#"{"id":"n","choices":[{"index":0,"delta":{}}],"prompt_token_ids":[1]}"#;
    let text = r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5]}]}"#;
    let answer = Err(NoContinuation::Answer);
    assert_eq!(may_go_on(true, &["[DONE]"]), answer);
    assert_eq!(may_go_on(true, &[role, text, "[DONE]"]), answer);
}

/// Ids do not pass beside a null at the other place that they have. Two lists are not understood.
#[test]
fn null_is_no_list_of_ids() {
    let event = |more: &str, whole: &str| {
        format!(r#"{{"choices":[{{"index":0,"text":"a","token_ids":[5]{more}}}]{whole}}}"#)
    };
    let list = r#","prompt_token_ids":[1]"#;
    let null = r#","prompt_token_ids":null"#;
    for (more, whole, wanted) in [
        (list, null, Ok(())),
        (null, list, Ok(())),
        (r#","prompt_token_ids":[1],"token_ids":null"#, "", Ok(())),
        (null, null, Err(NoContinuation::Engine)),
        (list, list, Err(NoContinuation::Answer)),
        (r#","prompt_token_ids":[1],"token_ids":[5]"#, "", Err(NoContinuation::Answer)),
    ] {
        let mut transcript = transcript(false, &body_of(false, "")).unwrap();
        let mut out = Vec::new();
        let text = event(more, whole);
        transcript.feed(format!("data: {text}\n\n").as_bytes(), &mut out);
        assert_eq!(transcript.may_go_on(), wanted, "{text}");
        let out = String::from_utf8(out).unwrap();
        let is_answer = wanted == Err(NoContinuation::Answer);
        assert!(is_answer || !out.contains("_ids\":["), "{out}");
    }
}

/// Whatever stands around the one line of data, its ids do not pass.
#[test]
fn comments_beside_data_are_skipped() {
    let text = r#"{"choices":[{"index":0,"text":"a","token_ids":[5],"prompt_token_ids":[1]}]}"#;
    for (before, after) in [
        (": ping\ndata: ", "\n\n"),
        (": ping\r\n: data: x\r\ndata:", "\r\n\r\n"),
        ("\n:\ndata: ", "\n: ping\n\n"),
        ("data: ", "\n: ping\n\n"),
    ] {
        let mut transcript = transcript(false, &body_of(false, "")).unwrap();
        let mut out = Vec::new();
        transcript.feed(format!("{before}{text}{after}").as_bytes(), &mut out);
        let wanted = format!("{before}{}{after}", regex_free(text));
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
        assert_eq!(transcript.may_go_on(), Ok(()), "{before:?}");
    }
    for event in ["data: {}\ndata: {}\n\n", "id: 1\ndata: {}\n\n", "data:\n\n"] {
        let mut transcript = transcript(false, &body_of(false, "")).unwrap();
        let mut out = Vec::new();
        transcript.feed(event.as_bytes(), &mut out);
        assert_eq!(out, event.as_bytes());
        assert_eq!(transcript.may_go_on(), Err(NoContinuation::Answer), "{event:?}");
    }
}

#[test]
fn what_came_before_a_cut_stays_output_when_the_ids_end() {
    let body = body_of(false, "");
    let mut transcript = transcript(false, &body).unwrap();
    let whole = events(&first_body(&body), false, "n");
    let mut out = Vec::new();
    transcript.feed(whole[..2].concat().as_bytes(), &mut out);
    transcript.break_off();
    transcript.settle(None, |_, _| false);
    let mut rest = Vec::new();
    transcript.go_on(&mut rest);
    let rest = events(&rest, false, "n2").concat().replace("\"token_ids\":[", "\"other\":[");
    transcript.feed(rest.as_bytes(), &mut out);
    assert!(transcript.ids.all.is_empty(), "ids are missing");
    let uncut = told(&regex_free(&whole.concat()));
    assert_eq!(told(&String::from_utf8(out).unwrap()).2, uncut.2);
}

#[test]
fn a_long_event_and_many_ids_pass_and_end_the_transcript() {
    let mut transcript = transcript(false, &body_of(false, "")).unwrap();
    let long = format!("data: {{\"x\":\"{}\"}}\n\ndata: [DONE]\n\n", "y".repeat(600_000));
    let mut out = Vec::new();
    for part in long.as_bytes().chunks(9_999) {
        transcript.feed(part, &mut out);
    }
    assert!(out == long.as_bytes(), "it passes as it is");
    assert_eq!(transcript.may_go_on(), Err(NoContinuation::TooLong));
    let ids = json!(vec![1; CONTINUED_IDS_MAX]).to_string();
    let event = |ids: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"text":"a","token_ids":[1],"prompt_token_ids":{ids}}}]}}"#
        )
    };
    assert_eq!(may_go_on(false, &[&event(&ids)]), Err(NoContinuation::TooLong));
    assert_eq!(may_go_on(false, &[&event("[1]")]), Ok(()));
}

proptest! {
    /// Two cuts anywhere, reads of any length.
    #[test]
    fn cuts_and_reads_change_nothing(
        is_chat: bool,
        cuts in prop::collection::vec(0_usize..3_000, 0..4),
        piece in 1_usize..700,
    ) {
        let wanted = told(&cut_at(is_chat, &[], 1_000));
        let (text, finish, usage) = told(&cut_at(is_chat, &cuts, piece));
        prop_assert_eq!((text, finish), (wanted.0, wanted.1));
        prop_assert_eq!(&usage["completion_tokens"], &wanted.2["completion_tokens"]);
    }

    #[test]
    fn any_bytes_pass(is_chat: bool, data: Vec<u8>, piece in 1_usize..9) {
        let mut transcript = transcript(is_chat, &body_of(is_chat, "")).unwrap();
        let body = [&b"data: {\"choices\":[{"[..], &data, b"\n\n"].concat();
        let mut out = Vec::new();
        for part in body.chunks(piece) {
            transcript.feed(part, &mut out);
        }
        transcript.flush(&mut out);
        prop_assert_eq!(out, body);
    }
}
