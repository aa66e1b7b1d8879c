//! A shard's own handle of the load board.

use super::LoadBoard;
use std::ops::Deref;
use std::sync::Arc;

/// The load board, as held by a shard. Each lease holds a clone, and the clone counts on a word of
/// this shard. Clones of the board's own [`Arc`] would write to a word that all cores share.
#[derive(Clone, Debug)]
#[expect(clippy::redundant_allocation, reason = "the outer count is the shard's own")]
pub struct ShardBoard(Arc<Arc<LoadBoard>>);

impl From<Arc<LoadBoard>> for ShardBoard {
    fn from(board: Arc<LoadBoard>) -> Self {
        Self(Arc::new(board))
    }
}

impl From<LoadBoard> for ShardBoard {
    fn from(board: LoadBoard) -> Self {
        Self::from(Arc::new(board))
    }
}

impl ShardBoard {
    /// The board itself, for the control plane.
    #[must_use]
    pub fn shared(&self) -> Arc<LoadBoard> {
        Arc::clone(&self.0)
    }
}

impl Deref for ShardBoard {
    type Target = LoadBoard;

    fn deref(&self) -> &LoadBoard {
        &self.0
    }
}
