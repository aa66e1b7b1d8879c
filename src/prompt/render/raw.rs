//! Prompts that are text already: unescaped, behind the tokens that the engine puts before a
//! completion.

use super::engine_text::align;
use super::{RenderMethod, RenderThread, Unrenderable};
use forebay_base::limits::PROMPT_BYTES_MATCHED_MAX;
use forebay_fleet::worker::ModelText;
use forebay_json::unescape_up_to;

/// `escaped` is what stands between the quotes.
pub(super) fn text(
    place: RenderThread,
    escaped: &[u8],
    special: bool,
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    if special {
        out.extend_from_slice(text.vocabulary.completion_prefix());
    }
    let start = out.len();
    let whole = unescape_up_to(escaped, PROMPT_BYTES_MATCHED_MAX, out);
    let reads_tokens = text.chat_encoder.as_ref().is_none_or(|it| !it.reads_tokens_as_text());
    if !reads_tokens && text.vocabulary.spells_token(out.get(start..).unwrap_or_default()) {
        return Err(Unrenderable::Refused);
    }
    let aligned = align(place, text, out, start)?;
    Ok(if whole && aligned { RenderMethod::Raw } else { RenderMethod::Beginning })
}
