//! Puts together what a rank held before a restart: its entries from the snapshot, each with its
//! block from the snapshot's links. Runs on the thread that reads the snapshot.
//!
//! An entry whose block is not among the links (it was under change when the snapshot was taken) is
//! left out, a miss. Its children stay, without what leads to them.

use super::ledger::{EntryState, Ledger, LedgerEntry};
use super::rank_copy::{Groups, RestoredBlocks};
use super::slice_ops::SliceOps;
use super::tier::{LowerTiers, TIERS, Tier};
use forebay_snapshot::{Link, Paths, SnapshotEntry};

/// Makes one rank's blocks again, entry by entry.
#[derive(Debug)]
pub struct Restoring<'a> {
    paths: &'a Paths,
    blocks: RestoredBlocks,
    /// Trees that hold the block at each place of the paths and of which the index has not been
    /// told.
    unposted: Vec<u8>,
    /// Places of the rank's blocks.
    places: Vec<u32>,
    lower_tiers: LowerTiers,
    entries_max: usize,
    shard_count: usize,
    left: Left,
}

/// Entries that were left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The rank may not track so many.
    pub over_limit: usize,
    /// Their block is not in the snapshot, or their path does not reach its first block and the
    /// index has another number of slices now.
    pub orphans: usize,
    /// No tier that counts has them.
    pub tiers: usize,
    /// Said twice, or too many of one key.
    pub odd: usize,
}

impl<'a> Restoring<'a> {
    /// Nothing yet. `trees` are those in use when the snapshot was taken, as far as their tiers
    /// still count.
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
            left: Left::default(),
        }
    }

    /// The rank's attention groups.
    pub fn groups(&mut self, groups: Groups) {
        self.blocks.groups = groups;
    }

    /// Takes all entries. If they are more than the rank may track, those near the roots come
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

    /// Takes the next entry.
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

    /// All blocks, what tells the index of them (a parent before its children), and what was left.
    #[must_use]
    pub fn finish(mut self) -> (RestoredBlocks, SliceOps, Left) {
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

    /// What tiers that count have stored.
    fn counted(&self, stores: [u32; TIERS]) -> [u32; TIERS] {
        let [device, host, disk] = stores;
        let of = |counts: bool, stores| if counts { stores } else { 0 };
        [device, of(self.lower_tiers.host, host), of(self.lower_tiers.disk, disk)]
    }
}

/// The tier nearest to the device that stored it.
fn lowest(stores: [u32; TIERS]) -> Option<Tier> {
    let mut tiers = Tier::ALL.into_iter().zip(stores);
    tiers.find(|(_, stores)| *stores > 0).map(|(tier, _)| tier)
}
