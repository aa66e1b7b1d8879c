//! A simulated router's view of the caches: its slice of the index, and predicted blocks.

use crate::fleet::SEED;
use crate::ranks::pool_estimate::PoolEstimate;
use crate::traces::prompt_text::{ROW_WORDS, write_block};
use crate::traces::trace::{NO_BLOCK, Trace, TraceRequest};
use forebay_base::NanosSinceStart;
use forebay_base::limits::SPECULATIVE_CHUNK_BYTES;
use forebay_config::Config;
use forebay_index::{
    BlockKey, ExpiringChunks, ExpiringLimits, IndexReader, KvOp, SliceWriter, index,
};
use forebay_select::ReportedPaths;

/// Bytes of text for each token. Real text has about 4; with 2 the walk costs half, and a
/// prediction is exact to a block of 512 tokens.
pub(crate) const TOKEN_BYTES: u32 = 2;
const _: () = assert!(SPECULATIVE_CHUNK_BYTES == 512 * TOKEN_BYTES as usize);
/// Most chunks that expire at once, as in a shard's turn.
const EXPIRE_PER_TURN: u32 = 512;
/// Most chunks of in-flight prompts. A shard has room for more, but fresh memory of that size would
/// be cold in each run.
const CHUNKS_MAX: usize = 1 << 18;

/// The single slice, and predicted blocks of in-flight prompts.
pub(crate) struct IndexMemory {
    pub(crate) reader: IndexReader,
    pub(crate) writer: SliceWriter,
    pub(crate) expiring: ExpiringChunks,
    pub(crate) reported: ReportedPaths,
    pub(crate) pool: PoolEstimate,
    /// By block of the trace: the key of its parent, and its own.
    pub(crate) keys: Vec<(BlockKey, BlockKey)>,
    root: BlockKey,
    block_bytes: u16,
}

impl IndexMemory {
    pub(crate) fn new(trace: &Trace, config: &Config, root: BlockKey) -> Self {
        let (reader, mut writers) = index(1, SEED, config.limits.index_bytes_max);
        let limits = ExpiringLimits {
            approximate_ttl: config.approximate.ttl,
            speculative_ttl: config.approximate.speculative_ttl,
            rank_bytes_max: config.approximate.rank_bytes_max,
            chunks_max: CHUNKS_MAX,
        };
        let block_bytes = (trace.block_tokens * TOKEN_BYTES) as u16;
        let writer = writers.swap_remove(0);
        let expiring = ExpiringChunks::new(limits);
        let reported = ReportedPaths::default();
        let pool = PoolEstimate::new(config.kv.tier_ttl);
        let keys = Vec::with_capacity(trace.parents.len());
        let mut memory = Self { reader, writer, expiring, reported, pool, keys, root, block_bytes };
        for (block, &parent) in trace.parents.iter().enumerate() {
            memory.name(block as u32, parent);
        }
        memory
    }

    /// Sets the keys of a block, the next or an earlier. The parent has its keys.
    pub(crate) fn name(&mut self, block: u32, parent: u32) {
        let before = if parent == NO_BLOCK { self.root } else { self.keys[parent as usize].1 };
        let mut text = Vec::new();
        write_block(block, usize::from(self.block_bytes), &mut text);
        let keys = (before, before.child(SEED, &text));
        match self.keys.get_mut(block as usize) {
            Some(known) => *known = keys,
            None => self.keys.push(keys),
        }
    }

    pub(crate) fn store(&self, block: u32) -> KvOp {
        let (parent, key) = self.keys[block as usize];
        KvOp::Store { parent, key, block_bytes: self.block_bytes }
    }

    pub(crate) fn remove(&self, block: u32) -> KvOp {
        KvOp::Remove { key: self.keys[block as usize].1 }
    }

    pub(crate) fn sweep(&mut self, now: NanosSinceStart) {
        let Self { writer, expiring, .. } = self;
        expiring.sweep(now, EXPIRE_PER_TURN, |rank, op| writer.apply(rank, op));
    }

    /// The text of a prompt: equal blocks have equal text.
    pub(crate) fn write_text(&self, request: &TraceRequest, text: &mut Vec<u8>) {
        text.clear();
        let bytes = (request.input_tokens * TOKEN_BYTES) as usize;
        text.reserve(bytes + usize::from(self.block_bytes) + size_of::<[u64; ROW_WORDS]>());
        for &block in &request.blocks {
            write_block(block, usize::from(self.block_bytes), text);
        }
        text.resize(bytes, b' ');
    }
}
