//! Byte-level BPE as the library `tokenizers` does it, for files of GPT-2's kind, such as the
//! built-in tokenizer. All other files are left to the library.

use super::words::words;
use ahash::AHashMap;
use forebay_text::Vocabulary;
use serde::Deserialize;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Tokens of a byte-level BPE model, and how they merge.
#[derive(Debug)]
pub(super) struct ByteBpe {
    vocabulary: Vocabulary,
    spellings: AHashMap<u32, Box<str>>,
    added: Vec<(String, u32)>,
    of_byte: Box<[u32; 256]>,
    merges: AHashMap<(u32, u32), MergeRule>,
}

#[derive(Clone, Copy, Debug)]
struct MergeRule {
    rank: u32,
    id: u32,
}

impl ByteBpe {
    /// Of the text of a `tokenizer.json`. The error names the part that is of another kind.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let file: BpeFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(&file)?;
        let vocabulary =
            Vocabulary::from_tokenizer_json(text).map_err(|error| error.to_string())?;
        let of_byte = tokens_of_bytes(&file, &vocabulary)?;
        let mut merges = AHashMap::with_capacity(file.model.merges.len());
        for (rank, MergeEntry(left, right)) in (0..).zip(&file.model.merges) {
            let id_of = |token: &str| file.model.vocab.get(token).copied();
            let ids = id_of(left).zip(id_of(right)).zip(id_of(&format!("{left}{right}")));
            let (pair, id) = ids.ok_or_else(|| format!("merge of {left:?} and {right:?}"))?;
            merges.insert(pair, MergeRule { rank, id });
        }
        let added: Vec<(String, u32)> =
            file.added_tokens.into_iter().map(|token| (token.content, token.id)).collect();
        let of_model = file.model.vocab.into_iter().map(|(token, id)| (id, token.into()));
        let mut spellings: AHashMap<u32, Box<str>> = of_model.collect();
        spellings.extend(added.iter().map(|(token, id)| (*id, token.as_str().into())));
        Ok(Self { vocabulary, spellings, added, of_byte, merges })
    }

    /// Token ids of a text without added tokens.
    pub(super) fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut word = WordTokens::default();
        for text in words(text) {
            word.set(text, &self.of_byte);
            word.merge(&self.merges);
            ids.extend(word.tokens());
        }
    }

    /// Text of token ids. Unknown ids give nothing.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let known = ids.iter().filter_map(|id| self.vocabulary.bytes(*id));
        known.for_each(|token| bytes.extend_from_slice(token));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A token as the file spells it.
    pub(super) fn spelling(&self, id: u32) -> Option<&str> {
        self.spellings.get(&id).map(|token| &**token)
    }

    /// Number of tokens, added tokens included.
    pub(super) fn vocabulary_size(&self) -> usize {
        self.spellings.len()
    }

    /// Added tokens with their ids.
    pub(super) fn added(&self) -> &[(String, u32)] {
        &self.added
    }
}

/// Tokens of a word while they merge, as a list through positions.
#[derive(Debug, Default)]
struct WordTokens {
    symbols: Vec<Symbol>,
    due: BinaryHeap<Reverse<DueMerge>>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// None once it is part of the symbol before.
    id: Option<u32>,
    before: Option<usize>,
    after: Option<usize>,
}

/// A merge that was possible when it was found: the lowest rank first, then from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueMerge {
    rank: u32,
    place: usize,
    id: u32,
}

impl WordTokens {
    fn set(&mut self, text: &str, of_byte: &[u32; 256]) {
        let count = text.len();
        self.symbols.clear();
        self.symbols.extend(text.bytes().enumerate().map(|(place, byte)| Symbol {
            id: of_byte.get(usize::from(byte)).copied(),
            before: place.checked_sub(1),
            after: (place + 1 < count).then_some(place + 1),
        }));
    }

    fn merge(&mut self, merges: &AHashMap<(u32, u32), MergeRule>) {
        self.due.clear();
        (0..self.symbols.len()).for_each(|place| self.look(place, merges));
        while let Some(Reverse(due)) = self.due.pop() {
            // Stale where a neighbour has merged since.
            let found = self.pair(due.place).and_then(|(pair, _)| merges.get(&pair));
            if found.is_none_or(|merge| merge.id != due.id) {
                continue;
            }
            self.join(due);
            self.look(due.place, merges);
            if let Some(before) = self.symbols.get(due.place).and_then(|symbol| symbol.before) {
                self.look(before, merges);
            }
        }
    }

    /// The tokens of a place and of the place behind it, with that place.
    fn pair(&self, place: usize) -> Option<((u32, u32), usize)> {
        let left = self.symbols.get(place)?;
        let after = left.after?;
        let right = self.symbols.get(after)?;
        Some(((left.id?, right.id?), after))
    }

    fn look(&mut self, place: usize, merges: &AHashMap<(u32, u32), MergeRule>) {
        let merge = self.pair(place).and_then(|(pair, _)| merges.get(&pair));
        if let Some(MergeRule { rank, id }) = merge.copied() {
            self.due.push(Reverse(DueMerge { rank, place, id }));
        }
    }

