//! All blocks of a slice, for a snapshot. Any thread, while the owner writes.

use super::{RunId, Table};
use crate::BlockKey;

/// Attempts to read a run before it is left out.
const READS_MAX: usize = 64;

impl Table {
    /// Calls `each` with parent, key and byte length of blocks, in any order. Includes every block
    /// that stays throughout, perhaps more than once. May include blocks that are added or removed
    /// meanwhile.
    pub(in super::super) fn visit(&self, each: &mut dyn FnMut(BlockKey, BlockKey, u16)) {
        let chunks = (0..).take_while(|chunk| self.runs.get(*chunk).is_some()).count();
        let runs = 1..chunks.saturating_mul(super::CHUNK_RUNS);
        let mut blocks = Vec::new();
        for run in runs.filter_map(|run| u32::try_from(run).ok()) {
            let read = (0..READS_MAX).any(|_| self.blocks_of(RunId(run), &mut blocks));
            if read {
                blocks.drain(..).for_each(|(parent, key, bytes)| each(parent, key, bytes));
            }
        }
    }

    /// Reads the blocks of a run into `blocks`; false if the run changed meanwhile.
    fn blocks_of(&self, run: RunId, blocks: &mut Vec<(BlockKey, BlockKey, u16)>) -> bool {
        blocks.clear();
        let Some(run) = self.run(run) else { return true };
        let Some(stamp) = run.read_begin() else { return false };
        let parent = self.run(run.parent()).filter(|_| run.parent() != RunId(0));
        let parent_stamp = match parent.map(super::run::Run::read_begin) {
            Some(None) => return false,
            Some(Some(stamp)) => Some(stamp),
            None => None,
        };
        let before = parent.map(|parent| self.key_at(parent, parent.block_count().wrapping_sub(1)));
        let mut before = before.and_then(BlockKey::from_word);
        for offset in 0..run.block_count() {
            let key = BlockKey::from_word(self.key_at(run, offset));
            let bytes = self.length_at(run, offset);
            // The first block of an unlisted run has neither parent nor length, and was never
            // stored itself: the snapshot cannot restore it.
            if let (Some(parent), Some(key), 1..) = (before, key, bytes) {
                blocks.push((parent, key, bytes));
            }
            before = key;
        }
        // The parent's last key was read too, so its stamp counts as well.
        let unchanged = parent.zip(parent_stamp).is_none_or(|(run, stamp)| run.read_end(stamp));
        run.read_end(stamp) && unchanged
    }
}
