//! Part of a prompt that a rank holds.

use forebay_base::limits::IMAGE_FILL;

/// Part of a prompt, counted from its start, that a rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Whole KV blocks.
    pub blocks: u32,
    /// Bytes of rendered prompt text in these blocks.
    pub bytes: u32,
}

impl Overlap {
    /// Blocks that an engine serves from its cache: it always computes the last token of a prompt
    /// itself (vLLM: at most `floor((n-1)/B)` blocks). `whole_bytes`: see [`whole_bytes`].
    #[must_use]
    pub fn servable_blocks(self, whole_bytes: usize) -> u32 {
        let whole = usize::try_from(self.bytes).is_ok_and(|bytes| bytes >= whole_bytes);
        self.blocks.saturating_sub(u32::from(whole))
    }
}

/// Bytes of an overlap that covers the whole prompt, so that the engine computes its last block
/// again. For a prompt that ends in an image, no overlap is known to cover it: the last blocks have
/// no bytes, and only the engine knows their number. Mostly the image ends in a partial block.
#[must_use]
pub fn whole_bytes(text: &[u8], has_images: bool) -> usize {
    let ends_in_image = has_images && text.last() == Some(&IMAGE_FILL);
    if ends_in_image { usize::MAX } else { text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_of_a_prompt_is_computed_unless_it_may_not_be_the_last() {
        let held = |bytes| Overlap { blocks: 3, bytes };
        let image = [b'a', b'b', IMAGE_FILL];
        assert_eq!(held(3).servable_blocks(whole_bytes(b"abc", true)), 2);
        assert_eq!(held(2).servable_blocks(whole_bytes(b"abc", true)), 3);
        assert_eq!(held(3).servable_blocks(whole_bytes(&image, true)), 3, "more may follow");
        assert_eq!(held(3).servable_blocks(whole_bytes(&image, false)), 2, "half a character");
        assert_eq!(Overlap::default().servable_blocks(whole_bytes(b"", false)), 0);
    }
}
