//! Worth of blocks in a rank's lower tiers: loading them takes time too, but less than computing
//! them.

use forebay_base::RankIndex;
use forebay_config::KvConfig;
use forebay_fleet::worker::{FleetSnapshot, TierRanks};
use forebay_index::{Overlap, Overlaps};

/// Overlaps of a rank with a prompt, by the farthest tier needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierOverlaps {
    /// Blocks on the device.
    pub device: Overlap,
    /// Blocks on the device or the host; at least as much.
    pub host: Overlap,
    /// Blocks on the device, the host or a disk; at least as much.
    pub disk: Overlap,
    /// The longer of `disk` and the pool's own overlap. The pool's overlap has to begin in the
    /// pool: pool blocks that continue the rank's own blocks are not counted.
    pub kv_pool: Overlap,
}

impl TierOverlaps {
    /// From the overlaps that a walk found for the rank and its tiers.
    #[must_use]
    pub fn of(rank: RankIndex, tiers: TierRanks, found: &Overlaps) -> Self {
        let at =
            |number: Option<RankIndex>| number.map_or_else(Overlap::default, |at| found.get(at));
        // Nested by definition, but read in sequence while they change: the device may appear to
        // hold more than the tier behind it.
        let longer = |a: Overlap, b: Overlap| if b.bytes > a.bytes { b } else { a };
        let device = found.get(tiers.point().unwrap_or(rank));
        let host = longer(device, at(tiers.host));
        let disk = longer(host, at(tiers.disk));
        Self { device, host, disk, kv_pool: longer(disk, at(tiers.kv_pool)) }
    }

    /// Equivalent overlap on the device: saves as much work as all tiers together.
    #[must_use]
    pub fn worth(&self, config: KvConfig) -> Overlap {
        let share = |more: u32, less: u32, percent: u32| {
            let bytes = u64::from(more.saturating_sub(less)) * u64::from(percent.min(100)) / 100;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let host = share(self.host.bytes, self.device.bytes, config.host_credit_percent);
        let disk = share(self.disk.bytes, self.host.bytes, config.disk_credit_percent);
        let pool = share(self.kv_pool.bytes, self.disk.bytes, config.pool_credit_percent);
        let own = self.device.bytes.saturating_add(host).saturating_add(disk);
        let bytes = own.saturating_add(pool);
        let most = self.device.bytes.max(self.host.bytes).max(self.kv_pool.bytes);
        debug_assert!((self.device.bytes..=most).contains(&bytes), "{bytes} of {self:?}");
        Overlap { bytes, ..self.device }
    }
}

/// Records the overlap of each rank, with its tiers weighed. False if no lower tier has any
/// overlap: `out` then equals `found`.
pub fn weigh_tiers(
    fleet: &FleetSnapshot,
    ranks: &[RankIndex],
    config: KvConfig,
    found: &Overlaps,
    out: &mut Overlaps,
) -> bool {
    let rank_of = |rank: RankIndex| fleet.ranks.get(rank.index());
    let mut any_tier = false;
    for (rank, overlap) in found.iter_held() {
        match rank_of(rank) {
            Some(known) if known.tiers.point().is_some() => any_tier = true,
            Some(_) => out.record(rank, overlap),
            None => any_tier = true,
        }
    }
    // No cost for a fleet without offloading and without models with windows.
    if !any_tier {
        return false;
    }
    for &index in ranks {
        let Some(rank) = fleet.ranks.get(index.index()) else { continue };
        if rank.tiers == TierRanks::default() {
            continue;
        }
        let worth = TierOverlaps::of(index, rank.tiers, found).worth(config);
        if worth.bytes > 0 {
            out.record(index, worth);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const CONFIG: KvConfig = KvConfig {
        host_credit_percent: 80,
        disk_credit_percent: 30,
        pool_credit_percent: 50,
        tier_ttl: Duration::ZERO,
    };
    const TIERS: TierRanks = TierRanks {
        host: Some(RankIndex(9)),
        disk: Some(RankIndex(8)),
        kv_pool: Some(RankIndex(7)),
        windows: [None; forebay_index::WINDOWS_MAX],
        is_bound: false,
        finer_tokens: 0,
        odd: None,
        aligned_tokens: 0,
    };

    fn found(bytes: [(u16, u32); 4]) -> Overlaps {
        let mut found = Overlaps::new(10);
        for (rank, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            found.record(RankIndex(rank), Overlap { blocks: bytes / 10, bytes });
        }
        found
    }

    fn worth(device: u32, host: u32, disk: u32, config: KvConfig) -> u32 {
        let found = found([(0, device), (9, host), (8, disk), (7, 0)]);
        TierOverlaps::of(RankIndex(0), TIERS, &found).worth(config).bytes
    }

    #[test]
    fn farther_tiers_are_worth_less() {
        assert_eq!(worth(100, 0, 0, CONFIG), 100);
        assert_eq!(worth(100, 200, 0, CONFIG), 180);
        assert_eq!(worth(0, 200, 300, CONFIG), 160 + 30);
        assert_eq!(worth(100, 200, 300, CONFIG), 100 + 80 + 30);
        // The trees are read in sequence while they change: the device may appear to hold more.
        assert_eq!(worth(300, 200, 100, CONFIG), 300);
        let with = |percent| KvConfig {
            host_credit_percent: percent,
            disk_credit_percent: percent,
            pool_credit_percent: percent,
            tier_ttl: Duration::ZERO,
        };
        assert_eq!(worth(100, 200, 300, with(0)), 100);
        assert_eq!(worth(0, 200, u32::MAX, with(100)), u32::MAX);
    }

    /// Rank 0 wrote into the pool, rank 1 did not; both can read it.
    #[test]
    fn what_is_in_the_pool_counts_for_each_of_its_ranks() {
        let found = found([(0, 100), (9, 200), (1, 50), (7, 300)]);
        let of_pool = TierRanks { kv_pool: TIERS.kv_pool, ..TierRanks::default() };
        let worth = |rank, tiers| TierOverlaps::of(RankIndex(rank), tiers, &found).worth(CONFIG);
        assert_eq!(worth(0, TIERS).bytes, 100 + 80 + 50);
        assert_eq!(worth(1, of_pool).bytes, 50 + 125);
        assert_eq!(worth(2, of_pool).bytes, 150, "nothing of its own");
        assert_eq!(worth(1, TierRanks::default()).bytes, 50, "outside of the pool");
        let short = super::tests::found([(0, 100), (9, 0), (1, 0), (7, 80)]);
        let held = TierOverlaps::of(RankIndex(0), of_pool, &short);
        assert_eq!((held.kv_pool.bytes, held.worth(CONFIG).bytes), (100, 100));
    }
}
