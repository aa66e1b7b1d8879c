//! Every error response of the router itself.

use super::reason::Reason;
use crate::parse::ScanError;
use crate::parse::request::ApiShape;
use forebay_http1::{BodyError, HeadError};
use forebay_json::JsonError;
use std::borrow::Cow;
use std::time::Duration;

/// Longest client text (such as a model name) that an error message repeats, in characters.
const QUOTED_CHARS_MAX: usize = 128;
/// Limits apply until the answer ends; work that the engine does later would escape them.
const BACKGROUND: &str =
    "Background responses are not supported. Set `background` to false, or use `stream`.";
/// Longest `retry-after`. At longer values the official clients give up, or sleep for all of it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// An error response of the router itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    reason: Reason,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: Cow<'static, str>,
    /// The message needs no JSON escapes.
    is_plain: bool,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl Refusal {
    /// A refusal with the default status and message of the reason.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self {
            status: reason.status(),
            reason,
            code: reason.code(),
            param: None,
            message: Cow::Borrowed(reason.message()),
            is_plain: true,
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

    /// For a name of `[[model]]` with a model that no worker serves. Clients do not learn the name
    /// of that model.
    #[must_use]
    pub fn unserved_alias(name: &str) -> Self {
        let quoted: String = name.chars().take(QUOTED_CHARS_MAX).collect();
        let ellipsis = if quoted.len() < name.len() { "…" } else { "" };
        let message = format!(
            "No worker serves the model that `{quoted}{ellipsis}` stands for. The operator of the \
             router has to correct `to` of that `[[model]]`."
        );
        Self::new(Reason::UnknownModel).with_param("model").with_message(message)
    }

    /// For a model that the client's key does not allow; `model` is empty where the body names
    /// none.
    #[must_use]
    pub fn forbidden_model(model: &str) -> Self {
        let refusal = Self::new(Reason::Forbidden).with_param("model");
        if model.is_empty() {
            return refusal;
        }
        let quoted: String = model.chars().take(QUOTED_CHARS_MAX).collect();
        let ellipsis = if quoted.len() < model.len() { "…" } else { "" };
        refusal.with_message(format!(
            "This API key may not use the model `{quoted}{ellipsis}`. GET /v1/models lists those \
             that it may."
        ))
    }

    /// For a body without a model.
    #[must_use]
    pub const fn missing_model() -> Self {
        Self::new(Reason::MissingModel).with_param("model")
    }

    /// For an unknown path and a body without a model to route by.
    #[must_use]
    pub fn no_path_without_model() -> Self {
        Self::new(Reason::NotFound).with_message(
            "There is no such path, or its body must name a model. The API starts at /v1, e.g. \
             POST /v1/chat/completions.",
        )
    }

    /// For a path that is served over a WebSocket only.
    #[must_use]
    pub fn no_upgrade() -> Self {
        Self::new(Reason::BadRequest).with_message(
            "This path is served over a WebSocket: send `Upgrade: websocket` and `Connection: \
             Upgrade`.",
        )
    }

    /// For a WebSocket with no model in its query, or several.
    #[must_use]
    pub fn no_model_in_query() -> Self {
        Self::missing_model().with_message(
            "A WebSocket must name its model once in the path: add `?model=` and the name.",
        )
    }

    /// Another message. The text must be bounded: it is sent and logged in full.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self.is_plain = false;
        self
    }

    /// The body key at fault.
    #[must_use]
    pub const fn with_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// When to try again, at most a minute: headers `retry-after` (whole seconds, rounded up) and
    /// `retry-after-ms`.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        let is_hopeless = self.reason.should_retry() == Some(false);
        self.retry_after = (!is_hopeless).then(|| after.min(RETRY_AFTER_MAX));
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

    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

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

    /// Value of `retry-after-ms`: milliseconds, rounded up, at least 1, because clients take 0 for
    /// no value.
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u64> {
        let millis = self.retry_after?.as_nanos().div_ceil(1_000_000);
        Some(u64::try_from(millis).unwrap_or(u64::MAX).max(1))
    }

    /// Value of `www-authenticate`, RFC 6750 section 3; empty unless the status is 401.
    #[must_use]
    pub const fn challenge(&self) -> &'static str {
        if self.status == 401 { "Bearer" } else { "" }
    }

    /// Value of `accept-encoding`, RFC 9110 section 15.5.16: the accepted content coding. Empty
    /// unless the status is 415.
    #[must_use]
    pub const fn accept_encoding(&self) -> &'static str {
        if self.status == 415 { "identity" } else { "" }
    }

    #[must_use]
    pub const fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    /// Appends the JSON body in the shape of the API that was asked.
    pub fn encode_body(&self, api: ApiShape, out: &mut Vec<u8>) {
        match api {
            ApiShape::OpenAi => {
                out.extend_from_slice(b"{\"error\":{\"message\":");
                self.push_message(out);
                out.extend_from_slice(b",\"type\":");
                push_plain(self.openai_type(), out);
                out.extend_from_slice(b",\"param\":");
                push_plain_option(self.param, out);
                out.extend_from_slice(b",\"code\":");
                push_plain_option(self.code, out);
                out.extend_from_slice(b"}}");
            }
            ApiShape::Anthropic => {
                out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":");
                push_plain(self.anthropic_type(), out);
                out.extend_from_slice(b",\"message\":");
                self.push_message(out);
                out.extend_from_slice(b"}}");
            }
        }
    }

    fn push_message(&self, out: &mut Vec<u8>) {
        if self.is_plain {
            push_plain(&self.message, out);
        } else {
            push_json_string(&self.message, out);
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status {
            _ if self.reason == Reason::RequestDeadline => "timeout_error",
            429 => "rate_limit_error",
            503 => "service_unavailable_error",
            504 => "timeout_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status {
            _ if self.reason == Reason::RequestDeadline => "timeout_error",
            401 => "authentication_error",
            403 => "permission_error",
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
            ScanError::Json(JsonError::TooLong) => Self::new(Reason::BodyTooLarge),
            ScanError::Owned { key } => Self::new(Reason::BadRequest)
                .with_param(key)
                .with_message(format!("Only the router may set `{key}`. Leave it out.")),
            ScanError::Background => {
                Self::new(Reason::BadRequest).with_param("background").with_message(BACKGROUND)
            }
            ScanError::MemberNotObject { key } => Self::new(Reason::BadRequest)
                .with_param(key)
                .with_message(format!("`{key}` must be an object.")),
            ScanError::Form { what } => Self::new(Reason::BadRequest).with_message(format!(
                "The body is no plain `multipart/form-data`, and no JSON: {what}."
            )),
            _ => Self::new(Reason::BadJson)
                .with_message(format!("The body must be a JSON object: {error}.")),
        }
    }
}

