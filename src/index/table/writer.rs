//! The owner's side of the table: find, insert, remove, grow. Runs on the owning shard's thread. Each call does
//! a bounded amount of work; [`TableWriter::make_room`], the longest, moves half of one segment.

use super::cells::{CHUNK_BYTES, CellPool};
use super::{Cells, Directory, Gauges, Segment, Slot, Table, home_of, place_of};
use crate::block::BlockKey;
use crossbeam_utils::CachePadded;
use std::sync::{Arc, OnceLock};

/// Sizes of a table.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Slots of one segment, a power of two from 16 to 65,536. More make growth steps longer, fewer fill less evenly.
    pub segment_slots: usize,
    /// Most bytes of segments and cells, on both sides.
    pub memory_bytes_max: usize,
}

/// Where an entry lies. Valid until the next removal or growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Place {
    segment: usize,
    slot: usize,
}

/// What only the owner needs to know of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Link {
    /// Key of the path before the block; counts only while `block_bytes` is not 0.
    pub parent: u64,
    /// How many children have the length of the same lane, while the lengths fit their word.
    pub child_counts: [u32; 4],
    /// Length by which the entry is listed at its parent; 0 while no rank holds it.
    pub block_bytes: u16,
}

/// What the owner keeps of one segment.
#[derive(Debug)]
struct Part {
    /// One for every slot.
    links: Box<[Link]>,
    filled: usize,
    /// The keys in it agree in so many low bits.
    depth: u32,
}

/// The one writer of a table.
#[derive(Debug)]
pub(in super::super) struct TableWriter {
    pub(super) table: Arc<Table>,
    /// The owner's part of each segment, in the order of the segments.
    parts: Vec<Part>,
    pub(super) pool: CellPool,
    entry_count: usize,
    shape: Shape,
}

impl TableWriter {
    /// An empty table of one segment (also when that is above the budget).
    pub(in super::super) fn new(shape: Shape) -> Self {
        let slots = shape.segment_slots.next_power_of_two().clamp(16, 1 << 16);
        let shape = Shape { segment_slots: slots, ..shape };
        let segments_max = (shape.memory_bytes_max / segment_bytes(slots)).max(1);
        let table = Table {
            directory: Directory::new(segments_max),
            segments: (0..segments_max).map(|_| OnceLock::new()).collect(),
            cells: Cells::new(shape.memory_bytes_max / CHUNK_BYTES),
            gauges: CachePadded::new(Gauges::default()),
        };
        let (parts, pool) = (Vec::new(), CellPool::default());
        let mut writer = Self { table: Arc::new(table), parts, pool, entry_count: 0, shape };
        writer.add_segment(0);
        writer.publish_sizes();
        writer
    }

    /// The readers' side.
    pub(in super::super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Counts a store that could not be kept.
    pub(in super::super) fn count_refused(&self) {
        self.table.gauges.refused.add_one();
    }

    pub(in super::super) fn find(&self, key: BlockKey) -> Option<Place> {
        let segment = self.table.directory.segment_of(key);
        let slots = &self.table.segment(segment)?.slots;
        let mut slot = home_of(key, slots.len());
        loop {
            match slots.get(slot)?.key() {
                0 => return None,
                word if word == key.to_word() => return Some(Place { segment, slot }),
                _ => slot = (slot + 1) & (slots.len() - 1),
            }
        }
    }

    /// Adds an entry without ranks and lengths for a key that has none. `None`: the segment is full.
    pub(in super::super) fn insert(&mut self, key: BlockKey) -> Option<Place> {
        debug_assert!(self.find(key).is_none(), "two entries for one key");
        let segment = self.table.directory.segment_of(key);
        let part = self.parts.get_mut(segment)?;
        if part.filled >= filled_max(self.shape.segment_slots) {
            return None;
        }
        let slot = put(self.table.segment(segment)?, key.to_word(), 0, 0)?;
        part.filled += 1;
        self.entry_count += 1;
        self.publish_sizes();
        Some(Place { segment, slot })
    }

    /// Removes an entry that has no cells (its sets are empty). Other entries of the segment may move.
    pub(in super::super) fn remove(&mut self, place: Place) {
        self.remove_at(place);
        self.entry_count -= 1;
        self.publish_sizes();
    }

    /// Splits the segment of a key that may be inserted next, if it is getting full and the budget allows. Places are
    /// not valid afterwards.
    pub(in super::super) fn make_room(&mut self, key: BlockKey) {
        let segment = self.table.directory.segment_of(key);
        let Some(part) = self.parts.get(segment) else { return };
        let (filled, depth) = (part.filled, part.depth);
        if filled >= split_at(self.shape.segment_slots)
            && self.fits(segment_bytes(self.shape.segment_slots))
            && (depth < self.table.directory.depth() || self.table.directory.deepen())
        {
            self.split(segment, place_of(key, depth), depth);
        }
    }

    pub(super) fn slot(&self, place: Place) -> Option<&Slot> {
        self.table.segment(place.segment)?.slots.get(place.slot)
    }

    pub(in super::super) fn link(&self, place: Place) -> Option<&Link> {
        self.parts.get(place.segment)?.links.get(place.slot)
    }

    pub(in super::super) fn link_mut(&mut self, place: Place) -> Option<&mut Link> {
        self.parts.get_mut(place.segment)?.links.get_mut(place.slot)
    }

    /// True when that many more bytes are within the budget.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.memory_bytes().saturating_add(bytes) <= self.shape.memory_bytes_max
    }

