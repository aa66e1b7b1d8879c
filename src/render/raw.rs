//! Prompts that are text already: unescaped, behind the tokens that the engine puts before a completion.

use super::Rendered;
use crate::base::limits::PROMPT_BYTES_MATCHED_MAX;
use crate::chat::unescape_up_to;
use crate::worker::ModelText;

/// `escaped` is what stands between the quotes.
pub(super) fn text(escaped: &[u8], special: bool, text: &ModelText, out: &mut Vec<u8>) -> Rendered {
    if special {
        out.extend_from_slice(text.vocabulary.completion_prefix());
    }
    let start = out.len();
    let whole = unescape_up_to(escaped, PROMPT_BYTES_MATCHED_MAX, out);
    let aligned = text.vocabulary.align(out, start);
    if whole && aligned { Rendered::Raw } else { Rendered::Beginning }
}
