//! Prompts with images against a model of vLLM's prefix cache: whatever is stored and removed, and
//! however the events are cut, the index finds what the cache would.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]

use super::kv_paths::{BLOCK, BLOCK_TOKENS, ROOT, Rig, SEED};
use forebay::base::RankIndex;
use forebay::index::{BlockKey, Overlap, Overlaps, whole_bytes};
use forebay::text::Vocabulary;
use proptest::prelude::*;
use rmp::encode::{
    write_array_len, write_f64, write_map_len, write_nil, write_sint, write_str, write_uint,
};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

const START: u32 = 7;
const END: u32 = 8;
const IMAGE: u32 = 9;
const NAMES: [&str; 3] = ["one", "two", "three"];
/// Tokens of the images: two of one length.
const RUNS: [usize; 3] = [1, 9, 9];

fn vocabulary() -> Arc<Vocabulary> {
    let file = r#"{"added_tokens":[{"id":7,"content":"<|vision_start|>"},
        {"id":8,"content":"<|vision_end|>"},{"id":9,"content":"<|image_pad|>"}],
        "pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
        "model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2}}}"#;
    Arc::new(Vocabulary::from_tokenizer_json(file).unwrap().with_images(IMAGE, &[START, END]))
}

/// A part of a prompt: a letter, or an image with or without its marks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Letter(u32),
    Image { name: usize, is_marked: bool },
}

/// A prompt as the engine has it: tokens, and which image each belongs to, with its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Tokens {
    ids: Vec<u32>,
    /// Name and place of each image.
    images: Vec<(usize, usize)>,
}

impl Tokens {
    fn of(parts: &[Part]) -> Self {
        let mut tokens = Self::default();
        for part in parts {
            match *part {
                Part::Letter(letter) => tokens.ids.push(letter),
                Part::Image { name, is_marked } => {
                    tokens.ids.extend(is_marked.then_some(START));
                    tokens.images.push((name, tokens.ids.len()));
                    tokens.ids.extend(vec![IMAGE; RUNS[name]]);
                    tokens.ids.extend(is_marked.then_some(END));
                }
            }
        }
        tokens
    }

    /// The first blocks, with the images that lie in them: what the engine hashes.
    fn path(&self, blocks: usize) -> Self {
        let end = blocks * BLOCK;
        let images = self.images.iter().copied().filter(|(_, at)| *at < end).collect();
        Self { ids: self.ids[..end].to_vec(), images }
    }

    /// The images in one block, with their places counted from it.
    fn keys(&self, block: usize) -> Vec<(&'static str, i64)> {
        let start = block * BLOCK;
        let end = (block + 1) * BLOCK;
        let inside = self.images.iter().filter(|(name, at)| *at < end && at + RUNS[*name] > start);
        let number = |at: usize| i64::try_from(at).unwrap();
        inside.map(|(name, at)| (NAMES[*name], number(*at) - number(start))).collect()
    }
}

fn text(parts: &[Part], vocabulary: &Vocabulary) -> Vec<u8> {
    let mut out = Vec::new();
    let mut names = Vec::new();
    for part in parts {
        match *part {
            Part::Letter(letter) => out.push(b'a' + u8::try_from(letter).unwrap()),
            Part::Image { name, is_marked } => {
                out.extend_from_slice(if is_marked { b"<|vision_start|>" } else { b"" });
                out.extend_from_slice(b"<|image_pad|>");
                out.extend_from_slice(if is_marked { b"<|vision_end|>" } else { b"" });
                names.push(NAMES[name].to_owned());
            }
        }
    }
    vocabulary.put_images(&mut out, 0, &names);
    out
}

/// One rank: what it holds, and its events.
struct Cache {
    rig: Rig<Arc<Vocabulary>>,
    held: BTreeSet<Tokens>,
    hashes: RandomState,
}

impl Cache {
    fn new() -> Self {
        let rig = Rig::new(vec![vocabulary()]);
        Self { rig, held: BTreeSet::new(), hashes: RandomState::new() }
    }

