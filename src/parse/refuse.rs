//! Every answer of the router's own that is not a success.

use super::json::ScanError;
use super::request::ApiShape;
use crate::http1::{BodyError, HeadError};
use std::borrow::Cow;
use std::time::Duration;

/// Longest client text (a model name, say) that an error message repeats, in characters.
const QUOTED_CHARS_MAX: usize = 128;

/// Why the router refused, for machines: header `x-forebay-reason`, label of `forebay_rejected_total`, log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The HTTP message is malformed.
    BadRequest,
    /// The body is not the JSON object it has to be.
    BadJson,
    /// The body names no model.
    MissingModel,
    /// No worker serves the model.
    UnknownModel,
    /// No such path.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body is longer than the limit.
    BodyTooLarge,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// The client was too slow to send its request.
    RequestTimeout,
    /// `Expect` asks for what nobody offers.
    ExpectationFailed,
    /// Nothing is left to send to: no worker of the model is healthy.
    NoHealthyWorker,
    /// This router has as many requests in flight as it may.
    RejectedInFlight,
    /// No rank of the model has room.
    RejectedBusy,
    /// This router is shutting down.
    Draining,
    /// The worker broke the connection or answered nonsense.
    UpstreamFailed,
    /// The worker did not answer in time.
    UpstreamTimeout,
    /// A fault of the router's own.
    Internal,
}

impl Reason {
    /// All of them, in the order of declaration, for label sets.
    pub const ALL: [Self; 17] = [
        Self::BadRequest,
        Self::BadJson,
        Self::MissingModel,
        Self::UnknownModel,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::HeadTooLarge,
        Self::RequestTimeout,
        Self::ExpectationFailed,
        Self::NoHealthyWorker,
        Self::RejectedInFlight,
        Self::RejectedBusy,
        Self::Draining,
        Self::UpstreamFailed,
        Self::UpstreamTimeout,
        Self::Internal,
    ];

    /// Name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::BadJson => "bad-json",
            Self::MissingModel => "missing-model",
            Self::UnknownModel => "unknown-model",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::BodyTooLarge => "body-too-large",
            Self::HeadTooLarge => "head-too-large",
            Self::RequestTimeout => "request-timeout",
            Self::ExpectationFailed => "expectation-failed",
            Self::NoHealthyWorker => "no-healthy-worker",
            Self::RejectedInFlight => "rejected-in-flight",
            Self::RejectedBusy => "rejected-busy",
            Self::Draining => "draining",
            Self::UpstreamFailed => "upstream-failed",
            Self::UpstreamTimeout => "upstream-timeout",
            Self::Internal => "internal",
        }
    }

    /// Status, unless a [`Refusal`] knows a closer one. Contended is 429, none left is 503.
    const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::BadJson | Self::MissingModel => 400,
            Self::UnknownModel | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::BodyTooLarge => 413,
            Self::ExpectationFailed => 417,
            Self::RejectedInFlight | Self::RejectedBusy => 429,
            Self::HeadTooLarge => 431,
            Self::Internal => 500,
            Self::UpstreamFailed => 502,
            Self::NoHealthyWorker | Self::Draining => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// OpenAI's `code`, where clients look at it.
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::UnknownModel => Some("model_not_found"),
            Self::RejectedInFlight | Self::RejectedBusy => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    /// What happened, and what to do.
    const fn message(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is malformed.",
            Self::BadJson => "The body must be a JSON object.",
            Self::MissingModel => "The body must name a model: add \"model\", a non-empty string.",
            Self::UnknownModel => {
                "No worker serves this model. GET /v1/models lists those that are served."
            }
            Self::NotFound => {
                "There is no such path. The API starts at /v1, e.g. POST /v1/chat/completions."
            }
            Self::MethodNotAllowed => {
                "This path does not support the method; see the Allow header."
            }
            Self::BodyTooLarge => {
                "The body is longer than this router accepts. Send a shorter one."
            }
            Self::HeadTooLarge => {
                "The header section is longer than this router accepts. Send fewer or shorter fields."
            }
            Self::RequestTimeout => "The request did not arrive in time. Send it again.",
            Self::ExpectationFailed => {
                "Only the expectation 100-continue is supported. Send the request without Expect."
            }
            Self::NoHealthyWorker => {
                "No healthy worker serves this model at the moment. Try again later."
            }
            Self::RejectedInFlight => {
                "The router has as many requests in flight as it may. Try again later."
            }
            Self::RejectedBusy => "All workers of this model are busy. Try again later.",
            Self::Draining => {
                "This router is shutting down. Send the request again, to another one."
            }
            Self::UpstreamFailed => "The worker failed to answer. Try again.",
            Self::UpstreamTimeout => "The worker did not answer in time. Try again later.",
            Self::Internal => "The router failed. Try again.",
        }
    }
}

