//! A request and the answers to it, with zero bytes between them; the first byte says which API,
//! the second how answers are cut into reads. Each answer breaks off at its end, and the next one
//! is that to the rest. Must hold: the reads change nothing; what is sent is JSON that asks for
//! ids; the rest has no more tokens than the request; a stream that is understood shows no ids.

use forebay_prompt::parse::Endpoint;
use serde_json::Value;
use transcript::{Transcript, ask_for_ids};

#[path = "../../src/dataplane/relay/transcript/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the file belongs to the router")]
mod transcript;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some(([api, piece], rest)) = data.split_first_chunk::<2>() else { return };
    let is_chat = api % 2 == 0;
    let mut parts = rest.split(|byte| *byte == 0);
    let body = parts.next().unwrap_or_default();
    let answers: Vec<_> = parts.take(4).collect();
    let Some(whole) = streamed(is_chat, body, &answers, usize::MAX) else { return };
    for piece in [1, usize::from(*piece) + 1] {
        let again = streamed(is_chat, body, &answers, piece);
        assert_eq!(again.as_ref(), Some(&whole), "in reads of {piece}");
    }
}

fn streamed(is_chat: bool, body: &[u8], answers: &[&[u8]], piece: usize) -> Option<Vec<u8>> {
    let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
    let mut transcript = Transcript::of(endpoint, body).ok()?;
    let mut first = Vec::new();
    let rest = ask_for_ids(body, &mut first);
    first.extend_from_slice(rest);
    let most = asked(&first);
    let mut out = Vec::new();
    for answer in answers {
        let before = out.len();
        for part in answer.chunks(piece.min(answer.len().max(1))) {
            transcript.feed(part, &mut out);
        }
        transcript.break_off();
        transcript.settle(Some(64), |_, _| false);
        // Behind an obstacle of another kind, an event may still be one that is not understood.
        if transcript.obstacle().is_none() {
            shows_no_ids(&out[before..]);
        }
        if transcript.may_go_on().is_err() {
            break;
        }
        if transcript.end(&mut out) {
            assert!(memchr::memmem::find(&out, b"[DONE]").is_some(), "an end without a mark");
            break;
        }
        if !transcript.goes_on_by_ids() {
            transcript.start_over();
        } else {
            let mut next = Vec::new();
            transcript.go_on(&mut next);
            let left = asked(&next);
            let most = most.or(Some(if is_chat { 64 } else { 16 }));
            assert!(left > Some(0) && left <= most, "{left:?} of {most:?}");
        }
    }
    transcript.flush(&mut out);
    Some(out)
}

/// The limit of a body.
fn asked(body: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(value["return_token_ids"], true, "ids are asked for");
    let limits = ["max_completion_tokens", "max_tokens"].map(|name| value[name].as_u64());
    limits[0].or(limits[1])
}

fn shows_no_ids(out: &[u8]) {
    let Ok(text) = std::str::from_utf8(out) else { return };
    // Events of several lines are not understood, but for comments.
    let lines = text.split("\n\n").filter_map(|event| {
        let mut said = event.split('\n').filter(|line| !line.starts_with(':'));
        said.next().filter(|_| said.next().is_none())
    });
    for line in lines.filter_map(|line| line.strip_prefix("data:")) {
        let Ok(event) = serde_json::from_str::<Value>(line.trim()) else { continue };
        let choice = &event["choices"][0];
        assert!(!event["prompt_token_ids"].is_array(), "{line}");
        assert!(
            !choice["prompt_token_ids"].is_array() && !choice["token_ids"].is_array(),
            "{line}"
        );
    }
}
