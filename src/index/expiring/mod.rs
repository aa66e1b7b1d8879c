//! Guessed contents of caches, and their expiry: the owner of a slice records the last use of each
//! chunk of a routed prompt, and removes the chunk from the slice after its TTL. Sans-IO: time is
//! an argument, the slice a closure. Each slice has its own, on the owner's thread.
//!
//! A rank has a list of chunks per [`GuessKind`], oldest use first, each chunk at most once. A
//! chunk is removed when its TTL is over, when the rank's capacity is reached, when the slice's
//! room for chunks is full, or when the rank may have lost its cache. All memory is reserved at the
//! start (and touched as it fills), so the cost of a step depends only on its own chunks. Must
//! never remove blocks that events stored: these have keys of other roots.

use crate::{BlockKey, GuessKind, KvOp, RoutedPrompt};
use forebay_base::limits::RANKS_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use std::time::Duration;

/// Period of a sweep of all lists.
const SWEEP_PERIOD: Duration = Duration::from_millis(100);
/// Place that means no entry. The entry at this place is never used.
const NONE: u32 = 0;

/// Limits of a slice's chunks.
#[derive(Clone, Copy, Debug)]
pub struct ExpiringLimits {
    /// Lifetime of approximate chunks after their last use; zero: none are stored.
    pub approximate_ttl: Duration,
    /// Lifetime of speculative chunks after their last use; zero: none are stored.
    pub speculative_ttl: Duration,
    /// Prompt bytes of a rank and kind, until [`ExpiringChunks::set_rank`] sets another limit.
    pub rank_bytes_max: usize,
    /// Chunks of all ranks.
    pub chunks_max: usize,
}

/// The guessed chunks of a slice.
#[derive(Debug)]
pub struct ExpiringChunks {
    limits: ExpiringLimits,
    /// First entry of each hash bucket. A power of two long, never grows.
    buckets: Vec<u32>,
    entries: Vec<ExpiringChunk>,
    /// Free entries that were used before, linked by `chained`.
    free: u32,
    /// Two lists for each rank, see `list_of`.
    lists: Vec<ExpiringList>,
    /// Next list of the current sweep.
    cursor: usize,
    next_sweep: NanosSinceStart,
    /// Positions of the new chunks of the current prompt, last first; empty between calls.
    fresh: Vec<usize>,
}

/// Result of [`ExpiringChunks::remember`] for the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessUpdate {
    /// False if no chunk was stored: the rank has lost its cache since, or this kind is turned off.
    pub kept: bool,
    /// Chunks that were newly stored.
    pub stored: u32,
    /// Chunks removed to make room.
    pub evicted: u32,
}

/// Result of [`ExpiringChunks::sweep`] for the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Chunks removed.
    pub removed: u32,
    /// True if the budget ended before the work.
    pub more: bool,
}

/// A chunk that a rank is assumed to hold.
#[derive(Clone, Copy, Debug, Default)]
struct ExpiringChunk {
    key: u64,
    used_at: NanosSinceStart,
    /// Next in the hash bucket, or next free entry.
    chained: u32,
    newer: u32,
    older: u32,
    list: u16,
}

#[derive(Clone, Copy, Debug)]
struct ExpiringList {
    oldest: u32,
    newest: u32,
    count: u32,
    count_max: u32,
    generation: u32,
    /// Chunks last used at or before this time are lost.
    lost_at: Option<NanosSinceStart>,
}

impl ExpiringChunks {
    /// Reserves address space for `chunks_max`.
    #[must_use]
    pub fn new(limits: ExpiringLimits) -> Self {
        // Places are 32 bits wide, and the place 0 is none.
        let chunks_max = limits.chunks_max.min((u32::MAX - 1) as usize);
        let mut entries = Vec::with_capacity(chunks_max + 1);
        entries.push(ExpiringChunk::default());
        Self {
            limits: ExpiringLimits { chunks_max, ..limits },
            buckets: vec![NONE; chunks_max.max(1).next_power_of_two()],
            entries,
            free: NONE,
            lists: Vec::new(),
            cursor: 0,
            next_sweep: NanosSinceStart(0),
            fresh: Vec::new(),
        }
    }

    /// Replaces the limits, except `chunks_max`, for which memory is reserved.
    pub const fn set_limits(&mut self, limits: ExpiringLimits) {
        self.limits = ExpiringLimits { chunks_max: self.limits.chunks_max, ..limits };
    }

