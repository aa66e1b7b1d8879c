//! Parts of a stream of events (WHATWG HTML section 9.2) that the router writes: the place of a
//! request, as comments, which every client skips, and an error, as an event in the shape of the
//! API. Sans-IO.

use forebay_http1::reason_phrase;
use forebay_prompt::parse::{ApiShape, Endpoint, Reason, Refusal};
use serde_json::Value;

/// Characters of an engine's error that the router repeats, if the error is not JSON.
const QUOTED_CHARS_MAX: usize = 512;

/// How streams of an API end with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamShape {
    /// `data: {"error":…}`, then `data: [DONE]`.
    OpenAi,
    /// OpenAI's `/v1/responses`: a typed event, and nothing after it. Beside the members that the
    /// API has there it has `error`: OpenAI's clients raise an exception only for that.
    Responses,
    /// Anthropic's: a typed event, and nothing after it.
    Anthropic,
}

/// The place of a request on its way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueStanding<'a> {
    /// The request has joined a queue.
    Queued {
        /// Requests in the queue, with this request.
        position: u32,
    },
    /// The request still waits.
    Waited {
        /// Seconds since the first comment.
        seconds: u64,
    },
    /// The request is being sent to a worker.
    Prefill {
        /// As in `x-forebay-worker`.
        worker: &'a str,
    },
}

impl StreamShape {
    /// The shape of an endpoint; `None` for an endpoint that never answers with a stream.
    #[must_use]
    pub const fn of(endpoint: Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Generate => {
                Some(Self::OpenAi)
            }
            Endpoint::Responses => Some(Self::Responses),
            Endpoint::Messages => Some(Self::Anthropic),
            Endpoint::Embeddings
            | Endpoint::Rerank
            | Endpoint::Score
            | Endpoint::Tokenize
            | Endpoint::Detokenize
            | Endpoint::CountTokens
            | Endpoint::Other
            | Endpoint::StoredResponse
            | Endpoint::WebSocket
            | Endpoint::Models
            | Endpoint::Health
            | Endpoint::Version => None,
        }
    }

    const fn api(self) -> ApiShape {
        match self {
            Self::OpenAi | Self::Responses => ApiShape::OpenAi,
            Self::Anthropic => ApiShape::Anthropic,
        }
    }
}

/// Appends a comment with the place of the request.
pub fn encode_standing(standing: QueueStanding<'_>, out: &mut Vec<u8>) {
    let line = match standing {
        QueueStanding::Queued { position } => format!(": queued position={position}\n\n"),
        QueueStanding::Waited { seconds } => format!(": queued waited={seconds}s\n\n"),
        QueueStanding::Prefill { worker } => format!(": prefill worker={worker}\n\n"),
    };
    out.extend_from_slice(line.as_bytes());
}

/// Appends the end of a stream that the router refuses after its head. A comment has the status
/// and the reason.
pub fn encode_refused(shape: StreamShape, refusal: &Refusal, out: &mut Vec<u8>) {
    let status = refusal.status();
    let reason = refusal.reason().as_str();
    let after = refusal.retry_after_ms().map(|ms| format!(" retry-after-ms={ms}"));
    let after = after.unwrap_or_default();
    out.extend_from_slice(format!(": status={status} reason={reason}{after}\n\n").as_bytes());
    let mut body = Vec::new();
    refusal.encode_body(shape.api(), &mut body);
    push_end(shape, &body, out);
}

/// Appends the last event of a stream that breaks off: `why`, in plain ASCII. No proper end
/// follows. `is_between_events`: the bytes of the client so far end with a whole event.
pub fn encode_cut(shape: StreamShape, why: &str, is_between_events: bool, out: &mut Vec<u8>) {
    if !is_between_events {
        // Else this event would be read as the rest of the event that broke off.
        out.extend_from_slice(b"\n\n");
    }
    let message = format!(
        "The worker failed in the middle of the answer: {why}. What was received so far is \
         incomplete; send the request again."
    );
    let body = match shape.api() {
        ApiShape::OpenAi => format!(
            "{{\"error\":{{\"message\":\"{message}\",\"type\":\"upstream_error\",\
             \"param\":null,\"code\":\"upstream-failed\"}}}}"
        ),
        ApiShape::Anthropic => format!(
            "{{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\
             \"message\":\"{message}\"}}}}"
        ),
    };
    push_event(shape, body.as_bytes(), out);
}

/// Appends the end of a stream that an engine answered with something else: an error of any form.
pub fn encode_engine_error(shape: StreamShape, status: u16, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!(": status={status}\n\n").as_bytes());
    let body = match engine_error(body) {
        Some(error) => {
            let kind = if shape == StreamShape::Anthropic { r#""type":"error","# } else { "" };
            format!("{{{kind}\"error\":{error}}}").into_bytes()
        }
        None => in_own_words(shape, status, body),
    };
    push_end(shape, &body, out);
}

