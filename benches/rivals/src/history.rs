//! What a fleet's engines say about their caches: prompts that share their beginnings, and the
//! events of ranks that store and remove their blocks. The same history goes to every index.

use crate::words::Words;
use fastrand::Rng;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: usize = 16;
/// Blocks of one store event of a prefill.
pub(crate) const PREFILL_BLOCKS: usize = 64;

/// One text that was sent, with all that engines and indexes know of it.
pub(crate) struct Prompt {
    pub text: Vec<u8>,
    pub tokens: Vec<u32>,
    /// Where each whole block ends in the text.
    pub ends: Vec<u32>,
    /// The engine's chained hash of each block.
    pub hashes: Vec<u64>,
    /// The hash of each block's tokens alone.
    pub locals: Vec<u64>,
}

/// One event of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub rank: u16,
    pub prompt: u32,
    pub blocks: Range<u32>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Store,
    /// Last block first.
    Remove,
}

/// Prompts and what happened to them.
#[derive(Default)]
pub(crate) struct History {
    pub prompts: Vec<Prompt>,
    pub events: Vec<Event>,
}

/// Who holds what: an engine stores only what it does not have.
#[derive(Default)]
struct Held(Vec<HashSet<u64, ahash::RandomState>>);

impl Prompt {
    fn new(text: Vec<u8>, tokens: Vec<u32>, words: &Words) -> Self {
        let mut end = 0;
        let mut hash = 0;
        let mut prompt =
            Self { text, tokens, ends: Vec::new(), hashes: Vec::new(), locals: Vec::new() };
        for block in prompt.tokens.chunks_exact(BLOCK_TOKENS) {
            end += block
                .iter()
                .map(|id| words.vocabulary.of(*id).map_or(0, <[u8]>::len))
                .sum::<usize>();
            let local = local_hash(block);
            hash = chain(hash, local);
            prompt.ends.push(end as u32);
            prompt.hashes.push(hash);
            prompt.locals.push(local);
        }
        prompt
    }

    pub(crate) fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of the first blocks.
    pub(crate) fn text_of(&self, blocks: usize) -> &[u8] {
        let end = blocks.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.text[..end as usize]
    }
}

/// Hash of one block's tokens.
pub(crate) fn local_hash(tokens: &[u32]) -> u64 {
    let mut bytes = [0; 4 * BLOCK_TOKENS];
    for (word, token) in bytes.chunks_exact_mut(4).zip(tokens) {
        word.copy_from_slice(&token.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, 1337)
}

/// Hash of a path that a block extends.
pub(crate) fn chain(parent: u64, local: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&local.to_le_bytes());
    xxh3_64_with_seed(&bytes, 1337)
}

impl History {
    /// Blocks of all ranks.
    pub(crate) fn stored_blocks(&self) -> usize {
        let stores = self.events.iter().filter(|event| event.kind == Kind::Store);
        stores.map(|event| event.blocks.len()).sum()
    }

    fn prompt(&mut self, text: Vec<u8>, tokens: Vec<u32>, words: &Words) -> u32 {
        self.prompts.push(Prompt::new(text, tokens, words));
        self.prompts.len() as u32 - 1
    }

    /// A rank computes the prompt up to `until`: what it does not hold is stored, `decoded` of it
    /// block by block.
    fn serve(&mut self, held: &mut Held, rank: u16, prompt: u32, until: usize, decoded: usize) {
        let held = held.of(rank);
        let hashes = &self.prompts[prompt as usize].hashes[..until];
        let mut from = hashes.iter().take_while(|hash| held.contains(hash)).count();
        while from < until {
            let prefilled = until - decoded.min(until);
            let to =
                if from < prefilled { (from + PREFILL_BLOCKS).min(prefilled) } else { from + 1 };
            held.extend(&hashes[from..to]);
            let blocks = from as u32..to as u32;
            self.events.push(Event { rank, prompt, blocks, kind: Kind::Store });
            from = to;
        }
    }
}

impl Held {
    fn of(&mut self, rank: u16) -> &mut HashSet<u64, ahash::RandomState> {
        while self.0.len() <= usize::from(rank) {
            self.0.push(HashSet::default());
        }
        &mut self.0[usize::from(rank)]
    }
}

