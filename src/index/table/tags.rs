//! Tags of the children of a run with many children: 32 bits of each child's key. A walk at a fork
//! has a key for each child length, and most of these keys are no child's. The tags of a fork are
//! stored together and stay in the CPU caches, while the locator's entries are scattered.
//!
//! A tree of cells. A leaf has up to 32 tags, in four parts. A node has 32 slots, chosen by five
//! bits of a tag, and each slot leads to a leaf or a node; a leaf may fill several adjacent slots.
//! A full leaf is split in two. An empty leaf is removed, and its neighbor takes its slots.
//!
//! A child of a length that is marked as untagged has no tag, any other child has a tag. So a tag
//! goes with its child, and equal tags of several children are stored as often.

use super::super::words::{CellId, Twig, TwigKind};
use super::TableWriter;
use super::cells::{CELL_WORDS, Cells, Pairs, halves};
use super::run::RunId;
use crate::BlockKey;
use std::ops::Range;

/// Parts of a leaf, chosen by the highest bits of a tag.
const PARTS: usize = 4;
/// Words of a part, of two tags each; few under loom, so that leaves are split.
const PART_WORDS: usize = if cfg!(feature = "loom") { 1 } else { CELL_WORDS / PARTS };
/// Bits of a tag that choose a slot of a node.
const SLOT_BITS: u32 = (2 * CELL_WORDS).ilog2();
/// Slots of a node, two in a word.
const SLOTS: usize = 1 << SLOT_BITS;
const _: () = assert!(SLOTS == 2 * CELL_WORDS);
/// Nodes above a leaf, at most: their slots use all bits of a tag that choose no part. So the tags
/// of a full part below that many nodes are all equal.
const NODES_MAX: u32 = (u32::BITS - PARTS.ilog2()) / SLOT_BITS;

/// Never 0, which is no tag.
#[inline]
fn tag_of(child: u64) -> u32 {
    // The lowest bits choose segments of the locator, the highest the slice.
    #[expect(clippy::cast_possible_truncation, reason = "the tag is a part of the key")]
    let tag = (child >> 8) as u32;
    tag.max(1)
}

/// The slot of a tag in a node with `level` nodes above it.
#[inline]
const fn slot_of(tag: u32, level: u32) -> usize {
    (tag >> (level * SLOT_BITS) & ((1 << SLOT_BITS) - 1)) as usize
}

/// The words of a leaf that may have a tag.
#[inline]
fn part_of(tag: u32) -> Range<usize> {
    let first = (tag >> 30) as usize * PART_WORDS;
    first..first + PART_WORDS
}

/// Adds a tag to a word with room for it.
const fn with(word: u64, tag: u32) -> u64 {
    if word == 0 { tag as u64 } else { word | (tag as u64) << 32 }
}

/// A word without that tag; `None`: the word does not have the tag.
const fn without(word: u64, tag: u32) -> Option<u64> {
    match halves(word) {
        [low, high] if low == tag => Some(high as u64),
        [low, high] if high == tag => Some(low as u64),
        _ => None,
    }
}

/// The tags of a run's children, as a reader looks through them under a stamp.
pub(super) struct Tags<'t> {
    root: Twig,
    /// A root that is a node.
    node: Option<Pairs<'t>>,
    cells: &'t Cells,
}

impl<'t> Tags<'t> {
    #[inline]
    pub(super) fn new(root: Twig, cells: &'t Cells) -> Self {
        let node = match root.kind() {
            TwigKind::Node(node) => Some(cells.pairs(node)),
            _ => None,
        };
        Self { root, node, cells }
    }

    /// Does a child with that key have a tag? Cells may have been reused: the caller checks the
    /// stamp afterwards.
    #[inline]
    pub(super) fn has(&self, child: u64) -> bool {
        let tag = tag_of(child);
        let mut twig = self.node.map_or(self.root, |node| slot(node, slot_of(tag, 0)));
        for level in 1..=NODES_MAX {
            match twig.kind() {
                TwigKind::None => return false,
                TwigKind::Leaf(leaf) => return self.cells.has_half(leaf, part_of(tag), tag),
                TwigKind::Node(node) => twig = slot(self.cells.pairs(node), slot_of(tag, level)),
            }
        }
        match twig.kind() {
            TwigKind::Leaf(leaf) => self.cells.has_half(leaf, part_of(tag), tag),
            _ => false,
        }
    }
}

