//! Any bytes as the history of a fleet's caches: stores behind any block, single and in runs,
//! removals of any block by any rank, stores again, ranks that are cleared; on one slice or
//! several, through the feeds of ranks or straight as operations (children may then come before
//! their parents), with room enough or next to none. Must hold: the index finds for every rank what
//! a naive model finds; where it refused stores or evicted, never what the rank does not hold; it
//! stays within its budget, and is empty when nobody holds anything.

use forebay_base::RankIndex;
use forebay_index::{
    BlockKey, IndexReader, KeySeed, KvOp, Overlaps, RootName, SliceWriter, index, slice_of,
};
use forebay_kv_decode::{Attention, BlockRemoved, BlockStored, ExtraKeys, Medium};
use forebay_kv_events::{BatchOutcome, BlockText, Naming, RankBlocks, SliceOps};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const SEED: KeySeed = KeySeed(0x5eed);
/// Texts of blocks. Some begin alike, so that one prompt has several readings.
const BLOCKS: [&str; 16] = [
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "abab",
    "aaaaa",
    "bbbbbb",
    "c123",
    "d123",
    "e123",
    "f123",
    "g1234",
    "h1234",
    "i1234",
    "j12345678",
];
const RANKS: [u16; 4] = [2, 9, 70, 1_000];
const BLOCKS_OF_PATH_MAX: usize = 96;
const CHANGES_MAX: usize = 4_000;
const ROOM: usize = 64 << 20;
/// Bytes of budget for each step of the first byte; some take in nothing at all.
const SCARCE: usize = 6 << 10;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let kind = bytes.next().unwrap_or(0);
    let scarce = bytes.next().unwrap_or(0);
    let shard_count = usize::from(kind & 3) + 1;
    let rank_count = RANKS[usize::from(kind >> 2 & 3)];
    let scarce = (kind >> 6 == 3).then_some(SCARCE * usize::from(scarce));
    let mut fleet = Fleet::new(shard_count, rank_count, kind & 0x10 != 0, scarce);
    for _ in 0..CHANGES_MAX {
        let Some(change) = bytes.next() else { break };
        let rank = take(&mut bytes);
        let at = take(&mut bytes);
        let what = take(&mut bytes);
        let rank = u16::try_from(rank * 31 % usize::from(rank_count)).unwrap_or(0);
        let at = at * 256 + usize::from(change >> 5) * 37 + what / 16;
        fleet.change(change & 7, rank, at, what);
    }
    for node in (0..fleet.model.nodes.len()).rev().take(24) {
        fleet.agree(node);
    }
    fleet.empty();
}

fn take(bytes: &mut impl Iterator<Item = u8>) -> usize {
    usize::from(bytes.next().unwrap_or(0))
}

/// The index with the feeds, and the model.
struct Fleet {
    reader: IndexReader,
    writers: Vec<SliceWriter>,
    /// Whether stores may be refused or blocks go, and bytes that are never exceeded: an empty
    /// index has some already.
    scarce: bool,
    memory_bytes_max: u64,
    overlaps: Overlaps,
    /// One for each rank that said something; none where operations go straight to the slices.
    feeds: Option<BTreeMap<u16, RankBlocks<Words>>>,
    ops: SliceOps,
    model: Model,
}

/// Paths that were named, and who holds them.
struct Model {
    /// Path before the last block, and that block. The root is the first, and its own parent.
    nodes: Vec<(usize, usize)>,
    children: HashMap<(usize, usize), usize>,
    /// How often each rank holds a path, by both names that engines have for it.
    held: BTreeMap<u16, BTreeMap<usize, [u32; 2]>>,
}

/// A path that a text leads to.
#[derive(Clone, Copy)]
struct Reading {
    /// The reading that it continues.
    from: usize,
    node: usize,
    bytes: u32,
    blocks: u32,
}

impl Fleet {
    fn new(shard_count: usize, rank_count: u16, straight: bool, scarce: Option<usize>) -> Self {
        let budget = scarce.unwrap_or(ROOM);
        let (reader, writers) = index(shard_count, SEED, budget);
        let memory_bytes_max = reader.memory_bytes().max(u64::try_from(budget).unwrap_or(u64::MAX));
        let root = (0, usize::MAX);
        let model = Model { nodes: vec![root], children: HashMap::new(), held: BTreeMap::new() };
        let overlaps = Overlaps::new(usize::from(rank_count));
        let feeds = (!straight).then(BTreeMap::new);
        let ops = SliceOps::new(shard_count);
        let scarce = scarce.is_some();
        Self { reader, writers, scarce, memory_bytes_max, overlaps, feeds, ops, model }
    }

