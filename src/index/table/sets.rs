//! The owner's side of the holders of a run: a set of ranks that hold the whole run (up to four in
//! a word, more in a cell of bits), and a list of ranks that hold a part, with a bit for each
//! block. A rank is in either the set or the list.

use super::super::words::{
    CellId, LANES, cell_of, contains, from_lanes, lanes, many, with, without,
};
use super::TableWriter;
use super::cells::CELL_WORDS;
use super::lists::ListedPair;
use super::run::{Run, RunId};

impl TableWriter {
    /// True if no rank holds any block of the run.
    pub(in super::super) fn has_no_ranks(&self, run: RunId) -> bool {
        self.run(run).is_none_or(|run| run.ranks() == 0 && run.partial() == 0)
    }

    /// True if the rank holds the whole run and no other rank holds any of it, except for windows
    /// (lanes in order) that hold a part.
    pub(super) fn is_only_path(&self, run: &Run, lane: u16, windows: &[u16]) -> bool {
        let is_window = |listed: ListedPair| windows.binary_search(&listed.half).is_ok();
        run.ranks() == u64::from(lane)
            && cell_of(run.partial()).is_none_or(|first| self.listed(first).all(is_window))
    }

    /// Records that a window holds the block. False: no memory for it. If a single rank holds the
    /// run, the window stays in the list of parts, so that the run can still be extended.
    pub(in super::super) fn hold_apart(&mut self, id: RunId, offset: usize, lane: u16) -> bool {
        let has_one_path = self.run(id).is_some_and(|run| is_one_lane(run.ranks()));
        if !has_one_path || self.holds_whole(id, lane) {
            return self.hold(id, offset, lane);
        }
        match self.part_of(id, lane) {
            Some(found) => {
                self.set_listed(found, found.word | 1 << offset);
                true
            }
            None => self.push_part(id, 1 << offset, lane),
        }
    }

    /// Records that the rank holds the block. False: no memory for it.
    pub(in super::super) fn hold(&mut self, id: RunId, offset: usize, lane: u16) -> bool {
        let whole = self.whole_of(id);
        debug_assert!(whole >> offset & 1 == 1, "no block {offset} in {id:?}");
        if self.holds_whole(id, lane) {
            return true;
        }
        let bit = 1 << offset;
        let found = self.part_of(id, lane);
        let mask = bit | found.map_or(0, |found| found.word);
        match found {
            _ if mask == whole => self.complete(id, found, lane),
            // A single word changes, so no stamp is needed.
            Some(found) => {
                self.set_listed(found, mask);
                true
            }
            None => self.push_part(id, mask, lane),
        }
    }

    /// Records that the rank no longer holds the block. False if it did not hold the block.
    pub(in super::super) fn release(&mut self, id: RunId, offset: usize, lane: u16) -> bool {
        let bit = 1 << offset;
        debug_assert!(self.whole_of(id) & bit != 0, "no block {offset} in {id:?}");
        if self.holds_whole(id, lane) {
            // Under the stamp, as the rank moves from the set to the list in two steps. A reader
            // between the steps would find it in neither.
            let left = self.whole_of(id) & !bit;
            self.begin(id);
            self.remove_whole(id, lane);
            // Without memory for its part, the rank loses the whole run: the index may report too
            // little, never too much.
            if left != 0 && !self.push_part(id, left, lane) {
                self.count_refused();
            }
            self.end(id);
            return true;
        }
        let Some(found) = self.part_of(id, lane).filter(|found| found.word & bit != 0) else {
            return false;
        };
        match found.word & !bit {
            0 => {
                self.begin(id);
                self.remove_part(id, found);
                self.end(id);
            }
            left => self.set_listed(found, left),
        }
        true
    }

    /// Blocks that some rank holds, as bits.
    pub(super) fn held_blocks(&self, id: RunId) -> u64 {
        let Some(run) = self.run(id) else { return 0 };
        if run.ranks() != 0 {
            return whole(run.block_count());
        }
        let mut held = 0;
        if let Some(first) = cell_of(run.partial()) {
            self.table.cells.for_each(first, |_, mask| held |= mask);
        }
        held
    }

