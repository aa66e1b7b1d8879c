//! One prompt as it is matched: its text, and what the walk of the index found. Made once and kept
//! with its request, so that waits, grants and retries neither render nor walk again.

use super::MatchRequest;
use forebay_base::RankIndex;
use forebay_base::limits::IMAGE_FILL;
use forebay_index::{BlockKey, Overlap, Overlaps, PrefixMarks};
use forebay_prompt::parse::Endpoint;
use forebay_prompt::render::{RenderThread, Rendered, Unrenderable, canonical, render_at};
use std::borrow::Cow;

/// Room for chunks that a connection keeps between requests.
const CHUNKS_KEPT: usize = 64;

/// One prompt and what is known of it.
#[derive(Debug, Default)]
pub struct Prompt {
    /// The prompt as the engine will see it, or a canonical text. Empty once it has been let go.
    text: Vec<u8>,
    /// Its length, which stays known.
    text_bytes: usize,
    /// Can a shard write the text again?
    is_writable_here: bool,
    /// Its length in bytes, which may be more than the text's; 0 when it is not matched.
    prompt_bytes: u64,
    kind: TextKind,
    found: Vec<FoundOverlap>,
    /// Its chunks, as ranks are believed to hold them.
    pub(super) chunks: PromptChunks,
    /// Which working memory has it too; 0: none.
    pub(super) recalled_by: u64,
}

/// What the text of a prompt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TextKind {
    /// Some text of it.
    #[default]
    Canonical,
    /// As the engine will see it.
    Rendered,
    /// The same, with images that have names.
    WithImages,
    /// The same, and nothing stands behind the last image.
    EndsInImage,
}

