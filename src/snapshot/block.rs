//! Blocks in a chunk. Sans-IO.

use crate::base::ShardIndex;
use crate::base::limits::BLOCK_BYTES_MAX;
use crate::block::BlockKey;
use crate::framing::{Reader, put_varint};

/// Most names of one block that are kept. Engines have one or two; with fewer than there were the block is forgotten
/// a little too early.
pub const ENGINE_HASHES_MAX: usize = 1_024;

/// One block that a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Key of the path before the block.
    pub parent: BlockKey,
    /// Key of the path with the block.
    pub key: BlockKey,
    /// Bytes of the block's text, 1 to [`BLOCK_BYTES_MAX`].
    pub block_bytes: u16,
    /// True if the parent is a root.
    pub is_first: bool,
    /// Slice of the index that the path belongs to.
    pub slice: ShardIndex,
}

/// What the engine calls a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineHash {
    /// Its hash.
    pub hash: u64,
    /// Attention group; `u32::MAX` for none.
    pub group: u32,
    /// Times it was stored and not removed, 1 or more.
    pub stores: u32,
}

impl Block {
    /// Appends the block; of the hashes at most [`ENGINE_HASHES_MAX`].
    pub(super) fn encode(&self, hashes: &[EngineHash], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.parent.to_word().to_le_bytes());
        out.extend_from_slice(&self.key.to_word().to_le_bytes());
        put_varint(u64::from(self.block_bytes) * 2 + u64::from(self.is_first), out);
        put_varint(u64::from(self.slice.0), out);
        put_varint(hashes.len().min(ENGINE_HASHES_MAX) as u64, out);
        for name in hashes.iter().take(ENGINE_HASHES_MAX) {
            out.extend_from_slice(&name.hash.to_le_bytes());
            put_varint(u64::from(name.group.wrapping_add(1)), out);
            put_varint(u64::from(name.stores), out);
        }
    }

    fn decode(reader: &mut Reader<'_>, hashes: &mut Vec<EngineHash>) -> Option<Self> {
        let parent = BlockKey::from_word(reader.u64()?)?;
        let key = BlockKey::from_word(reader.u64()?)?;
        let length = reader.varint()?;
        let block_bytes = u16::try_from(length / 2).ok()?;
        let slice = ShardIndex(u16::try_from(reader.varint()?).ok()?);
        let hash_count = usize::try_from(reader.varint()?).ok()?;
        let possible = (1..=BLOCK_BYTES_MAX).contains(&usize::from(block_bytes))
            && hash_count <= ENGINE_HASHES_MAX
            && parent != key;
        if !possible {
            return None;
        }
        hashes.clear();
        for _ in 0..hash_count {
            let hash = reader.u64()?;
            let group = u32::try_from(reader.varint()?).ok()?.wrapping_sub(1);
            let stores = u32::try_from(reader.varint()?).ok().filter(|&stores| stores > 0)?;
            hashes.push(EngineHash { hash, group, stores });
        }
        Some(Self { parent, key, block_bytes, is_first: length % 2 == 1, slice })
    }
}

/// Blocks of one chunk, all of which follow the format.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    plain: Reader<'a>,
    left: usize,
}

impl<'a> Blocks<'a> {
    /// `None` unless the bytes are exactly that many blocks.
    pub(super) fn check(plain: &'a [u8], count: usize) -> Option<Self> {
        let (mut reader, mut hashes) = (Reader(plain), Vec::new());
        for _ in 0..count {
            Block::decode(&mut reader, &mut hashes)?;
        }
        reader.0.is_empty().then_some(Self { plain: Reader(plain), left: count })
    }

    /// How many are left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.left
    }

    /// True if none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The next block; its names replace what was in `hashes`.
    pub fn next_into(&mut self, hashes: &mut Vec<EngineHash>) -> Option<Block> {
        self.left = self.left.checked_sub(1)?;
        Block::decode(&mut self.plain, hashes)
    }
}
