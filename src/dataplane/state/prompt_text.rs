//! The buffer that the texts of a shard's prompts are written into, one after the other.

use super::io::Io;
use forebay_base::limits::{READ_BYTES, TEXT_BUFFER_BYTES_MAX};
use std::cell::Cell;

/// Had the text of the last long prompt. The next is written into it while it is in the caches.
#[derive(Default)]
pub(crate) struct PromptText(Cell<Vec<u8>>);

impl PromptText {
    /// A buffer for the text of a prompt, whose body has that length.
    pub(crate) fn take(&self, io: &Io, body_bytes: usize) -> Vec<u8> {
        // What a template adds is less than the JSON that it leaves out, but for short bodies.
        if body_bytes <= READ_BYTES / 2 {
            return io.buffers.take();
        }
        let kept = self.0.take();
        if kept.capacity() > body_bytes {
            return kept;
        }
        // Not grown: that would copy what was there before.
        Vec::with_capacity(body_bytes.saturating_add(READ_BYTES))
    }

    /// Takes the buffer of a prompt back.
    pub(crate) fn give(&self, io: &Io, buffer: Vec<u8>) {
        if buffer.capacity() <= READ_BYTES || buffer.capacity() > TEXT_BUFFER_BYTES_MAX {
            return io.recycle(buffer);
        }
        debug_assert!(buffer.is_empty(), "the next text would begin with this one");
        let kept = self.0.take();
        let is_larger = buffer.capacity() > kept.capacity();
        self.0.set(if is_larger { buffer } else { kept });
    }
}
