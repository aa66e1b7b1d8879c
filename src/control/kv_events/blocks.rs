//! What one rank holds, and how the engine's events change the index. Sans-IO and single-threaded: one
//! [`RankBlocks`] per KV-event stream, events in, index operations out.
//!
//! Engine hashes are opaque here: they name parents and removals, nothing else. The block's own key comes from the
//! bytes of its tokens. Two levels are counted: engines store and remove the same hash several times (a prompt
//! that is an exact multiple of the block size stores its last block again each time), and different hashes can have
//! the same bytes (two tokenizations of one text, several attention groups). The index sees a key appear once and
//! disappear once.
//!
//! Bounded by `entries_max`: at the limit new blocks are refused and counted, removals still work.

use super::event::{Medium, Removed, Stored};
use super::held::{BlockLength, HashEntry, Held, KeyEntry};
use crate::base::ShardIndex;
use crate::base::limits::BLOCK_BYTES_MAX;
use crate::block::{BlockKey, KeySeed, RootName};
use crate::mailbox::KvOp;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Token ids to the bytes that prompts are matched by.
pub trait BlockText {
    /// Appends the bytes of the tokens; false for an id that it does not know.
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool;
}

impl BlockText for crate::block::Vocabulary {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        Self::decode_into(self, token_ids, out)
    }
}

impl<T: BlockText> BlockText for Arc<T> {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        T::decode_into(self, token_ids, out)
    }
}

/// What turns a rank's blocks into keys and slices.
#[derive(Debug)]
pub struct Naming<T> {
    /// Secret of the process.
    pub seed: KeySeed,
    /// The name under which the rank's blocks are rooted.
    pub model: Arc<str>,
    /// How tokens become bytes; `None` leaves every block unmatched.
    pub text: Option<T>,
    /// Which slice owns paths that start with a block.
    pub slice_of: fn(BlockKey, usize) -> ShardIndex,
    /// Slices, one per shard.
    pub shard_count: usize,
}

/// What became of an event. The words are the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is in the index, or nothing of it concerned the index anew.
    Applied,
    /// Lies in another medium than the accelerator, or with another process.
    Elsewhere,
    /// Belongs to an attention group that forgets.
    OtherGroup,
    /// Its parent was never seen: stored before the feed began, or not pairable itself.
    ParentUnknown,
    /// Tokens and hashes do not match in number.
    Unpaired,
    /// Holds an image, embeddings or other things that are not text.
    NotText,
    /// No tokenizer, or a token that it does not know.
    NoText,
    /// A block without bytes, or longer than the index knows.
    BlockLength,
    /// A hash that stands for other bytes already: an engine whose hashes are not chained, or a loop.
    Conflict,
    /// The rank's entries have reached their limit.
    Full,
    /// An event type that this version does not know.
    UnknownType,
    /// Bytes that are no event.
    Malformed,
}

impl Outcome {
    /// All, with their metrics label.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::Applied, "applied"),
        (Self::Elsewhere, "elsewhere"),
        (Self::OtherGroup, "other_group"),
        (Self::ParentUnknown, "parent_unknown"),
        (Self::Unpaired, "unpaired"),
        (Self::NotText, "not_text"),
        (Self::NoText, "no_text"),
        (Self::BlockLength, "block_length"),
        (Self::Conflict, "conflict"),
        (Self::Full, "full"),
        (Self::UnknownType, "unknown_type"),
        (Self::Malformed, "malformed"),
    ];
}

/// Operations under way to the index, by slice, in the engine's order within each.
#[derive(Debug)]
pub struct SliceOps {
    slices: Vec<VecDeque<KvOp>>,
}

impl SliceOps {
    /// Empty, for that many slices.
    #[must_use]
    pub fn new(shard_count: usize) -> Self {
        Self { slices: vec![VecDeque::new(); shard_count] }
    }

    /// True if no slice has operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slices.iter().all(VecDeque::is_empty)
    }

    /// The operations of every slice.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = (ShardIndex, &mut VecDeque<KvOp>)> {
        let number = |(index, ops)| ShardIndex::try_from_index(index).map(|slice| (slice, ops));
        self.slices.iter_mut().enumerate().filter_map(number)
    }

    pub(super) fn push(&mut self, slice: ShardIndex, op: KvOp) {
        match self.slices.get_mut(slice.index()) {
            Some(ops) => ops.push_back(op),
            None => crate::base::count_broken_invariant(),
        }
    }
}

/// The blocks of one rank.
#[derive(Debug)]
pub struct RankBlocks<T> {
    naming: Naming<T>,
    entries_max: usize,
    held: Held,
    block_bytes: Vec<u8>,
}

/// Where a chain continues.
#[derive(Clone, Copy)]
struct Tip {
    key: BlockKey,
    /// `None` before the first block, which decides it.
    slice: Option<ShardIndex>,
}

/// Group of events that name none.
const NO_GROUP: u32 = u32::MAX;

impl<T: BlockText> RankBlocks<T> {
    /// Holds nothing yet.
    #[must_use]
    pub fn new(naming: Naming<T>, entries_max: usize) -> Self {
        Self { naming, entries_max, held: Held::default(), block_bytes: Vec::new() }
    }

    /// Everything that is held, to be looked at elsewhere while this goes on.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Holds what was held before a restart. The operations that tell the index come with it.
    pub fn restore(&mut self, held: Held) {
        debug_assert!(self.is_empty(), "restored over something");
        self.held = held;
    }

