//! Forebay's index: looked up by the bytes of the prompt, fed by what its feeds make of events.

use crate::history::{BLOCK_TOKENS, Event, Kind, Prompt};
use crate::words::TokenBytes;
use forebay::base::RankIndex;
use forebay::index::{
    BlockKey, IndexReader, KeySeed, KvOp, Overlaps, RootName, SliceWriter, index, slice_of,
};
use forebay::kv_decode::{Attention, BlockRemoved, BlockStored, ExtraKeys, Medium};
use forebay::kv_events::{BatchOutcome, Naming, RankBlocks, SliceOps};
use std::sync::Arc;

const SEED: KeySeed = KeySeed(0x5eed);
const MODEL: &str = "m";
const MEMORY_BYTES_MAX: usize = 8 << 30;

/// Reading side; one for each thread.
pub(crate) struct ByteReader {
    reader: IndexReader,
    root: BlockKey,
    overlaps: Overlaps,
}

/// The maps of the feeds: engine hashes to our keys, one for each rank.
pub(crate) struct Feeds {
    ranks: Vec<RankBlocks<Arc<TokenBytes>>>,
    ops: SliceOps,
    vocabulary: Arc<TokenBytes>,
    hashes: Vec<u64>,
}

/// One slice, as on a router with one shard.
pub(crate) fn byte_index(rank_count: usize) -> (ByteReader, SliceWriter) {
    let (reader, mut writers) = index(1, SEED, MEMORY_BYTES_MAX);
    let name =
        RootName { model: MODEL, block_size_tokens: BLOCK_TOKENS as u32, ..RootName::default() };
    let root = BlockKey::root(SEED, &name);
    (ByteReader { reader, root, overlaps: Overlaps::new(rank_count) }, writers.remove(0))
}

impl ByteReader {
    pub(crate) fn find(&mut self, text: &[u8]) -> &Overlaps {
        self.overlaps.clear();
        self.reader.overlap(self.root, text, &mut self.overlaps);
        &self.overlaps
    }

    /// Blocks of each rank, ascending; ranks without any are left out.
    pub(crate) fn found(&mut self, text: &[u8]) -> Vec<(u16, u32)> {
        let mut found: Vec<_> =
            self.find(text).iter_held().map(|(rank, at)| (rank.0, at.blocks)).collect();
        found.sort_unstable();
        found
    }

    pub(crate) fn refused(&self) -> u64 {
        self.reader.refused_count()
    }
}

impl Feeds {
    pub(crate) fn new(vocabulary: &Arc<TokenBytes>) -> Self {
        Self {
            ranks: Vec::new(),
            ops: SliceOps::new(1),
            vocabulary: Arc::clone(vocabulary),
            hashes: Vec::new(),
        }
    }

    /// Takes a decoded event, and hands the changes of the index on.
    pub(crate) fn take(
        &mut self,
        prompts: &[Prompt],
        event: &Event,
        mut apply: impl FnMut(RankIndex, KvOp),
    ) {
        let naming = || Naming {
            seed: SEED,
            model: MODEL.into(),
            text: Some(Arc::clone(&self.vocabulary)),
            slice_of,
            shard_count: 1,
        };
        while self.ranks.len() <= usize::from(event.rank) {
            self.ranks.push(RankBlocks::new(naming(), usize::MAX));
        }
        let rank = &mut self.ranks[usize::from(event.rank)];
        let prompt = &prompts[event.prompt as usize];
        let blocks = event.blocks.start as usize..event.blocks.end as usize;
        let outcome = match event.kind {
            Kind::Store => rank.stored(
                &BlockStored {
                    hashes: &prompt.hashes[blocks.clone()],
                    parent: blocks.start.checked_sub(1).map(|parent| prompt.hashes[parent]),
                    token_ids: &prompt.tokens
                        [blocks.start * BLOCK_TOKENS..blocks.end * BLOCK_TOKENS],
                    block_size_tokens: BLOCK_TOKENS as u32,
                    medium: Medium::Device,
                    extra_keys: ExtraKeys::default(),
                    group: None,
                    attention: Attention::Whole,
                },
                &mut self.ops,
            ),
            Kind::Remove => {
                self.hashes.clear();
                self.hashes.extend(prompt.hashes[blocks].iter().rev());
                let event =
                    BlockRemoved { hashes: &self.hashes, medium: Medium::Device, group: None };
                rank.removed(&event, &mut self.ops)
            }
        };
        assert_eq!(outcome, BatchOutcome::Applied);
        for (_, ops) in self.ops.slices_mut() {
            ops.drain(..).for_each(|op| apply(RankIndex(event.rank), op));
        }
    }
}
