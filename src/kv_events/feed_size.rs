//! How much feeds hold, for gauges and counters.

use super::tier::TIERS;

/// How much a rank's state is, for gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedSize {
    /// Blocks known by the engine's hash.
    pub blocks: usize,
    /// Those of each tier; a block may be in several.
    pub tier_blocks: [usize; TIERS],
    /// Blocks that wait for their parent.
    pub orphans: usize,
    /// Memory of all this.
    pub bytes: usize,
}

/// Blocks that left tiers without removals by their age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryTurn {
    /// By tier.
    pub tier_blocks: [u64; TIERS],
    /// False if there may be more.
    pub is_done: bool,
}

/// Orphans that ceased to wait, since the counts were taken last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanOutcomes {
    /// Their parent came.
    pub applied: usize,
    /// There was no room, or their time was over with the stream's.
    pub dropped: usize,
    /// The engine removed them.
    pub removed: usize,
}
