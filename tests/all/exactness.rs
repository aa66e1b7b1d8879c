//! The byte index against the token index: how many blocks of a prompt a rank is said to hold, and
//! how many the engine finds. Real tokenizers' token ids become KV events, which go the way of
//! every feed; second prompts are rendered and looked up as requests are. The byte index may count
//! one block more: where two prompts part, the tokenizer may have cut the bytes before that point
//! into other tokens, at most [`RECUT_TOKENS_MAX`]. Anything else is a fault.
//!
//! Cases: `NAME.cases.jsonl` beside `NAME.tokenizer.json` in tests/data/exactness, or in the
//! directory that `EXACTNESS` names (`tools/exactness/make.py` writes both).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]
#![allow(clippy::print_stderr, reason = "a summary for people")]

use forebay::base::RankIndex;
use forebay::engine::{BlockHash, CacheEvent, encode_batch};
use forebay::index::{KeySeed, Overlap, Overlaps};
use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::record::{RebuiltIndex, RecordedMessage, TokenText};
use forebay::render::render;
use forebay::text::Vocabulary;
use forebay::text::chat::EngineRules;
use forebay::worker::ModelText;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twox_hash::XxHash3_64;

const BLOCK_SIZES: [usize; 4] = [1, 16, 32, 64];
/// Tokens before the parting point that may be cut otherwise: one block of 16, or so many of 1.
const RECUT_TOKENS_MAX: usize = 16;
const INDEX_BYTES_MAX: usize = 2 << 30;

#[derive(Deserialize)]
struct Case {
    kind: String,
    first_ids: Vec<u32>,
    second: String,
    second_ids: Vec<u32>,
}

/// Chained hashes of the full blocks, as engines make them.
fn block_hashes(ids: &[u32], block_tokens: usize) -> Vec<u64> {
    let chained = |parent: &mut u64, block: &[u32]| {
        let bytes: Vec<u8> = block.iter().flat_map(|id| id.to_le_bytes()).collect();
        *parent = XxHash3_64::oneshot_with_seed(*parent, &bytes);
        Some(*parent)
    };
    ids.chunks_exact(block_tokens).scan(7, chained).collect()
}

/// A rank that has computed prompts, known by its events, and by its tokens.
struct Rank {
    index: RebuiltIndex,
    tokens: HashSet<u64>,
    block_tokens: usize,
    messages: u64,
}

impl Rank {
    fn new(vocabulary: &Arc<Vocabulary>, block_tokens: usize) -> Self {
        let text = TokenText::Vocabulary(Arc::clone(vocabulary));
        let index = RebuiltIndex::new(KeySeed(0x5eed), &text, 1, INDEX_BYTES_MAX);
        Self { index, tokens: HashSet::new(), block_tokens, messages: 0 }
    }

    fn computes(&mut self, ids: &[u32]) {
        let hashes = block_hashes(ids, self.block_tokens);
        let new_from = hashes.iter().take_while(|hash| self.tokens.contains(*hash)).count();
        let full = &ids[..hashes.len() * self.block_tokens];
        let stored = CacheEvent::Stored {
            hashes: hashes[new_from..].iter().copied().map(BlockHash).collect(),
            parent: new_from.checked_sub(1).map(|last| BlockHash(hashes[last])),
            token_ids: full[new_from * self.block_tokens..].to_vec(),
            salt: String::new(),
        };
        if new_from == hashes.len() {
            return;
        }
        let block_size = u32::try_from(self.block_tokens).unwrap();
        let payload = encode_batch(0.0, &[stored], 0, block_size);
        let number = self.messages.to_be_bytes();
        self.index
            .take(&RecordedMessage::new(self.messages, 0, &[b"kv", &number, &payload]).unwrap());
        self.messages += 1;
        self.tokens.extend(hashes);
    }

