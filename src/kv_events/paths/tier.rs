//! Storage tiers of a rank, nearest to the accelerator first, and their trees in the index. The
//! first tree has the blocks of the device, the second the blocks of the device or the host, the
//! third the blocks of any tier.

use forebay_base::RankIndex;
use forebay_kv_decode::Medium;
use std::time::Duration;

/// Number of tiers, and of their trees.
pub(crate) const TIERS: usize = 3;
/// All trees, a bit each.
pub(crate) const ALL_TREES: u8 = (1 << TIERS) - 1;

/// Assigns the numbers by which the index knows the lower tiers and windows of ranks.
pub trait TierNumbers: std::fmt::Debug {
    /// The number, always the same for a rank and tree. `None` when there is no room for another.
    fn number(&self, rank: RankIndex, tree: Tree) -> Option<RankIndex>;
}

/// A tree of a rank in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// Blocks of a tier or a nearer tier.
    Tier(Tier),
    /// Blocks of a window, by its place among the rank's windows.
    Window(usize),
    /// Blocks of the second size, where the device has blocks of two sizes.
    Odd,
}

/// A storage tier of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The memory of the accelerator.
    Device,
    /// The memory of the host.
    Host,
    /// Disks and stores of files or objects.
    Disk,
}

impl Tier {
    /// All tiers, nearest to the accelerator first.
    pub const ALL: [Self; TIERS] = [Self::Device, Self::Host, Self::Disk];

    /// Position in [`Tier::ALL`], and of the tier's tree.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Trees that contain the blocks of this tier, a bit each: its own tree and later trees.
    pub(crate) const fn trees(self) -> u8 {
        ALL_TREES & (u8::MAX << self as u32)
    }

    /// The bit of the tier's own tree.
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u32
    }

    /// Label value in metrics.
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
    pub host: bool,
    pub disk: bool,
    /// Time to live of a block in a lower tier without removal events; 0 is without end.
    pub ttl: Duration,
}

impl LowerTiers {
    /// The tier of a medium, if it counts. A medium of an uncertain kind does not count.
    pub(crate) fn tier_of(self, medium: Medium) -> Option<Tier> {
        match medium {
            Medium::Device => Some(Tier::Device),
            Medium::Host if self.host => Some(Tier::Host),
            Medium::Disk if self.disk => Some(Tier::Disk),
            Medium::Host | Medium::Disk | Medium::Shared | Medium::Unknown => None,
        }
    }
}
