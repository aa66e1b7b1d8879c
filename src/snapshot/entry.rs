//! The blocks of a rank, entry by entry, in a chunk. Sans-IO.

use crate::framing::{NumberReader, put_varint};
use forebay_index::BlockKey;

/// Number of storage tiers: device, host and disk.
pub const TIERS: usize = 3;

/// A block of a rank, by engine hash and attention group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Hash and attention group, mixed with the seed.
    pub id: u64,
    /// Key of the path with the block.
    pub key: BlockKey,
    /// Stores minus removals by each tier; at least 1 tier has some.
    pub stores: [u32; TIERS],
}

impl SnapshotEntry {
    /// Appends the entry to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.key.to_word().to_le_bytes());
        for stores in self.stores {
            put_varint(u64::from(stores), out);
        }
    }

    pub(super) fn decode(reader: &mut NumberReader<'_>) -> Option<Self> {
        let id = reader.u64()?;
        let key = BlockKey::from_word(reader.u64()?)?;
        let mut stores = [0; TIERS];
        for stores in &mut stores {
            *stores = u32::try_from(reader.varint()?).ok()?;
        }
        stores.iter().any(|stores| *stores > 0).then_some(Self { id, key, stores })
    }
}
