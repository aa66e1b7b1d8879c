//! Part of a prompt that one rank holds.

/// Part of a prompt, counted from its start, that one rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Whole KV blocks.
    pub blocks: u32,
    /// Bytes of rendered prompt text in them.
    pub bytes: u32,
}

impl Overlap {
    /// Blocks that an engine serves from its cache: it always computes the last token of a prompt
    /// itself (vLLM: at most `floor((n-1)/B)` blocks).
    #[must_use]
    pub fn servable_blocks(self, prompt_bytes: usize) -> u32 {
        let whole = usize::try_from(self.bytes).is_ok_and(|bytes| bytes >= prompt_bytes);
        self.blocks.saturating_sub(u32::from(whole))
    }
}
