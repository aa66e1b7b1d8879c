//! Place of each key's block: key to (run, offset), a word per entry. Readers look up the first
//! block of a run with it, the owner any block.
//!
//! Extendible hashing: a directory, indexed by the low bits of the key, refers to the segment of a
//! key. A segment is a small open-addressing table with linear probing. A full segment is split:
//! half of its entries move to a new segment. So the table grows in small equal steps, is never
//! copied as a whole, and never frees memory that a reader may be reading. Removal shifts later
//! entries back, so probes do not get longer with age.
//!
//! An entry has the low 35 bits of its key, which choose segment and slot. The full key is compared
//! in the run that the entry refers to.

use super::run::{RUN_BLOCKS_MAX, RunId};
use super::shelves::Shelves;
use crate::BlockKey;
use crossbeam_utils::CachePadded;
use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};
use std::sync::OnceLock;

const TAG_BITS: u32 = 35;
const OFFSET_BITS: u32 = 6;
/// Levels of the directory.
const LEVELS: usize = DIRECTORY_BITS as usize + 1;
const RUN_BITS: u32 = 64 - TAG_BITS - OFFSET_BITS;
/// Runs of a slice.
pub(super) const RUNS_MAX: usize = (1 << RUN_BITS) - 1;
/// Low bits of a tag that the directory may use; the bits above choose the slot.
const DIRECTORY_BITS: u32 = 24;
/// Slots of a segment, at most, so that the tag contains all bits that choose the slot.
pub(super) const SLOTS_MAX: usize = 1 << (TAG_BITS - DIRECTORY_BITS);
/// Attempts to find a key before a reader that always detects changes reports a miss; few under
/// loom.
const TRIES_MAX: usize = if cfg!(feature = "loom") { 8 } else { 64 };

const _: () = assert!(RUN_BLOCKS_MAX <= 1 << OFFSET_BITS);
// A run's number is 32 bits wide in its parent and in `RunId`.
const _: () = assert!(RUNS_MAX <= u32::MAX as usize);

/// Place of a block: its run, and the number of blocks of the run before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Location {
    pub run: RunId,
    pub offset: usize,
}

/// Result of a reader's look-up at a location.
pub(super) enum LookupResult<T> {
    Here(T),
    /// Another key.
    Other,
    /// The run is changing.
    Disturbed,
}

/// Key to location, for readers.
#[derive(Debug)]
pub(super) struct Locator {
    pub(super) directory: Directory,
    /// Filled from the front, in order. INVARIANT: the directory refers only to filled places.
    pub(super) segments: Shelves<Segment>,
}

/// Maps a key to its segment.
#[derive(Debug)]
pub(super) struct Directory {
    /// Low bits of a key that count. INVARIANT: the levels `0..=depth` of `names` are filled.
    depth: CachePadded<AtomicU32>,
    depth_max: u32,
    /// Level 0 has the place 0, level `n` the places from `1 << (n - 1)` to `1 << n`.
    names: [OnceLock<Box<[AtomicU32]>>; LEVELS],
}

/// A part of the locator with its own probe sequences.
#[derive(Debug)]
pub(super) struct Segment {
    /// Odd while entries are being shifted.
    moves: AtomicU64,
    /// A power of two of slots, some of which are always 0 (empty), so that probes end.
    /// INVARIANT: adjacent entries are in the order of their homes, so that the probe for a missing
    /// key ends as early as the probe for a present key.
    pub(super) slots: Box<[AtomicU64]>,
}

impl Locator {
    pub(super) fn new(segments_max: usize) -> Self {
        Self { directory: Directory::new(segments_max), segments: Shelves::new(segments_max) }
    }

    /// Calls `look` with possible locations of the key until `look` finds it. A miss is exact
    /// unless the entry itself was changing at each of `TRIES_MAX` attempts. Moves inside a segment
    /// are detected by its *moves* (a sequence lock), moves to another segment by a second read of
    /// the directory, moves to another run by a second read of the slot.
    #[inline]
    pub(super) fn find<T>(
        &self,
        key: BlockKey,
        mut look: impl FnMut(Location) -> LookupResult<T>,
    ) -> Option<T> {
        for _ in 0..TRIES_MAX {
            match self.try_find(tag_of(key), &mut look) {
                LookupResult::Here(found) => return Some(found),
                LookupResult::Other => return None,
                // Under loom, this lets the owner run.
                LookupResult::Disturbed => spin_loop(),
            }
        }
        None
    }