    /// Blocks of the prompt by its tokens, and by its bytes.
    fn holds(&self, ids: &[u32], prompt: &[u8], overlaps: &mut Overlaps) -> (u32, Overlap) {
        let hashes = block_hashes(ids, self.block_tokens);
        let held = hashes.iter().take_while(|hash| self.tokens.contains(*hash)).count();
        let root = self.index.root(u32::try_from(self.block_tokens).unwrap());
        overlaps.clear();
        self.index.index().overlap(root, prompt, overlaps);
        (u32::try_from(held).unwrap(), overlaps.get(RankIndex(0)))
    }
}

/// A completion's prompt as the router sees it.
fn rendered(prompt: &str, model: &ModelText) -> Vec<u8> {
    let body = serde_json::json!({ "model": "m", "prompt": prompt }).to_string();
    let mut request = ApiRequest::default();
    scan(body.as_bytes(), Endpoint::Completions, &mut request).unwrap();
    let mut out = Vec::new();
    render(&request, body.as_bytes(), model, &mut out).unwrap();
    out
}

/// Names of the sets of cases in a directory.
fn names(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let files = files.map(|file| file.into_string().unwrap());
    let mut names: Vec<String> =
        files.filter_map(|file| file.strip_suffix(".cases.jsonl").map(str::to_owned)).collect();
    names.sort();
    names
}

/// Compares all cases of one tokenizer; the faults.
fn compare(directory: &Path, name: &str) -> Vec<String> {
    let tokenizer = fs::read_to_string(directory.join(format!("{name}.tokenizer.json"))).unwrap();
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(&tokenizer).unwrap());
    let cases = fs::read_to_string(directory.join(format!("{name}.cases.jsonl"))).unwrap();
    let cases: Vec<Case> = cases.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let model = ModelText {
        vocabulary: Arc::clone(&vocabulary),
        chat_encoder: None,
        chat_template: None,
        rules: EngineRules::Vllm,
    };
    let prompts: Vec<Vec<u8>> = cases.iter().map(|case| rendered(&case.second, &model)).collect();
    let mut faults = Vec::new();
    for block_tokens in BLOCK_SIZES {
        let mut rank = Rank::new(&vocabulary, block_tokens);
        cases.iter().for_each(|case| rank.computes(&case.first_ids));
        let mut histogram: BTreeMap<i64, usize> = BTreeMap::new();
        let mut blocks = 0_u64;
        let mut overlaps = Overlaps::new(1);
        for (number, (case, prompt)) in cases.iter().zip(&prompts).enumerate() {
            let (held, found) = rank.holds(&case.second_ids, prompt, &mut overlaps);
            blocks += u64::from(held);
            let difference = i64::from(found.blocks) - i64::from(held);
            *histogram.entry(difference).or_default() += 1;
            let most = i64::try_from(RECUT_TOKENS_MAX.div_ceil(block_tokens)).unwrap();
            if !(0..=most).contains(&difference) {
                let behind = prompt.get(found.bytes as usize..).unwrap();
                faults.push(format!(
                    "{name}, blocks of {block_tokens}, case {number} ({}): {} blocks by bytes, {held} by tokens; {} of {} bytes, then {:?}",
                    case.kind,
                    found.blocks,
                    found.bytes,
                    prompt.len(),
                    String::from_utf8_lossy(behind.get(..40).unwrap_or_default()),
                ));
            }
        }
        let entries = rank.index.index().entry_count();
        eprintln!(
            "{name:<10} blocks of {block_tokens:>2}: blocks more by bytes {histogram:?} of {} pairs; {blocks} blocks found, {entries} entries, {} refused",
            cases.len(),
            rank.index.index().refused_count(),
        );
    }
    faults
}

#[test]
fn the_byte_index_is_the_token_index() {
    let directory = std::env::var_os("EXACTNESS")
        .map_or_else(|| PathBuf::from("tests/data/exactness"), PathBuf::from);
    let names = names(&directory);
    assert!(!names.is_empty(), "no cases in {}", directory.display());
    let faults: Vec<String> = names.iter().flat_map(|name| compare(&directory, name)).collect();
    let shown: Vec<&str> = faults.iter().take(60).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), shown.join("\n"));
}
