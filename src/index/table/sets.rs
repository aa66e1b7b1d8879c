//! The owner's side of an entry's two sets: ranks and child lengths. A set lives in its word while it has up to
//! four members, in cells beyond. Additions publish one word; whatever gives up a cell or reorders a list does so under
//! the slot's stamp.

use super::super::words::{
    CellId, LANES, cell_of, contains, from_lanes, lanes, many, with, without,
};
use super::cells::{CELL_LENGTHS, CELL_WORDS, CHUNK_BYTES, LIST_CELLS_MAX};
use super::cells::{child_count_of, length_of, list_word};
use super::{Place, TableWriter};

/// A length in a list of cells.
struct Listed {
    cell: CellId,
    index: usize,
    word: u64,
}

impl TableWriter {
    /// True when no rank holds the entry.
    pub(in super::super) fn has_no_ranks(&self, place: Place) -> bool {
        self.slot(place).is_none_or(|slot| slot.ranks() == 0)
    }

    /// True when no child is listed.
    pub(in super::super) fn has_no_lengths(&self, place: Place) -> bool {
        self.slot(place).is_none_or(|slot| slot.lengths() == 0)
    }

    /// Adds a rank (as a lane); false when a cell is needed and none is left.
    pub(in super::super) fn add_rank(&mut self, place: Place, lane: u16) -> bool {
        let Some(word) = self.slot(place).map(super::Slot::ranks) else { return false };
        if let Some(cell) = cell_of(word) {
            self.set_bit(cell, lane, true);
            return true;
        }
        let word = match with(word, lane) {
            Some(word) => word,
            None => {
                let Some(cell) = self.take_cell() else { return false };
                for lane in lanes(word).chain([lane]) {
                    self.set_bit(cell, lane, true);
                }
                many(cell)
            }
        };
        if let Some(slot) = self.slot(place) {
            slot.set_ranks(word);
        }
        true
    }

    /// Removes a rank (as a lane); false when it was not there.
    pub(in super::super) fn remove_rank(&mut self, place: Place, lane: u16) -> bool {
        let Some(word) = self.slot(place).map(super::Slot::ranks) else { return false };
        let Some(cell) = cell_of(word) else {
            if let Some(slot) = self.slot(place) {
                slot.set_ranks(without(word, lane));
            }
            return contains(word, lane);
        };
        if !self.set_bit(cell, lane, false) {
            return false;
        }
        let bits = self.bits(cell);
        if bits.iter().map(|word| word.count_ones()).sum::<u32>() <= LANES as u32 {
            let word = from_lanes(bit_lanes(&bits));
            if let Some(slot) = self.slot(place) {
                slot.change(|slot| slot.set_ranks(word));
            }
            self.pool.put(cell);
        }
        true
    }

    /// Counts one more child of that length; false when the list or the memory is full.
    pub(in super::super) fn add_length(&mut self, place: Place, length: u16) -> bool {
        let Some(word) = self.slot(place).map(super::Slot::lengths) else { return false };
        if let Some(first) = cell_of(word) {
            return self.add_listed(first, length);
        }
        if let Some(wider) = with(word, length) {
            let Some(link) = self.link_mut(place) else { return false };
            link.child_counts = recount(word, &link.child_counts, wider, length);
            if let Some(slot) = self.slot(place) {
                slot.set_lengths(wider);
            }
            return true;
        }
        let Some(cell) = self.take_cell() else { return false };
        let counts = self.link(place).map(|link| link.child_counts).unwrap_or_default();
        for (index, (length, count)) in counted(word, &counts).chain([(length, 1)]).enumerate() {
            self.table.cells.store(cell, index, list_word(length, count));
        }
        if let Some(slot) = self.slot(place) {
            slot.set_lengths(many(cell));
        }
        true
    }

    /// Counts one child of that length less; the length goes with the last one.
    pub(in super::super) fn drop_length(&mut self, place: Place, length: u16) {
        let Some(word) = self.slot(place).map(super::Slot::lengths) else { return };
        if let Some(first) = cell_of(word) {
            self.drop_listed(place, first, length);
            return;
        }
        let Some(link) = self.link_mut(place) else { return };
        let mut counts = [(0, 0); LANES];
        for (to, (lane, count)) in counts.iter_mut().zip(counted(word, &link.child_counts)) {
            *to = (lane, if lane == length { count.saturating_sub(1) } else { count });
        }
        let left = || counts.iter().filter(|(_, count)| *count > 0);
        link.child_counts = [0; LANES];
        for (to, (_, count)) in link.child_counts.iter_mut().zip(left()) {
            *to = *count;
        }
        let narrower = from_lanes(left().map(|(lane, _)| *lane));
        if let Some(slot) = self.slot(place).filter(|_| narrower != word) {
            slot.set_lengths(narrower);
        }
    }

