//! The owner's side of lists of pairs, and of the child lengths of a run: up to four lengths fit
//! their word, more take a list. An addition publishes a single word; a removal happens under the
//! run's stamp.

use super::super::words::{CellId, LANES, cell_of, from_lanes, lanes, many, with};
use super::TableWriter;
use super::cells::{CELL_PAIRS, LIST_CELLS_MAX};
use super::locator::RUNS_MAX;
use super::run::RunId;
use crate::BlockKey;

/// Different child lengths of a run, at most. Children of further lengths are refused.
const LENGTHS_MAX: usize = 480;
const _: () = assert!(LENGTHS_MAX <= LIST_CELLS_MAX * CELL_PAIRS);
const _: () = assert!(LANES < CELL_PAIRS, "a list begins with more pairs than a word has");

/// In the word of a listed length: no child has a tag, because some were stored before the list, or
/// for lack of memory. Of any other length, each child has a tag. Any child may be of an untagged
/// length, so that all bits of its filter are set.
const UNTAGGED: u64 = FLAG | FILTER << FILTER_SHIFT;
const FLAG: u64 = 1 << 63;
/// In the word of a listed length: its children.
pub(super) const COUNT: u64 = (1 << FILTER_SHIFT) - 1;
/// Between both: a bit for some bits of the key of each child that was stored since the list began.
/// Bits stay when a child goes.
const FILTER_SHIFT: u32 = 24;
const FILTER_BITS: u32 = u32::BITS;
const FILTER: u64 = u32::MAX as u64;
const _: () = assert!(RUNS_MAX as u64 <= COUNT, "counts of children never meet the filter");
const _: () = assert!(FILTER_SHIFT + FILTER_BITS < 64, "the filter never meets the flag");

/// Do all children of a listed length have a tag?
#[inline]
pub(super) const fn is_tagged(word: u64) -> bool {
    word & FLAG == 0
}

/// May a listed length have that child? Of a length with few children, hardly any other key passes:
/// tags need not be searched for the rest.
#[inline(always)]
pub(super) const fn may_list(word: u64, child: u64) -> bool {
    let filter = (word >> FILTER_SHIFT & FILTER) as u32;
    filter & 1 << filter_place(child) != 0
}

/// The bit of a child in the word of its length.
#[inline(always)]
const fn filter_bit(child: u64) -> u64 {
    1 << (FILTER_SHIFT + filter_place(child))
}

/// The place of a child in the filter of its length.
#[inline(always)]
const fn filter_place(child: u64) -> u32 {
    // The bits above the tag.
    (child >> 40) as u32 % FILTER_BITS
}

/// A pair of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedPair {
    pub cell: CellId,
    pub index: usize,
    pub word: u64,
    pub half: u16,
}

impl TableWriter {
    /// True if the run has a child.
    pub(in super::super) fn has_children(&self, run: RunId) -> bool {
        self.run(run).is_some_and(|run| run.lengths() != 0)
    }

    /// Adds a child of that length to the count; false if the list or the memory is full.
    pub(super) fn add_length(&mut self, id: RunId, length: u16, child: BlockKey) -> bool {
        debug_assert!(length != 0, "0 ends a list of lengths");
        let Some(word) = self.run(id).map(super::Run::lengths) else { return false };
        if let Some(first) = cell_of(word) {
            return self.add_listed_length(id, first, length, child);
        }
        let counts = self.owned(id).child_counts;
        let wider = with(word, length);
        if let Some(wider) = wider.filter(|wider| lanes(*wider).count() <= self.lanes_max(id)) {
            if let Some(owned) = self.owned_mut(id) {
                owned.child_counts = recount(word, &counts, wider, length);
            }
            if let Some(run) = self.run(id) {
                run.set_lengths(wider);
            }
            return true;
        }
        let Some(cell) = self.take_cell() else { return false };
        if !self.begin_first(id) {
            self.pool.put(cell);
            return false;
        }
        // The keys of earlier children are not stored anywhere.
        for (index, (length, count)) in counted(word, &counts).enumerate() {
            let word = UNTAGGED | u64::from(count);
            self.table.cells.set_pair(cell, index, word, length);
            self.set_first(id, cell, length, word);
        }
        if let Some(run) = self.run(id) {
            run.set_lengths(many(cell));
        }
        self.add_listed_length(id, cell, length, child)
    }

    /// Lengths that a run has in its word at most. The keys of children in the word are stored
    /// nowhere, so a walk looks for them whatever the prompt. Roots have a list early: many prompts
    /// begin there. A run without a parent in the index is as good as a root.
    fn lanes_max(&self, id: RunId) -> usize {
        if self.is_unlisted(id) { 1 } else { LANES }
    }