#[inline]
fn slot(node: Pairs<'_>, index: usize) -> Twig {
    Twig::from_bits(node.word(index / 2) >> (index % 2 * 32))
}

/// A leaf, and the slots that lead to it.
#[derive(Clone, Copy, Debug)]
struct LeafPlace {
    leaf: CellId,
    /// The node with the slots; `None`: the run's own word leads to the leaf.
    node: Option<CellId>,
    /// The node's place: the slot of the node above it.
    above: Option<(CellId, usize)>,
    /// Nodes above the leaf.
    level: u32,
    /// The first of the slots, and their number, a power of two.
    first: usize,
    count: usize,
}

impl TableWriter {
    /// Adds the tag of a child. False: there is no room for it.
    pub(super) fn add_tag(&mut self, id: RunId, child: BlockKey) -> bool {
        let tag = tag_of(child.to_word());
        if matches!(self.tags(id).kind(), TwigKind::None) && !self.add_first_leaf(id) {
            return false;
        }
        // Each step halves the slots of a leaf, or puts a node above it.
        for _ in 0..=NODES_MAX * (SLOT_BITS + 1) {
            let Some(place) = self.place(id, tag) else { return false };
            if let Some((index, word)) = self.gap(place.leaf, tag) {
                // One word: no stamp.
                self.table.cells.store(place.leaf, index, with(word, tag));
                return true;
            }
            let is_split = match place.node {
                Some(node) if place.count > 1 => self.split_leaf(id, node, place),
                _ => self.add_node(id, place),
            };
            if !is_split {
                return false;
            }
        }
        false
    }

    /// Removes the tag of a child, if it has one.
    pub(super) fn drop_tag(&mut self, id: RunId, child: BlockKey) {
        let tag = tag_of(child.to_word());
        let Some(place) = self.place(id, tag) else { return };
        let words = part_of(tag).map(|index| (index, self.table.cells.load(place.leaf, index)));
        let found = words.filter_map(|(index, word)| Some((index, without(word, tag)?))).next();
        let Some((index, left)) = found else { return };
        // A single word: no stamp. Readers of the fork need not retry for each removed child.
        self.table.cells.store(place.leaf, index, left);
        if left != 0 || !self.tags_in(place.leaf).is_empty() {
            return;
        }
        self.begin(id);
        if self.close_leaf(id, place) {
            self.pool.put(place.leaf);
        }
        self.end(id);
    }

    /// Under the stamp: frees all cells.
    pub(super) fn put_tags(&mut self, id: RunId) {
        let mut waiting = vec![self.tags(id)];
        self.set_tags(id, Twig::default());
        while let Some(twig) = waiting.pop() {
            match twig.kind() {
                TwigKind::None => {}
                TwigKind::Leaf(leaf) => self.pool.put(leaf),
                TwigKind::Node(node) => {
                    let mut slots: Vec<Twig> = self.slots(node).collect();
                    slots.dedup();
                    waiting.extend(slots);
                    self.pool.put(node);
                }
            }
        }
    }

    fn tags(&self, id: RunId) -> Twig {
        self.run(id).map_or_else(Twig::default, super::Run::tags)
    }

    fn set_tags(&self, id: RunId, twig: Twig) {
        if let Some(run) = self.run(id) {
            run.set_tags(twig);
        }
    }

