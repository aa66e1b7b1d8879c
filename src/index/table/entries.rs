//! The owner's side of the locator: find, insert, move, remove, grow. [`TableWriter::make_room`],
//! the longest step, moves half of a segment.

use super::TableWriter;
use super::locator::{
    Location, Locator, Segment, entry_of, entry_tag, home_of, location_of, place_of, tag_of,
};
use super::run::RunId;
use super::writer::segment_bytes;
use crate::BlockKey;
use std::ops::Range;

impl TableWriter {
    /// [`Self::find`] that tries the place `likely` first, which takes a fraction of the time.
    pub(in super::super) fn find_near(&self, likely: Location, key: BlockKey) -> Option<Location> {
        // A block has a single place: if its key is there, no search is needed.
        match self.is_at(likely, key) {
            true => Some(likely),
            false => self.find(key),
        }
    }

    /// Prefetches the entry of a key.
    pub(in super::super) fn fetch(&self, key: BlockKey) {
        let tag = tag_of(key);
        let locator = &self.table.locator;
        let segment = locator.segment(locator.directory.segment_of(tag));
        let slots = segment.map(|segment| &segment.slots);
        let home = slots.and_then(|slots| slots.get(home_of(tag, slots.len())));
        home.into_iter().for_each(forebay_wide::fetch);
    }

    /// True if the block of that key is at the location.
    #[inline]
    pub(in super::super) fn is_at(&self, location: Location, key: BlockKey) -> bool {
        let run = self.run(location.run);
        run.is_some_and(|run| self.table.key_at(run, location.offset) == key.to_word())
    }

    pub(in super::super) fn find(&self, key: BlockKey) -> Option<Location> {
        let tag = tag_of(key);
        let segment = self.table.locator.segment(self.table.locator.directory.segment_of(tag))?;
        let mask = segment.slots.len().wrapping_sub(1);
        let home = home_of(tag, segment.slots.len());
        for distance in 0..=mask {
            let slot = (home + distance) & mask;
            let entry = segment.entry(slot);
            if entry == 0 {
                break;
            }
            if entry_tag(entry) == tag {
                let location = location_of(entry);
                if self.is_at(location, key) {
                    return Some(location);
                }
            } else if segment.distance(entry, slot) < distance {
                break;
            }
        }
        None
    }

    /// Adds an entry for a key without an entry. False: the segment is full.
    pub(super) fn insert(&mut self, key: BlockKey, location: Location) -> bool {
        debug_assert!(self.find(key).is_none(), "a block in two places");
        let tag = tag_of(key);
        let name = self.table.locator.directory.segment_of(tag);
        let (Some(segment), Some(part)) =
            (self.table.locator.segment(name), self.parts.get_mut(name))
        else {
            return false;
        };
        if part.filled >= filled_max(segment.slots.len()) {
            return false;
        }
        put(segment, entry_of(tag, location));
        part.filled += 1;
        self.entry_count += 1;
        true
    }

    /// Updates the entry of a block that moved.
    pub(super) fn relocate(&self, key: BlockKey, from: Location, to: Location) {
        let tag = tag_of(key);
        let segment = self.table.locator.segment(self.table.locator.directory.segment_of(tag));
        let found = segment.and_then(|segment| Some((segment, slot_in(segment, tag, from)?)));
        debug_assert!(found.is_some(), "a block without its entry");
        // In place, not by removal and insertion: between the two a reader would miss the block.
        if let Some((segment, slot)) = found {
            segment.set_entry(slot, entry_of(tag, to));
        }
    }

    /// Removes the entries of these blocks of a run, while their keys can still be read. Other
    /// entries of their segments may move to other slots.
    pub(super) fn forget_blocks(&mut self, id: RunId, offsets: Range<usize>) {
        let Self { table, parts, entry_count, .. } = self;
        let Some(run) = table.run(id) else { return };
        for offset in offsets {
            let Some(key) = BlockKey::from_word(table.key_at(run, offset)) else { continue };
            let location = Location { run: id, offset };
            let Some(name) = table.locator.forget(tag_of(key), location) else {
                debug_assert!(false, "a block without its entry");
                forebay_base::count_broken_invariant();
                continue;
            };
            if let Some(part) = parts.get_mut(name) {
                debug_assert!(part.filled > 0, "an entry that was never counted");
                part.filled = part.filled.saturating_sub(1);
            }
            debug_assert!(*entry_count > 0, "an entry that was never counted");
            *entry_count = entry_count.saturating_sub(1);
        }
    }