    /// Under the stamp: ranks that hold all remaining blocks of a cut run become whole holders.
    /// None of them held a removed block.
    pub(super) fn promote(&mut self, id: RunId) {
        if self.run(id).is_none_or(|run| run.partial() == 0) {
            return;
        }
        let whole = self.whole_of(id);
        let next = |writer: &Self| {
            let first = cell_of(writer.run(id)?.partial())?;
            writer.listed(first).find(|listed| listed.word == whole)
        };
        while let Some(found) = next(self) {
            if !self.add_whole(id, found.half) {
                return;
            }
            self.remove_part(id, found);
        }
    }

    /// Under the stamp of a run that no reader enters any more: removes all holders.
    pub(super) fn clear_ranks(&mut self, id: RunId) {
        let Some((ranks, partial)) = self.run(id).map(|run| (run.ranks(), run.partial())) else {
            return;
        };
        // The words first: a reference must not outlive its cell.
        self.set_ranks(id, 0);
        self.set_partial(id, 0);
        if let Some(cell) = cell_of(ranks) {
            self.pool.put(cell);
        }
        if let Some(first) = cell_of(partial) {
            self.put_list(first);
        }
    }

    /// For a split: copies the holders of the first `count` blocks of `from` to `to`, which no
    /// reader has entered yet. False: no memory; `to` may then have some of the holders.
    pub(super) fn copy_holders(&mut self, from: RunId, to: RunId, count: usize) -> bool {
        debug_assert!(self.has_no_ranks(to) && self.block_count(to) == count, "not a new head");
        let whole = whole(count);
        let (lanes, parts) = self.holders(from);
        lanes.into_iter().all(|lane| self.add_whole(to, lane))
            && parts.into_iter().all(|(lane, mask)| match mask & whole {
                0 => true,
                mask if mask == whole => self.add_whole(to, lane),
                mask => self.push_part(to, mask, lane),
            })
    }

    /// Under the stamp: shifts the parts of a run's ranks after its first `count` blocks were
    /// removed.
    pub(super) fn shift_holders(&mut self, id: RunId, count: usize) {
        let Some(first) = self.run(id).and_then(|run| cell_of(run.partial())) else { return };
        let parts: Vec<ListedPair> = self.listed(first).collect();
        // From the end, since the last part fills the gap of a removed part.
        for listed in parts.into_iter().rev() {
            match listed.word >> count {
                0 => self.remove_part(id, listed),
                mask => self.set_listed(listed, mask),
            }
        }
        self.promote(id);
    }

    /// Lanes of whole holders, and (lane, mask) of partial holders.
    fn holders(&self, id: RunId) -> (Vec<u16>, Vec<(u16, u64)>) {
        let Some(run) = self.run(id) else { return Default::default() };
        let lanes = match cell_of(run.ranks()) {
            Some(cell) => bit_lanes(&self.bits(cell)).collect(),
            None => lanes(run.ranks()).collect(),
        };
        let mut parts = Vec::new();
        if let Some(first) = cell_of(run.partial()) {
            self.table.cells.for_each(first, |lane, mask| parts.push((lane, mask)));
        }
        (lanes, parts)
    }

    pub(super) fn holds_whole(&self, id: RunId, lane: u16) -> bool {
        let Some(word) = self.run(id).map(super::Run::ranks) else { return false };
        match cell_of(word) {
            Some(cell) => {
                let (index, bit) = bit_of(lane);
                self.table.cells.load(cell, index) & bit != 0
            }
            None => contains(word, lane),
        }
    }

    pub(super) fn part_of(&self, id: RunId, lane: u16) -> Option<ListedPair> {
        let first = cell_of(self.run(id)?.partial())?;
        self.find_listed(first, lane).0
    }

    /// Makes the rank a whole holder, and removes its part if it had any.
    fn complete(&mut self, id: RunId, part: Option<ListedPair>, lane: u16) -> bool {
        let Some(part) = part else { return self.add_whole(id, lane) };
        self.begin(id);
        if self.add_whole(id, lane) {
            self.remove_part(id, part);
        } else {
            self.set_listed(part, self.whole_of(id));
        }
        self.end(id);
        // Without memory for that, a part with all bits means the same.
        true
    }