    /// Number of stored chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lists.iter().map(|list| usize::try_from(list.count).unwrap_or(0)).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.count == 0)
    }

    /// Sets the generation of a rank's cache, and the bytes of prompts that it can hold (0:
    /// unknown). The next sweeps remove guesses of earlier generations.
    pub fn set_rank(
        &mut self,
        rank: RankIndex,
        generation: u32,
        bytes_max: usize,
        now: NanosSinceStart,
    ) {
        for kind in [GuessKind::Approximate, GuessKind::Speculative] {
            let Some(at) = self.list_of(rank, kind) else { return };
            let bytes_max = if bytes_max == 0 { self.limits.rank_bytes_max } else { bytes_max };
            if let Some(list) = self.lists.get_mut(at) {
                list.count_max = chunks_of(bytes_max, kind);
            }
            self.start_life(at, generation, now);
            self.check_invariants(at);
        }
    }

    /// Records that a prompt was sent to a rank. `apply` receives the changes of the slice.
    pub fn remember(
        &mut self,
        prompt: &RoutedPrompt,
        now: NanosSinceStart,
        mut apply: impl FnMut(RankIndex, KvOp),
    ) -> GuessUpdate {
        let mut done = GuessUpdate::default();
        let Some(at) = self.list_of(prompt.rank, prompt.kind) else { return done };
        self.start_life(at, prompt.generation, now);
        let Some(list) = self.lists.get(at).copied() else { return done };
        if list.generation != prompt.generation || self.ttl(at).is_zero() {
            return done;
        }
        let count_max = usize::try_from(list.count_max).unwrap_or(usize::MAX);
        let count = prompt.chunks.len().min(count_max).min(self.limits.chunks_max);
        let chunks = prompt.chunks.get(..count).unwrap_or_default();
        done.kept = true;
        // Last chunk first, so that the last chunk is the oldest and expires first: the rest of its
        // path stays whole.
        for (position, &key) in chunks.iter().enumerate().rev() {
            if let Some(entry) = self.find(at, key) {
                self.unlink(entry);
                self.link_newest(entry, now);
                continue;
            }
            while !self.has_room(at) {
                let Some((rank, key)) = self.evict(at, now) else { break };
                apply(rank, KvOp::Remove { key });
                done.evicted += 1;
            }
            if !self.has_room(at) {
                break;
            }
            self.insert(at, key, now);
            self.fresh.push(position);
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        // First chunk first: a path that grows at its end is a single run of the index.
        for position in fresh.drain(..).rev() {
            let Some(&key) = chunks.get(position) else { continue };
            // The eviction for the first chunks may have removed the last chunks.
            if self.find(at, key).is_none() {
                continue;
            }
            let before = position.checked_sub(1).and_then(|before| chunks.get(before));
            let parent = before.copied().unwrap_or(prompt.root);
            let block_bytes = u16::try_from(prompt.kind.chunk_bytes()).unwrap_or(u16::MAX);
            apply(prompt.rank, KvOp::Store { parent, key, block_bytes });
            done.stored += 1;
        }
        self.fresh = fresh;
        self.check_invariants(at);
        done
    }

    /// Removes up to `budget` chunks that have expired or whose rank has lost its cache. Call it
    /// often: it visits the lists only once per `SWEEP_PERIOD`.
    pub fn sweep(
        &mut self,
        now: NanosSinceStart,
        budget: u32,
        mut apply: impl FnMut(RankIndex, KvOp),
    ) -> SweepResult {
        let mut swept = SweepResult::default();
        if now < self.next_sweep {
            return swept;
        }
        while self.cursor < self.lists.len() {
            while let Some(entry) = self.dead(self.cursor, now) {
                // The cursor stays, so that the next call continues here and no list is starved.
                if swept.removed >= budget {
                    swept.more = true;
                    return swept;
                }
                if let Some((rank, key)) = self.remove(entry) {
                    apply(rank, KvOp::Remove { key });
                }
                swept.removed += 1;
            }
            self.cursor += 1;
        }
        self.cursor = 0;
        self.next_sweep = now.plus(SWEEP_PERIOD);
        debug_assert!(swept.removed <= budget, "a sweep past its budget");
        swept
    }

    /// Invariants of a list after each change.
    fn check_invariants(&self, at: usize) {
        debug_assert!(self.entries.len() <= self.limits.chunks_max + 1, "more than was reserved");
        debug_assert!(self.fresh.is_empty(), "positions of another prompt");
        let Some(list) = self.lists.get(at) else { return };
        debug_assert_eq!(list.count == 0, list.oldest == NONE, "a count of other entries");
        debug_assert_eq!(list.oldest == NONE, list.newest == NONE, "a list with one end");
        debug_assert_eq!(self.entry(list.oldest).older, NONE, "older than the oldest");
        debug_assert_eq!(self.entry(list.newest).newer, NONE, "newer than the newest");
    }

    /// The oldest entry of a list, if it must be removed.
    fn dead(&self, at: usize, now: NanosSinceStart) -> Option<u32> {
        let list = self.lists.get(at).filter(|list| list.oldest != NONE)?;
        let used_at = self.entry(list.oldest).used_at;
        let is_dead = used_at.plus(self.ttl(at)) <= now
            || list.count > list.count_max
            || list.lost_at.is_some_and(|lost_at| used_at <= lost_at);
        is_dead.then_some(list.oldest)
    }

    /// Moves a list to a later generation of the rank's cache. An earlier or the same generation
    /// changes nothing.
    fn start_life(&mut self, at: usize, generation: u32, now: NanosSinceStart) {
        let Some(list) = self.lists.get_mut(at) else { return };
        // Generations wrap: the shorter distance decides which is later.
        let ahead = generation.wrapping_sub(list.generation);
        if ahead != 0 && ahead < u32::MAX / 2 {
            list.generation = generation;
            list.lost_at = Some(now);
            // The next sweep starts at once: lost chunks must not stay for another period.
            self.cursor = 0;
            self.next_sweep = NanosSinceStart(0);
        }
    }

    /// The list of a rank and kind, created if needed.
    fn list_of(&mut self, rank: RankIndex, kind: GuessKind) -> Option<usize> {
        if rank.index() >= RANKS_MAX {
            return None;
        }
        while self.lists.len() < 2 * (rank.index() + 1) {
            let kind = kind_of(self.lists.len());
            let count_max = chunks_of(self.limits.rank_bytes_max, kind);
            debug_assert!(self.lists.len() < 2 * RANKS_MAX, "a list of no rank");
            self.lists.push(ExpiringList {
                oldest: NONE,
                newest: NONE,
                count: 0,
                count_max,
                generation: 0,
                lost_at: None,
            });
        }
        Some(2 * rank.index() + usize::from(kind == GuessKind::Speculative))
    }

    fn ttl(&self, list: usize) -> Duration {
        match kind_of(list) {
            GuessKind::Approximate => self.limits.approximate_ttl,
            GuessKind::Speculative => self.limits.speculative_ttl,
        }
    }

    fn has_room(&self, at: usize) -> bool {
        let in_list = self.lists.get(at).is_some_and(|list| list.count < list.count_max);
        in_list && (self.free != NONE || self.entries.len() <= self.limits.chunks_max)
    }

    /// Removes the oldest chunk of the list. If all its chunks belong to the current prompt,
    /// removes the oldest chunk of the next list that is not empty.
    fn evict(&mut self, at: usize, now: NanosSinceStart) -> Option<(RankIndex, BlockKey)> {
        let oldest =
            |at: usize| self.lists.get(at).map(|list| list.oldest).filter(|oldest| *oldest != NONE);
        // The rank's own chunks first: a busy rank must not evict the chunks of other ranks.
        let own = oldest(at);
        let is_earlier = |place: &u32| self.entry(*place).used_at < now;
        let mut others = (at + 1..self.lists.len()).chain(0..at);
        let place = own.filter(is_earlier).or_else(|| others.find_map(oldest)).or(own)?;
        self.remove(place)
    }

    fn insert(&mut self, at: usize, key: BlockKey, now: NanosSinceStart) {
        let Ok(list) = u16::try_from(at) else { return };
        debug_assert!(self.find(at, key).is_none(), "a chunk stands in its list once");
        debug_assert!(self.has_room(at), "inserted without room");
        let key = key.to_word();
        let bucket = self.bucket(at, key);
        let first = self.buckets.get(bucket).copied().unwrap_or(NONE);
        let new = ExpiringChunk { key, list, chained: first, ..ExpiringChunk::default() };
        let place = if self.free == NONE {
            // Room for all entries was reserved: a copy of a large array would stall the shard.
            debug_assert!(self.entries.len() < self.entries.capacity(), "the entries would move");
            let place = u32::try_from(self.entries.len()).unwrap_or(NONE);
            self.entries.push(new);
            place
        } else {
            let place = self.free;
            self.free = self.entry(place).chained;
            self.change(place, |entry| *entry = new);
            place
        };
        if let Some(first) = self.buckets.get_mut(bucket) {
            *first = place;
        }
        self.link_newest(place, now);
    }

    fn remove(&mut self, place: u32) -> Option<(RankIndex, BlockKey)> {
        debug_assert!(place != NONE, "the entry that is never used");
        let ExpiringChunk { key, list, chained, .. } = self.entry(place);
        self.unlink(place);
        let bucket = self.bucket(usize::from(list), key);
        let mut before = self.buckets.get(bucket).copied().unwrap_or(NONE);
        if before == place {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = chained;
            }
        } else {
            while before != NONE && self.entry(before).chained != place {
                before = self.entry(before).chained;
            }
            debug_assert!(before != NONE, "an entry that its bucket does not name");
            self.change(before, |entry| entry.chained = chained);
        }
        let free = self.free;
        self.change(place, |entry| entry.chained = free);
        self.free = place;
        Some((RankIndex(list / 2), BlockKey::from_word(key)?))
    }

    fn find(&self, at: usize, key: BlockKey) -> Option<u32> {
        let key = key.to_word();
        let mut place = self.buckets.get(self.bucket(at, key)).copied().unwrap_or(NONE);
        // Lists share the buckets: the same key may belong to another rank.
        while place != NONE {
            let entry = self.entry(place);
            if entry.key == key && usize::from(entry.list) == at {
                return Some(place);
            }
            place = entry.chained;
        }
        None
    }

    /// Keys are already hashes under a secret; only the list has to be mixed in.
    fn bucket(&self, at: usize, key: u64) -> usize {
        let list = u64::try_from(at).unwrap_or(0);
        let mixed = (key ^ list.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(32);
        usize::try_from(mixed).unwrap_or(0) & (self.buckets.len() - 1)
    }

    fn unlink(&mut self, place: u32) {
        let ExpiringChunk { newer, older, list, .. } = self.entry(place);
        self.change(newer, |entry| entry.older = older);
        self.change(older, |entry| entry.newer = newer);
        if let Some(list) = self.lists.get_mut(usize::from(list)) {
            if newer == NONE {
                list.newest = older;
            }
            if older == NONE {
                list.oldest = newer;
            }
            debug_assert!(list.count > 0, "an entry that was never counted");
            list.count = list.count.saturating_sub(1);
        }
    }

    fn link_newest(&mut self, place: u32, now: NanosSinceStart) {
        let list = usize::from(self.entry(place).list);
        let Some(list) = self.lists.get_mut(list) else { return };
        let before = std::mem::replace(&mut list.newest, place);
        if before == NONE {
            list.oldest = place;
        }
        list.count += 1;
        self.change(before, |entry| entry.newer = place);
        self.change(place, |entry| {
            entry.newer = NONE;
            entry.older = before;
            entry.used_at = now;
        });
    }

    fn entry(&self, place: u32) -> ExpiringChunk {
        let place = usize::try_from(place).unwrap_or(0);
        self.entries.get(place).copied().unwrap_or_default()
    }

    /// Changes an entry; the entry at [`NONE`] never changes.
    fn change(&mut self, place: u32, change: impl FnOnce(&mut ExpiringChunk)) {
        let place = usize::try_from(place).unwrap_or(0);
        if place > 0
            && let Some(entry) = self.entries.get_mut(place)
        {
            change(entry);
        }
    }
}

fn kind_of(list: usize) -> GuessKind {
    if list.is_multiple_of(2) { GuessKind::Approximate } else { GuessKind::Speculative }
}

/// Number of chunks in that many bytes; at least 1.
fn chunks_of(bytes: usize, kind: GuessKind) -> u32 {
    u32::try_from(bytes / kind.chunk_bytes()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests;