/// One answer of the router's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    reason: Reason,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: Cow<'static, str>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl Refusal {
    /// With the status and message that the reason has of itself.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self {
            status: reason.status(),
            reason,
            code: reason.code(),
            param: None,
            message: Cow::Borrowed(reason.message()),
            retry_after: None,
            allow: None,
        }
    }

    /// For a model that no worker serves; the name is repeated, cut to a bounded length.
    #[must_use]
    pub fn unknown_model(model: &str) -> Self {
        let quoted: String = model.chars().take(QUOTED_CHARS_MAX).collect();
        let ellipsis = if quoted.len() < model.len() { "…" } else { "" };
        let message = format!(
            "No worker serves the model `{quoted}{ellipsis}`. GET /v1/models lists those that are served."
        );
        Self::new(Reason::UnknownModel).with_param("model").with_message(message)
    }

    /// For a body without a model.
    #[must_use]
    pub const fn missing_model() -> Self {
        Self::new(Reason::MissingModel).with_param("model")
    }

    /// Another message. The text must be bounded: it is sent and logged in full.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// The body key at fault.
    #[must_use]
    pub const fn with_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// When to try again: headers `retry-after` (whole seconds, rounded up) and `retry-after-ms`.
    #[must_use]
    pub const fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Methods for the header `allow`.
    #[must_use]
    pub const fn with_allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    const fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Status code.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Machine reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Text for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// When to try again.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Value of `retry-after`: whole seconds, rounded up, at least 1.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        self.retry_after.map(|after| (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1))
    }

    /// Value of `allow`.
    #[must_use]
    pub const fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    /// Appends the JSON body in the shape of the API that was asked.
    pub fn encode_body(&self, api: ApiShape, out: &mut Vec<u8>) {
        match api {
            ApiShape::OpenAi => {
                out.extend_from_slice(b"{\"error\":{\"message\":");
                push_json_string(&self.message, out);
                out.extend_from_slice(b",\"type\":");
                push_json_string(self.openai_type(), out);
                out.extend_from_slice(b",\"param\":");
                push_json_option(self.param, out);
                out.extend_from_slice(b",\"code\":");
                push_json_option(self.code, out);
                out.extend_from_slice(b"}}");
            }
            ApiShape::Anthropic => {
                out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":");
                push_json_string(self.anthropic_type(), out);
                out.extend_from_slice(b",\"message\":");
                push_json_string(&self.message, out);
                out.extend_from_slice(b"}}");
            }
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status {
            429 => "rate_limit_error",
            503 => "service_unavailable_error",
            504 => "timeout_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status {
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Self {
        let reason = match error.status() {
            414 | 431 => Reason::HeadTooLarge,
            417 => Reason::ExpectationFailed,
            _ => Reason::BadRequest,
        };
        Self::new(reason)
            .with_status(error.status())
            .with_message(format!("Malformed request: {error}."))
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => Self::new(Reason::BodyTooLarge),
            _ => Self::new(Reason::BadRequest)
                .with_message(format!("Malformed request body: {error}.")),
        }
    }
}