    fn join(&mut self, due: DueMerge) {
        let Some((_, taken)) = self.pair(due.place) else { return };
        let Some(right) = self.symbols.get_mut(taken) else { return };
        right.id = None;
        let after = right.after;
        if let Some(left) = self.symbols.get_mut(due.place) {
            left.id = Some(due.id);
            left.after = after;
        }
        if let Some(next) = after.and_then(|after| self.symbols.get_mut(after)) {
            next.before = Some(due.place);
        }
    }

    fn tokens(&self) -> impl Iterator<Item = u32> {
        self.symbols.iter().filter_map(|symbol| symbol.id)
    }
}

/// Is the file of the kind that is read here? The error names the part that is not.
fn check(file: &BpeFile) -> Result<(), String> {
    let model = &file.model;
    let is_empty = |mark: &Option<String>| mark.as_deref().is_none_or(str::is_empty);
    let has = |part: &Value, name: &str, value: bool| part.get(name) == Some(&Value::Bool(value));
    let kind = |part: &Value| part.get("type").and_then(Value::as_str).map(str::to_owned);
    let pre = &file.pre_tokenizer;
    let is_byte_level = kind(pre).as_deref() == Some("ByteLevel");
    let splits =
        is_byte_level && has(pre, "add_prefix_space", false) && !has(pre, "use_regex", false);
    let post = kind(&file.post_processor);
    let is_plain = |token: &BpeAddedToken| {
        !(token.lstrip || token.rstrip || token.single_word || token.normalized)
    };
    let parts = [
        ("model", model.kind.as_deref().unwrap_or("BPE") == "BPE"),
        ("dropout", model.dropout.is_none()),
        ("ignore_merges", !model.ignore_merges),
        ("continuing_subword_prefix", is_empty(&model.continuing_subword_prefix)),
        ("end_of_word_suffix", is_empty(&model.end_of_word_suffix)),
        ("normalizer", file.normalizer.is_null()),
        ("pre_tokenizer", splits),
        ("post_processor", post.is_none_or(|kind| kind == "ByteLevel")),
        ("decoder", kind(&file.decoder).as_deref() == Some("ByteLevel")),
        ("added_tokens", file.added_tokens.iter().all(is_plain)),
    ];
    match parts.iter().find(|(_, is_known)| !is_known) {
        Some((part, _)) => Err(format!("its `{part}` is not that of a GPT-2 file")),
        None => Ok(()),
    }
}

fn tokens_of_bytes(file: &BpeFile, vocabulary: &Vocabulary) -> Result<Box<[u32; 256]>, String> {
    let mut found = Box::new([None; 256]);
    for id in file.model.vocab.values() {
        if let Some([byte]) = vocabulary.bytes(*id)
            && let Some(place) = found.get_mut(usize::from(*byte))
        {
            *place = Some(*id);
        }
    }
    match found.iter().position(Option::is_none) {
        Some(byte) => Err(format!("its `vocab` has no token of byte {byte}")),
        None => Ok(Box::new(found.map(Option::unwrap_or_default))),
    }
}

#[derive(Deserialize)]
struct BpeFile {
    #[serde(default)]
    added_tokens: Vec<BpeAddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: BpeModel,
}

#[derive(Deserialize)]
struct BpeAddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct BpeModel {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<MergeEntry>,
}

/// Two tokens that merge.
#[derive(Deserialize)]
#[serde(try_from = "MergeForm")]
struct MergeEntry(String, String);

/// `"a b"` in older files, `["a", "b"]` in newer.
#[derive(Deserialize)]
#[serde(untagged)]
enum MergeForm {
    Pair(String, String),
    Line(String),
}

impl TryFrom<MergeForm> for MergeEntry {
    type Error = String;

    fn try_from(form: MergeForm) -> Result<Self, String> {
        match form {
            MergeForm::Pair(left, right) => Ok(Self(left, right)),
            MergeForm::Line(line) => match line.split_once(' ') {
                Some((left, right)) => Ok(Self(left.to_owned(), right.to_owned())),
                None => Err(format!("{line:?} is no merge")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::BUILT_IN;
    use super::ByteBpe;

    fn changed(path: &str, value: serde_json::Value) -> Result<ByteBpe, String> {
        let mut file: serde_json::Value =
            serde_json::from_str(BUILT_IN).map_err(|error| error.to_string())?;
        *file.pointer_mut(path).ok_or("no such part")? = value;
        ByteBpe::from_json(&file.to_string())
    }

    #[test]
    fn files_of_another_kind_are_named() {
        for (path, value, part) in [
            ("/normalizer", serde_json::json!({ "type": "NFC" }), "normalizer"),
            ("/pre_tokenizer/add_prefix_space", true.into(), "pre_tokenizer"),
            ("/pre_tokenizer/use_regex", false.into(), "pre_tokenizer"),
            ("/model/ignore_merges", true.into(), "ignore_merges"),
            ("/model/type", "WordPiece".into(), "model"),
            ("/added_tokens/0/rstrip", true.into(), "added_tokens"),
            ("/model/vocab", serde_json::json!({ "a": 0 }), "no token of byte"),
        ] {
            let error = changed(path, value).expect_err(path);
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(changed("/model/merges", serde_json::json!([])).is_ok());
        assert!(changed("/model/merges", serde_json::json!(["Ġ th", ["e", "r"]])).is_ok());
        assert!(changed("/model/merges", serde_json::json!(["Ġth"])).is_err());
    }
}