/// A fleet at work.
pub(crate) struct Fleet {
    pub history: History,
    /// The prompts of each of [`DEPTHS`].
    pub of_depth: Vec<Range<usize>>,
    /// Further stores, each of 64 blocks, that are not in the history.
    pub churn: Vec<Event>,
}

/// Depths that are looked up, with the number of sessions of each and the blocks of their system
/// prompts.
pub(crate) const DEPTHS: [(usize, usize, usize); 4] =
    [(10, 3_000, 4), (100, 2_000, 32), (1_000, 400, 128), (8_000, 60, 128)];
/// System prompts of each depth.
const SYSTEM_PROMPTS: usize = 8;
/// Prompts that come and go while others are looked up.
const CHURN: usize = 2_000;

/// A fleet in use: more than a million blocks. The prompts come in the order of [`DEPTHS`]; each is
/// held whole by one rank, and by up to two others up to an earlier turn. Every fourth session
/// branched off another. All ranks hold all system prompts.
pub(crate) fn fleet(words: &Words, ranks: u16, scale: f64) -> Fleet {
    let mut rng = Rng::with_seed(u64::from(ranks));
    let mut history = History::default();
    let mut held = Held::default();
    let mut of_depth = Vec::new();
    let mut turns = Vec::new();
    for (depth, sessions, system_blocks) in DEPTHS {
        let sessions = ((sessions as f64 * scale) as usize).max(SYSTEM_PROMPTS);
        let systems: Vec<(Vec<u8>, Vec<u32>)> = (0..SYSTEM_PROMPTS)
            .map(|_| {
                let mut text = Vec::new();
                let mut ids = Vec::new();
                words.write(&mut rng, system_blocks * BLOCK_TOKENS + 5, &mut text, &mut ids);
                (text, ids)
            })
            .collect();
        let first = history.prompts.len();
        for session in 0..sessions {
            let (mut text, mut ids) = systems[session % SYSTEM_PROMPTS].clone();
            if session % 4 == 3 && session > SYSTEM_PROMPTS {
                let other = &history.prompts[first + session - SYSTEM_PROMPTS];
                let blocks = rng.usize(system_blocks..depth);
                text = other.text_of(blocks).to_vec();
                ids = other.tokens[..blocks * BLOCK_TOKENS].to_vec();
                // A block may end inside a word; the rest of that word must not be split otherwise.
                while !words.is_whole(&text, &ids) {
                    ids.pop();
                    text = ids
                        .iter()
                        .flat_map(|id| words.vocabulary.of(*id).unwrap_or(&[]))
                        .copied()
                        .collect();
                }
            }
            let missing = (depth * BLOCK_TOKENS + 7).saturating_sub(ids.len());
            words.write(&mut rng, missing, &mut text, &mut ids);
            let prompt = history.prompt(text, ids, words);
            let main = rng.u16(..ranks);
            let whole = history.prompts[prompt as usize].blocks();
            for other in 0..rng.u16(..3) {
                let until = rng.usize(system_blocks.min(whole)..=whole);
                turns.push(((main + 1 + other) % ranks, prompt, until));
            }
            for turn in 1..=3 {
                turns.push((main, prompt, whole * turn / 3));
            }
        }
        for (rank, system) in
            (0..ranks).flat_map(|rank| (0..SYSTEM_PROMPTS).map(move |at| (rank, at)))
        {
            history.serve(&mut held, rank, (first + system) as u32, system_blocks, 0);
        }
        of_depth.push(first..history.prompts.len());
    }
    // Sessions take turns, as they do in a fleet: what belongs together does not come together.
    rng.shuffle(&mut turns);
    for (rank, prompt, until) in turns {
        history.serve(&mut held, rank, prompt, until, until / 10);
    }
    // Behind a system prompt that every rank holds.
    let system = &history.prompts[of_depth[1].start];
    let system_blocks = DEPTHS[1].2;
    let system = (
        system.text_of(system_blocks).to_vec(),
        system.tokens[..system_blocks * BLOCK_TOKENS].to_vec(),
    );
    let mut churn = Vec::new();
    for _ in 0..CHURN {
        let (mut text, mut ids) = system.clone();
        words.write(&mut rng, PREFILL_BLOCKS * BLOCK_TOKENS + 5, &mut text, &mut ids);
        let blocks = system_blocks as u32..(system_blocks + PREFILL_BLOCKS) as u32;
        let prompt = history.prompt(text, ids, words);
        churn.push(Event { rank: rng.u16(..ranks), prompt, blocks, kind: Kind::Store });
    }
    Fleet { history, of_depth, churn }
}

