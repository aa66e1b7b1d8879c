//! Storage tiers of a rank, nearest to the accelerator first, and the trees of the index that stand
//! for them: the first has what the device holds, the second what the device or the host holds, the
//! third what any of the three holds.

use forebay_base::RankIndex;
use forebay_kv_decode::Medium;
use std::time::Duration;

/// Tiers that are told apart.
pub(super) const TIERS: usize = 3;
/// One bit for each tree.
pub(super) const ALL_TREES: u8 = (1 << TIERS) - 1;

/// Gives ranks the numbers under which the index knows what their lower tiers and windows hold.
pub trait TierNumbers: std::fmt::Debug {
    /// The number; the same for the same rank and tree. `None` when there is no room for one more.
    fn number(&self, rank: RankIndex, tree: Tree) -> Option<RankIndex>;
}

/// A tree of the index that one rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// What a tier or a nearer one holds.
    Tier(Tier),
    /// What a window holds, by its place among the rank's windows.
    Window(usize),
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The accelerator's memory.
    Device,
    /// Memory of the host.
    Host,
    /// Disks and stores of files or objects.
    Disk,
}

impl Tier {
    /// All, with the tree of the same index: what this tier or a nearer one holds.
    pub const ALL: [Self; TIERS] = [Self::Device, Self::Host, Self::Disk];

    /// Position in [`Tier::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Trees that have what this tier holds, one bit each: its own and those behind it.
    pub(super) const fn trees(self) -> u8 {
        ALL_TREES & (u8::MAX << self as u32)
    }

    /// The bit of its own tree.
    pub(super) const fn bit(self) -> u8 {
        1 << self as u32
    }

    /// The word for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// Tiers that count beside the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerTiers {
    /// The host's memory.
    pub host: bool,
    /// Disks.
    pub disk: bool,
    /// How long a block counts in one of them that announces no removals; 0 means for ever.
    pub ttl: Duration,
}

impl LowerTiers {
    /// The tier that a medium is, if it counts. What is not known for sure counts for nothing.
    pub(super) fn tier_of(self, medium: Medium) -> Option<Tier> {
        match medium {
            Medium::Device => Some(Tier::Device),
            Medium::Host if self.host => Some(Tier::Host),
            Medium::Disk if self.disk => Some(Tier::Disk),
            Medium::Host | Medium::Disk | Medium::Shared | Medium::Unknown => None,
        }
    }
}
