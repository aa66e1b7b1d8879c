//! Prompts that are text already: unescaped, behind the tokens that the engine puts before a completion.

use crate::chat::unescape_into;
use crate::worker::ModelText;

/// `escaped` is what stands between the quotes.
pub(super) fn text(escaped: &[u8], special: bool, text: &ModelText, out: &mut Vec<u8>) {
    if special {
        out.extend_from_slice(text.vocabulary.completion_prefix());
    }
    let start = out.len();
    unescape_into(escaped, out);
    text.vocabulary.align(out, start);
}
