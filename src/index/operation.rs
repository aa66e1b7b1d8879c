//! Compact index operations, made by the control plane from KV events, applied by the shard that
//! owns the slice.

use crate::BlockKey;
use forebay_base::RankIndex;

/// A change to a slice of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvOp {
    /// `rank` now holds the block `key`, which extends `parent` by `block_bytes` bytes of text.
    Store {
        /// Key of the path before the block; a root's key for first blocks.
        parent: BlockKey,
        /// Key of the path with the block.
        key: BlockKey,
        /// Bytes of the block's text, 1 to `BLOCK_BYTES_MAX`, or `INNER_BLOCK`.
        block_bytes: u16,
    },
    /// `rank` now holds the block `key`, if the index has that block. Unlike for a stored block,
    /// the rank need not hold the path to it: see [`Window`](crate::Window).
    Hold {
        /// Key of the path that ends with the block.
        key: BlockKey,
    },
    /// `rank` no longer holds `key`. Unknown keys are ignored.
    Remove {
        /// Key of the path that ends with the block.
        key: BlockKey,
    },
}

/// Operations of a rank for a slice, in the engine's order.
#[derive(Debug)]
pub struct KvBatch {
    pub rank: RankIndex,
    /// At most `KV_BATCH_OPS_MAX`.
    pub ops: Vec<KvOp>,
}
