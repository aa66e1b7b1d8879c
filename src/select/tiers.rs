//! What blocks in a rank's lower tiers are worth: bringing them back takes time too, but less than
//! computing them.

use forebay_base::RankIndex;
use forebay_config::KvConfig;
use forebay_fleet::worker::{FleetSnapshot, TierRanks};
use forebay_index::{Overlap, Overlaps};

/// What one rank has of a prompt, by the farthest tier that is needed for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierOverlaps {
    /// On the device.
    pub device: Overlap,
    /// On the device or the host; at least as much.
    pub host: Overlap,
    /// On the device, the host or a disk; at least as much.
    pub disk: Overlap,
}

impl TierOverlaps {
    /// From what a walk found for the rank and for its tiers.
    #[must_use]
    pub fn of(rank: RankIndex, tiers: TierRanks, found: &Overlaps) -> Self {
        let at =
            |number: Option<RankIndex>| number.map_or_else(Overlap::default, |at| found.get(at));
        // Nested by definition, but read one after the other while they change. The device may seem
        // to hold more than the tier behind it.
        let longer = |a: Overlap, b: Overlap| if b.bytes > a.bytes { b } else { a };
        let device = found.get(tiers.point().unwrap_or(rank));
        let host = longer(device, at(tiers.host));
        Self { device, host, disk: longer(host, at(tiers.disk)) }
    }

    /// Bytes on the device that would save as much work as all of it does.
    #[must_use]
    pub fn worth(&self, config: KvConfig) -> Overlap {
        let share = |more: u32, less: u32, percent: u32| {
            let bytes = u64::from(more.saturating_sub(less)) * u64::from(percent.min(100)) / 100;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let host = share(self.host.bytes, self.device.bytes, config.host_credit_percent);
        let disk = share(self.disk.bytes, self.host.bytes, config.disk_credit_percent);
        let bytes = self.device.bytes.saturating_add(host).saturating_add(disk);
        let most = self.device.bytes.max(self.host.bytes).max(self.disk.bytes);
        debug_assert!((self.device.bytes..=most).contains(&bytes), "{bytes} of {self:?}");
        Overlap { bytes, ..self.device }
    }
}

/// Records what each of the ranks holds, tiers weighed, from what a walk found. False if no lower
/// tier holds any of it: `out` has only what `found` has.
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
    // A fleet that never offloads, of models without windows, pays nothing here.
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

    const CONFIG: KvConfig =
        KvConfig { host_credit_percent: 80, disk_credit_percent: 30, tier_ttl: Duration::ZERO };
    const TIERS: TierRanks = TierRanks {
        host: Some(RankIndex(9)),
        disk: Some(RankIndex(8)),
        windows: [None; forebay_index::WINDOWS_MAX],
        is_bound: false,
    };

    fn found(bytes: [(u16, u32); 3]) -> Overlaps {
        let mut found = Overlaps::new(10);
        for (rank, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            found.record(RankIndex(rank), Overlap { blocks: bytes / 10, bytes });
        }
        found
    }

    fn worth(device: u32, host: u32, disk: u32, config: KvConfig) -> u32 {
        let found = found([(0, device), (9, host), (8, disk)]);
        TierOverlaps::of(RankIndex(0), TIERS, &found).worth(config).bytes
    }

    #[test]
    fn farther_tiers_are_worth_less() {
        assert_eq!(worth(100, 0, 0, CONFIG), 100);
        assert_eq!(worth(100, 200, 0, CONFIG), 180);
        assert_eq!(worth(0, 200, 300, CONFIG), 160 + 30);
        assert_eq!(worth(100, 200, 300, CONFIG), 100 + 80 + 30);
        // The trees are read one after the other, while they change: the device may seem to hold
        // more.
        assert_eq!(worth(300, 200, 100, CONFIG), 300);
        let off =
            KvConfig { host_credit_percent: 0, disk_credit_percent: 0, tier_ttl: Duration::ZERO };
        assert_eq!(worth(100, 200, 300, off), 100);
        let all = KvConfig {
            host_credit_percent: 100,
            disk_credit_percent: 100,
            tier_ttl: Duration::ZERO,
        };
        assert_eq!(worth(0, 200, u32::MAX, all), u32::MAX);
    }
}