    #[inline]
    fn try_find<T>(
        &self,
        tag: u64,
        look: &mut impl FnMut(Location) -> LookupResult<T>,
    ) -> LookupResult<T> {
        let name = self.directory.segment_of(tag);
        let Some(segment) = self.segment(name) else { return LookupResult::Other };
        // ordering: Acquire pairs with the Release store at the end of `Segment::shifting`.
        let moves = segment.moves.load(Ordering::Acquire);
        let mut disturbed = false;
        let home = home_of(tag, segment.slots.len());
        for distance in 0..segment.slots.len() {
            let index = (home + distance) & (segment.slots.len() - 1);
            let Some(slot) = segment.slots.get(index) else { break };
            // ordering: Acquire pairs with the Release stores of entries: the run is written before
            // its entry.
            let entry = slot.load(Ordering::Acquire);
            if entry == 0 || segment.distance(entry, index) < distance {
                break;
            }
            if entry_tag(entry) == tag {
                match look(location_of(entry)) {
                    LookupResult::Here(found) => return LookupResult::Here(found),
                    // ordering: Relaxed: `look` has read the run's stamp with Acquire; if the run
                    // was already changed, the entry's change, made before the end of the run's, is
                    // visible.
                    LookupResult::Other => disturbed |= slot.load(Ordering::Relaxed) != entry,
                    LookupResult::Disturbed => disturbed = true,
                }
            }
        }
        // ordering: the Acquire fence pairs with the Release fence in `Segment::shifting`: if we
        // saw a slot in a later state, we see the directory and the moves as they were made before
        // it.
        fence(Ordering::Acquire);
        // ordering: Relaxed, ordered by the fence above.
        let undisturbed = !disturbed
            && moves.is_multiple_of(2)
            && segment.moves.load(Ordering::Relaxed) == moves
            && self.directory.segment_of(tag) == name;
        if undisturbed { LookupResult::Other } else { LookupResult::Disturbed }
    }

    #[inline]
    pub(super) fn segment(&self, index: usize) -> Option<&Segment> {
        self.segments.get(index)
    }
}

impl Directory {
    /// A directory with segment 0 only. It can grow to `segments_max`, with two spare bits for
    /// segments that fill faster than the rest.
    fn new(segments_max: usize) -> Self {
        let depth_max = (segments_max.next_power_of_two().ilog2() + 2).min(DIRECTORY_BITS);
        let names: [OnceLock<Box<[AtomicU32]>>; LEVELS] = std::array::from_fn(|_| OnceLock::new());
        if let Some(level) = names.first() {
            level.get_or_init(|| std::iter::once(AtomicU32::new(0)).collect());
        }
        Self { depth: CachePadded::new(AtomicU32::new(0)), depth_max, names }
    }

    #[inline]
    pub(super) fn segment_of(&self, tag: u64) -> usize {
        // ordering: Acquire pairs with the Release store in `deepen`: the places of that depth are
        // filled.
        let depth = self.depth.load(Ordering::Acquire);
        // ordering: Acquire pairs with the Release store in `point`: moved entries are in their new
        // segment before the directory refers to it.
        let name = self.name(place_of(tag, depth)).map_or(0, |name| name.load(Ordering::Acquire));
        usize::try_from(name).unwrap_or(usize::MAX)
    }

    /// Owner only.
    pub(super) fn depth(&self) -> u32 {
        // ordering: Relaxed; the owner wrote it.
        self.depth.load(Ordering::Relaxed)
    }

    /// Owner only: adds a bit to the depth; false at the limit. The new half of the places is a
    /// copy of the old half.
    pub(super) fn deepen(&self) -> bool {
        let depth = self.depth();
        let level = usize::try_from(depth).unwrap_or(LEVELS) + 1;
        let Some(level) = self.names.get(level).filter(|_| depth < self.depth_max) else {
            return false;
        };
        // A new level, not a larger copy: a reader with the old depth still reads the old places,
        // which a copy would have to free.
        // ordering: Relaxed; the owner wrote them.
        let old = |place| self.name(place).map_or(0, |name| name.load(Ordering::Relaxed));
        let new = (0..1_usize << depth).map(|place| AtomicU32::new(old(place))).collect();
        if level.set(new).is_err() {
            return false;
        }
        // ordering: Release pairs with the Acquire load in `segment_of`.
        self.depth.store(depth + 1, Ordering::Release);
        true
    }

