//! Refusals of a full engine. vLLM's was captured from 0.32; SGLang's follows its source (0.5.23),
//! which aborts the request inside: a stream then already has its status.

use crate::refusal::EngineRefusal;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The refusal for the client; `stream` if the client requested a stream.
pub(crate) fn refusal_response(refusal: EngineRefusal, stream: bool) -> Response {
    match refusal {
        EngineRefusal::Vllm => json(StatusCode::SERVICE_UNAVAILABLE, VLLM_BODY),
        EngineRefusal::Sglang if stream => {
            let kind = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
            (kind, SGLANG_EVENTS).into_response()
        }
        EngineRefusal::Sglang => json(StatusCode::SERVICE_UNAVAILABLE, SGLANG_BODY),
        EngineRefusal::TooMany => {
            let mut response = json(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_BODY);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        EngineRefusal::Overloaded => {
            let status = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            json(status, OVERLOADED_BODY)
        }
    }
}

fn json(status: StatusCode, body: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

const VLLM_BODY: &str = r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#;
const SGLANG_BODY: &str = r#"{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}"#;
const SGLANG_EVENTS: &str = "data: {\"error\": {\"object\": \"error\", \"message\": \"The request queue is full.\", \
     \"type\": \"SERVICE_UNAVAILABLE\", \"param\": null, \"code\": 503}}\n\ndata: [DONE]\n\n";
const TOO_MANY_BODY: &str = r#"{"error":{"message":"Rate limit reached. Please try again in 1s.","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#;
const OVERLOADED_BODY: &str =
    r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
