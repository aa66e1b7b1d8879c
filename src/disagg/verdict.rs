//! Reads a JSON value of a prefill rank's answer: its failure, and its parameters for decode.
//!
//! Failures after a status of 200 (SGLang 0.5.23, vLLM 0.33):
//!
//! | where | form |
//! |---|---|
//! | streams of all endpoints | `{"error":{"message":..}}` or `{"error":".."}` |
//! | SGLang `/generate` | `meta_info.finish_reason` with `"type":"abort"`; a batch is a list |
//! | SGLang chat and completions | a choice with `"finish_reason":"abort"` |
//! | `/v1/responses` | `"error"` of the response, in streams inside `"response"` |
//!
//! A response that ended before its token limit has a word of [`OVER`] in `finish_reason` of a
//! choice, `stop_reason` (`/v1/messages`) or `status` (`/v1/responses`).

use super::error::KvTransferError;
use super::members::name_of;
use forebay_json::{Cursor, JsonError};
use std::ops::Range;

/// Status of an abort without a status.
const ABORT_STATUS: u16 = 500;

/// vLLM's words for an end before the limit (0.33).
const OVER: [&str; 6] = [
    "\"stop\"",
    "\"tool_calls\"",
    "\"end_turn\"",
    "\"stop_sequence\"",
    "\"tool_use\"",
    "\"completed\"",
];

/// Result of reading a value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerVerdict {
    pub failure: Option<KvTransferError>,
    /// `kv_transfer_params`; null counts as absent.
    pub params: Params,
    /// The response ended before its token limit.
    pub is_over: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Params {
    #[default]
    Absent,
    Object(Range<usize>),
    Other,
}

/// Reads a whole JSON value.
pub(super) fn read(bytes: &[u8]) -> Result<AnswerVerdict, JsonError> {
    let mut cursor = Cursor::new(bytes)?;
    cursor.blanks();
    let mut verdict = AnswerVerdict::default();
    match cursor.peek() {
        None => return Err(JsonError::Empty),
        Some(b'{') => verdict.object(&mut cursor, 0)?,
        Some(b'[') => {
            cursor.open();
            let mut first = true;
            while cursor.next_element(&mut first)? {
                if cursor.peek() == Some(b'{') {
                    verdict.object(&mut cursor, 1)?;
                } else {
                    cursor.skip_value(1)?;
                }
            }
        }
        Some(_) => cursor.skip_value(0)?,
    }
    cursor.end()?;
    Ok(verdict)
}

impl AnswerVerdict {
    /// Reads an answer, or an answer of a batch, under `depth` containers.
    fn object(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let mut decoded = String::new();
            match name_of(&key, cursor, &mut decoded) {
                "error" => self.error(cursor, depth + 1)?,
                "response" if depth == 0 && cursor.peek() == Some(b'{') => {
                    self.response(cursor)?;
                }
                "meta_info" if cursor.peek() == Some(b'{') => {
                    self.finish_reason(cursor, depth + 1)?;
                }
                "choices" if cursor.peek() == Some(b'[') => self.choices(cursor, depth + 1)?,
                "kv_transfer_params" if depth == 0 => self.params = params(cursor)?,
                "stop_reason" | "status" if depth == 0 => {
                    let start = cursor.at();
                    cursor.skip_value(1)?;
                    self.is_over |= OVER.contains(&cursor.slice(&(start..cursor.at())));
                }
                _ => cursor.skip_value(depth + 1)?,
            }
        }
        Ok(())
    }

    fn error(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
        let start = cursor.at();
        cursor.skip_value(depth)?;
        self.fail(cursor, start);
        Ok(())
    }

    /// Records the value since `start` as the engine's error.
    fn fail(&mut self, cursor: &Cursor<'_>, start: usize) {
        let value = cursor.slice(&(start..cursor.at()));
        if let Some(failure) = KvTransferError::of_engine(value.as_bytes()) {
            self.failure.get_or_insert(failure);
        }
    }

    /// Reads the response inside an event of `/v1/responses`.
    fn response(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            match cursor.slice(&key.span) {
                "error" => self.error(cursor, 2)?,
                "kv_transfer_params" => self.params = params(cursor)?,
                _ => cursor.skip_value(2)?,
            }
        }
        Ok(())
    }

    fn choices(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
        cursor.open();
        let mut first = true;
        while cursor.next_element(&mut first)? {
            if cursor.peek() == Some(b'{') {
                self.finish_reason(cursor, depth + 1)?;
            } else {
                cursor.skip_value(depth + 1)?;
            }
        }
        Ok(())
    }

    /// Reads an object with a `finish_reason`, which is a text or an object with a `type`.
    fn finish_reason(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let start = cursor.at();
            let is_reason = cursor.slice(&key.span) == "finish_reason";
            let aborted = if is_reason && cursor.peek() == Some(b'{') {
                is_abort(cursor, depth + 1)?
            } else {
                cursor.skip_value(depth + 1)?;
                let value = cursor.slice(&(start..cursor.at()));
                self.is_over |= is_reason && OVER.contains(&value);
                is_reason && value == "\"abort\""
            };
            if aborted {
                self.fail(cursor, start);
                if let Some(KvTransferError::Engine { status, .. }) = &mut self.failure {
                    status.get_or_insert(ABORT_STATUS);
                }
            }
        }
        Ok(())
    }
}

fn is_abort(cursor: &mut Cursor<'_>, depth: usize) -> Result<bool, JsonError> {
    cursor.open();
    let mut first = true;
    let mut found = false;
    while let Some(key) = cursor.next_key(&mut first)? {
        let start = cursor.at();
        cursor.skip_value(depth + 1)?;
        if cursor.slice(&key.span) == "type" {
            found = cursor.slice(&(start..cursor.at())) == "\"abort\"";
        }
    }
    Ok(found)
}

fn params(cursor: &mut Cursor<'_>) -> Result<Params, JsonError> {
    let start = cursor.at();
    let first = cursor.peek();
    cursor.skip_value(2)?;
    Ok(match first {
        Some(b'{') => Params::Object(start..cursor.at()),
        Some(b'n') => Params::Absent,
        _ => Params::Other,
    })
}
