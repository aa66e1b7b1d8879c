//! How a rank's tokens become the bytes, keys and slices of the index.

use super::outcome::BatchOutcome;
use forebay_base::ShardIndex;
use forebay_base::limits::BLOCK_BYTES_MAX;
use forebay_index::{BlockKey, KeySeed};
use forebay_kv_decode::ImagesOfBlock;
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

    /// The same as `decode_into` for a block with these images; false if one of them cannot be
    /// followed.
    fn decode_images(
        &self,
        _token_ids: &[u32],
        _images: NamedImages<'_, '_>,
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }
}

/// Images in a block, by name and by where they begin, counted from its first token.
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
    /// Puts a block's text into `out`, in place of what was there. Empty for a block inside of an
    /// image.
    pub(super) fn read(
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