/// Appends a text of the router that needs no JSON escapes, with quotes.
fn push_plain(text: &str, out: &mut Vec<u8>) {
    debug_assert!(text.bytes().all(is_plain), "to be escaped: {text}");
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn push_plain_option(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => push_plain(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// May the byte appear unescaped in a JSON string?
const fn is_plain(byte: u8) -> bool {
    !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f)
}

/// Appends `text` as a JSON string, quotes included.
fn push_json_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            byte if is_plain(byte) => out.push(byte),
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            _ => {
                let hex = |digit: u8| HEX.get(usize::from(digit)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 0xf)]);
            }
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::{Reason, Refusal};
    use crate::parse::{ApiShape, ScanError};
    use forebay_http1::{BodyError, HeadError};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use serde_json::Value;
    use std::time::Duration;

    fn body(refusal: &Refusal, api: ApiShape) -> Value {
        let mut out = Vec::new();
        refusal.encode_body(api, &mut out);
        serde_json::from_slice(&out).unwrap()
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
    fn own_words_need_no_escapes() {
        for reason in Reason::ALL {
            for api in [ApiShape::OpenAi, ApiShape::Anthropic] {
                let refusal = Refusal::new(reason);
                assert_eq!(
                    body(&refusal, api)["error"]["message"],
                    refusal.message(),
                    "{reason:?}"
                );
                // The same words, escaped if need be.
                let same = Refusal::new(reason).with_message(refusal.message().to_owned());
                assert_eq!(body(&refusal, api), body(&same, api));
            }
        }
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
        let hour = busy.clone().with_retry_after(Duration::from_secs(3_600));
        assert_eq!((hour.retry_after_s(), hour.retry_after_ms()), (Some(60), Some(60_000)));
        let millis = |after| busy.clone().with_retry_after(after).retry_after_ms();
        assert_eq!(millis(Duration::from_micros(1_001)), Some(2));
        assert_eq!((millis(Duration::ZERO), busy.retry_after_ms()), (Some(1), None));
        assert_eq!(busy.retry_after_s(), None);
    }

    proptest! {
        #[test]
        fn any_model_name_makes_a_bounded_json_body(name in any::<String>()) {
            let long = name.repeat(50);
            let mut out = Vec::new();
            Refusal::unknown_model(&long).encode_body(ApiShape::OpenAi, &mut out);
            prop_assert!(out.len() < 1_200);
            let text = serde_json::from_slice::<Value>(&out).unwrap()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            let start: String = long.chars().take(128).collect();
            prop_assert_eq!(
                text.strip_prefix("No worker serves the model `").unwrap().starts_with(&start),
                true
            );
        }
    }
}
