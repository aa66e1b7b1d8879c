//! Prompts that are text already: unescaped, behind the tokens that the engine puts before a completion.

use super::Unrenderable;
use crate::block::Vocabulary;
use crate::chat::unescape_into;

/// `escaped` is what stands between the quotes.
pub(super) fn text(
    escaped: &[u8],
    vocabulary: &Vocabulary,
    out: &mut Vec<u8>,
) -> Result<(), Unrenderable> {
    out.extend_from_slice(vocabulary.completion_prefix());
    let start = out.len();
    unescape_into(escaped, out);
    vocabulary.align(out, start);
    Ok(())
}
