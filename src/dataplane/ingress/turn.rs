//! One turn of a task ends, though it could go on.

use forebay_net::end_turn;

/// Bytes that a task reads or writes at most before it lets others run. Sockets that are always
/// ready never make it wait.
const TURN_BYTES: usize = 32 * 1024;

/// So many bytes are copied in the time that it takes to read one.
const COPIES_PER_READ: usize = 4;

/// What a task has read or written since others had a turn.
#[derive(Debug, Default)]
pub struct Turn {
    bytes: usize,
}

impl Turn {
    /// Counts more; past [`TURN_BYTES`], others have a turn.
    pub async fn spend(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TURN_BYTES {
            self.bytes = 0;
            end_turn().await;
        }
    }

    /// The same for bytes that the kernel only copied.
    pub async fn copied(&mut self, bytes: usize) {
        self.spend(bytes / COPIES_PER_READ).await;
    }
}
