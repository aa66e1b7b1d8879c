//! The entries of one slice: key to (ranks, child lengths). One thread writes ([`TableWriter`]), every thread
//! reads in place ([`Table::read`]) without locks, messages or reference counts.
//!
//! # Layout
//! Extendible hashing: a directory, indexed by the low bits of the key, names the segment of a key. A segment is a
//! small open-addressing table with linear probing. One that gets full is split: half of its entries go to a
//! new segment. So growth comes in small equal steps, nothing is ever copied as a whole, and no memory
//! that a reader may look at is ever freed. Removal shifts later entries back, so probes do not get longer with
//! age.
//!
//! # What a reader may see
//! * A hit is exact: the words belonged to that key at one moment. Every change of a slot's key, and every release
//!   of overflow cells, happens under the slot's *stamp* (a sequence lock); a reader that met one looks again.
//! * A miss is exact unless the entry itself was under change at each of `LOOKS_MAX` looks. An entry that only moves is
//!   always found, for it is copied before it goes: moves inside a
//!   segment are covered by the segment's *moves* (again a sequence lock), moves to another segment by a second look
//!   at the directory.
//! * Ranks and lengths change one word at a time; a reader sees each either before or after.

mod cells;
mod sets;
mod slot;
mod writer;

pub(super) use cells::{CELL_WORDS, Cells};
pub use writer::Shape;
pub(super) use writer::{Link, Place, TableWriter};

use super::words::cell_of;
use crate::block::BlockKey;
use crate::ring::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
use slot::Slot;
use std::sync::OnceLock;

/// Looks at a key before a reader that always meets changes gives up and calls it a miss; few in models.
const LOOKS_MAX: usize = if cfg!(feature = "loom") { 4 } else { 16 };

/// Entries of one slice, as readers see them.
#[derive(Debug)]
pub(super) struct Table {
    directory: Directory,
    /// Filled from the front, one by one. INVARIANT: the directory names only places that are filled.
    segments: Box<[OnceLock<Segment>]>,
    cells: Cells,
    gauges: CachePadded<Gauges>,
}

/// Which segment a key is in.
#[derive(Debug)]
struct Directory {
    /// Low bits of a key that count. INVARIANT: `names` has at least `1 << depth` places.
    depth: CachePadded<AtomicU32>,
    /// As large as it can get; the first `1 << depth` places are in use.
    names: Box<[AtomicU32]>,
}

/// A part of the table with its own probe sequences.
#[derive(Debug)]
struct Segment {
    /// Odd while entries are being shifted.
    moves: AtomicU64,
    /// A power of two of slots, of which some are always empty, so that probes end early.
    slots: Box<[Slot]>,
}

/// What the table tells about itself. Written by the slice's owner only.
#[derive(Debug, Default)]
struct Gauges {
    entries: Gauge,
    bytes: Gauge,
    refused: Gauge,
}

/// A number that one thread sets and any thread reads.
#[derive(Debug)]
struct Gauge(AtomicU64);

/// The value words of one entry, see `index::words`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Ranks that hold the block. Overflow: `Spill::rank_bits` has them.
    pub ranks: u64,
    /// Byte lengths of the blocks that follow. Overflow: `Spill::lengths` has them.
    pub lengths: u64,
}

/// Where [`Table::read`] puts sets that do not fit their word. Reused from read to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Spill {
    /// Bit `r` stands for the rank `r`.
    pub rank_bits: [u64; CELL_WORDS],
    /// Words of `rank_bits` that are wanted; the others stay 0.
    pub rank_words: usize,
    /// In no order, each once.
    pub lengths: Vec<u16>,
}

/// What one look at a key found.
enum Look {
    Hit(Node),
    Miss,
    Disturbed,
}

impl Table {
    /// The entry of that key, if there is one.
    #[inline]
    pub(super) fn read(&self, key: BlockKey, spill: &mut Spill) -> Option<Node> {
        for _ in 0..LOOKS_MAX {
            match self.look(key, spill) {
                Look::Hit(node) => return Some(node),
                Look::Miss => return None,
                Look::Disturbed => std::hint::spin_loop(),
            }
        }
        None
    }

    #[inline]
    fn look(&self, key: BlockKey, spill: &mut Spill) -> Look {
        let name = self.directory.segment_of(key);
        let Some(segment) = self.segment(name) else { return Look::Miss };
        // ordering: Acquire pairs with the Release store at the end of `Segment::shifting`.
        let moves = segment.moves.load(Ordering::Acquire);
        let mut disturbed = false;
        let mut index = home_of(key, segment.slots.len());
        for _ in 0..segment.slots.len() {
            let Some(slot) = segment.slots.get(index) else { break };
            let stored = slot.key();
            if stored == key.to_word() {
                match self.copy(slot, key, spill) {
                    Some(node) => return Look::Hit(node),
                    // Maybe it is on its way here, then it is still further on.
                    None => disturbed = true,
                }
            }
            if stored == 0 {
                break;
            }
            index = (index + 1) & (segment.slots.len() - 1);
        }
        // ordering: the Acquire fence pairs with the Release fences in `Segment::shifting` and `Slot::change`: if we
        // saw a slot in a later state, we see the directory and the moves as they were made before it.
        fence(Ordering::Acquire);
        // ordering: Relaxed, ordered by the fence above.
        let undisturbed = !disturbed
            && moves.is_multiple_of(2)
            && segment.moves.load(Ordering::Relaxed) == moves
            && self.directory.segment_of(key) == name;
        if undisturbed { Look::Miss } else { Look::Disturbed }
    }

