//! Prompts given as token ids: the bytes of the ids. No alignment is needed, since the ids come
//! from a tokenizer.

use super::{RenderMethod, RenderThread, Unrenderable};
use forebay_base::limits::{INLINE_BODY_BYTES_MAX, PROMPT_BYTES_MATCHED_MAX};
use forebay_text::Vocabulary;

/// `list` is a JSON array of numbers, brackets included; the scan has checked its form.
pub(super) fn decode(
    place: RenderThread,
    list: &[u8],
    vocabulary: &Vocabulary,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    let bytes_max = match place {
        // Two digits and a comma may stand for hundreds of bytes, so the limit of the body does not
        // bound the text.
        RenderThread::Shard => 2 * INLINE_BODY_BYTES_MAX,
        RenderThread::Offload => PROMPT_BYTES_MATCHED_MAX,
    };
    let end = out.len().saturating_add(bytes_max);
    let mut id: Option<u32> = None;
    for byte in list {
        if let b'0'..=b'9' = byte {
            let digit = u32::from(byte - b'0');
            let next = id.unwrap_or(0).checked_mul(10).and_then(|tens| tens.checked_add(digit));
            id = Some(next.ok_or(Unrenderable::UnknownToken)?);
        } else if let Some(id) = id.take() {
            out.extend_from_slice(vocabulary.bytes(id).ok_or(Unrenderable::UnknownToken)?);
            if out.len() >= end {
                return match place {
                    RenderThread::Shard => Err(Unrenderable::NotHere),
                    RenderThread::Offload => Ok(RenderMethod::Beginning),
                };
            }
        }
    }
    Ok(RenderMethod::Raw)
}
