//! The blocks of a rank on their way into a snapshot and out of it.

use crate::ledger::{Ledger, LedgerCopy};
use forebay_snapshot::Link;

/// Most groups of a rank that are remembered; models have a handful at most.
pub(crate) const GROUPS_MAX: usize = 16;

/// Attention groups of a rank as reported in its stores, at most [`GROUPS_MAX`] of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Groups that keep whole prefixes; `u32::MAX` for events without a group.
    pub whole: Vec<u32>,
    /// Groups that keep a window or a state only.
    pub forgetful: Vec<u32>,
}

/// A copy of a rank's blocks, for a snapshot.
#[derive(Clone, Debug)]
pub struct BlocksCopy {
    pub kept: LedgerCopy,
    /// Trees in use, a bit each.
    pub trees: u8,
    pub groups: Groups,
    /// Links of the blocks stored last, which the index may not have received yet.
    pub recent: Vec<Link>,
}

/// The blocks of a rank from before a restart. The operations that store them in the index come
/// separately, see [`super::restore_builder`].
#[derive(Debug, Default)]
pub struct RestoredBlocks {
    pub(crate) ledger: Ledger,
    pub(crate) trees: u8,
    pub(crate) groups: Groups,
}

impl RestoredBlocks {
    /// Blocks by the engine's hash.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ledger.len()
    }

    /// True if there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ledger.len() == 0
    }
}
