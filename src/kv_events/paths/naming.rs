//! Turns a rank's tokens into bytes, keys and slices of the index.

use crate::outcome::BatchOutcome;
use forebay_base::ShardIndex;
use forebay_base::limits::BLOCK_BYTES_MAX;
use forebay_index::{BlockKey, KeySeed};
use forebay_kv_decode::ImagesOfBlock;
use std::sync::Arc;

/// Decodes token ids to the bytes that prompts are matched by.
pub trait BlockText {
    /// Appends the bytes of the tokens; false for an unknown id.
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool;

    /// True if a token is a placeholder for an image, sound or the like: equal tokens then do not
    /// mean equal content.
    fn has_media(&self, _token_ids: &[u32]) -> bool {
        false
    }

    /// The same as `decode_into` for a block with these images; false if an image does not fit the
    /// tokens.
    fn decode_images(
        &self,
        _token_ids: &[u32],
        _images: NamedImages<'_, '_>,
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }
}

/// Images in a block: name and first token, counted from the block's first token.
pub type NamedImages<'i, 'a> = &'i mut (dyn Iterator<Item = (&'a str, i32)> + 'i);

impl BlockText for forebay_text::Vocabulary {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        Self::decode_into(self, token_ids, out)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        Self::has_media(self, token_ids)
    }

    fn decode_images(
        &self,
        token_ids: &[u32],
        images: NamedImages<'_, '_>,
        out: &mut Vec<u8>,
    ) -> bool {
        Self::decode_images(self, token_ids, images, out)
    }
}

impl<T: BlockText> BlockText for Arc<T> {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        T::decode_into(self, token_ids, out)
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        T::has_media(self, token_ids)
    }

    fn decode_images(
        &self,
        token_ids: &[u32],
        images: NamedImages<'_, '_>,
        out: &mut Vec<u8>,
    ) -> bool {
        T::decode_images(self, token_ids, images, out)
    }
}

/// Inputs to the keys and slices of a rank's blocks.
#[derive(Debug)]
pub struct Naming<T> {
    pub seed: KeySeed,
    /// Model name in the root of the rank's blocks.
    pub model: Arc<str>,
    /// Decoder of token ids; `None` leaves every block unmatched.
    pub text: Option<T>,
    /// Slice that owns paths with that first block.
    pub slice_of: fn(BlockKey, usize) -> ShardIndex,
    /// Number of shards, each of which owns a slice.
    pub shard_count: usize,
}

impl<T: BlockText> Naming<T> {
    /// Replaces `out` by a block's text, which is empty for a block inside of an image.
    pub(crate) fn read(
        &self,
        token_ids: &[u32],
        is_opaque: bool,
        mut images: ImagesOfBlock<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), BatchOutcome> {
        let Some(text) = &self.text else { return Err(BatchOutcome::NoText) };
        out.clear();
        if is_opaque {
            return Err(BatchOutcome::NotText);
        }
        if !images.is_empty() {
            let is_text = text.decode_images(token_ids, &mut images, out);
            let is_sound = out.len() <= BLOCK_BYTES_MAX;
            return if is_text && is_sound { Ok(()) } else { Err(BatchOutcome::NotText) };
        }
        if text.has_media(token_ids) {
            return Err(BatchOutcome::NotText);
        }
        if !text.decode_into(token_ids, out) {
            return Err(BatchOutcome::NoText);
        }
        let is_sound = (1..=BLOCK_BYTES_MAX).contains(&out.len());
        if is_sound { Ok(()) } else { Err(BatchOutcome::BlockLength) }
    }
}
