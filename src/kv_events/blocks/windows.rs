//! [`RankBlocks`](super::RankBlocks) of hybrid models: operations for the blocks of windows.

use super::super::paths::naming::BlockText;
use super::super::paths::size_mix::DeviceSizes;
use super::super::paths::slice_ops::SliceOps;
use super::super::paths::tier::Tier;
use super::super::paths::windows::Resume;
use super::{LedgerEntry, RankBlocks};
use forebay_index::BlockKey;
use forebay_kv_decode::BlockStored;

impl<T: BlockText> RankBlocks<T> {
    /// Blocks behind which the rank can resume a cached prompt.
    #[must_use]
    pub fn resume(&self) -> Resume {
        self.windows.resume(self.sizes.device_tokens)
    }

    /// Sizes of the blocks on the device.
    #[must_use]
    pub fn device_sizes(&self) -> DeviceSizes {
        self.sizes.sizes()
    }

    /// Applies a store to the device by a group that does not keep whole prefixes.
    pub(super) fn window_stored(
        &mut self,
        event: &BlockStored<'_>,
        group: u32,
        ops: &mut SliceOps,
    ) {
        let mut shrunk = Vec::new();
        let lessens = |windows, hash| shrunk.push((windows, hash));
        let counts = self.windows.meet(group, event.attention, event.block_size_tokens, lessens);
        for (windows, hash) in shrunk {
            self.release(windows, hash, ops);
        }
        if !counts {
            return;
        }
        for &hash in event.hashes {
            let entries_max = self.entries_max.saturating_sub(self.ledger.len());
            let windows = self.windows.store(group, hash, entries_max);
            // A block of an unknown prefix joins its windows once the prefix is known.
            if let Some(entry) = self.on_device(hash).filter(|_| windows != 0) {
                ops.hold(windows, entry.state.slice(), entry.key);
            }
        }
    }

    /// Applies a removal from the device by a group that does not keep whole prefixes.
    pub(super) fn window_removed(&mut self, hashes: &[u64], group: u32, ops: &mut SliceOps) {
        for &hash in hashes {
            let windows = self.windows.remove(group, hash);
            self.release(windows, hash, ops);
        }
    }

    /// Releases the windows of an entry that has left the device, except windows that still hold
    /// another entry with the same text.
    pub(super) fn left_device(&self, before: LedgerEntry, ops: &mut SliceOps) {
        let posted = self.windows.posted();
        if posted != 0 {
            let left = posted & !self.windows_of(before.key);
            ops.release(left, before.state.slice(), before.key);
        }
    }

    /// Releases the block of a hash from windows, given as bits.
    fn release(&self, windows: u8, hash: u64, ops: &mut SliceOps) {
        if let Some(entry) = self.on_device(hash).filter(|_| windows != 0) {
            let left = windows & !self.windows_of(entry.key);
            ops.release(left, entry.state.slice(), entry.key);
        }
    }

    /// The windows that hold a key. A text may have several hashes, because it may have several
    /// tokenizations.
    fn windows_of(&self, key: BlockKey) -> u8 {
        let on_device = |entry: &LedgerEntry| entry.state.trees() & Tier::Device.bit() != 0;
        let entries = self.ledger.same_key(key).filter(on_device);
        entries.fold(0, |all, entry| {
            let groups = self.groups.whole.iter();
            groups.fold(all, |all, group| all | self.windows.of(self.hash_of(entry.id, *group)))
        })
    }

    /// The entry of a hash, if the device holds it in a group that keeps whole prefixes.
    fn on_device(&self, hash: u64) -> Option<LedgerEntry> {
        let whole = self.groups.whole.iter();
        let found = whole.filter_map(|group| self.ledger.get(self.id(hash, *group)));
        found.into_iter().find(|entry| entry.state.trees() & Tier::Device.bit() != 0)
    }
}
