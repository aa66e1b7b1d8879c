//! How a rank's tokens become the bytes, keys and slices of the index.

use super::outcome::BatchOutcome;
use forebay_base::ShardIndex;
use forebay_base::limits::BLOCK_BYTES_MAX;
use forebay_index::{BlockKey, KeySeed};
use std::sync::Arc;

/// Token ids to the bytes that prompts are matched by.
pub trait BlockText {
    /// Appends the bytes of the tokens; false for an id that it does not know.
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool;

    /// True if one of the tokens stands for an image, sound or the like: equal tokens then do not
    /// mean equal content.
    fn has_media(&self, _token_ids: &[u32]) -> bool {
        false
    }
}

impl BlockText for forebay_text::Vocabulary {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        Self::decode_into(self, token_ids, out)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        Self::has_media(self, token_ids)
    }
}

impl<T: BlockText> BlockText for Arc<T> {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        T::decode_into(self, token_ids, out)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        T::has_media(self, token_ids)
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

impl<T: BlockText> Naming<T> {
    /// Puts a block's text into `out`, in place of what was there.
    pub(super) fn read(
        &self,
        token_ids: &[u32],
        is_opaque: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), BatchOutcome> {
        let Some(text) = &self.text else { return Err(BatchOutcome::NoText) };
        if is_opaque || text.has_media(token_ids) {
            return Err(BatchOutcome::NotText);
        }
        out.clear();
        if !text.decode_into(token_ids, out) {
            return Err(BatchOutcome::NoText);
        }
        let is_sound = (1..=BLOCK_BYTES_MAX).contains(&out.len());
        if is_sound { Ok(()) } else { Err(BatchOutcome::BlockLength) }
    }
}