/// Sessions of 120 blocks behind 64 system prompts of 40, `unique` blocks in all, each held by
/// `sharing` ranks of 64.
pub(crate) fn shared(words: &Words, unique: usize, sharing: u16, prefill: usize) -> History {
    let mut rng = Rng::with_seed(u64::from(sharing) + 77);
    let mut history = History::default();
    let mut held = Held::default();
    let system_blocks = 40;
    let blocks = 120;
    let mut systems = Vec::new();
    let mut turns = Vec::new();
    for session in 0..unique / (blocks - system_blocks) {
        // Ranks of one system prompt stay together, so that it is held by as many as its sessions
        // are.
        let group = session % 64;
        if systems.len() <= group {
            let mut text = Vec::new();
            let mut ids = Vec::new();
            words.write(&mut rng, system_blocks * BLOCK_TOKENS + 5, &mut text, &mut ids);
            systems.push((text, ids));
        }
        let (mut text, mut ids) = systems[group].clone();
        words.write(&mut rng, blocks * BLOCK_TOKENS - ids.len() + 3, &mut text, &mut ids);
        let prompt = history.prompt(text, ids, words);
        for turn in 1..=2 {
            turns.extend(
                (0..sharing).map(|rank| ((group as u16 + rank) % 64, prompt, blocks * turn / 2)),
            );
        }
    }
    // Shuffled: what belongs together does not come together.
    let mut order: Vec<(u32, _)> = turns.into_iter().map(|turn| (rng.u32(..), turn)).collect();
    order.sort_by_key(|(at, _)| *at);
    for (_, (rank, prompt, until)) in order {
        let decoded = if prefill == 1 { until } else { 0 };
        history.serve(&mut held, rank, prompt, until, decoded);
    }
    history
}

/// Removes all that a history stored as engines evict: the oldest session first, from its last
/// block up to where another session of the rank goes on; in events of up to `batch` blocks.
pub(crate) fn removal(history: &History, batch: usize) -> Vec<Event> {
    let mut children: HashMap<(u16, u64), u32, ahash::RandomState> = HashMap::default();
    let mut ends: HashMap<(u16, u32), u32, ahash::RandomState> = HashMap::default();
    let mut sessions = Vec::new();
    for Event { rank, prompt, blocks, .. } in &history.events {
        let end = ends.entry((*rank, *prompt)).or_insert_with(|| {
            sessions.push((*rank, *prompt));
            0
        });
        *end = blocks.end.max(*end);
        let hashes = &history.prompts[*prompt as usize].hashes;
        for block in blocks.clone().filter(|block| *block > 0) {
            *children.entry((*rank, hashes[block as usize - 1])).or_default() += 1;
        }
    }
    let mut events = Vec::new();
    for (rank, prompt) in sessions {
        let hashes = &history.prompts[prompt as usize].hashes;
        let mut end = ends[&(rank, prompt)];
        let mut from = end;
        let mut cut = |from: u32, end: &mut u32| {
            if from < *end {
                events.push(Event { rank, prompt, blocks: from..*end, kind: Kind::Remove });
                *end = from;
            }
        };
        while from > 0
            && children.get(&(rank, hashes[from as usize - 1])).is_none_or(|count| *count == 0)
        {
            from -= 1;
            if from > 0
                && let Some(count) = children.get_mut(&(rank, hashes[from as usize - 1]))
            {
                *count -= 1;
            }
            if (end - from) as usize == batch {
                cut(from, &mut end);
            }
        }
        cut(from, &mut end);
    }
    events
}
