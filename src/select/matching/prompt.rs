//! A matched prompt: its text, and the overlaps that the walk of the index found. Made once and
//! stored with its request, so that waits, grants and retries neither render nor walk again.

use crate::MatchRequest;
use forebay_base::RankIndex;
use forebay_base::limits::IMAGE_FILL;
use forebay_fleet::worker::ModelText;
use forebay_index::{BlockKey, Overlap, Overlaps, PrefixMarks};
use forebay_prompt::parse::Endpoint;
use forebay_prompt::render::{RenderMethod, RenderThread, Unrenderable, canonical, render_at};
use std::borrow::Cow;
use std::sync::Arc;

/// Chunk capacity that a connection retains between requests.
const CHUNKS_RETAINED: usize = 64;

/// A prompt and its overlaps.
#[derive(Debug, Default)]
pub struct Prompt {
    /// The prompt as rendered by the engine, or a canonical text. Empty once it was dropped.
    text: Vec<u8>,
    /// Length of the text, also after it was dropped.
    text_bytes: usize,
    /// Can a shard write the text again?
    is_writable_here: bool,
    /// Length of the prompt in bytes, possibly more than the text's; 0 if it is not matched.
    prompt_bytes: u64,
    kind: TextKind,
    found: Vec<FoundOverlap>,
    /// Chunk keys of the prompt, for guesses.
    pub(crate) chunks: PromptChunks,
    /// Number of the walk in [`crate::PromptOverlaps`] that still has the overlaps; 0: none.
    pub(crate) recalled_by: u64,
}

/// Form of a prompt's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TextKind {
    /// A canonical text of the messages, not rendered.
    #[default]
    Canonical,
    /// Rendered as by the engine.
    Rendered,
    /// Rendered, with keys of images.
    WithImages,
    /// Rendered, with no text behind the last image.
    EndsInImage,
}

/// The chunk keys of a prompt by kind of guess; empty if the walk did not need them.
#[derive(Debug, Default)]
pub(crate) struct PromptChunks {
    pub(crate) approximate: Vec<BlockKey>,
    pub(crate) speculative: Vec<BlockKey>,
    /// Chunks of the canonical text, for guesses beside events.
    pub(crate) beside: Vec<BlockKey>,
    /// Keys of the prompt's prefixes.
    pub(crate) marks: PrefixMarks,
}

/// Overlap that the walk found on a rank.
#[derive(Clone, Copy, Debug)]
struct FoundOverlap {
    view: View,
    rank: RankIndex,
    overlap: Overlap,
}

/// The tables of a match, see [`crate::PromptOverlaps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Selection,
    OnTheWay,
    Exact,
    /// Selection and exact, if both are equal and `OnTheWay` is empty.
    Same,
    /// Guesses beside events, by the prompts that went to the rank.
    Beside,
}

impl Prompt {
    /// A prompt without its text, from its length and its overlaps.
    #[must_use]
    pub fn known(prompt_bytes: u64, held: impl Iterator<Item = (RankIndex, Overlap)>) -> Self {
        let found = |(rank, overlap)| FoundOverlap { view: View::Selection, rank, overlap };
        Self { prompt_bytes, found: held.map(found).collect(), ..Self::default() }
    }

    /// Resets the prompt. Its text will be written into `buffer`.
    pub fn begin(&mut self, buffer: Vec<u8>) {
        self.end();
        self.text = buffer;
    }

    /// Resets the prompt and returns the buffer of its text.
    pub fn end(&mut self) -> Vec<u8> {
        self.prompt_bytes = 0;
        self.kind = TextKind::Canonical;
        self.text_bytes = 0;
        self.is_writable_here = false;
        self.found.clear();
        let PromptChunks { approximate, speculative, beside, marks } = &mut self.chunks;
        *marks = PrefixMarks::NONE;
        for chunks in [approximate, speculative, beside] {
            chunks.clear();
            // A connection may last for hours: it must not retain the chunks of a huge prompt.
            chunks.shrink_to(CHUNKS_RETAINED);
        }
        self.recalled_by = 0;
        self.drop_text()
    }