    /// Removes a child of that length from the count, and the length with its last child.
    pub(super) fn drop_length(&mut self, id: RunId, length: u16, child: BlockKey) {
        let Some(word) = self.run(id).map(super::Run::lengths) else { return };
        if let Some(first) = cell_of(word) {
            return self.drop_listed_length(id, first, length, child);
        }
        let counts = self.owned(id).child_counts;
        let is_counted = counted(word, &counts).any(|(lane, n)| lane == length && n > 0);
        debug_assert!(is_counted, "a child that was never counted");
        let dropped = |(lane, count): (u16, u32)| {
            (lane, if lane == length { count.saturating_sub(1) } else { count })
        };
        let left = || counted(word, &counts).map(dropped).filter(|(_, count)| *count > 0);
        self.set_lengths(id, left);
    }

    fn set_lengths<I: Iterator<Item = (u16, u32)>>(&mut self, id: RunId, left: impl Fn() -> I) {
        if let Some(owned) = self.owned_mut(id) {
            owned.child_counts = [0; LANES];
            for (to, (_, count)) in owned.child_counts.iter_mut().zip(left()) {
                *to = count;
            }
        }
        if let Some(run) = self.run(id) {
            run.set_lengths(from_lanes(left().map(|(lane, _)| lane)));
        }
    }

    fn add_listed_length(
        &mut self,
        id: RunId,
        first: CellId,
        length: u16,
        child: BlockKey,
    ) -> bool {
        let (found, count) = self.find_listed(first, length);
        let needs_tag = found.is_none_or(|found| is_tagged(found.word));
        let has_tag = needs_tag && self.add_tag(id, child);
        if needs_tag && !has_tag {
            self.drop_all_tags(id, first);
        }
        if has_tag {
            self.pass_first(id, child);
        }
        let flag = if has_tag { 0 } else { UNTAGGED };
        let added = flag | filter_bit(child.to_word());
        if let Some(found) = found {
            let word = (found.word + 1) | added;
            self.set_listed(found, word);
            self.set_first(id, first, length, word);
            return true;
        }
        let is_listed = count < LENGTHS_MAX && self.push_listed(first, added | 1, length);
        if is_listed {
            self.set_first(id, first, length, added | 1);
        } else if has_tag {
            self.drop_tag(id, child);
        }
        is_listed
    }

    /// Removes the tags of all children, and marks their lengths. Tags for some children of a
    /// length would not do: no child records whether it has a tag, so a removed child without a
    /// tag would take the equal tag of another child with it.
    fn drop_all_tags(&mut self, id: RunId, first: CellId) {
        self.begin(id);
        self.put_tags(id);
        for listed in self.listed(first) {
            self.set_listed(listed, listed.word | UNTAGGED);
            self.set_first(id, first, listed.half, listed.word | UNTAGGED);
        }
        self.end(id);
    }

    fn drop_listed_length(&mut self, id: RunId, first: CellId, length: u16, child: BlockKey) {
        let (Some(found), _) = self.find_listed(first, length) else { return };
        debug_assert!(found.word & COUNT > 0, "a child that was never counted");
        if is_tagged(found.word) {
            self.drop_tag(id, child);
        }
        if found.word & COUNT > 1 {
            return self.set_listed(found, found.word - 1);
        }
        self.begin(id);
        // The list still includes the removed pair.
        if self.listed(first).nth(self.lanes_max(id) + 1).is_none() {
            let mut left = Vec::with_capacity(LANES);
            self.table.cells.for_each(first, |half, word| {
                left.push((half, u32::try_from(word & COUNT).unwrap_or(u32::MAX)));
            });
            left.retain(|(half, _)| *half != length);
            debug_assert!(left.len() <= LANES, "more lengths than a word takes");
            left.sort_unstable();
            self.put_tags(id);
            self.end_first(id);
            self.set_lengths(id, || left.iter().copied());
            self.pool.put(first);
        } else {
            self.take_out(first, found);
            self.set_first(id, first, length, 0);
        }
        self.end(id);
    }

    /// The pair with that half, and the number of pairs up to it, or of all pairs.
    pub(super) fn find_listed(&self, first: CellId, half: u16) -> (Option<ListedPair>, usize) {
        let mut count = 0;
        let found = self.listed(first).find(|listed| {
            count += 1;
            listed.half == half
        });
        (found, count)
    }

    pub(super) fn set_listed(&self, listed: ListedPair, word: u64) {
        debug_assert!(listed.index < CELL_PAIRS && listed.half != 0, "{listed:?} is no pair");
        self.table.cells.store(listed.cell, listed.index, word);
    }

    /// Adds a pair; false if there is no cell for it.
    pub(super) fn push_listed(&mut self, first: CellId, word: u64, half: u16) -> bool {
        let mut last = first;
        let mut index = 0;
        let mut cell_count = 1;
        for listed in self.listed(first) {
            cell_count += usize::from(listed.cell != last);
            last = listed.cell;
            index = listed.index + 1;
        }
        if index < CELL_PAIRS {
            self.table.cells.set_pair(last, index, word, half);
            return true;
        }
        if cell_count >= LIST_CELLS_MAX {
            return false;
        }
        let Some(next) = self.take_cell() else { return false };
        // Filled before it is linked, so that a reader of the link finds the pair.
        self.table.cells.set_pair(next, 0, word, half);
        self.table.cells.set_next(last, Some(next));
        true
    }

