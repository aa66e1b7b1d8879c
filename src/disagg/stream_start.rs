//! Detects the first part of the response in a stream of events. Events that engines send before
//! they have computed a token do not count, because the KV transfer may still fail.

use memchr::{memchr2, memmem};
use serde_json::Value;

/// Events without a token of the response. `/v1/responses` (SGLang 0.5.23, vLLM 0.33) reports the
/// request as soon as it is accepted. The other events come with the first token, or just before
/// it, so that waiting for the token costs nothing.
const EMPTY_EVENTS: [&[u8]; 8] = [
    b"response.created",
    b"response.queued",
    b"response.in_progress",
    b"response.output_item.added",
    b"response.content_part.added",
    b"message_start",
    b"content_block_start",
    b"ping",
];

/// True if the stream has a whole event with a part of the response, its end, or an error. Comments
/// are not events.
#[must_use]
pub fn has_begun(stream: &[u8]) -> bool {
    let mut name: Option<&[u8]> = None;
    let mut data: Option<&[u8]> = None;
    let mut rest = stream;
    while let Some(end) = memchr2(b'\n', b'\r', rest) {
        let (line, behind) = rest.split_at(end);
        let end_bytes = if behind.starts_with(b"\r\n") { 2 } else { 1 };
        rest = behind.get(end_bytes..).unwrap_or_default();
        if let Some(value) = line.strip_prefix(b"event:") {
            name = Some(value.trim_ascii());
        } else if let Some(value) = line.strip_prefix(b"data:") {
            data = Some(value);
        } else if line.is_empty() {
            let name = name.take();
            if data.take().is_some_and(|data| !is_empty(name, data)) {
                return true;
            }
        }
    }
    false
}

/// True for an event of [`EMPTY_EVENTS`], by its name, or by the type in its data without a name.
fn is_empty(name: Option<&[u8]>, data: &[u8]) -> bool {
    if let Some(name) = name {
        return EMPTY_EVENTS.contains(&name);
    }
    let may_be = EMPTY_EVENTS.iter().any(|name| memmem::find(data, name).is_some());
    may_be
        && serde_json::from_slice::<Value>(data).is_ok_and(|value| {
            let kind = value.get("type").and_then(Value::as_str);
            kind.is_some_and(|kind| EMPTY_EVENTS.contains(&kind.as_bytes()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_say_nothing_are_waited_behind() {
        let created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
        let progress = "data: {\"response\":{},\"type\":\"response.in_progress\"}\r\n\r\n";
        let start = "event: message_start\rdata: {}\r\r";
        for nothing in
            ["", "\n\n", ": ping\n\n", created, progress, start, "event: ping\ndata: {}\n\n"]
        {
            assert!(!has_begun(nothing.as_bytes()), "{nothing}");
            assert!(!has_begun(format!("{nothing}{created}: x\n\n").as_bytes()), "{nothing}");
            for event in [
                "data: {\"choices\":[{\"text\":\"response.created\"}]}\n\n",
                "data: {\"choices\":[{\"text\":\"ping\"}],\"type\":\"x\"}\r\n\r\n",
                "event: response.output_text.delta\ndata: {}\n\n",
                "event: error\ndata: {\"error\":{}}\r\r",
                "data: [DONE]\n\n",
                "data: {\"type\":7}\n\n",
            ] {
                let both = format!("{nothing}{event}");
                assert!(has_begun(both.as_bytes()), "{both}");
                let cut = both.trim_end();
                assert!(!has_begun(cut.as_bytes()), "not whole: {cut}");
            }
        }
    }
}