    pub(super) fn publish_sizes(&self) {
        self.table.gauges.entries.set(self.entry_count as u64);
        self.table.gauges.bytes.set(self.memory_bytes() as u64);
    }

    fn memory_bytes(&self) -> usize {
        self.parts.len() * segment_bytes(self.shape.segment_slots)
            + self.pool.chunk_count() * CHUNK_BYTES
    }

    /// Fills the next place of the segments; readers do not look there before the directory names it.
    fn add_segment(&mut self, depth: u32) -> bool {
        let slots = self.shape.segment_slots;
        let place = self.table.segments.get(self.parts.len());
        if place.is_none_or(|place| place.set(Segment::new(slots)).is_err()) {
            return false;
        }
        let links = (0..slots).map(|_| Link::default()).collect();
        self.parts.push(Part { links, filled: 0, depth });
        true
    }

    /// Splits a segment, whose keys agree in `low` up to bit `depth`, by that bit.
    fn split(&mut self, source: usize, low: usize, depth: u32) {
        let new = self.parts.len();
        let (Ok(name), true) = (u32::try_from(new), self.add_segment(depth + 1)) else { return };
        let moves = |key: BlockKey| key.to_word() >> depth & 1 == 1;
        let slots = (0..self.shape.segment_slots).map(|slot| Place { segment: source, slot });
        for place in slots.clone() {
            if self.key_at(place).is_some_and(moves) {
                self.copy_to(place, new);
            }
        }
        if let Some(part) = self.parts.get_mut(source) {
            part.depth = depth + 1;
        }
        // From here on readers find the copies.
        self.table.directory.point(low | 1 << depth, depth + 1, name);
        for place in slots {
            // Removing shifts another entry into the slot, which may have moved as well.
            while self.key_at(place).is_some_and(moves) {
                self.remove_at(place);
            }
        }
        self.publish_sizes();
    }

    fn copy_to(&mut self, place: Place, new: usize) {
        let (Some(from), Some(to)) = (self.slot(place), self.table.segment(new)) else { return };
        let slot = put(to, from.key(), from.ranks(), from.lengths());
        let link = self.link(place).copied().unwrap_or_default();
        let Some(part) = self.parts.get_mut(new) else { return };
        if let Some(to) = slot.and_then(|slot| part.links.get_mut(slot)) {
            *to = link;
            part.filled += 1;
        }
    }

    fn key_at(&self, place: Place) -> Option<BlockKey> {
        BlockKey::from_word(self.slot(place)?.key())
    }

    /// Empties a slot; entries behind it that would not be found any more are shifted back, one after the other.
    fn remove_at(&mut self, place: Place) {
        let Some(segment) = self.table.segment(place.segment) else { return };
        let Some(part) = self.parts.get_mut(place.segment) else { return };
        segment.shifting(|| shift_back(&segment.slots, &mut part.links, place.slot));
        part.filled = part.filled.saturating_sub(1);
    }
}

fn shift_back(slots: &[Slot], links: &mut [Link], emptied: usize) {
    let mask = slots.len().wrapping_sub(1);
    let mut hole = emptied;
    let mut next = emptied;
    for _ in 0..mask {
        next = (next + 1) & mask;
        let Some(from) = slots.get(next) else { return };
        let Some(key) = BlockKey::from_word(from.key()) else { break };
        // An entry may go as far back as its home, not further.
        let from_home = next.wrapping_sub(home_of(key, slots.len())) & mask;
        if from_home < next.wrapping_sub(hole) & mask {
            continue;
        }
        if let Some(to) = slots.get(hole) {
            to.assign(key.to_word(), from.ranks(), from.lengths());
        }
        let link = links.get(next).copied().unwrap_or_default();
        if let Some(to) = links.get_mut(hole) {
            *to = link;
        }
        hole = next;
    }
    if let Some(slot) = slots.get(hole) {
        slot.assign(0, 0, 0);
    }
    if let Some(link) = links.get_mut(hole) {
        *link = Link::default();
    }
}

/// Puts an entry into the first free slot from its home on; returns which.
fn put(segment: &Segment, key: u64, ranks: u64, lengths: u64) -> Option<usize> {
    let home = home_of(BlockKey::from_word(key)?, segment.slots.len());
    let order = (home..segment.slots.len()).chain(0..home);
    for index in order {
        let slot = segment.slots.get(index)?;
        if slot.key() == 0 {
            slot.assign(key, ranks, lengths);
            return Some(index);
        }
    }
    None
}

/// A segment is split at four fifths: probes are still short, and there is room until the next chance to split.
const fn split_at(slots: usize) -> usize {
    slots * 4 / 5
}

/// A segment is full with one slot in sixteen empty: probes stay short and always end.
const fn filled_max(slots: usize) -> usize {
    slots - slots.div_ceil(16)
}

const fn segment_bytes(slots: usize) -> usize {
    // Four names, because the directory has two bits to spare.
    let shares = size_of::<OnceLock<Segment>>() + size_of::<Part>() + 4 * size_of::<u32>();
    slots * (size_of::<Slot>() + size_of::<Link>()) + shares
}
