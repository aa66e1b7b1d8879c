//! One prompt as it is matched: its text, and what the walk of the index found. Made once and kept
//! with its request, so that waits, grants and retries neither render nor walk again.

use super::MatchRequest;
use forebay_base::RankIndex;
use forebay_index::{BlockKey, Overlap, Overlaps};
use forebay_prompt::render::{Rendered, Unrenderable, canonical, render_at};

/// Room for chunks that a connection keeps between requests.
const CHUNKS_KEPT: usize = 64;

/// One prompt and what is known of it.
#[derive(Debug, Default)]
pub struct Prompt {
    /// The prompt as the engine will see it, or a canonical text.
    text: Vec<u8>,
    /// Its length in bytes, which may be more than the text's; 0 when it is not matched.
    prompt_bytes: u64,
    /// Is the text what the engine will see?
    is_rendered: bool,
    found: Vec<FoundOverlap>,
    /// Its chunks as ranks without events are believed to hold them; empty when the walk had no use
    /// for them.
    pub(super) chunks: Vec<BlockKey>,
    /// Which working memory has it too; 0: none.
    pub(super) recalled_by: u64,
}

/// What the walk found on one rank.
#[derive(Clone, Copy, Debug)]
struct FoundOverlap {
    view: View,
    rank: RankIndex,
    overlap: Overlap,
}

/// The tables of a match, see [`super::Matched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Selection,
    OnTheWay,
    Exact,
    /// Selection and exact, where both hold the same and nothing is on the way.
    Same,
}

impl Prompt {
    /// A prompt of that length without its text, and what ranks hold of it.
    #[must_use]
    pub fn known(prompt_bytes: u64, held: impl Iterator<Item = (RankIndex, Overlap)>) -> Self {
        let found = |(rank, overlap)| FoundOverlap { view: View::Selection, rank, overlap };
        Self { prompt_bytes, found: held.map(found).collect(), ..Self::default() }
    }

    /// Forgets the prompt. The text is written into `buffer` from now on.
    pub fn begin(&mut self, buffer: Vec<u8>) {
        self.end();
        self.text = buffer;
    }

    /// Forgets the prompt and gives the buffer of its text back.
    pub fn end(&mut self) -> Vec<u8> {
        self.prompt_bytes = 0;
        self.is_rendered = false;
        self.found.clear();
        self.chunks.clear();
        // A connection stays for hours: after one prompt of megabytes its chunks must not stay too.
        self.chunks.shrink_to(CHUNKS_KEPT);
        self.recalled_by = 0;
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text
    }

    /// The prompt's text; its whole only if [`Prompt::is_rendered`].
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Length of the prompt in bytes; 0 when it is not matched.
    #[must_use]
    pub const fn prompt_bytes(&self) -> u64 {
        self.prompt_bytes
    }

    /// Is the text what the engine will see?
    #[must_use]
    pub const fn is_rendered(&self) -> bool {
        self.is_rendered
    }

    /// Writes the prompt's text: as the engine will see it, else some text of it. `None` if the
    /// model has no tokenizer here. Without a prompt in the body, and where no cache is read for
    /// it, [`Prompt::prompt_bytes`] stays 0.
    pub fn write_text(&mut self, ask: &MatchRequest<'_>) -> Option<Result<Rendered, Unrenderable>> {
        if ask.request.reads_no_cache {
            return None;
        }
        let text = ask.model.text.as_ref();
        let rendered =
            text.map(|text| render_at(ask.place, ask.request, ask.body, text, &mut self.text));
        if rendered == Some(Err(Unrenderable::NotHere)) {
            return rendered;
        }
        let way = rendered.as_ref().and_then(|rendered| rendered.as_ref().ok());
        self.is_rendered = way.is_some();
        self.prompt_bytes = match way {
            Some(way) => way.prompt_bytes(ask.request, self.text.len()),
            None => canonical(ask.request, ask.body, &mut self.text),
        };
        rendered
    }

    /// Takes a text as the engine sees it, where no body has to be rendered: in simulations.
    pub fn take_text(&mut self, text: Vec<u8>) {
        self.end();
        (self.prompt_bytes, self.is_rendered) = (text.len() as u64, true);
        self.text = text;
    }

    /// Takes the prompt of a body whose turn came too late: some text of it, not rendered.
    pub fn write_late(&mut self, ask: &MatchRequest<'_>) -> Option<Result<Rendered, Unrenderable>> {
        self.is_rendered = false;
        self.prompt_bytes = canonical(ask.request, ask.body, &mut self.text);
        ask.model.text.as_ref().map(|_| Err(Unrenderable::Late))
    }

    /// On its way to another working memory: which one has walked for it means nothing there.
    pub const fn leave(&mut self) {
        self.recalled_by = 0;
    }

    pub(super) fn keep(&mut self, view: View, overlaps: &Overlaps) {
        debug_assert!(self.found.iter().all(|found| found.view != view), "{view:?} kept twice");
        let found =
            overlaps.iter_held().map(|(rank, overlap)| FoundOverlap { view, rank, overlap });
        self.found.extend(found);
    }

    pub(super) fn found(&self) -> impl Iterator<Item = (View, RankIndex, Overlap)> + '_ {
        self.found.iter().map(|found| (found.view, found.rank, found.overlap))
    }
}
