//! What a rank holds, on its way into a snapshot and out of one.

use super::held::{HeldBlocks, Kept};
use forebay_snapshot::Link;

/// Groups of a rank that are remembered; models have one to a handful.
pub(super) const GROUPS_MAX: usize = 16;

/// Attention groups as their stores tell; further ones than the most are not remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Those that keep whole prefixes; `u32::MAX` for events that name none.
    pub whole: Vec<u32>,
    /// Those that forget.
    pub forgetful: Vec<u32>,
}

/// A copy of what a rank holds, for a snapshot.
#[derive(Clone, Debug)]
pub struct KeptBlocks {
    /// The blocks.
    pub kept: Kept,
    /// Trees in use, one bit each.
    pub trees: u8,
    /// Its attention groups.
    pub groups: Groups,
    /// Where the blocks that came last belong, of which the index may not have been told yet.
    pub recent: Vec<Link>,
}

/// What a rank held before a restart. The operations that tell the index come with it.
#[derive(Debug, Default)]
pub struct RestoredBlocks {
    pub(super) held: HeldBlocks,
    pub(super) trees: u8,
    pub(super) groups: Groups,
}

impl RestoredBlocks {
    /// Blocks by the engine's hash.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.len() == 0
    }
}