    fn add_listed(&mut self, first: CellId, length: u16) -> bool {
        let cells = &self.table.cells;
        let (mut cell, mut cell_count) = (first, 1);
        loop {
            for index in 0..CELL_LENGTHS {
                let word = cells.load(cell, index);
                if word == 0 || length_of(word) == length {
                    let count = child_count_of(word).saturating_add(1);
                    cells.store(cell, index, list_word(length, count));
                    return true;
                }
            }
            let Some(next) = cell_of(cells.load(cell, CELL_LENGTHS)) else { break };
            (cell, cell_count) = (next, cell_count + 1);
        }
        if cell_count == LIST_CELLS_MAX {
            return false;
        }
        let Some(next) = self.take_cell() else { return false };
        self.table.cells.store(next, 0, list_word(length, 1));
        self.table.cells.store(cell, CELL_LENGTHS, many(next));
        true
    }

    fn drop_listed(&mut self, place: Place, first: CellId, length: u16) {
        let listed = self.listed(first);
        let Some(dropped) = listed.iter().find(|listed| length_of(listed.word) == length) else {
            return;
        };
        let count = child_count_of(dropped.word);
        if count > 1 {
            let word = list_word(length, count - 1);
            return self.table.cells.store(dropped.cell, dropped.index, word);
        }
        if listed.len() <= LANES + 1 {
            return self.shrink_to_word(place, first, &listed, length);
        }
        // The last one fills the gap. Under the stamp, since a reader between the two stores could miss it.
        let Some((last, before)) = listed.split_last() else { return };
        let Some(slot) = self.slot(place) else { return };
        let cells = &self.table.cells;
        slot.change(|_| {
            cells.store(dropped.cell, dropped.index, last.word);
            cells.store(last.cell, last.index, 0);
            if let Some(new_last) = before.last().filter(|new_last| new_last.cell != last.cell) {
                cells.store(new_last.cell, CELL_LENGTHS, 0);
            }
        });
        if last.index == 0 {
            self.pool.put(last.cell);
        }
    }

    /// Back from a list in one cell to a word.
    fn shrink_to_word(&mut self, place: Place, cell: CellId, listed: &[Listed], dropped: u16) {
        let mut left: Vec<(u16, u32)> = listed
            .iter()
            .map(|listed| (length_of(listed.word), child_count_of(listed.word)))
            .filter(|(length, _)| *length != dropped)
            .collect();
        left.sort_unstable();
        if let Some(link) = self.link_mut(place) {
            link.child_counts = [0; LANES];
            for (to, (_, count)) in link.child_counts.iter_mut().zip(&left) {
                *to = *count;
            }
        }
        if let Some(slot) = self.slot(place) {
            let word = from_lanes(left.iter().map(|(length, _)| *length));
            slot.change(|slot| slot.set_lengths(word));
        }
        self.pool.put(cell);
    }

    fn listed(&self, first: CellId) -> Vec<Listed> {
        let mut listed = Vec::with_capacity(CELL_LENGTHS);
        let mut cell = first;
        for _ in 0..LIST_CELLS_MAX {
            for index in 0..CELL_LENGTHS {
                let word = self.table.cells.load(cell, index);
                if word == 0 {
                    return listed;
                }
                listed.push(Listed { cell, index, word });
            }
            let Some(next) = cell_of(self.table.cells.load(cell, CELL_LENGTHS)) else { break };
            cell = next;
        }
        listed
    }

    fn take_cell(&mut self) -> Option<CellId> {
        let may_grow = self.fits(CHUNK_BYTES);
        let cell = self.pool.take(&self.table.cells, may_grow);
        self.publish_sizes();
        cell
    }

    fn bits(&self, cell: CellId) -> [u64; CELL_WORDS] {
        let mut bits = [0; CELL_WORDS];
        self.table.cells.copy_bits(cell, bits.iter_mut());
        bits
    }

    /// Sets or clears the bit of a rank's lane; true when that changed it.
    fn set_bit(&self, cell: CellId, lane: u16, on: bool) -> bool {
        let rank = usize::from(lane).saturating_sub(1);
        let (index, bit) = (rank / 64, 1 << (rank % 64));
        let word = self.table.cells.load(cell, index);
        let changed = if on { word | bit } else { word & !bit };
        self.table.cells.store(cell, index, changed);
        changed != word
    }
}

/// Lanes of the ranks in a bitset, ascending.
fn bit_lanes(bits: &[u64; CELL_WORDS]) -> impl Iterator<Item = u16> {
    let ranks = (0..).step_by(64).zip(bits).flat_map(|(first, word)| {
        (0..64_u16).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
    });
    ranks.map(|rank: u16| rank + 1)
}

/// The lanes of a word with their counts.
fn counted(word: u64, counts: &[u32; LANES]) -> impl Iterator<Item = (u16, u32)> + use<> {
    lanes(word).zip(*counts)
}

/// The counts of `word` in the order of the lanes of `wider`, with one more for `length`.
fn recount(word: u64, counts: &[u32; LANES], wider: u64, length: u16) -> [u32; LANES] {
    let mut recounted = [0; LANES];
    for (to, lane) in recounted.iter_mut().zip(lanes(wider)) {
        let count = counted(word, counts).find(|(other, _)| *other == lane).map_or(0, |(_, n)| n);
        *to = count.saturating_add(u32::from(lane == length));
    }
    recounted
}
