//! A stand-in text of a prompt where the engine's text is unknown: equal conversations have equal
//! beginnings, so that prompts can be compared with earlier prompts. Never compared with KV events.

use super::engine_text::slice;
use crate::parse::{ApiRequest, PromptSource};
use forebay_text::chat::MessageSpan;

/// Most bytes that are copied; the rest is only counted.
pub const CANONICAL_BYTES_MAX: usize = 1024 * 1024;

/// Writes the prompt to `out`, contents as they were sent (still JSON-escaped), and returns its
/// whole length in bytes, images and other data by their weight as text; 0 when the body has no
/// prompt. Messages that are more than role and text are copied as the raw body: conversations
/// append to earlier requests, and clients serialise the rest the same way each time.
pub fn canonical(request: &ApiRequest, body: &[u8], out: &mut Vec<u8>) -> u64 {
    match &request.prompt {
        PromptSource::None => 0,
        // The same text beside another image is another prompt.
        _ if request.has_more_than_text => request.text_bytes(append(body, out)),
        PromptSource::PlainMessages => messages(&request.messages, body, out),
        PromptSource::Messages => request.text_bytes(append(body, out)),
        PromptSource::Text(span) | PromptSource::TokenIds(span) | PromptSource::Batch(span) => {
            append(slice(body, span), out)
        }
    }
}

fn messages(messages: &[MessageSpan], body: &[u8], out: &mut Vec<u8>) -> u64 {
    let mut total = 0;
    for message in messages {
        // JSON strings hold no bare newline, so no content can look like the start of a message.
        for part in [message.role.name().as_bytes(), b"\n", slice(body, &message.content), b"\n"] {
            total += append(part, out);
        }
    }
    total
}

/// Copies as much of `part` as fits; returns its whole length.
fn append(part: &[u8], out: &mut Vec<u8>) -> u64 {
    let room = CANONICAL_BYTES_MAX.saturating_sub(out.len()).min(part.len());
    out.extend_from_slice(part.get(..room).unwrap_or_default());
    u64::try_from(part.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Endpoint, NOT_TEXT_BYTES, scan};

    fn text(endpoint: Endpoint, body: &str) -> (String, u64) {
        let mut request = ApiRequest::default();
        request.clear();
        scan(body.as_bytes(), endpoint, &mut request).unwrap();
        let mut out = Vec::new();
        let total = canonical(&request, body.as_bytes(), &mut out);
        (String::from_utf8(out).unwrap(), total)
    }

    #[test]
    fn a_conversation_that_goes_on_begins_as_before() {
        let turn = |more: &str| {
            let body =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a\nb"}}{more}]}}"#);
            text(Endpoint::ChatCompletions, &body)
        };
        let (first, total) = turn("");
        assert_eq!((first.as_str(), total), ("user\na\\nb\n", 10));
        let (second, _) = turn(r#",{"role":"assistant","content":"c"}"#);
        assert_eq!(second, format!("{first}assistant\nc\n"));
        // Parts are not plain: the body itself.
        let rich =
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#;
        assert_eq!(text(Endpoint::ChatCompletions, rich).0, rich);
    }

    #[test]
    fn prompts_of_every_shape() {
        let of = |prompt: &str| {
            text(Endpoint::Completions, &format!(r#"{{"model":"m","prompt":{prompt}}}"#)).0
        };
        assert_eq!(of(r#""hi \u0041""#), r"hi \u0041");
        assert_eq!(of("[1,2,3]"), "[1,2,3]");
        assert_eq!(of(r#"["one","two"]"#), r#""one""#);
        assert_eq!(text(Endpoint::Completions, r#"{"model":"m"}"#), (String::new(), 0));
    }

    #[test]
    fn images_weigh_what_they_are_and_not_their_bytes() {
        let image = "iVBORw0KGgo".repeat(200_000);
        let part = |part: &str| {
            let text = r#"{"type":"text","text":"What is this?"}"#;
            format!(r#"{{"messages":[{{"role":"user","content":[{text},{part}]}}]}}"#)
        };
        let url = format!(
            r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{image}"}}}}"#
        );
        let source = format!(r#"{{"type":"image","source":{{"type":"base64","data":"{image}"}}}}"#);
        let sound = format!(
            r#"{{"type":"input_audio","input_audio":{{"format":"wav","data":"{image}"}}}}"#
        );
        for (endpoint, body, count) in [
            (Endpoint::ChatCompletions, part(&url), 1),
            (Endpoint::ChatCompletions, part(&format!("{url},{sound},{url}")), 3),
            (Endpoint::Messages, part(&source), 1),
            (Endpoint::Generate, format!(r#"{{"text":"a","image_data":["{image}"]}}"#), 1),
        ] {
            let total = text(endpoint, &body).1;
            let images = count * NOT_TEXT_BYTES;
            assert!((images..images + 1_000).contains(&total), "{total}: {}", &body[..200]);
        }
        // Text counts as text, whatever its length and beginning, and so does the text beside an
        // image.
        let words = "data: all of it; ".repeat(1_000);
        let body = part(&format!(r#"{{"type":"text","text":"{words}"}}"#));
        assert_eq!(text(Endpoint::ChatCompletions, &body).1, body.len() as u64);
        let short =
            part(r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo"}}"#);
        assert_eq!(text(Endpoint::ChatCompletions, &short).1, short.len() as u64);
    }

    #[test]
    fn long_prompts_are_counted_but_not_copied() {
        let long = "x".repeat(CANONICAL_BYTES_MAX + 5);
        let (copied, total) = text(Endpoint::Completions, &format!(r#"{{"prompt":"{long}"}}"#));
        assert_eq!(copied.len(), CANONICAL_BYTES_MAX);
        assert_eq!(total, u64::try_from(long.len()).unwrap());
    }
}
