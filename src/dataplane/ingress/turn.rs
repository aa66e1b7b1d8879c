//! Yields of a task that could continue.

use forebay_net::end_turn;

/// Bytes that a task may read or write before it yields to other tasks. Sockets that are always
/// ready never make it wait.
const TURN_BYTES: usize = 32 * 1024;

/// Bytes copied in the time of reading a byte.
const COPIES_PER_READ: usize = 4;

/// Bytes that a task has read or written since its last yield.
#[derive(Debug, Default)]
pub struct Turn {
    bytes: usize,
}

impl Turn {
    /// Counts bytes; yields at [`TURN_BYTES`].
    pub async fn spend(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TURN_BYTES {
            self.bytes = 0;
            end_turn().await;
        }
    }

    /// Counts bytes that the kernel only copied.
    pub async fn copied(&mut self, bytes: usize) {
        self.spend(bytes / COPIES_PER_READ).await;
    }
}
