//! Sizes of feeds and outcomes of their blocks, for gauges and counters.

use crate::paths::tier::TIERS;

/// Counts and memory of a rank's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedSize {
    /// Blocks by engine hash and group.
    pub blocks: usize,
    /// Blocks of each tier; a block may be in several.
    pub tier_blocks: [usize; TIERS],
    /// Blocks that wait for their parent.
    pub orphans: usize,
    pub bytes: usize,
}

/// Blocks that expired in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryTurn {
    pub tier_blocks: [u64; TIERS],
    /// False if more blocks may be expired.
    pub is_done: bool,
}

/// Orphans that have ceased to wait, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanOutcomes {
    /// The parent was stored.
    pub applied: usize,
    /// There was no room, the rank was cleared, or the orphan waited too long.
    pub dropped: usize,
    /// The engine removed the orphan.
    pub removed: usize,
}