    /// The slot's words and what they refer to, if they belong to the key and did so throughout.
    #[inline]
    fn copy(&self, slot: &Slot, key: BlockKey, spill: &mut Spill) -> Option<Node> {
        let stamp = slot.read_begin()?;
        if slot.key() != key.to_word() {
            return None;
        }
        let node = Node { ranks: slot.ranks(), lengths: slot.lengths() };
        if let Some(cell) = cell_of(node.ranks) {
            let wanted = spill.rank_bits.iter_mut().take(spill.rank_words);
            self.cells.copy_bits(cell, wanted);
        }
        if let Some(cell) = cell_of(node.lengths) {
            self.cells.copy_lengths(cell, &mut spill.lengths);
        }
        slot.read_end(stamp).then_some(node)
    }

    #[inline]
    fn segment(&self, index: usize) -> Option<&Segment> {
        self.segments.get(index)?.get()
    }

    /// Entries, with those that no rank holds but that others hang on.
    pub(super) fn entry_count(&self) -> u64 {
        self.gauges.entries.get()
    }

    /// Bytes allocated for entries, on the reader's and the writer's side.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.gauges.bytes.get()
    }

    /// Stores refused since start: memory budget reached, or a rank, length or set outside its limit.
    pub(super) fn refused_count(&self) -> u64 {
        self.gauges.refused.get()
    }
}

impl Directory {
    /// A directory of one segment, number 0, that can grow to name `segments_max`, with two bits to spare for segments that
    /// fill faster than others.
    fn new(segments_max: usize) -> Self {
        let places = segments_max.next_power_of_two() * 4;
        let names = (0..places).map(|_| AtomicU32::new(0)).collect();
        Self { depth: CachePadded::new(AtomicU32::new(0)), names }
    }

    #[inline]
    fn segment_of(&self, key: BlockKey) -> usize {
        // ordering: Acquire pairs with the Release store in `deepen`: the places of that depth are filled.
        let depth = self.depth.load(Ordering::Acquire);
        // ordering: Acquire pairs with the Release store in `point`: the entries that moved are in their new segment
        // before it is named.
        let name =
            self.names.get(place_of(key, depth)).map_or(0, |name| name.load(Ordering::Acquire));
        usize::try_from(name).unwrap_or(usize::MAX)
    }

    /// Owner only.
    fn depth(&self) -> u32 {
        // ordering: Relaxed; the owner wrote it.
        self.depth.load(Ordering::Relaxed)
    }

    /// Owner only: one more bit counts; false at the limit. The new half of the places says what the old half says.
    fn deepen(&self) -> bool {
        let depth = self.depth();
        let (old, new) = self.names.split_at_checked(1 << depth).unwrap_or_default();
        if new.len() < old.len() {
            return false;
        }
        for (old, new) in old.iter().zip(new) {
            // ordering: Relaxed; published by the store below.
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // ordering: Release pairs with the Acquire load in `segment_of`.
        self.depth.store(depth + 1, Ordering::Release);
        true
    }

    /// Owner only: names `segment` in all places whose low `bits` bits are `low`.
    fn point(&self, low: usize, bits: u32, segment: u32) {
        let in_use = self.names.iter().take(1 << self.depth());
        for name in in_use.skip(low).step_by(1 << bits) {
            // ordering: Release pairs with the Acquire load in `segment_of`.
            name.store(segment, Ordering::Release);
        }
    }
}

impl Segment {
    fn new(slot_count: usize) -> Self {
        let slots = (0..slot_count.next_power_of_two().max(2)).map(|_| Slot::empty()).collect();
        Self { moves: AtomicU64::new(0), slots }
    }

    /// Runs `shift`, during which entries of this segment change places; readers that miss meanwhile look again.
    fn shifting(&self, shift: impl FnOnce()) {
        // ordering: Relaxed; only the owner writes it. The Release fence pairs with the Acquire fence in
        // `Table::look`: who sees a shifted slot sees the odd count.
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        shift();
        // ordering: Release pairs with the Acquire load in `Table::look`: who starts after it sees the slots shifted.
        self.moves.store(moves.wrapping_add(2), Ordering::Release);
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Gauge {
    fn get(&self) -> u64 {
        // ordering: Relaxed; a statistic, pairs with nothing.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        // ordering: Relaxed; a statistic, pairs with nothing.
        self.0.store(value, Ordering::Relaxed);
    }

    fn add_one(&self) {
        // Only the owner writes, so that no read-modify-write is needed.
        self.set(self.get().wrapping_add(1));
    }
}

/// The low bits of a key: its place in a directory of that depth.
#[inline]
fn place_of(key: BlockKey, depth: u32) -> usize {
    let mask = (1_u64 << (depth & 63)) - 1;
    usize::try_from(key.to_word() & mask).unwrap_or(0)
}

/// Where the probe of a key starts in its segment: bits that choose neither segment nor slice.
#[inline]
fn home_of(key: BlockKey, slot_count: usize) -> usize {
    let bits = usize::try_from((key.to_word() >> 32) & 0xffff).unwrap_or(0);
    bits & slot_count.wrapping_sub(1)
}
