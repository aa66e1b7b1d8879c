//! Buffer for the texts of a shard's prompts, reused from prompt to prompt.

use super::io::Io;
use forebay_base::limits::{READ_BYTES, TEXT_BUFFER_BYTES_MAX};
use std::cell::Cell;

/// Held the text of the last long prompt. The next text reuses it while it is in the CPU caches.
#[derive(Default)]
pub(crate) struct PromptText(Cell<Vec<u8>>);

impl PromptText {
    /// Buffer for the text of a prompt with a body of `body_bytes`.
    pub(crate) fn take(&self, io: &Io, body_bytes: usize) -> Vec<u8> {
        // A template adds less than the JSON syntax that it drops, except for short bodies.
        if body_bytes <= READ_BYTES / 2 {
            return io.buffers.take();
        }
        let stored = self.0.take();
        if stored.capacity() > body_bytes {
            return stored;
        }
        // Allocate rather than grow: growing would copy the old text.
        Vec::with_capacity(body_bytes.saturating_add(READ_BYTES))
    }

    /// Returns the buffer of a prompt.
    pub(crate) fn give(&self, io: &Io, buffer: Vec<u8>) {
        if buffer.capacity() <= READ_BYTES || buffer.capacity() > TEXT_BUFFER_BYTES_MAX {
            return io.recycle(buffer);
        }
        debug_assert!(buffer.is_empty(), "the next text would begin with this one");
        let stored = self.0.take();
        let is_larger = buffer.capacity() > stored.capacity();
        self.0.set(if is_larger { buffer } else { stored });
    }
}