    fn hash(&self, path: &Tokens) -> u64 {
        self.hashes.hash_one(path)
    }

    fn hits(&self, tokens: &Tokens) -> usize {
        let most = tokens.ids.len() / BLOCK;
        (1..=most).take_while(|blocks| self.held.contains(&tokens.path(*blocks))).count()
    }

    /// Computes a prompt: stores what is not held, in events of so many blocks.
    fn store(&mut self, tokens: &Tokens, blocks_max: usize) {
        let mut from = self.hits(tokens);
        let end = tokens.ids.len() / BLOCK;
        while from < end {
            let to = (from + blocks_max).min(end);
            let payload = self.stored(tokens, from, to);
            self.held.extend((from + 1..=to).map(|blocks| tokens.path(blocks)));
            self.rig.take_payload(0, &payload);
            self.rig.next();
            from = to;
        }
    }

    fn stored(&self, tokens: &Tokens, from: usize, to: usize) -> Vec<u8> {
        let mut out = batch(7);
        let key = |out: &mut Vec<u8>, key: &str| write_str(out, key).unwrap();
        let list = |out: &mut Vec<u8>, count: usize| {
            write_array_len(out, u32::try_from(count).unwrap()).unwrap();
        };
        key(&mut out, "BlockStored");
        key(&mut out, "block_hashes");
        list(&mut out, to - from);
        for blocks in from + 1..=to {
            write_uint(&mut out, self.hash(&tokens.path(blocks))).unwrap();
        }
        key(&mut out, "parent_block_hash");
        match from {
            0 => write_nil(&mut out).unwrap(),
            from => drop(write_uint(&mut out, self.hash(&tokens.path(from))).unwrap()),
        }
        key(&mut out, "token_ids");
        list(&mut out, (to - from) * BLOCK);
        for id in &tokens.ids[from * BLOCK..to * BLOCK] {
            write_uint(&mut out, u64::from(*id)).unwrap();
        }
        key(&mut out, "block_size");
        write_uint(&mut out, u64::from(BLOCK_TOKENS)).unwrap();
        key(&mut out, "medium");
        key(&mut out, "GPU");
        key(&mut out, "extra_keys");
        list(&mut out, to - from);
        for block in from..to {
            let keys = tokens.keys(block);
            if keys.is_empty() {
                write_nil(&mut out).unwrap();
                continue;
            }
            list(&mut out, keys.len());
            for (name, at) in keys {
                list(&mut out, 2);
                key(&mut out, name);
                write_sint(&mut out, at).unwrap();
            }
        }
        end(out)
    }

    /// Removes a block that nothing continues.
    fn remove(&mut self, choice: usize) {
        let is_leaf = |path: &&Tokens| {
            let blocks = path.ids.len() / BLOCK;
            !self
                .held
                .iter()
                .any(|other| other.ids.len() / BLOCK == blocks + 1 && other.path(blocks) == **path)
        };
        let leaves: Vec<Tokens> = self.held.iter().filter(is_leaf).cloned().collect();
        let Some(path) = leaves.get(choice % leaves.len().max(1)) else { return };
        let mut out = batch(3);
        write_str(&mut out, "BlockRemoved").unwrap();
        write_str(&mut out, "block_hashes").unwrap();
        write_array_len(&mut out, 1).unwrap();
        write_uint(&mut out, self.hash(path)).unwrap();
        write_str(&mut out, "medium").unwrap();
        write_str(&mut out, "GPU").unwrap();
        self.held.remove(path);
        self.rig.take_payload(0, &end(out));
        self.rig.next();
    }

    /// What vLLM serves: it computes at least one token anew.
    fn served(&self, tokens: &Tokens) -> usize {
        self.hits(tokens).min((tokens.ids.len() - 1) / BLOCK)
    }

    fn overlap(&self, text: &[u8]) -> Overlap {
        let mut overlaps = Overlaps::new(1_024);
        overlaps.expect_images(true);
        self.rig.reader.overlap(BlockKey::root(SEED, &ROOT), text, &mut overlaps);
        overlaps.get(RankIndex(0))
    }
}