    /// Blocks known by the engine's hash.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.hashes.len()
    }

    /// True if nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.hashes.is_empty()
    }

    /// Applies a store. Blocks before a fault stay stored: they are true.
    pub fn stored(&mut self, event: &Stored<'_>, ops: &mut SliceOps) -> Outcome {
        if event.medium != Medium::Device || event.remote {
            return Outcome::Elsewhere;
        }
        if !event.whole_prefix {
            return Outcome::OtherGroup;
        }
        let block_tokens = usize::try_from(event.block_size_tokens).unwrap_or(0);
        let tokens_due = block_tokens.checked_mul(event.hashes.len());
        if block_tokens == 0 || tokens_due != Some(event.token_ids.len()) {
            return Outcome::Unpaired;
        }
        let group = event.group.unwrap_or(NO_GROUP);
        let Some(mut tip) = self.tip(event, group) else {
            return Outcome::ParentUnknown;
        };
        let blocks = event.hashes.iter().zip(event.token_ids.chunks_exact(block_tokens));
        for (position, (&hash, token_ids)) in blocks.enumerate() {
            if event.opaque_from.is_some_and(|opaque| position >= opaque) {
                return Outcome::NotText;
            }
            tip = match self.extend(tip, (hash, group), token_ids, ops) {
                Ok(tip) => tip,
                Err(outcome) => return outcome,
            };
        }
        Outcome::Applied
    }

    /// Applies a removal; unknown hashes are ignored.
    pub fn removed(&mut self, event: &Removed<'_>, ops: &mut SliceOps) -> Outcome {
        if event.medium != Medium::Device || event.remote {
            return Outcome::Elsewhere;
        }
        let group = event.group.unwrap_or(NO_GROUP);
        for &hash in event.hashes {
            let Entry::Occupied(mut entry) = self.held.hashes.entry((hash, group)) else {
                continue;
            };
            if entry.get().stores > 1 {
                entry.get_mut().stores -= 1;
                continue;
            }
            let key = entry.remove().key;
            self.release(key, ops);
        }
        Outcome::Applied
    }

    /// Forgets everything: the engine said so, restarted, or went silent with events lost.
    pub fn clear(&mut self, ops: &mut SliceOps) {
        self.held.hashes.clear();
        for (key, entry) in self.held.keys.drain() {
            ops.push(entry.slice, KvOp::Remove { key });
        }
    }

    fn tip(&self, event: &Stored<'_>, group: u32) -> Option<Tip> {
        let Some(parent) = event.parent else {
            let name = RootName {
                model: &self.naming.model,
                block_size_tokens: event.block_size_tokens,
                lora: event.lora_name,
                cache_salt: event.cache_salt,
            };
            return Some(Tip { key: BlockKey::root(self.naming.seed, &name), slice: None });
        };
        let key = self.held.hashes.get(&(parent, group))?.key;
        Some(Tip { key, slice: Some(self.held.keys.get(&key)?.slice) })
    }

    fn extend(
        &mut self,
        parent: Tip,
        hash: (u64, u32),
        token_ids: &[u32],
        ops: &mut SliceOps,
    ) -> Result<Tip, Outcome> {
        self.block_bytes.clear();
        let text = self.naming.text.as_ref().ok_or(Outcome::NoText)?;
        if !text.decode_into(token_ids, &mut self.block_bytes) {
            return Err(Outcome::NoText);
        }
        let block_bytes = u16::try_from(self.block_bytes.len()).unwrap_or(u16::MAX);
        if block_bytes == 0 || usize::from(block_bytes) > BLOCK_BYTES_MAX {
            return Err(Outcome::BlockLength);
        }
        let key = parent.key.child(self.naming.seed, &self.block_bytes);
        let first = || (self.naming.slice_of)(key, self.naming.shard_count);
        let slice = parent.slice.unwrap_or_else(first);
        let full = self.held.hashes.len() >= self.entries_max;
        match self.held.hashes.entry(hash) {
            Entry::Occupied(mut entry) if entry.get().key == key => {
                let stores = &mut entry.get_mut().stores;
                *stores = stores.saturating_add(1);
            }
            Entry::Occupied(_) => return Err(Outcome::Conflict),
            Entry::Vacant(_) if full => return Err(Outcome::Full),
            Entry::Vacant(entry) => {
                entry.insert(HashEntry { key, stores: 1 });
                let length = BlockLength::new(block_bytes, parent.slice.is_none());
                let new = KeyEntry { parent: parent.key, slice, length, hashes: 0 };
                let held = self.held.keys.entry(key).or_insert(new);
                held.hashes += 1;
                if held.hashes == 1 {
                    ops.push(slice, KvOp::Store { parent: parent.key, key, block_bytes });
                }
            }
        }
        Ok(Tip { key, slice: Some(slice) })
    }

    fn release(&mut self, key: BlockKey, ops: &mut SliceOps) {
        let Entry::Occupied(mut entry) = self.held.keys.entry(key) else {
            debug_assert!(false, "a hash without its key");
            crate::base::count_broken_invariant();
            return;
        };
        if entry.get().hashes > 1 {
            entry.get_mut().hashes -= 1;
        } else {
            let slice = entry.remove().slice;
            ops.push(slice, KvOp::Remove { key });
        }
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
