//! One slot: a key, its two value words, and the stamp that lets readers see that the slot changed hands.

use crate::ring::sync::{AtomicU64, Ordering, fence};

/// Half a cache line.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Slot {
    /// 0 while the slot is empty.
    key: AtomicU64,
    ranks: AtomicU64,
    lengths: AtomicU64,
    /// Odd while the slot changes hands or gives up cells.
    stamp: AtomicU64,
}

impl Slot {
    pub(super) fn empty() -> Self {
        let word = || AtomicU64::new(0);
        Self { key: word(), ranks: word(), lengths: word(), stamp: word() }
    }

    #[inline]
    pub(super) fn key(&self) -> u64 {
        // ordering: Relaxed; a reader trusts the key only between `read_begin` and `read_end`, and a miss only after
        // the fence in `Table::look`.
        self.key.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn ranks(&self) -> u64 {
        // ordering: Acquire pairs with the Release store in `set_ranks`: a cell is filled before a word refers to it.
        self.ranks.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn lengths(&self) -> u64 {
        // ordering: Acquire pairs with the Release store in `set_lengths`, as for the ranks.
        self.lengths.load(Ordering::Acquire)
    }

    /// Owner only.
    pub(super) fn set_ranks(&self, word: u64) {
        // ordering: Release pairs with the Acquire load in `ranks`.
        self.ranks.store(word, Ordering::Release);
    }

    /// Owner only.
    pub(super) fn set_lengths(&self, word: u64) {
        // ordering: Release pairs with the Acquire load in `lengths`.
        self.lengths.store(word, Ordering::Release);
    }

    /// Stamp to hand to [`Slot::read_end`]; `None` while the slot changes.
    #[inline]
    pub(super) fn read_begin(&self) -> Option<u64> {
        // ordering: Acquire pairs with the Release store at the end of `change`: the words are at least as new as
        // the stamp.
        let stamp = self.stamp.load(Ordering::Acquire);
        stamp.is_multiple_of(2).then_some(stamp)
    }

    /// True when nothing that was read since the stamp was changed under [`Slot::change`].
    #[inline]
    pub(super) fn read_end(&self, stamp: u64) -> bool {
        // ordering: the Acquire fence pairs with the Release fence in `change` (and in `CellPool::take`, for cells in
        // their next life): if any word we read was written after one, we see its odd stamp here, or a later one.
        fence(Ordering::Acquire);
        self.stamp.load(Ordering::Relaxed) == stamp
    }

    /// Owner only: runs `change` so that readers who overlap it look again.
    pub(super) fn change(&self, change: impl FnOnce(&Self)) {
        // ordering: the load is Relaxed, only the owner writes it. The Release store pairs with the Acquire load in
        // `read_begin`: who looks again because the stamp is odd sees what was done before, such as the copy of the
        // entry elsewhere. The Release fence pairs with the Acquire fence in `read_end`.
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.stamp.store(stamp.wrapping_add(1), Ordering::Release);
        fence(Ordering::Release);
        change(self);
        // ordering: Release pairs with the Acquire load in `read_begin`.
        self.stamp.store(stamp.wrapping_add(2), Ordering::Release);
    }

    /// Owner only: gives the slot to another key; 0 empties it.
    pub(super) fn assign(&self, key: u64, ranks: u64, lengths: u64) {
        self.change(|slot| {
            slot.set_ranks(ranks);
            slot.set_lengths(lengths);
            // ordering: Relaxed; readers trust it only under the stamp.
            slot.key.store(key, Ordering::Relaxed);
        });
    }
}