    pub(super) fn add_whole(&mut self, id: RunId, lane: u16) -> bool {
        debug_assert!(!self.holds_whole(id, lane), "lane {lane} holds all of {id:?} already");
        let Some(word) = self.run(id).map(super::Run::ranks) else { return false };
        if let Some(cell) = cell_of(word) {
            self.set_bit(cell, lane, true);
            return true;
        }
        let word = match with(word, lane) {
            Some(word) => word,
            None => {
                // All bits are set before the word refers to the cell.
                let Some(cell) = self.take_cell() else { return false };
                for lane in lanes(word).chain([lane]) {
                    self.set_bit(cell, lane, true);
                }
                many(cell)
            }
        };
        self.set_ranks(id, word);
        true
    }

    /// Under the stamp.
    fn remove_whole(&mut self, id: RunId, lane: u16) {
        debug_assert!(self.holds_whole(id, lane), "lane {lane} does not hold all of {id:?}");
        let word = self.run(id).map_or(0, super::Run::ranks);
        let Some(cell) = cell_of(word) else { return self.set_ranks(id, without(word, lane)) };
        self.set_bit(cell, lane, false);
        let bits = self.bits(cell);
        // Back to a word at once: equal small sets have to be equal words.
        if bit_lanes(&bits).nth(LANES).is_none() {
            self.set_ranks(id, from_lanes(bit_lanes(&bits)));
            self.pool.put(cell);
        }
    }

    fn push_part(&mut self, id: RunId, mask: u64, lane: u16) -> bool {
        debug_assert!(mask != 0 && mask & !self.whole_of(id) == 0, "{mask:#x} is no part");
        debug_assert!(self.part_of(id, lane).is_none(), "lane {lane} has a part already");
        let Some(word) = self.run(id).map(super::Run::partial) else { return false };
        if let Some(first) = cell_of(word) {
            return self.push_listed(first, mask, lane);
        }
        let Some(cell) = self.take_cell() else { return false };
        self.table.cells.set_pair(cell, 0, mask, lane);
        self.set_partial(id, many(cell));
        true
    }

    /// Under the stamp.
    fn remove_part(&mut self, id: RunId, part: ListedPair) {
        let Some(first) = self.run(id).and_then(|run| cell_of(run.partial())) else { return };
        if self.take_out(first, part) {
            self.set_partial(id, 0);
            self.pool.put(first);
        }
    }

    fn set_ranks(&self, id: RunId, word: u64) {
        if let Some(run) = self.run(id) {
            run.set_ranks(word);
        }
    }

    fn set_partial(&self, id: RunId, word: u64) {
        if let Some(run) = self.run(id) {
            run.set_partial(word);
        }
    }

    /// A bit for each block of the run.
    fn whole_of(&self, id: RunId) -> u64 {
        self.run(id).map_or(0, |run| whole(run.block_count()))
    }

    fn bits(&self, cell: CellId) -> [u64; CELL_WORDS] {
        let mut bits = [0; CELL_WORDS];
        self.table.cells.copy_bits(cell, bits.iter_mut());
        bits
    }

    /// Sets or clears the bit of a rank's lane.
    fn set_bit(&self, cell: CellId, lane: u16, on: bool) {
        let (index, bit) = bit_of(lane);
        let word = self.table.cells.load(cell, index);
        debug_assert!((word & bit == 0) == on, "lane {lane} is there already, or never was");
        self.table.cells.store(cell, index, if on { word | bit } else { word & !bit });
    }
}

/// A bit for each of the first `count` blocks.
pub(in super::super) const fn whole(count: usize) -> u64 {
    debug_assert!(count < 64, "a run has fewer blocks than a word has bits");
    (1 << count) - 1
}

/// True for a word with a single lane.
fn is_one_lane(ranks: u64) -> bool {
    ranks != 0 && u16::try_from(ranks).is_ok()
}

/// Word and bit of a lane in a set of bits.
fn bit_of(lane: u16) -> (usize, u64) {
    let rank = usize::from(lane).saturating_sub(1);
    (rank / 64, 1 << (rank % 64))
}

/// Lanes of the ranks in a bitset, ascending.
fn bit_lanes(bits: &[u64; CELL_WORDS]) -> impl Iterator<Item = u16> {
    let ranks = (0..).step_by(64).zip(bits).flat_map(|(first, word)| {
        (0..64_u16).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
    });
    ranks.map(|rank: u16| rank + 1)
}