    /// Under the run's stamp: removes a pair; the last pair fills the gap. True if the list is then
    /// empty; its first cell is not freed.
    pub(super) fn take_out(&mut self, first: CellId, listed: ListedPair) -> bool {
        let mut before = first;
        let mut last = listed;
        for next in self.listed(first) {
            if next.index == 0 && next.cell != first {
                before = last.cell;
            }
            last = next;
        }
        debug_assert!(last.half != 0, "taken out of an empty list");
        // A list ends at the first gap, so no gap may remain.
        let cells = &self.table.cells;
        cells.set_pair(listed.cell, listed.index, last.word, last.half);
        cells.set_pair(last.cell, last.index, 0, 0);
        if last.index > 0 {
            return false;
        }
        if last.cell == first {
            return true;
        }
        cells.set_next(before, None);
        self.pool.put(last.cell);
        false
    }

    /// Frees the cells of a list. Under the stamp of the run that referred to it.
    pub(super) fn put_list(&mut self, first: CellId) {
        let mut cell = Some(first);
        for _ in 0..LIST_CELLS_MAX {
            let Some(given) = cell else { return };
            // Read before the cell is freed: its next user clears it.
            cell = self.table.cells.next(given);
            self.pool.put(given);
        }
    }

    pub(super) fn listed(&self, first: CellId) -> impl Iterator<Item = ListedPair> + use<'_> {
        let cells = &self.table.cells;
        let in_order = std::iter::successors(Some(first), |cell| cells.next(*cell));
        let all = in_order.take(LIST_CELLS_MAX).flat_map(move |cell| {
            let pairs = cells.pairs(cell);
            (0..CELL_PAIRS).map(move |index| ListedPair {
                cell,
                index,
                word: pairs.word(index),
                half: pairs.half(index),
            })
        });
        all.take_while(|listed| listed.half != 0)
    }
}

/// The lanes of a word with their counts.
fn counted(word: u64, counts: &[u32; LANES]) -> impl Iterator<Item = (u16, u32)> + use<> {
    lanes(word).zip(*counts)
}

/// The counts of `word` in the order of the lanes of `wider`, with 1 added for `length`.
fn recount(word: u64, counts: &[u32; LANES], wider: u64, length: u16) -> [u32; LANES] {
    let mut recounted = [0; LANES];
    for (to, lane) in recounted.iter_mut().zip(lanes(wider)) {
        let count = counted(word, counts).find(|(other, _)| *other == lane).map_or(0, |(_, n)| n);
        *to = count.saturating_add(u32::from(lane == length));
    }
    recounted
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::table::cells::CELL_PAIRS as PAIRS;
    use crate::{KeySeed, RootName, Shape};

    /// Each child passes the filter of its length, and few other keys do while a length has few
    /// children. Children that go leave the counts right.
    #[test]
    fn a_filter_hides_no_child_and_most_other_keys() {
        const SEED: KeySeed = KeySeed(1);
        let shape = Shape { segment_slots: 2_048, memory_bytes_max: 64 << 20 };
        let mut writer = TableWriter::new(shape);
        let root = BlockKey::root(SEED, &RootName::default());
        let top = writer.create(None, root, 0).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let mut key = || root.child(SEED, &random.u128(..).to_le_bytes());
        let mut there = Vec::new();
        for round in 0..4 {
            for number in 0..64_u16 {
                let key = key();
                writer.make_room(key);
                there.push(writer.create(Some(top), key, 44 + number % 40).unwrap());
            }
            assert!(there.iter().all(|run| writer.may_have_child(top, *run)), "{round}");
            let first = writer.run(top).and_then(|run| cell_of(run.lengths())).unwrap();
            let words: Vec<u64> = writer.listed(first).map(|listed| listed.word).collect();
            assert!(words.len() == 40 && words.len() > 3 * PAIRS);
            assert_eq!(words.iter().map(|word| word & COUNT).sum::<u64>(), there.len() as u64);
            let tagged: Vec<u64> = words.into_iter().filter(|word| is_tagged(*word)).collect();
            assert!(tagged.len() >= 39, "only the first length has children without a tag");
            let passed = |key: BlockKey| {
                tagged.iter().filter(|word| may_list(**word, key.to_word())).count()
            };
            let passed: usize = (0..1_000).map(|_| passed(key())).sum();
            // The bits of 1.6 children are set, of 32, and later the bits of removed children too.
            let most = tagged.len() * 1_000 * (round + 1) / 16;
            assert!(passed > 0 && passed <= most, "{round}: {passed} of {most}");
            there.drain(..60).for_each(|run| {
                writer.destroy(run);
            });
        }
        there.drain(..).for_each(|run| {
            writer.destroy(run);
        });
        assert!(!writer.has_children(top));
    }
}