    fn change(&mut self, kind: u8, rank: u16, at: usize, what: usize) {
        let node = at % self.model.nodes.len();
        match kind {
            0..=1 => self.store(rank, node, &[what], what >> 4 & 1),
            2 => {
                let run: Vec<usize> =
                    (0..what % 32 + 1).map(|step| 8 + (what + step) % 7).collect();
                self.store(rank, node, &run, 0);
            }
            // What is there already: again, or by a further rank.
            3 => {
                let path = self.model.path(node);
                self.store(rank, 0, &path, what & 1);
            }
            4 => self.remove(rank, &[node], what & 1),
            // Last block first, as engines evict.
            5 => {
                let ends =
                    std::iter::successors(Some(node), |node| Some(self.model.nodes[*node].0));
                let ends: Vec<usize> = ends.take(what % 32 + 1).collect();
                self.remove(rank, &ends, 0);
            }
            6 if what < 32 => self.clear(rank),
            _ => self.agree(node),
        }
    }

    /// Stores blocks one behind the other.
    fn store(&mut self, rank: u16, parent: usize, blocks: &[usize], name: usize) {
        let blocks: Vec<usize> = blocks.iter().map(|block| block % BLOCKS.len()).collect();
        if self.model.path(parent).len() + blocks.len() > BLOCKS_OF_PATH_MAX || blocks.is_empty() {
            return;
        }
        // The name of the parent is what the rank knows of it.
        let known = self.model.counts(rank, parent).iter().position(|count| *count > 0);
        if self.feeds.is_some() && parent != 0 && known.is_none() {
            return;
        }
        let mut nodes = vec![parent];
        for block in &blocks {
            nodes.push(self.model.child(nodes[nodes.len() - 1], *block));
        }
        for node in &nodes[1..] {
            self.model.held.entry(rank).or_default().entry(*node).or_default()[name] += 1;
        }
        let Some(feeds) = &mut self.feeds else {
            // Last block first, so that some come before their parents.
            return nodes[1..].iter().rev().for_each(|node| self.apply(rank, *node, true));
        };
        let hashes: Vec<u64> = nodes[1..].iter().map(|node| hash(*node, name)).collect();
        let token_ids: Vec<u32> = blocks.iter().map(|block| number(*block)).collect();
        let event = BlockStored {
            hashes: &hashes,
            parent: known.map(|name| hash(parent, name)),
            token_ids: &token_ids,
            block_size_tokens: 1,
            medium: Medium::Device,
            extra_keys: ExtraKeys::default(),
            group: None,
            attention: Attention::Whole,
        };
        let feed =
            feeds.entry(rank).or_insert_with(|| RankBlocks::new(naming(&self.writers), usize::MAX));
        assert_eq!(feed.stored(&event, &mut self.ops), BatchOutcome::Applied);
        self.post(rank);
    }

    fn remove(&mut self, rank: u16, nodes: &[usize], name: usize) {
        let straight = self.feeds.is_none();
        let held = self.model.held.entry(rank).or_default();
        for node in nodes {
            if straight {
                held.remove(node);
            } else if let Some(counts) = held.get_mut(node) {
                counts[name] = counts[name].saturating_sub(1);
            }
        }
        held.retain(|_, counts| *counts != [0; 2]);
        let Some(feeds) = &mut self.feeds else {
            return nodes.iter().for_each(|node| self.apply(rank, *node, false));
        };
        let hashes: Vec<u64> = nodes.iter().map(|node| hash(*node, name)).collect();
        let event = BlockRemoved { hashes: &hashes, medium: Medium::Device, group: None };
        if let Some(feed) = feeds.get_mut(&rank) {
            assert_eq!(feed.removed(&event, &mut self.ops), BatchOutcome::Applied);
        }
        self.post(rank);
    }

    fn clear(&mut self, rank: u16) {
        let held = self.model.held.remove(&rank).unwrap_or_default();
        match &mut self.feeds {
            Some(feeds) => {
                if let Some(feed) = feeds.get_mut(&rank) {
                    feed.clear(&mut self.ops);
                }
                self.post(rank);
            }
            None => held.keys().for_each(|node| self.apply(rank, *node, false)),
        }
    }

    fn post(&mut self, rank: u16) {
        for ((_, ops), writer) in self.ops.slices_mut().zip(&mut self.writers) {
            ops.drain(..).for_each(|op| writer.apply(RankIndex(rank), op));
        }
    }

    /// Straight to the slice.
    fn apply(&mut self, rank: u16, node: usize, store: bool) {
        let path = self.model.path(node);
        let mut keys = vec![root()];
        for block in &path {
            keys.push(keys[keys.len() - 1].child(SEED, BLOCKS[*block].as_bytes()));
        }
        let (Some(first), &[.., parent, key]) = (keys.get(1), &keys[..]) else { return };
        let block_bytes = path.last().map_or(0, |block| BLOCKS[*block].len());
        let block_bytes = u16::try_from(block_bytes).unwrap_or(0);
        let op =
            if store { KvOp::Store { parent, key, block_bytes } } else { KvOp::Remove { key } };
        let slice = slice_of(*first, self.writers.len()).index();
        self.writers[slice].apply(RankIndex(rank), op);
    }

