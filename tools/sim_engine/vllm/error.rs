//! Errors in vLLM's OpenAI format.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An answer that is not 200.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl ApiError {
    /// The body does not match the route.
    pub(crate) fn validation(problem: &str, param: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {problem}");
        Self { status: StatusCode::BAD_REQUEST, kind: "Bad Request", message, param }
    }

    /// A required field is absent.
    pub(crate) fn missing(field: &str) -> Self {
        let problem =
            format!("{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required'}}");
        Self::validation(&problem, Some(format!("body.{field}")))
    }

    /// A well-formed request that cannot be served.
    pub(crate) fn bad_request(message: String, param: Option<&str>) -> Self {
        let param = param.map(str::to_owned);
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message, param }
    }

    /// A number out of its range.
    pub(crate) fn out_of_range(what: &str, param: &str, value: i64) -> Self {
        let message = format!("{what}, got {value}. (parameter={param}, value={value})");
        Self::bad_request(message, Some(param))
    }

    /// The engine does not serve this model.
    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{asked}` does not exist. Valid aliases: {served}."),
            param: Some("model".into()),
        }
    }

    /// The engine failed: status 500.
    pub(crate) fn internal() -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            message: "Internal server error".into(),
            param: None,
        }
    }

    /// The engine is full, as an event in a stream that has begun.
    pub(crate) fn busy() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "Service Unavailable",
            message: "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                      different instance."
                .into(),
            param: None,
        }
    }

    /// The error as the end of a stream.
    pub(crate) fn event(&self) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", self.body())
    }

    fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param,
            "code": self.status.as_u16(),
        } })
    }

    /// The engine is stopping: status 503.
    pub(crate) fn stopping() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "Service Unavailable",
            message: "The engine is stopping.".into(),
            param: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

/// Answers a path that is no route.
pub(super) async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "detail": "Not Found" }))).into_response()
}

/// Answers a method that the route does not accept.
pub(super) async fn method_not_allowed() -> Response {
    let body = Json(json!({ "detail": "Method Not Allowed" }));
    (StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}