/// The error object on a single line: `error` of the body, or the whole body, as older engines have
/// it. `None` without a message, which clients show.
fn engine_error(body: &[u8]) -> Option<String> {
    let Ok(Value::Object(mut members)) = serde_json::from_slice(body) else { return None };
    let error = match members.remove("error") {
        Some(error @ Value::Object(_)) => error,
        Some(Value::String(message)) => serde_json::json!({ "message": message }),
        _ => Value::Object(members),
    };
    error.get("message").is_some_and(Value::is_string).then(|| error.to_string())
}

fn in_own_words(shape: StreamShape, status: u16, body: &[u8]) -> Vec<u8> {
    let start = body.get(..body.len().min(4 * QUOTED_CHARS_MAX)).unwrap_or_default();
    let text: String = String::from_utf8_lossy(start).chars().take(QUOTED_CHARS_MAX).collect();
    let message = format!(
        "The worker answered {status} {} instead of a stream: {text}",
        reason_phrase(status)
    );
    let mut out = Vec::new();
    Refusal::new(Reason::UpstreamFailed).with_message(message).encode_body(shape.api(), &mut out);
    out
}

/// The last event of a stream that ends properly.
fn push_end(shape: StreamShape, body: &[u8], out: &mut Vec<u8>) {
    push_event(shape, body, out);
    if shape == StreamShape::OpenAi {
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// `body`: a JSON object with `error`, without line breaks.
fn push_event(shape: StreamShape, body: &[u8], out: &mut Vec<u8>) {
    if shape != StreamShape::OpenAi {
        out.extend_from_slice(b"event: error\n");
    }
    out.extend_from_slice(b"data: ");
    match shape {
        StreamShape::Responses => push_responses_error(body, out),
        _ => out.extend_from_slice(body),
    }
    out.extend_from_slice(b"\n\n");
}

/// `ResponseErrorEvent` of the Responses API. Clients do not look at the number: the router does
/// not count events.
fn push_responses_error(body: &[u8], out: &mut Vec<u8>) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").cloned().unwrap_or_default();
    let code = match error.get("code") {
        Some(Value::Number(code)) => Value::String(code.to_string()),
        code => code.cloned().unwrap_or_default(),
    };
    let event = serde_json::json!({
        "type": "error",
        "code": code,
        "message": error.get("message"),
        "param": error.get("param"),
        "sequence_number": 0,
        "error": error,
    });
    out.extend_from_slice(event.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const SHAPES: [StreamShape; 3] =
        [StreamShape::OpenAi, StreamShape::Responses, StreamShape::Anthropic];

    fn standing(standing: QueueStanding<'_>) -> String {
        let mut out = Vec::new();
        encode_standing(standing, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn refused(shape: StreamShape, refusal: &Refusal) -> String {
        let mut out = Vec::new();
        encode_refused(shape, refusal, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn engine(shape: StreamShape, status: u16, body: &[u8]) -> String {
        let mut out = Vec::new();
        encode_engine_error(shape, status, body, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn comments_byte_for_byte() {
        assert_eq!(standing(QueueStanding::Queued { position: 3 }), ": queued position=3\n\n");
        assert_eq!(standing(QueueStanding::Waited { seconds: 4 }), ": queued waited=4s\n\n");
        assert_eq!(standing(QueueStanding::Prefill { worker: "b/1" }), ": prefill worker=b/1\n\n");
    }

    #[test]
    fn refusals_byte_for_byte() {
        let late =
            Refusal::new(Reason::RejectedQueueWait).with_retry_after(Duration::from_millis(1_500));
        assert_eq!(
            refused(StreamShape::OpenAi, &late),
            ": status=429 reason=rejected-queue-wait retry-after-ms=1500\n\n\
             data: {\"error\":{\"message\":\"No worker of this model got free while the request waited. Try again \
             later.\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}\n\n\
             data: [DONE]\n\n"
        );
        let stopping = Refusal::new(Reason::Draining);
        assert_eq!(
            refused(StreamShape::Responses, &stopping),
            ": status=503 reason=draining\n\n\
             event: error\n\
             data: {\"type\":\"error\",\"code\":null,\"message\":\"This router is shutting down. Send the request \
             again, to another one.\",\"param\":null,\"sequence_number\":0,\
             \"error\":{\"message\":\"This router is shutting down. Send the request again, to another one.\",\
             \"type\":\"service_unavailable_error\",\"param\":null,\"code\":null}}\n\n"
        );
        assert_eq!(
            refused(StreamShape::Anthropic, &stopping),
            ": status=503 reason=draining\n\n\
             event: error\n\
             data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"This router is shutting \
             down. Send the request again, to another one.\"}}\n\n"
        );
    }

    #[test]
    fn errors_of_engines_byte_for_byte() {
        // vLLM's, here on several lines.
        let body = b"{\"error\": {\n  \"message\": \"too\\nlong\", \"code\": 400},\r\n \"x\": 1}";
        assert_eq!(
            engine(StreamShape::OpenAi, 400, body),
            ": status=400\n\ndata: {\"error\":{\"message\":\"too\\nlong\",\"code\":400}}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(
            engine(StreamShape::Responses, 400, body),
            ": status=400\n\nevent: error\ndata: {\"type\":\"error\",\"code\":\"400\",\"message\":\"too\\nlong\",\
             \"param\":null,\"sequence_number\":0,\"error\":{\"message\":\"too\\nlong\",\"code\":400}}\n\n"
        );
        // SGLang's, without `error`.
        let body = b"{\"object\":\"error\",\"message\":\"no\"}";
        assert_eq!(
            engine(StreamShape::Anthropic, 400, body),
            ": status=400\n\nevent: error\n\
             data: {\"type\":\"error\",\"error\":{\"object\":\"error\",\"message\":\"no\"}}\n\n"
        );
        let text = engine(StreamShape::OpenAi, 500, b"<h1>\"No\"</h1>");
        assert!(
            text.contains("500 Internal Server Error instead of a stream: <h1>\\\"No\\\"</h1>")
        );
        let text = engine(StreamShape::Anthropic, 404, b"{\"detail\":\"Not Found\"}");
        assert!(text.contains("\"message\":\"The worker answered 404 Not Found instead"), "{text}");
        assert!(
            engine(StreamShape::OpenAi, 500, b"{\"error\":\"no\"}")
                .contains("{\"message\":\"no\"}")
        );
    }

    #[test]
    fn what_breaks_off_byte_for_byte() {
        let cut = |shape, is_between_events| {
            let mut out = Vec::new();
            encode_cut(shape, "it is down", is_between_events, &mut out);
            String::from_utf8(out).unwrap()
        };
        let message = "\"message\":\"The worker failed in the middle of the answer: it is down. What was received so \
                       far is incomplete; send the request again.\"";
        let error = format!(
            "\"error\":{{{message},\"type\":\"upstream_error\",\"param\":null,\"code\":\"upstream-failed\"}}"
        );
        assert_eq!(cut(StreamShape::OpenAi, true), format!("data: {{{error}}}\n\n"));
        assert_eq!(cut(StreamShape::OpenAi, false), format!("\n\ndata: {{{error}}}\n\n"));
        assert_eq!(
            cut(StreamShape::Responses, true),
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"code\":\"upstream-failed\",{message},\
                 \"param\":null,\"sequence_number\":0,{error}}}\n\n"
            )
        );
        assert_eq!(
            cut(StreamShape::Anthropic, true),
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",{message}}}}}\n\n"
            )
        );
    }

    #[test]
    fn only_endpoints_that_stream_have_a_shape() {
        for endpoint in Endpoint::ALL {
            let shape = StreamShape::of(endpoint);
            assert!(shape.is_none() || endpoint.is_inference());
            assert_eq!(shape == Some(StreamShape::Anthropic), endpoint == Endpoint::Messages);
        }
        assert_eq!(StreamShape::of(Endpoint::Embeddings), None);
    }

    proptest! {
        /// Whatever an engine sends, a client reads one event with an `error` and, where it waits
        /// for that, the end.
        #[test]
        fn any_answer_becomes_one_event(
            body in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..3_000),
                any::<String>()
                    .prop_map(|text| serde_json::json!({ "error": text }).to_string().into_bytes()),
                any::<String>().prop_map(|text| format!("{{\"{text}\":[\r\n1]}}").into_bytes()),
            ],
            status in 100_u16..600,
        ) {
            for shape in SHAPES {
                let text = engine(shape, status, &body);
                prop_assert!(!text.contains('\r') && text.ends_with("\n\n") && text.len() < 16_384);
                let data: Vec<&str> =
                    text.split('\n').filter_map(|line| line.strip_prefix("data: ")).collect();
                let ends = if shape == StreamShape::OpenAi { &["[DONE]"][..] } else { &[] };
                prop_assert_eq!(&data[1..], ends);
                let event: Value = serde_json::from_str(data[0]).unwrap();
                prop_assert!(event["error"]["message"].is_string(), "{}", text);
                let typed = shape != StreamShape::OpenAi;
                prop_assert_eq!(typed, event["type"] == "error");
                prop_assert_eq!(typed, text.contains("\nevent: error\n"));
                let other = |line: &str| !line.is_empty() && !line.starts_with([':', 'd', 'e']);
                prop_assert!(!text.split('\n').any(other), "{}", text);
            }
        }
    }
}