    /// Owner only: sets `segment` in all places with the low `bits` bits `low`.
    pub(super) fn point(&self, low: usize, bits: u32, segment: u32) {
        debug_assert!(bits <= self.depth() && low >> bits == 0, "no such places");
        for place in (low..1 << self.depth()).step_by(1 << bits) {
            if let Some(name) = self.name(place) {
                // ordering: Release pairs with the Acquire load in `segment_of`.
                name.store(segment, Ordering::Release);
            }
        }
    }

    #[inline]
    fn name(&self, place: usize) -> Option<&AtomicU32> {
        let level = usize::BITS - place.leading_zeros();
        let first = if level == 0 { 0 } else { 1 << (level - 1) };
        self.names.get(usize::try_from(level).ok()?)?.get()?.get(place - first)
    }
}

impl Segment {
    pub(super) fn new(slot_count: usize) -> Self {
        // Probes wrap by a mask.
        debug_assert!(slot_count.is_power_of_two() && slot_count <= SLOTS_MAX);
        let slots = (0..slot_count).map(|_| AtomicU64::new(0)).collect();
        Self { moves: AtomicU64::new(0), slots }
    }

    /// Distance of an entry in that slot from its home.
    #[inline]
    pub(super) fn distance(&self, entry: u64, slot: usize) -> usize {
        let home = home_of(entry_tag(entry), self.slots.len());
        slot.wrapping_sub(home) & (self.slots.len() - 1)
    }

    /// Owner only: runs `shift`, which moves entries inside the segment. A reader that misses
    /// meanwhile retries.
    pub(super) fn shifting(&self, shift: impl FnOnce()) {
        // ordering: Relaxed; only the owner writes it. The Release fence pairs with the Acquire
        // fence in `Locator::try_find`: a reader of a shifted slot sees the odd count.
        let moves = self.moves.load(Ordering::Relaxed);
        debug_assert!(moves.is_multiple_of(2), "a shift inside a shift");
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        shift();
        // ordering: Release pairs with the Acquire load in `try_find`: a reader that starts after
        // it sees the shifted slots.
        self.moves.store(moves.wrapping_add(2), Ordering::Release);
    }

    /// Owner only.
    pub(super) fn entry(&self, slot: usize) -> u64 {
        // ordering: Relaxed; the owner wrote it.
        self.slots.get(slot).map_or(0, |entry| entry.load(Ordering::Relaxed))
    }

    /// Owner only.
    pub(super) fn set_entry(&self, slot: usize, entry: u64) {
        debug_assert!(slot < self.slots.len(), "no slot {slot}");
        if let Some(slot) = self.slots.get(slot) {
            // ordering: Release pairs with the Acquire load in `try_find`.
            slot.store(entry, Ordering::Release);
        }
    }
}

/// The bits of a key that its entry stores.
#[inline]
pub(super) const fn tag_of(key: BlockKey) -> u64 {
    key.to_word() & ((1 << TAG_BITS) - 1)
}

/// The tag of an entry.
pub(super) const fn entry_tag(entry: u64) -> u64 {
    entry >> (64 - TAG_BITS)
}

/// Never 0, since run numbers start at 1.
pub(super) fn entry_of(tag: u64, location: Location) -> u64 {
    debug_assert!(location.run != RunId::default(), "an entry of no run may be 0");
    debug_assert!(location.run.0 >> RUN_BITS == 0, "{location:?} is cut");
    debug_assert!(location.offset < RUN_BLOCKS_MAX, "{location:?} is past every run");
    debug_assert!(tag >> TAG_BITS == 0, "a key taken for a tag");
    let offset = u64::try_from(location.offset).unwrap_or(0) & ((1 << OFFSET_BITS) - 1);
    tag << (64 - TAG_BITS) | u64::from(location.run.0) << OFFSET_BITS | offset
}

#[inline]
pub(super) fn location_of(entry: u64) -> Location {
    let run = entry >> OFFSET_BITS & ((1 << RUN_BITS) - 1);
    let offset = entry & ((1 << OFFSET_BITS) - 1);
    Location {
        run: RunId(u32::try_from(run).unwrap_or(0)),
        offset: usize::try_from(offset).unwrap_or(0),
    }
}

/// The low bits of a tag: its place in a directory of that depth.
#[inline]
pub(super) fn place_of(tag: u64, depth: u32) -> usize {
    let mask = (1_u64 << (depth & 63)) - 1;
    usize::try_from(tag & mask).unwrap_or(0)
}

/// Slot where the probe of a tag starts: the bits above the directory's bits.
#[inline]
pub(super) fn home_of(tag: u64, slot_count: usize) -> usize {
    usize::try_from(tag >> DIRECTORY_BITS).unwrap_or(0) & slot_count.wrapping_sub(1)
}
