//! Errors of SGLang's Rust server: nested with few fields on its own routes, in OpenAI's format on
//! the other routes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Format of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorShape {
    Native,
    Openai,
}

/// Why a request has no answer, or only part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Failure {
    /// The request is wrong: status 400.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// A failure inside the scheduler: status 500.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.into() }
    }

    /// The engine is full or stopping: status 503.
    pub(super) fn unavailable(message: &str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, message: message.into() }
    }

    /// The body of the answer, or of the event in a stream.
    pub(super) fn body(&self, shape: ErrorShape) -> Value {
        let code = self.status.as_u16();
        match shape {
            ErrorShape::Native => json!({ "error": { "message": self.message, "code": code } }),
            ErrorShape::Openai => {
                let kind = match code {
                    400 => "BadRequestError",
                    503 => "ServiceUnavailableError",
                    _ => "InternalServerError",
                };
                json!({ "error": {
                    "object": "error", "message": self.message, "type": kind, "param": null,
                    "code": code,
                } })
            }
        }
    }

    /// The failure as the whole answer.
    pub(super) fn response(&self, shape: ErrorShape) -> Response {
        (self.status, Json(self.body(shape))).into_response()
    }
}

/// The answer of a planned fault.
pub(crate) fn failed_on_purpose(path: &str, is_error: bool) -> Response {
    let shape = if path == "/generate" { ErrorShape::Native } else { ErrorShape::Openai };
    if is_error {
        Failure::internal("Internal server error").response(shape)
    } else {
        Failure::unavailable("The request queue is full.").response(shape)
    }
}
