//! Rebuilds the blocks of a rank after a restart from the entries and the links of a snapshot. Runs
//! on the thread that reads the snapshot.
//!
//! An entry without a link (the block changed while the snapshot was taken) is left out, which
//! costs a miss. Children of that block stay, without the path to them.

use super::rank_copy::{Groups, RestoredBlocks};
use crate::ledger::{EntryState, Ledger, LedgerEntry};
use crate::paths::slice_ops::SliceOps;
use crate::paths::tier::{LowerTiers, TIERS, Tier};
use forebay_snapshot::{Link, Paths, SnapshotEntry};

/// Rebuilds a rank's blocks, entry by entry.
#[derive(Debug)]
pub struct RestoreBuilder<'a> {
    paths: &'a Paths,
    blocks: RestoredBlocks,
    /// For each place of the paths, trees that contain the block and have no operation yet.
    unposted: Vec<u8>,
    /// Places of the rank's blocks in the paths.
    places: Vec<u32>,
    lower_tiers: LowerTiers,
    entries_max: usize,
    shard_count: usize,
    left: OmittedEntries,
}

/// Entries that were left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedEntries {
    /// The rank is at its limit of tracked blocks.
    pub over_limit: usize,
    /// The snapshot lacks the block; or the path does not reach its first block, and the number of
    /// slices has changed.
    pub orphans: usize,
    /// No tier that counts has stored the entry.
    pub tiers: usize,
    /// The entry appears twice, or its key has too many entries.
    pub odd: usize,
}

impl<'a> RestoreBuilder<'a> {
    /// A builder without entries. `trees` are the trees of the snapshot; trees of tiers that do not
    /// count any more are left out.
    #[must_use]
    pub fn new(
        paths: &'a Paths,
        shard_count: usize,
        lower_tiers: LowerTiers,
        trees: u8,
        entries_max: usize,
    ) -> Self {
        let counts = |tier: &Tier| match tier {
            Tier::Device => true,
            Tier::Host => lower_tiers.host,
            Tier::Disk => lower_tiers.disk,
        };
        let counted = Tier::ALL.iter().filter(|tier| counts(tier)).fold(0, |all, t| all | t.bit());
        let trees = (trees | Tier::Device.bit()) & counted;
        Self {
            paths,
            blocks: RestoredBlocks {
                trees,
                ledger: Ledger::expiring(lower_tiers.ttl),
                ..RestoredBlocks::default()
            },
            unposted: vec![0; paths.len()],
            places: Vec::new(),
            lower_tiers,
            entries_max,
            shard_count,
            left: OmittedEntries::default(),
        }
    }

    /// Sets the rank's attention groups.
    pub fn groups(&mut self, groups: Groups) {
        self.blocks.groups = groups;
    }

    /// Adds all entries. If there are more than the rank may track, entries near the roots go
    /// first.
    pub fn add_all(&mut self, mut entries: Vec<SnapshotEntry>) {
        if entries.len() > self.entries_max {
            let depths = self.paths.depths();
            let depth =
                |entry: &SnapshotEntry| self.paths.find(entry.key).and_then(|at| depths.get(at));
            entries.sort_by_cached_key(|entry| depth(entry).copied().unwrap_or(u32::MAX));
        }
        entries.iter().for_each(|entry| self.add(entry));
    }

    /// Adds an entry, or counts why not.
    pub fn add(&mut self, entry: &SnapshotEntry) {
        let stores = self.counted(entry.stores);
        let Some(lowest) = lowest(stores) else {
            self.left.tiers += 1;
            return;
        };
        if self.blocks.len() >= self.entries_max {
            self.left.over_limit += 1;
            return;
        }
        let place = self.paths.find(entry.key);
        let link = place.and_then(|at| self.paths.link(at));
        let link = link.filter(|link| link.slice.index() < self.shard_count);
        let (Some(at), Some(link)) = (place, link) else {
            self.left.orphans += 1;
            return;
        };
        let trees = lowest.trees() & self.blocks.trees;
        let state = EntryState::new(link.slice, trees);
        if !self.blocks.ledger.restore(LedgerEntry { id: entry.id, key: entry.key, state }, stores)
        {
            self.left.odd += 1;
            return;
        }
        if let (Some(unposted), Ok(at)) = (self.unposted.get_mut(at), u32::try_from(at)) {
            if *unposted == 0 {
                self.places.push(at);
            }
            *unposted |= trees;
        }
    }

    /// The blocks, the operations that store them in the index (a parent before its children), and
    /// the counts of entries left out.
    #[must_use]
    pub fn finish(mut self) -> (RestoredBlocks, SliceOps, OmittedEntries) {
        let mut ops = SliceOps::new(self.shard_count);
        let mut path: Vec<(Link, u8)> = Vec::new();
        for place in std::mem::take(&mut self.places) {
            let mut next = usize::try_from(place).ok();
            while let Some(at) = next {
                let trees = self.unposted.get_mut(at).map_or(0, std::mem::take);
                let Some(link) = self.paths.link(at).filter(|_| trees != 0) else { break };
                path.push((link, trees));
                next = self.paths.before(at);
            }
            for (link, trees) in path.drain(..).rev() {
                ops.store(trees, link.slice, link.parent, (link.key, link.block_bytes));
            }
        }
        (self.blocks, ops, self.left)
    }

    /// The stores of tiers that count.
    fn counted(&self, stores: [u32; TIERS]) -> [u32; TIERS] {
        let [device, host, disk] = stores;
        let of = |counts: bool, stores| if counts { stores } else { 0 };
        [device, of(self.lower_tiers.host, host), of(self.lower_tiers.disk, disk)]
    }
}

/// The tier nearest to the device with a store.
fn lowest(stores: [u32; TIERS]) -> Option<Tier> {
    let mut tiers = Tier::ALL.into_iter().zip(stores);
    tiers.find(|(_, stores)| *stores > 0).map(|(tier, _)| tier)
}