    /// Keys of the prompt's prefixes; none before the match.
    #[must_use]
    pub const fn marks(&self) -> &PrefixMarks {
        &self.chunks.marks
    }

    /// The prompt's text, complete only if [`Prompt::is_rendered`]. Empty once it was dropped.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Length of the text, also after it was dropped.
    pub(crate) const fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Returns the buffer of the text once the prompt has been matched and its guesses recorded:
    /// the next prompt is written into the buffer while it is in the CPU caches. Empty for a text
    /// that no shard could write again, since a retry needs the text.
    pub fn let_go(&mut self) -> Vec<u8> {
        if self.is_writable_here { self.drop_text() } else { Vec::new() }
    }

    /// Drops the text of a request that waits: it is as long as the body, and would double the
    /// memory of a full queue. If no shard can write the text again, a retry records no guess.
    pub fn drop_text(&mut self) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text
    }

    /// The text, written again if it was dropped.
    pub(crate) fn text_again(&self, ask: &MatchRequest<'_>) -> Cow<'_, [u8]> {
        if self.text.len() == self.text_bytes || !self.is_writable_here {
            return Cow::Borrowed(&self.text);
        }
        let mut text = Vec::with_capacity(self.text_bytes);
        match ask.model.text.as_ref().filter(|_| self.is_rendered()) {
            // Rendering succeeded before. Should it fail now, no guess is recorded.
            Some(model) => {
                let _ = render_at(ask.thread, ask.request, ask.body, model, &mut text);
            }
            None => {
                canonical(ask.request, ask.body, &mut text);
            }
        }
        Cow::Owned(text)
    }

    /// Length of the prompt in bytes; 0 if it is not matched.
    #[must_use]
    pub const fn prompt_bytes(&self) -> u64 {
        self.prompt_bytes
    }

    /// Overlap in bytes that covers the whole prompt, see [`forebay_index::whole_bytes`].
    #[must_use]
    pub fn whole_bytes(&self) -> usize {
        let text = if self.kind == TextKind::EndsInImage { usize::MAX } else { self.text_bytes };
        // The prompt may be longer than its text, or have no text.
        text.max(usize::try_from(self.prompt_bytes).unwrap_or(usize::MAX))
    }

    /// Is the text rendered as by the engine?
    #[must_use]
    pub const fn is_rendered(&self) -> bool {
        !matches!(self.kind, TextKind::Canonical)
    }

    /// Does the text contain keys of images?
    #[must_use]
    pub const fn has_images(&self) -> bool {
        matches!(self.kind, TextKind::WithImages | TextKind::EndsInImage)
    }

    /// Writes the prompt's text: rendered as by the engine, or a canonical text. `None` if the
    /// model has no tokenizer here. [`Prompt::prompt_bytes`] stays 0 without a prompt in the body,
    /// and if the engine reads no cache for the request.
    pub fn write_text(
        &mut self,
        ask: &MatchRequest<'_>,
    ) -> Option<Result<RenderMethod, Unrenderable>> {
        if ask.request.reads_no_cache {
            return None;
        }
        let text = ask.model.text.as_ref();
        let rendered =
            text.map(|text| render_at(ask.thread, ask.request, ask.body, text, &mut self.text));
        let more = text.map(|text| text.more()).unwrap_or_default();
        let rendered = match more.is_empty() {
            true => rendered,
            false => rendered.map(|rendered| self.agreed(more, ask, rendered?)),
        };
        if rendered == Some(Err(Unrenderable::NotHere)) {
            return rendered;
        }
        let success = rendered.as_ref().and_then(|rendered| rendered.as_ref().ok());
        let is_rendered = success.is_some();
        self.prompt_bytes = match success {
            Some(success) => success.prompt_bytes(ask.request, self.text.len()),
            None => canonical(ask.request, ask.body, &mut self.text),
        };
        // In a chat, only keys of images contain this byte. Shards render no images.
        let has_images = || {
            ask.thread == RenderThread::Offload
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
        self.is_writable_here = ask.thread == RenderThread::Shard;
        rendered
    }

    /// Whether the other engines of the model see the same prompt. Without them there is no text.
    fn agreed(
        &mut self,
        more: &[Arc<ModelText>],
        ask: &MatchRequest<'_>,
        rendered: RenderMethod,
    ) -> Result<RenderMethod, Unrenderable> {
        let mut fault = None;
        let mut text = Vec::with_capacity(self.text.len());
        for other in more {
            text.clear();
            match render_at(ask.thread, ask.request, ask.body, other, &mut text) {
                Err(Unrenderable::NotHere) => fault = Some(Unrenderable::NotHere),
                Ok(_) if text == self.text => continue,
                _ => fault = Some(Unrenderable::EnginesDiffer),
            }
            break;
        }
        let Some(fault) = fault else { return Ok(rendered) };
        self.text.clear();
        Err(fault)
    }

    /// Takes a rendered text without a body, for simulations.
    pub fn take_text(&mut self, text: Vec<u8>) {
        self.end();
        self.prompt_bytes = text.len() as u64;
        self.kind = TextKind::Rendered;
        self.text_bytes = text.len();
        self.text = text;
    }

    /// Writes a canonical text instead of rendering, because the offload queue was too slow.
    pub fn write_late(
        &mut self,
        ask: &MatchRequest<'_>,
    ) -> Option<Result<RenderMethod, Unrenderable>> {
        self.kind = TextKind::Canonical;
        self.prompt_bytes = canonical(ask.request, ask.body, &mut self.text);
        self.text_bytes = self.text.len();
        ask.model.text.as_ref().map(|_| Err(Unrenderable::Late))
    }

    /// Prepares a move to another working memory, where numbers of walks have no meaning.
    pub const fn leave(&mut self) {
        self.recalled_by = 0;
    }

    pub(crate) fn store(&mut self, view: View, overlaps: &Overlaps) {
        debug_assert!(self.found.iter().all(|found| found.view != view), "{view:?} stored twice");
        let found =
            overlaps.iter_held().map(|(rank, overlap)| FoundOverlap { view, rank, overlap });
        self.found.extend(found);
    }

    pub(crate) fn found(&self) -> impl Iterator<Item = (View, RankIndex, Overlap)> + '_ {
        self.found.iter().map(|found| (found.view, found.rank, found.overlap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PromptOverlaps;
    use forebay_base::PoolIndex;
    use forebay_fleet::worker::{EngineTexts, FleetSnapshot, Model, ModelKind, test_support};
    use forebay_index::{KeySeed, ModelRoots};
    use forebay_prompt::parse::{ApiRequest, Endpoint, scan};
    use forebay_text::Vocabulary;
    use forebay_text::chat::{ChatTemplate, EngineRules, SpecialTokens};

    fn text(source: &str, rules: EngineRules) -> Arc<ModelText> {
        let vocabulary = include_str!("../../../tests/data/tokenizer/tokenizer.json");
        let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(vocabulary).unwrap());
        let template = ChatTemplate::compile_for(source, &SpecialTokens::new(), rules).unwrap();
        Arc::new(ModelText { vocabulary, chat_encoder: None, chat_template: Some(template), rules })
    }

    /// The blocks of a worker may match a text that its engine would not write.
    #[test]
    fn engines_that_render_otherwise_leave_a_prompt_without_a_text() {
        let source = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
        let fleet = &FleetSnapshot::default();
        let (index, _) = forebay_index::index(1, KeySeed(1), 1 << 20);
        let thread = RenderThread::Offload;
        let parts = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        for (others, content, wanted) in [
            (&[][..], parts, Some("[user:a\nb]")),
            (&[EngineRules::VllmRust][..], r#""ab""#, Some("[user:ab]")),
            (&[EngineRules::VllmRust], parts, None),
            (&[EngineRules::SglangRust], parts, Some("[user:a\nb]")),
            (&[EngineRules::SglangRust, EngineRules::VllmRust], parts, None),
        ] {
            let model = &Model {
                text: EngineTexts::from_list(
                    [EngineRules::Vllm].iter().chain(others).map(|it| text(source, *it)).collect(),
                ),
                ..test_support::model("m", &[])
            };
            let body =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
            let mut request = ApiRequest::default();
            scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request).unwrap();
            let body = body.as_bytes();
            let request = &request;
            let ask = MatchRequest { index: &index, fleet, model, request, body, thread };
            let mut prompt = Prompt::default();
            prompt.begin(Vec::new());
            let written = prompt.write_text(&ask).unwrap();
            let found = written.is_ok().then(|| String::from_utf8_lossy(prompt.text()));
            assert_eq!(found.as_deref(), wanted, "{others:?}");
            assert_eq!(prompt.is_rendered(), wanted.is_some());
            assert!(written.is_ok() || written == Err(Unrenderable::EnginesDiffer));
            assert!(!prompt.text().is_empty(), "a canonical text");
        }
    }

    /// The names of a long prompt are hashed over its whole text.
    #[test]
    fn prefixes_have_names_where_a_rank_has_a_limit_of_kv_tokens() {
        let content = "a".repeat(600);
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
        let body = body.as_bytes();
        let mut request = ApiRequest::default();
        scan(body, Endpoint::ChatCompletions, &mut request).unwrap();
        let request = &request;
        let (index, _) = forebay_index::index(1, KeySeed(1), 1 << 20);
        let model = &test_support::model("m", &[0, 1]);
        for kv_tokens_max in [0, 1_000] {
            let mut limited = test_support::rank(0);
            limited.room.kv_tokens_max = kv_tokens_max;
            let fleet = &FleetSnapshot {
                workers: vec![test_support::worker()],
                ranks: vec![test_support::rank(0), limited],
                ..FleetSnapshot::default()
            };
            let thread = RenderThread::Shard;
            let ask = MatchRequest { index: &index, fleet, model, request, body, thread };
            let mut prompt = Prompt::default();
            prompt.begin(Vec::new());
            assert_eq!(prompt.write_text(&ask), None);
            PromptOverlaps::new(2).walk(&ask, &mut prompt, &model.ranks, 4.0);
            assert_eq!(prompt.marks().names().is_empty(), kv_tokens_max == 0, "{kv_tokens_max}");
        }
    }

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
        for thread in [RenderThread::Shard, RenderThread::Offload] {
            let ask = MatchRequest { index: &index, fleet, model, request, body, thread };
            let mut prompt = Prompt::default();
            prompt.begin(Vec::with_capacity(100));
            assert_eq!(prompt.write_text(&ask), None);
            let text = prompt.text().to_vec();
            assert_eq!(prompt.text_bytes(), text.len());
            let given = prompt.let_go();
            // No shard may be able to write what another thread has written.
            assert_eq!(given.capacity(), if thread == RenderThread::Shard { 100 } else { 0 });
            assert_eq!(prompt.text().is_empty(), thread == RenderThread::Shard);
            assert_eq!((&*prompt.text_again(&ask), prompt.text_bytes()), (&text[..], text.len()));
            let whole_bytes = prompt.whole_bytes();
            prompt.drop_text();
            assert_eq!((prompt.text(), prompt.whole_bytes()), (&b""[..], whole_bytes));
            let again = prompt.text_again(&ask);
            assert_eq!(!again.is_empty(), thread == RenderThread::Shard, "it waited");
            prompt.end();
            assert_eq!((prompt.text_bytes(), prompt.let_go().capacity()), (0, 0));
        }
    }
}
