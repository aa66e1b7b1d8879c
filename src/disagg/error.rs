//! Faults in a prefill rank's answer, with the text of a 502.

use serde_json::{Value, json};
use thiserror::Error;

/// Why no KV can be transferred. Texts have no full stop at their end: the 502 goes on behind them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KvTransferError {
    /// The answer is longer than
    /// [`PREFILL_ANSWER_BYTES_MAX`](forebay_base::limits::PREFILL_ANSWER_BYTES_MAX).
    #[error("The prefill worker's answer is longer than 1 MiB, so its KV cannot be transferred")]
    TooLong,
    /// The answer is no JSON, or ends early.
    #[error("The prefill worker's answer is not JSON, so its KV cannot be transferred")]
    NotJson,
    /// `kv_transfer_params` are absent or null.
    #[error(
        "The prefill worker's answer has no `kv_transfer_params`, so its KV cannot \
         be transferred. Start its engine with a KV connector"
    )]
    Missing,
    /// `kv_transfer_params` that are no object.
    #[error(
        "The prefill worker's answer has `kv_transfer_params` that are no object, so its KV cannot \
         be transferred. Check the KV connector of its engine"
    )]
    NotObject,
    /// The engine reports a failure in an answer with status 200.
    #[error("The prefill worker failed: {message}")]
    Engine {
        /// The engine's message, shortened.
        message: String,
        /// The status in the failure (`code` or `status_code`). An abort without a status is a 500,
        /// as in SGLang's own answers.
        status: Option<u16>,
    },
}

impl KvTransferError {
    /// Status and body for the client if the request is at fault: the answer that the engine would
    /// have sent, had it detected the fault before its 200.
    #[must_use]
    pub fn refusal(&self) -> Option<(u16, Vec<u8>)> {
        let Self::Engine { message, status: Some(status @ (400..=428 | 430..=499)) } = self else {
            return None;
        };
        let error =
            json!({ "message": message, "type": "BadRequestError", "param": null, "code": status });
        Some((*status, json!({ "error": error }).to_string().into_bytes()))
    }

    /// Reads the error in an engine's answer: an object with a message, a text, or another value.
    /// `None` if the error is null, false or no JSON.
    pub(super) fn of_engine(error: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(error).ok()?;
        let number = |name| value.get(name).and_then(Value::as_u64);
        let status = number("code").or_else(|| number("status_code"));
        let status = status.and_then(|status| u16::try_from(status).ok());
        let text = match value {
            Value::Null | Value::Bool(false) => return None,
            Value::String(text) => text,
            Value::Object(mut members) => match members.remove("message") {
                Some(Value::String(text)) => text,
                _ => Value::Object(members).to_string(),
            },
            other => other.to_string(),
        };
        Some(Self::Engine { message: text.chars().take(MESSAGE_CHARS_MAX).collect(), status })
    }
}

/// Characters of an engine's message that the router repeats.
pub(super) const MESSAGE_CHARS_MAX: usize = 512;
