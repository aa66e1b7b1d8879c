//! [`RankBlocks`](super::RankBlocks) of hybrid models: which blocks windows hold.

use super::super::naming::BlockText;
use super::super::slice_ops::SliceOps;
use super::super::tier::Tier;
use super::super::windows::Resume;
use super::{HeldEntry, RankBlocks};
use forebay_index::BlockKey;
use forebay_kv_decode::Stored;

impl<T: BlockText> RankBlocks<T> {
    /// Where the rank can resume a prompt that it holds.
    #[must_use]
    pub fn resume(&self) -> Resume {
        self.windows.resume(self.device_block_tokens)
    }

    /// A group that does not see whole prefixes has stored blocks on the device.
    pub(super) fn window_stored(&mut self, event: &Stored<'_>, group: u32, ops: &mut SliceOps) {
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
            let entries_max = self.entries_max.saturating_sub(self.held.len());
            let windows = self.windows.store(group, hash, entries_max);
            // A block whose prefix is not known yet joins its windows with that.
            if let Some(entry) = self.on_device(hash).filter(|_| windows != 0) {
                ops.hold(windows, entry.state.slice(), entry.key);
            }
        }
    }

    /// Such a group has removed blocks from the device.
    pub(super) fn window_removed(&mut self, hashes: &[u64], group: u32, ops: &mut SliceOps) {
        for &hash in hashes {
            let windows = self.windows.remove(group, hash);
            self.release(windows, hash, ops);
        }
    }

    /// An entry has left the device: windows hold its block no more, but for other entries with the
    /// same text.
    pub(super) fn left_device(&self, before: HeldEntry, ops: &mut SliceOps) {
        let told = self.windows.told();
        if told != 0 {
            let left = told & !self.windows_of(before.key);
            ops.release(left, before.state.slice(), before.key);
        }
    }

    /// Those windows hold that hash no more.
    fn release(&self, windows: u8, hash: u64, ops: &mut SliceOps) {
        if let Some(entry) = self.on_device(hash).filter(|_| windows != 0) {
            let left = windows & !self.windows_of(entry.key);
            ops.release(left, entry.state.slice(), entry.key);
        }
    }

    /// The windows that hold a key: one text may have several hashes, as it has several
    /// tokenizations.
    fn windows_of(&self, key: BlockKey) -> u8 {
        let on_device = |entry: &HeldEntry| entry.state.trees() & Tier::Device.bit() != 0;
        let entries = self.held.same_key(key).filter(on_device);
        entries.fold(0, |all, entry| {
            let groups = self.groups.whole.iter();
            groups.fold(all, |all, group| all | self.windows.of(self.hash_of(entry.id, *group)))
        })
    }

    /// The block of that hash, if the device has it in a group that sees whole prefixes.
    fn on_device(&self, hash: u64) -> Option<HeldEntry> {
        let whole = self.groups.whole.iter();
        let found = whole.filter_map(|group| self.held.get(self.id(hash, *group)));
        found.into_iter().find(|entry| entry.state.trees() & Tier::Device.bit() != 0)
    }
}
