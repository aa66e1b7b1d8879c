//! Names of a prompt's parts for a recording: keyed hashes, never text.

use crate::MatchRequest;
use crate::Prompt;
use forebay_index::GuessKind;

/// The keys of the prompt's parts, from the beginning on; none once its text was dropped. Each
/// combination of model, salt and adapter has keys of its own.
#[must_use]
pub fn prompt_part_keys(ask: &MatchRequest<'_>, prompt: &Prompt) -> Vec<u64> {
    let mut keys = Vec::new();
    ask.index.part_keys(ask.guess_root(GuessKind::Approximate), prompt.text(), &mut keys);
    keys
}