    /// Splits the segment of a key that may be inserted next, if it is getting full and the budget
    /// allows.
    pub(in super::super) fn make_room(&mut self, key: BlockKey) {
        let tag = tag_of(key);
        let segment = self.table.locator.directory.segment_of(tag);
        let Some(part) = self.parts.get(segment) else { return };
        let filled = part.filled;
        let depth = part.depth;
        debug_assert!(depth <= self.table.locator.directory.depth(), "deeper than its directory");
        // Before it is full: a full segment would have to refuse a store.
        if filled >= split_at(self.shape.segment_slots)
            && self.fits(segment_bytes(self.shape.segment_slots))
            && (depth < self.table.locator.directory.depth()
                || self.table.locator.directory.deepen())
        {
            self.split_segment(segment, place_of(tag, depth), depth);
        }
    }

    /// Splits a segment by bit `depth` of its keys, which share the lower bits `low`.
    fn split_segment(&mut self, source: usize, low: usize, depth: u32) {
        let new = self.parts.len();
        let (Ok(name), true) = (u32::try_from(new), self.add_segment(depth + 1)) else { return };
        let locator = &self.table.locator;
        let (Some(from), Some(to)) = (locator.segment(source), locator.segment(new)) else {
            return;
        };
        let moves = |entry: u64| entry != 0 && entry_tag(entry) >> depth & 1 == 1;
        let mut moved = 0;
        for slot in 0..from.slots.len() {
            let entry = from.entry(slot);
            if moves(entry) {
                put(to, entry);
                moved += 1;
            }
        }
        // First the copies, then the directory, then the removals: at each moment the segment that
        // the directory refers to has every entry. From here on readers find the copies.
        locator.directory.point(low | 1 << depth, depth + 1, name);
        for slot in 0..from.slots.len() {
            // A removal shifts another entry into the slot, which may have moved as well.
            while moves(from.entry(slot)) {
                from.shifting(|| shift_back(from, slot));
            }
        }
        if let Some(part) = self.parts.get_mut(source) {
            debug_assert!(part.depth == depth && part.filled >= moved, "more went than there were");
            part.depth = depth + 1;
            part.filled = part.filled.saturating_sub(moved);
        }
        if let Some(part) = self.parts.get_mut(new) {
            part.filled = moved;
        }
    }
}

impl Locator {
    /// Owner only: removes an entry and returns the number of its segment; `None`: no such entry.
    fn forget(&self, tag: u64, location: Location) -> Option<usize> {
        let name = self.directory.segment_of(tag);
        let segment = self.segment(name)?;
        let slot = slot_in(segment, tag, location)?;
        segment.shifting(|| shift_back(segment, slot));
        Some(name)
    }
}

/// The slot of an entry.
fn slot_in(segment: &Segment, tag: u64, location: Location) -> Option<usize> {
    let wanted = entry_of(tag, location);
    let mask = segment.slots.len().wrapping_sub(1);
    let mut slot = home_of(tag, segment.slots.len());
    loop {
        match segment.entry(slot) {
            0 => return None,
            entry if entry == wanted => return Some(slot),
            _ => slot = (slot + 1) & mask,
        }
    }
}

/// Inserts an entry behind the entries of its home and of earlier homes. Later entries move up, the
/// last entry first.
fn put(segment: &Segment, entry: u64) {
    let mask = segment.slots.len().wrapping_sub(1);
    let home = home_of(entry_tag(entry), segment.slots.len());
    let mut place = None;
    let mut free = (0..=mask).skip_while(|&distance| {
        let slot = (home + distance) & mask;
        let other = segment.entry(slot);
        if place.is_none() && other != 0 && segment.distance(other, slot) < distance {
            place = Some(distance);
        }
        other != 0
    });
    let Some(end) = free.next() else {
        debug_assert!(false, "a segment without a free slot");
        return;
    };
    let Some(begin) = place else { return segment.set_entry((home + end) & mask, entry) };
    segment.shifting(|| {
        for distance in (begin..end).rev() {
            let slot = (home + distance) & mask;
            segment.set_entry((slot + 1) & mask, segment.entry(slot));
        }
        segment.set_entry((home + begin) & mask, entry);
    });
}

/// Empties a slot, and shifts the entries behind it back, up to the next entry in its own home.
fn shift_back(segment: &Segment, emptied: usize) {
    // Not a tombstone: tombstones pile up, and every probe would pass them for ever.
    debug_assert!(segment.entry(emptied) != 0, "emptied twice");
    let mask = segment.slots.len().wrapping_sub(1);
    let mut hole = emptied;
    for _ in 0..mask {
        let next = (hole + 1) & mask;
        let entry = segment.entry(next);
        if entry == 0 || segment.distance(entry, next) == 0 {
            break;
        }
        segment.set_entry(hole, entry);
        hole = next;
    }
    segment.set_entry(hole, 0);
}

/// A segment is split at 13/16: probes are still short, and there is room until the next chance to
/// split.
const fn split_at(slots: usize) -> usize {
    slots - slots / 16 * 3
}

/// A segment is full with 1/16 of its slots empty, so that probes end.
const fn filled_max(slots: usize) -> usize {
    slots - slots.div_ceil(16)
}
