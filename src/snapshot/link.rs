//! Blocks of the index with their parents, in a chunk. Sans-IO.

use crate::framing::{NumberReader, put_varint};
use forebay_base::ShardIndex;
use forebay_base::limits::INNER_BLOCK;
use forebay_index::BlockKey;

/// A block of the index, for all ranks that hold the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Key of the path before the block: of another block, or of a root.
    pub parent: BlockKey,
    /// Key of the path with the block.
    pub key: BlockKey,
    /// Bytes of the block's text, from 1 on, or [`INNER_BLOCK`].
    pub block_bytes: u16,
    /// Slice of the index that the path belongs to.
    pub slice: ShardIndex,
}

impl Link {
    /// Appends the link to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.parent.to_word().to_le_bytes());
        out.extend_from_slice(&self.key.to_word().to_le_bytes());
        put_varint(u64::from(self.block_bytes), out);
        put_varint(u64::from(self.slice.0), out);
    }

    pub(super) fn decode(reader: &mut NumberReader<'_>) -> Option<Self> {
        let parent = BlockKey::from_word(reader.u64()?)?;
        let key = BlockKey::from_word(reader.u64()?)?;
        let block_bytes = u16::try_from(reader.varint()?).ok()?;
        let slice = ShardIndex(u16::try_from(reader.varint()?).ok()?);
        let possible = (1..=INNER_BLOCK).contains(&block_bytes) && parent != key;
        possible.then_some(Self { parent, key, block_bytes, slice })
    }
}