/// A batch of one event with so many members, up to its tag.
fn batch(members: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 3).unwrap();
    write_f64(&mut out, 0.0).unwrap();
    write_array_len(&mut out, 1).unwrap();
    write_map_len(&mut out, members).unwrap();
    write_str(&mut out, "type").unwrap();
    out
}

fn end(mut out: Vec<u8>) -> Vec<u8> {
    write_uint(&mut out, 0).unwrap();
    out
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        6 => (0..3_u32).prop_map(Part::Letter),
        1 => (0..3_usize, any::<bool>())
            .prop_map(|(name, is_marked)| Part::Image { name, is_marked }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_index_finds_what_the_cache_would(
        prompts in proptest::collection::vec(proptest::collection::vec(part(), 1..40), 1..5),
        cuts in proptest::collection::vec((0..5_usize, 0..40_usize), 0..4),
        steps in proptest::collection::vec((any::<bool>(), 0..9_usize, 1..6_usize), 1..30),
    ) {
        // Prompts that begin as others do, with another image in the place of one.
        let mut all = prompts;
        for (which, at) in cuts {
            let mut more = all[which % all.len()].clone();
            let at = at % more.len();
            more[at] = match more[at] {
                Part::Image { name, is_marked } => Part::Image { name: (name + 1) % 3, is_marked },
                Part::Letter(letter) => Part::Letter((letter + 1) % 3),
            };
            all.push(more);
        }
        let vocabulary = vocabulary();
        let mut cache = Cache::new();
        let tokens: Vec<Tokens> = all.iter().map(|parts| Tokens::of(parts)).collect();
        let texts: Vec<Vec<u8>> = all.iter().map(|parts| text(parts, &vocabulary)).collect();
        let distinct: HashSet<&Vec<u8>> = texts.iter().collect();
        prop_assert_eq!(distinct.len(), tokens.iter().collect::<HashSet<_>>().len());
        for (stores, which, blocks_max) in steps {
            match stores {
                true => cache.store(&tokens[which % tokens.len()], blocks_max),
                false => cache.remove(which),
            }
            for (tokens, text) in tokens.iter().zip(&texts) {
                let found = cache.overlap(text);
                prop_assert_eq!(found.blocks as usize, cache.hits(tokens));
                let servable = found.servable_blocks(whole_bytes(text, true)) as usize;
                // Only the engine knows how many tokens an image at the end has: where the last one
                // ends a block that is held, a block too many is expected.
                let ends_in_image = text.ends_with(&[0xff]);
                let is_full = tokens.ids.len() == found.blocks as usize * BLOCK;
                let more = usize::from(ends_in_image && is_full);
                prop_assert_eq!(servable, cache.served(tokens) + more);
            }
        }
        // Nothing stays when all is removed.
        while !cache.held.is_empty() {
            cache.remove(0);
        }
        prop_assert_eq!(cache.rig.reader.entry_count(), 0);
    }
}

/// A walk that does not expect images does not follow them, and finds what stands before.
#[test]
fn a_prompt_of_text_pays_for_no_image() {
    let mut cache = Cache::new();
    let parts = [0, 1, 2, 0, 1].map(Part::Letter);
    let image = Part::Image { name: 1, is_marked: true };
    let parts: Vec<Part> =
        parts.into_iter().chain([image, Part::Letter(2), Part::Letter(2)]).collect();
    let tokens = Tokens::of(&parts);
    cache.store(&tokens, 99);
    let text = text(&parts, &vocabulary());
    assert_eq!(cache.overlap(&text).blocks as usize, tokens.ids.len() / BLOCK);
    let mut overlaps = Overlaps::new(8);
    cache.rig.reader.overlap(BlockKey::root(SEED, &ROOT), &text, &mut overlaps);
    assert_eq!(overlaps.get(RankIndex(0)).blocks, 2, "up to the block in which the image begins");
}
