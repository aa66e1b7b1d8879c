//! Prompts given as token ids: what the ids stand for. Nothing is aligned, this is what the tokenizer made.

use super::{Rendered, Unrenderable};
use crate::base::limits::PROMPT_BYTES_MATCHED_MAX;
use crate::block::Vocabulary;

/// `list` is a JSON array of numbers, brackets included; the scan has checked that.
pub(super) fn decode(
    list: &[u8],
    vocabulary: &Vocabulary,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    let end = out.len().saturating_add(PROMPT_BYTES_MATCHED_MAX);
    let mut id: Option<u32> = None;
    for byte in list {
        if let b'0'..=b'9' = byte {
            let digit = u32::from(byte - b'0');
            let next = id.unwrap_or(0).checked_mul(10).and_then(|tens| tens.checked_add(digit));
            id = Some(next.ok_or(Unrenderable::UnknownToken)?);
        } else if let Some(id) = id.take() {
            out.extend_from_slice(vocabulary.bytes(id).ok_or(Unrenderable::UnknownToken)?);
            if out.len() >= end {
                return Ok(Rendered::Beginning);
            }
        }
    }
    Ok(Rendered::Raw)
}