/// The chunks of a prompt by kind; none where the walk had no use for them.
#[derive(Debug, Default)]
pub(super) struct PromptChunks {
    pub(super) approximate: Vec<BlockKey>,
    pub(super) speculative: Vec<BlockKey>,
    /// Names of its prefixes.
    pub(super) marks: PrefixMarks,
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
        self.kind = TextKind::Canonical;
        self.text_bytes = 0;
        self.is_writable_here = false;
        self.found.clear();
        let PromptChunks { approximate, speculative, marks } = &mut self.chunks;
        *marks = PrefixMarks::NONE;
        for chunks in [approximate, speculative] {
            chunks.clear();
            // A connection stays for hours. After one prompt of megabytes its chunks must not stay.
            chunks.shrink_to(CHUNKS_KEPT);
        }
        self.recalled_by = 0;
        self.drop_text()
    }

    /// Names of its prefixes; none before it was matched.
    #[must_use]
    pub const fn marks(&self) -> &PrefixMarks {
        &self.chunks.marks
    }

    /// The prompt's text; its whole only if [`Prompt::is_rendered`]. Empty once it was let go.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Length of the text, also once it was let go.
    pub(super) const fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Gives the buffer of the text back, once the prompt has been matched and remembered: the next
    /// prompt is written into it while it is in the caches. Empty for a text that no shard could
    /// write again, which a retry would need.
    pub fn let_go(&mut self) -> Vec<u8> {
        if self.is_writable_here { self.drop_text() } else { Vec::new() }
    }

    /// The same for a request that waits: its text is as long as its body, and would double what a
    /// full queue holds. A retry remembers nothing of a text that no shard could write again.
    pub fn drop_text(&mut self) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text
    }

    /// The text, written again if it was let go.
    pub(super) fn text_again(&self, ask: &MatchRequest<'_>) -> Cow<'_, [u8]> {
        if self.text.len() == self.text_bytes || !self.is_writable_here {
            return Cow::Borrowed(&self.text);
        }
        let mut text = Vec::with_capacity(self.text_bytes);
        match ask.model.text.as_ref().filter(|_| self.is_rendered()) {
            // What was written once is written the same way. If not, nothing is remembered.
            Some(model) => {
                let _ = render_at(ask.place, ask.request, ask.body, model, &mut text);
            }
            None => {
                canonical(ask.request, ask.body, &mut text);
            }
        }
        Cow::Owned(text)
    }

    /// Length of the prompt in bytes; 0 when it is not matched.
    #[must_use]
    pub const fn prompt_bytes(&self) -> u64 {
        self.prompt_bytes
    }

    /// So many bytes of an overlap are all of the prompt, see [`forebay_index::whole_bytes`].
    #[must_use]
    pub fn whole_bytes(&self) -> usize {
        let text = if self.kind == TextKind::EndsInImage { usize::MAX } else { self.text_bytes };
        // Longer than its text, or never written.
        text.max(usize::try_from(self.prompt_bytes).unwrap_or(usize::MAX))
    }

    /// Is the text what the engine will see?
    #[must_use]
    pub const fn is_rendered(&self) -> bool {
        !matches!(self.kind, TextKind::Canonical)
    }

    /// Has the text images with names?
    #[must_use]
    pub const fn has_images(&self) -> bool {
        matches!(self.kind, TextKind::WithImages | TextKind::EndsInImage)
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
        let is_rendered = way.is_some();
        self.prompt_bytes = match way {
            Some(way) => way.prompt_bytes(ask.request, self.text.len()),
            None => canonical(ask.request, ask.body, &mut self.text),
        };
        // No text of a chat has the byte but for the names of images. Shards render none.
        let has_images = || {
            ask.place == RenderThread::Offload
                && ask.request.endpoint == Some(Endpoint::ChatCompletions)
                && self.text.contains(&IMAGE_FILL)
        };
        self.kind = match is_rendered {
            true if has_images() && self.text.last() == Some(&IMAGE_FILL) => TextKind::EndsInImage,
            true if has_images() => TextKind::WithImages,
            true => TextKind::Rendered,
            false => TextKind::Canonical,
        };
        self.text_bytes = self.text.len();
        self.is_writable_here = ask.place == RenderThread::Shard;
        rendered
    }

    /// Takes a text as the engine sees it, where no body has to be rendered: in simulations.
    pub fn take_text(&mut self, text: Vec<u8>) {
        self.end();
        self.prompt_bytes = text.len() as u64;
        self.kind = TextKind::Rendered;
        self.text_bytes = text.len();
        self.text = text;
    }

    /// Takes the prompt of a body whose turn came too late: some text of it, not rendered.
    pub fn write_late(&mut self, ask: &MatchRequest<'_>) -> Option<Result<Rendered, Unrenderable>> {
        self.kind = TextKind::Canonical;
        self.prompt_bytes = canonical(ask.request, ask.body, &mut self.text);
        self.text_bytes = self.text.len();
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::PoolIndex;
    use forebay_fleet::worker::{FleetSnapshot, Model, ModelKind};
    use forebay_index::{KeySeed, ModelRoots};
    use forebay_prompt::parse::{ApiRequest, Endpoint, scan};

    #[test]
    fn a_text_that_was_let_go_is_written_again() {
        let model = Model {
            name: "m".into(),
            card_json: "".into(),
            pool: PoolIndex(0),
            prefill_pool: None,
            ranks: Vec::new(),
            roots: ModelRoots::new(KeySeed(1), "m"),
            text: None,
            kind: ModelKind::Base,
        };
        let body = br#"{"model":"m","messages":[{"role":"user","content":"a\nb"}]}"#;
        let mut request = ApiRequest::default();
        scan(body, Endpoint::ChatCompletions, &mut request).unwrap();
        let (index, _) = forebay_index::index(1, KeySeed(1), 1 << 20);
        let fleet = &FleetSnapshot::default();
        let model = &model;
        let request = &request;
        for place in [RenderThread::Shard, RenderThread::Offload] {
            let ask = MatchRequest { index: &index, fleet, model, request, body, place };
            let mut prompt = Prompt::default();
            prompt.begin(Vec::with_capacity(100));
            assert_eq!(prompt.write_text(&ask), None);
            let text = prompt.text().to_vec();
            assert_eq!(prompt.text_bytes(), text.len());
            let given = prompt.let_go();
            // No shard may be able to write what another thread has written.
            assert_eq!(given.capacity(), if place == RenderThread::Shard { 100 } else { 0 });
            assert_eq!(prompt.text().is_empty(), place == RenderThread::Shard);
            assert_eq!((&*prompt.text_again(&ask), prompt.text_bytes()), (&text[..], text.len()));
            let whole_bytes = prompt.whole_bytes();
            prompt.drop_text();
            assert_eq!((prompt.text(), prompt.whole_bytes()), (&b""[..], whole_bytes));
            let again = prompt.text_again(&ask);
            assert_eq!(!again.is_empty(), place == RenderThread::Shard, "it waited");
            prompt.end();
            assert_eq!((prompt.text_bytes(), prompt.let_go().capacity()), (0, 0));
        }
    }
}