    fn slots(&self, node: CellId) -> impl Iterator<Item = Twig> + use<'_> {
        (0..SLOTS).map(move |index| slot(self.table.cells.pairs(node), index))
    }

    fn set_slot(&self, node: CellId, index: usize, twig: Twig) {
        let shift = index % 2 * 32;
        let other = self.table.cells.load(node, index / 2) & !(u64::from(u32::MAX) << shift);
        self.table.cells.store(node, index / 2, other | twig.bits() << shift);
    }

    fn add_first_leaf(&mut self, id: RunId) -> bool {
        let Some(leaf) = self.take_cell() else { return false };
        let Some(twig) = Twig::new(leaf, false) else {
            self.pool.put(leaf);
            return false;
        };
        self.set_tags(id, twig);
        true
    }

    /// The leaf that a tag belongs to.
    fn place(&self, id: RunId, tag: u32) -> Option<LeafPlace> {
        let mut twig = self.tags(id);
        let mut node = None;
        let mut above = None;
        for level in 0..=NODES_MAX {
            match twig.kind() {
                TwigKind::None => return None,
                TwigKind::Leaf(leaf) => {
                    let slots = node.into_iter().flat_map(|node| self.slots(node).enumerate());
                    let mut own = slots.filter(|(_, slot)| *slot == twig).map(|(index, _)| index);
                    let first = own.next().unwrap_or(0);
                    let count = 1 + own.count();
                    return Some(LeafPlace { leaf, node, above, level, first, count });
                }
                TwigKind::Node(next) => {
                    above = node.map(|node| (node, slot_of(tag, level.saturating_sub(1))));
                    node = Some(next);
                    twig = slot(self.table.cells.pairs(next), slot_of(tag, level));
                }
            }
        }
        None
    }

    /// The first word of a leaf with room for that tag, and its value.
    fn gap(&self, leaf: CellId, tag: u32) -> Option<(usize, u64)> {
        let mut words = part_of(tag).map(|index| (index, self.table.cells.load(leaf, index)));
        words.find(|(_, word)| word >> 32 == 0)
    }

    fn tags_in(&self, leaf: CellId) -> Vec<u32> {
        let words = 0..PARTS * PART_WORDS;
        let tags = words.flat_map(|index| halves(self.table.cells.load(leaf, index)));
        tags.filter(|tag| *tag != 0).collect()
    }

    /// Replaces the tags of a leaf. Under the stamp, or before any reader can reach the leaf.
    fn fill_leaf(&self, leaf: CellId, tags: &[u32]) {
        (0..PARTS * PART_WORDS).for_each(|index| self.table.cells.store(leaf, index, 0));
        for &tag in tags {
            let gap = self.gap(leaf, tag);
            debug_assert!(gap.is_some(), "more tags than a leaf has");
            if let Some((index, word)) = gap {
                self.table.cells.store(leaf, index, with(word, tag));
            }
        }
    }

    /// Puts a node above a leaf that a single slot, or the run itself, refers to.
    fn add_node(&mut self, id: RunId, place: LeafPlace) -> bool {
        if place.level >= NODES_MAX {
            return false;
        }
        let Some(node) = self.take_cell() else { return false };
        let (Some(to), Some(leaf)) = (Twig::new(node, true), Twig::new(place.leaf, false)) else {
            self.pool.put(node);
            return false;
        };
        (0..SLOTS).for_each(|slot| self.set_slot(node, slot, leaf));
        // A single word, and both ways lead to the same leaf: no stamp.
        match place.node {
            Some(above) => self.set_slot(above, place.first, to),
            None => self.set_tags(id, to),
        }
        true
    }

    /// Gives the second half of a leaf's slots a leaf of their own.
    fn split_leaf(&mut self, id: RunId, node: CellId, place: LeafPlace) -> bool {
        let Some(leaf) = self.take_cell() else { return false };
        let Some(twig) = Twig::new(leaf, false) else {
            self.pool.put(leaf);
            return false;
        };
        let middle = place.first + place.count / 2;
        let level = place.level.saturating_sub(1);
        let is_low = |tag: &u32| slot_of(*tag, level) < middle;
        let (low, high): (Vec<u32>, Vec<u32>) =
            self.tags_in(place.leaf).into_iter().partition(is_low);
        self.fill_leaf(leaf, &high);
        self.begin(id);
        for slot in middle..place.first + place.count {
            self.set_slot(node, slot, twig);
        }
        self.fill_leaf(place.leaf, &low);
        self.end(id);
        true
    }

    /// Under the stamp: gives the slots of an empty leaf to its neighbor; false if the neighbor is
    /// no leaf of the same size. A node with a single leaf is removed.
    fn close_leaf(&mut self, id: RunId, place: LeafPlace) -> bool {
        let Some(node) = place.node else {
            self.set_tags(id, Twig::default());
            return true;
        };
        let neighbor = place.first ^ place.count;
        let slots: Vec<Twig> = self.slots(node).skip(neighbor).take(place.count).collect();
        let Some(&twig) = slots.first() else { return false };
        if !matches!(twig.kind(), TwigKind::Leaf(_)) || slots.iter().any(|slot| *slot != twig) {
            return false;
        }
        for slot in place.first..place.first + place.count {
            self.set_slot(node, slot, twig);
        }
        if self.slots(node).all(|slot| slot == twig) {
            match place.above {
                Some((above, slot)) => self.set_slot(above, slot, twig),
                None => self.set_tags(id, twig),
            }
            self.pool.put(node);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::words::cell_of;
    use super::super::cells::{CELL_BYTES, CHUNK_BYTES};
    use super::super::lists::is_tagged;
    use super::*;
    use crate::Shape;
    use crate::{KeySeed, RootName};

    const SHAPE: Shape = Shape { segment_slots: 2_048, memory_bytes_max: 64 << 20 };

    /// Children come and go in any order. All present children have a tag, few absent keys appear
    /// to have a tag, and in the end no cell is leaked.
    #[test]
    fn present_children_have_a_tag_and_hardly_any_absent_keys() {
        let mut writer = TableWriter::new(SHAPE);
        let root = BlockKey::root(KeySeed(1), &RootName::default());
        let top = writer.create(None, root, 0).unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let mut there = Vec::new();
        let mut gone = Vec::new();
        for (goal, steps) in [(20_000, 20_000), (10, 40_000), (3_000, 10_000), (0, 10_000)] {
            for _ in 0..steps {
                if there.len() < goal || (there.len() < 2 * goal && random.bool()) {
                    let key = root.child(KeySeed(1), &random.u128(..).to_le_bytes());
                    writer.make_room(key);
                    let run = writer.create(Some(top), key, random.u16(44..=84)).unwrap();
                    there.push((key, run));
                } else if !there.is_empty() {
                    let (key, run) = there.swap_remove(random.usize(..there.len()));
                    writer.destroy(run);
                    gone.push(key);
                }
                writer.check_invariants();
            }
            let tags = Tags::new(writer.tags(top), &writer.table.cells);
            let has = |key: BlockKey| tags.has(key.to_word());
            // The lengths that came before the list have no tags.
            let untagged = there.iter().filter(|(key, _)| !has(*key)).count();
            assert!(untagged <= there.len() / 5, "{untagged} of {}", there.len());
            assert!(there.iter().all(|(_, run)| writer.may_have_child(top, *run)));
            let false_hits = gone.iter().filter(|key| has(**key)).count();
            assert!(false_hits <= gone.len() / 500, "{false_hits} of {}", gone.len());
        }
        assert!(there.is_empty() && !writer.has_children(top));
        let cells = writer.pool.chunk_count() * CHUNK_BYTES / CELL_BYTES;
        assert_eq!(writer.pool.free_count(), cells - 1, "all but that of the root's block");
    }

    /// A key with that tag.
    fn key_of(tag: u32, random: &mut fastrand::Rng) -> BlockKey {
        let rest = random.u64(..) & !(u64::from(u32::MAX) << 8);
        BlockKey::from_word(rest | u64::from(tag) << 8).unwrap()
    }

    /// All tags of the children of a run, in order.
    fn stored_tags(writer: &TableWriter, id: RunId) -> Vec<u32> {
        let mut waiting = vec![writer.tags(id)];
        let mut tags = Vec::new();
        while let Some(twig) = waiting.pop() {
            match twig.kind() {
                TwigKind::None => {}
                TwigKind::Leaf(leaf) => tags.extend(writer.tags_in(leaf)),
                TwigKind::Node(node) => {
                    let mut slots: Vec<Twig> = writer.slots(node).collect();
                    slots.dedup();
                    waiting.extend(slots);
                }
            }
        }
        tags.sort_unstable();
        tags
    }

    /// A child of a run.
    struct Child {
        key: BlockKey,
        bytes: u16,
        run: RunId,
    }

    /// The tags that the children of a run should have, in order.
    fn wanted_tags(writer: &TableWriter, id: RunId, children: &[Child]) -> Vec<u32> {
        let list = writer.run(id).and_then(|run| cell_of(run.lengths()));
        let has_tag = |bytes: u16| {
            let listed = list.and_then(|list| writer.find_listed(list, bytes).0);
            listed.is_some_and(|listed| is_tagged(listed.word))
        };
        let tagged = children.iter().filter(|child| has_tag(child.bytes));
        let mut tags: Vec<u32> = tagged.map(|child| tag_of(child.key.to_word())).collect();
        tags.sort_unstable();
        tags
    }

    /// Children with equal tags come and go, with and without memory for their tags. A removed
    /// child takes its own tag with it, and no tag of another child. Before, a child without a tag
    /// took the equal tag of another child.
    #[test]
    fn a_tag_goes_with_its_own_child() {
        let mut refused = 0;
        let mut tagged = 0;
        for seed in 0..24_u64 {
            let memory_bytes_max = if seed % 2 == 0 { 24_000 } else { 1 << 20 };
            let mut writer = TableWriter::new(Shape { segment_slots: 16, memory_bytes_max });
            let root = BlockKey::root(KeySeed(1), &RootName::default());
            let top = writer.create(None, root, 0).unwrap();
            let mut random = fastrand::Rng::with_seed(seed);
            let tags: Vec<u32> = (0..4 << (seed % 6)).map(|_| random.u32(1..)).collect();
            let mut children: Vec<Child> = Vec::new();
            for _ in 0..800 {
                if random.u8(..) < 150 {
                    let key = key_of(tags[random.usize(..tags.len())], &mut random);
                    let bytes = random.u16(1..=8);
                    writer.make_room(key);
                    let run = writer.create(Some(top), key, bytes);
                    refused += usize::from(run.is_none());
                    children.extend(run.map(|run| Child { key, bytes, run }));
                } else if !children.is_empty() {
                    writer.destroy(children.swap_remove(random.usize(..children.len())).run);
                }
                let is_found = |child: &Child| writer.may_have_child(top, child.run);
                assert!(children.iter().all(is_found), "a child of seed {seed} is lost");
                let wanted = wanted_tags(&writer, top, &children);
                assert_eq!(stored_tags(&writer, top), wanted, "seed {seed}");
                tagged += wanted.len();
            }
            children.drain(..).for_each(|child| {
                writer.destroy(child.run);
            });
            assert_eq!(stored_tags(&writer, top), []);
            writer.check_invariants();
        }
        assert!(refused > 0 && tagged > 0, "{refused} refused, {tagged} with a tag");
    }

    /// Tags that differ only in their highest bits need as many nodes as there can be.
    #[test]
    fn children_with_similar_tags_all_have_a_tag() {
        let mut writer = TableWriter::new(SHAPE);
        let root = BlockKey::root(KeySeed(1), &RootName::default());
        let top = writer.create(None, root, 0).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let tags: Vec<u32> = (1..200).map(|number| number << 24 | 0x5_5555).collect();
        // The first length has no tags.
        for (at, tag) in [7].iter().chain(&tags).enumerate() {
            let key = key_of(*tag, &mut random);
            writer.make_room(key);
            writer.create(Some(top), key, if at == 0 { 1 } else { 2 }).unwrap();
        }
        assert_eq!(stored_tags(&writer, top), tags);
    }

    /// A reader that detects changes too often gives up on the whole fork.
    #[test]
    fn a_child_that_goes_does_not_let_readers_of_its_fork_look_again() {
        let mut writer = TableWriter::new(SHAPE);
        let root = BlockKey::root(KeySeed(1), &RootName::default());
        let top = writer.create(None, root, 0).unwrap();
        let children: Vec<RunId> = (0..60_u16)
            .map(|number| {
                let key = root.child(KeySeed(1), &number.to_le_bytes());
                writer.make_room(key);
                writer.create(Some(top), key, 44 + number % 6).unwrap()
            })
            .collect();
        let fork = |writer: &TableWriter| writer.run(top).and_then(|run| run.read_begin());
        let before = fork(&writer);
        for child in children.iter().take(20) {
            writer.destroy(*child);
        }
        assert!(before.is_some() && fork(&writer) == before);
        assert!(children.iter().skip(20).all(|child| writer.may_have_child(top, *child)));
    }
}