    /// Looks up a path with more text behind it.
    fn agree(&mut self, node: usize) {
        let mut text = self.model.text(node);
        text.push_str(["", "ab", "aabab", "c123d123e123"][node % 4]);
        self.overlaps.clear();
        self.reader.overlap(root(), text.as_bytes(), &mut self.overlaps);
        let exact = self.reader.refused_count() + self.reader.evicted_count() == 0;
        assert!(exact || self.scarce, "refused with room");
        for (rank, _) in self.overlaps.iter_held() {
            assert!(self.model.held.contains_key(&rank.0), "rank {rank:?} never held a block");
        }
        let readings = self.model.readings(&text);
        for rank in self.model.held.keys() {
            let found = self.overlaps.get(RankIndex(*rank));
            let held = self.model.overlaps(*rank, &readings);
            let best = held.last().copied().unwrap_or_default();
            let bytes = found.bytes;
            let blocks = found.blocks;
            assert!(
                held.contains(&(bytes, blocks)),
                "rank {rank} does not hold {found:?} of {text}"
            );
            assert!(
                !exact || (bytes, blocks) == best,
                "rank {rank} holds {best:?} of {text}, not {found:?}"
            );
        }
        let memory = self.reader.memory_bytes();
        assert!(memory <= self.memory_bytes_max, "{memory} bytes of {}", self.memory_bytes_max);
    }

    fn empty(&mut self) {
        let ranks: Vec<u16> = self.model.held.keys().copied().collect();
        ranks.into_iter().for_each(|rank| self.clear(rank));
        assert_eq!(self.reader.entry_count(), 0, "entries that nobody holds");
    }
}

impl Model {
    fn child(&mut self, parent: usize, block: usize) -> usize {
        *self.children.entry((parent, block)).or_insert_with(|| {
            self.nodes.push((parent, block));
            self.nodes.len() - 1
        })
    }

    /// Blocks from the root on.
    fn path(&self, mut node: usize) -> Vec<usize> {
        let mut path = Vec::new();
        while node != 0 {
            let (parent, block) = self.nodes[node];
            path.push(block);
            node = parent;
        }
        path.reverse();
        path
    }

    fn text(&self, node: usize) -> String {
        self.path(node).into_iter().map(|block| BLOCKS[block]).collect()
    }

    fn counts(&self, rank: u16, node: usize) -> [u32; 2] {
        self.held.get(&rank).and_then(|held| held.get(&node)).copied().unwrap_or_default()
    }

    /// Every way to read the text, a block at a time: each leads from an earlier one to a path, up
    /// to so much of the text.
    fn readings(&self, text: &str) -> Vec<Reading> {
        let mut readings = vec![Reading { from: 0, node: 0, bytes: 0, blocks: 0 }];
        let mut from = 0;
        while let Some(Reading { node, bytes, blocks, .. }) = readings.get(from).copied() {
            let rest = text.get(usize::try_from(bytes).unwrap_or(usize::MAX)..).unwrap_or("");
            let fits = BLOCKS.iter().enumerate().filter(|(_, block)| rest.starts_with(**block));
            for (block, read) in fits {
                if let Some(node) = self.children.get(&(node, block)) {
                    let bytes = bytes + number(read.len());
                    readings.push(Reading { from, node: *node, bytes, blocks: blocks + 1 });
                }
            }
            from += 1;
        }
        readings
    }

    /// Bytes and blocks of those that the rank holds, nothing included.
    fn overlaps(&self, rank: u16, readings: &[Reading]) -> BTreeSet<(u32, u32)> {
        let mut holds = vec![true; readings.len()];
        for (at, reading) in readings.iter().enumerate().skip(1) {
            holds[at] = holds[reading.from] && self.counts(rank, reading.node) != [0; 2];
        }
        let held = readings.iter().zip(holds).filter(|(_, holds)| *holds);
        held.map(|(reading, _)| (reading.bytes, reading.blocks)).collect()
    }
}

fn root() -> BlockKey {
    BlockKey::root(SEED, &RootName { model: "m", block_size_tokens: 1, ..RootName::default() })
}

fn naming(writers: &[SliceWriter]) -> Naming<Words> {
    Naming {
        seed: SEED,
        model: "m".into(),
        text: Some(Words),
        slice_of,
        shard_count: writers.len(),
    }
}

/// The engine's hash of a path: one of two, as after another tokenization of the same text.
fn hash(node: usize, name: usize) -> u64 {
    u64::try_from(node * 2 + name).unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Each block is one token.
#[derive(Debug)]
struct Words;

impl BlockText for Words {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        token_ids.iter().all(|token| {
            let block = usize::try_from(*token).ok().and_then(|token| BLOCKS.get(token));
            block.map(|block| out.extend_from_slice(block.as_bytes())).is_some()
        })
    }
}