impl From<ScanError> for Refusal {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::ModelTooLong => Self::new(Reason::BadJson)
                .with_param("model")
                .with_message("The model name is too long."),
            ScanError::TooLong => Self::new(Reason::BodyTooLarge),
            _ => Self::new(Reason::BadJson)
                .with_message(format!("The body must be a JSON object: {error}.")),
        }
    }
}

fn push_json_option(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => push_json_string(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends `text` as a JSON string, quotes included.
fn push_json_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0..0x20 | 0x7f => {
                let hex = |digit: u8| HEX.get(usize::from(digit)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 0xf)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::{Reason, Refusal};
    use crate::http1::{BodyError, HeadError};
    use crate::parse::{ApiShape, ScanError};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use serde_json::Value;
    use std::time::Duration;

    fn body(refusal: &Refusal, api: ApiShape) -> Value {
        let mut out = Vec::new();
        refusal.encode_body(api, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn names_are_kebab_case_and_unlike() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
    }

    #[test]
    fn contended_is_429_and_none_left_is_503() {
        for (reason, status) in [
            (Reason::RejectedBusy, 429),
            (Reason::RejectedInFlight, 429),
            (Reason::NoHealthyWorker, 503),
            (Reason::Draining, 503),
            (Reason::UpstreamFailed, 502),
            (Reason::UpstreamTimeout, 504),
        ] {
            assert_eq!(Refusal::new(reason).status(), status);
        }
    }

    #[test]
    fn both_api_shapes() {
        let refusal = Refusal::unknown_model("a\"b\n");
        let openai = body(&refusal, ApiShape::OpenAi);
        assert!(openai["error"]["message"].as_str().unwrap().contains("`a\"b\n`"));
        assert_eq!(openai["error"]["type"], "invalid_request_error");
        assert_eq!(openai["error"]["param"], "model");
        assert_eq!(openai["error"]["code"], "model_not_found");
        let anthropic = body(&refusal, ApiShape::Anthropic);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "not_found_error");
        assert_eq!(
            body(&Refusal::new(Reason::Draining), ApiShape::OpenAi)["error"]["code"],
            Value::Null
        );
    }

    #[test]
    fn faults_below_become_refusals() {
        assert_eq!(Refusal::from(HeadError::HeadTooLarge).status(), 431);
        assert_eq!(Refusal::from(HeadError::Version).status(), 505);
        assert_eq!(Refusal::from(HeadError::Expectation).reason(), Reason::ExpectationFailed);
        assert_eq!(Refusal::from(BodyError::TooLarge).status(), 413);
        assert_eq!(Refusal::from(BodyError::Size).status(), 400);
        assert_eq!(Refusal::from(ScanError::ModelTooLong).reason(), Reason::BadJson);
    }

    #[test]
    fn retry_after_rounds_up() {
        let busy = Refusal::new(Reason::RejectedBusy);
        assert_eq!(
            busy.clone().with_retry_after(Duration::from_millis(1_001)).retry_after_s(),
            Some(2)
        );
        assert_eq!(busy.clone().with_retry_after(Duration::ZERO).retry_after_s(), Some(1));
        assert_eq!(busy.retry_after_s(), None);
    }

    proptest! {
        #[test]
        fn any_model_name_makes_a_bounded_json_body(name in any::<String>()) {
            let long = name.repeat(50);
            let mut out = Vec::new();
            Refusal::unknown_model(&long).encode_body(ApiShape::OpenAi, &mut out);
            prop_assert!(out.len() < 1_200);
            let text = serde_json::from_slice::<Value>(&out).unwrap()["error"]["message"].as_str().unwrap().to_owned();
            let start: String = long.chars().take(128).collect();
            prop_assert_eq!(text.strip_prefix("No worker serves the model `").unwrap().starts_with(&start), true);
        }
    }
}
