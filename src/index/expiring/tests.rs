//! Chunks under virtual time, against a plain model and against a real slice.

use super::*;
use crate::{IndexReader, KeySeed, Overlaps, RootName, SliceWriter, index};
use forebay_base::limits::APPROXIMATE_CHUNK_BYTES;
use proptest::prelude::*;
use std::collections::HashSet;

const SEED: KeySeed = KeySeed(3);
const LIMITS: ExpiringLimits = ExpiringLimits {
    approximate_ttl: Duration::from_secs(10),
    speculative_ttl: Duration::from_secs(1),
    rank_bytes_max: 1 << 20,
    chunks_max: 1_000,
};

fn root() -> BlockKey {
    BlockKey::root(SEED, &RootName { model: "m", ..RootName::default() })
}

fn at(seconds: u64) -> NanosSinceStart {
    NanosSinceStart(seconds * 1_000_000_000)
}

/// A slice and its inputs.
struct Owner {
    reader: IndexReader,
    slice: SliceWriter,
    expiring: ExpiringChunks,
    /// Sum of the operations.
    held: HashSet<(RankIndex, BlockKey)>,
}

impl Owner {
    fn new(limits: ExpiringLimits) -> Self {
        let (reader, mut writers) = index(1, SEED, 1 << 24);
        let slice = writers.remove(0);
        let expiring = ExpiringChunks::new(limits);
        Self { reader, slice, expiring, held: HashSet::new() }
    }

    fn prompt(&self, rank: u16, kind: GuessKind, text: &str) -> RoutedPrompt {
        let mut chunks = Vec::new();
        self.reader.chunk_path(root(), text.as_bytes(), kind, &mut chunks);
        RoutedPrompt { rank: RankIndex(rank), generation: 0, kind, root: root(), chunks }
    }

    fn remember(&mut self, prompt: &RoutedPrompt, now: NanosSinceStart) -> GuessUpdate {
        let slice = &mut self.slice;
        let held = &mut self.held;
        self.expiring.remember(prompt, now, |rank, op| change(slice, held, rank, op))
    }

    fn sent(&mut self, rank: u16, text: &str, now: NanosSinceStart) -> GuessUpdate {
        let prompt = self.prompt(rank, GuessKind::Approximate, text);
        self.remember(&prompt, now)
    }

    fn sweep(&mut self, now: NanosSinceStart, budget: u32) -> SweepResult {
        let slice = &mut self.slice;
        let held = &mut self.held;
        self.expiring.sweep(now, budget, |rank, op| change(slice, held, rank, op))
    }

    /// Bytes of `text` that the rank holds according to the index.
    fn overlap(&self, rank: u16, text: &str) -> u32 {
        let mut overlaps = Overlaps::new(64);
        let kind = GuessKind::Approximate;
        let chunks = self.prompt(rank, kind, text).chunks;
        self.reader.overlap_of_path(&chunks, kind, &mut overlaps);
        overlaps.get(RankIndex(rank)).bytes
    }
}

/// Bytes of an approximate chunk.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const CHUNK: u32 = APPROXIMATE_CHUNK_BYTES as u32;

fn change(
    slice: &mut SliceWriter,
    held: &mut HashSet<(RankIndex, BlockKey)>,
    rank: RankIndex,
    op: KvOp,
) {
    match op {
        KvOp::Store { key, .. } => assert!(held.insert((rank, key)), "stored twice"),
        KvOp::Remove { key } => assert!(held.remove(&(rank, key)), "removed what was not there"),
        KvOp::Hold { .. } => panic!("a guess has no windows"),
    }
    slice.apply(rank, op);
}

/// `chunks` whole chunks and some bytes.
fn text(name: &str, chunks: usize) -> String {
    let length = chunks * GuessKind::Approximate.chunk_bytes() + 7;
    format!("{name} ").chars().cycle().take(length).collect()
}

#[test]
fn what_was_sent_is_found_until_its_time_and_use_renews_it() {
    let mut owner = Owner::new(LIMITS);
    let asked = text("a", 3);
    assert_eq!(owner.sent(1, &asked, at(0)), GuessUpdate { kept: true, stored: 3, evicted: 0 });
    assert_eq!(owner.overlap(1, &asked), 3 * CHUNK);
    assert_eq!(owner.overlap(0, &asked), 0);
    // Only the beginning is used again.
    assert_eq!(owner.sent(1, &asked[..1_112], at(6)).stored, 0);
    assert_eq!(owner.sweep(at(9), 100).removed, 0);
    assert_eq!(owner.sweep(at(10), 100).removed, 1);
    assert_eq!(owner.overlap(1, &asked), 2 * CHUNK);
    assert_eq!(owner.sweep(at(16), 100).removed, 2);
    assert!(owner.expiring.is_empty());
    assert_eq!(owner.reader.entry_count(), 0);
}

#[test]
fn a_path_is_stored_from_its_beginning() {
    let mut owner = Owner::new(LIMITS);
    let asked = owner.prompt(1, GuessKind::Approximate, &text("a", 20));
    let mut parents = vec![asked.root];
    owner.expiring.remember(&asked, at(0), |rank, op| {
        let KvOp::Store { parent, key, .. } = op else { panic!("{op:?}") };
        assert_eq!(parents.last(), Some(&parent), "each chunk after the one before");
        parents.push(key);
        owner.slice.apply(rank, op);
    });
    assert_eq!(parents[1..], asked.chunks);
    // The root, and all of the path.
    assert_eq!(owner.reader.run_count(), 2);
}

#[test]
fn kinds_have_their_own_times() {
    let mut owner = Owner::new(LIMITS);
    let asked = text("a", 8);
    let speculative = owner.prompt(1, GuessKind::Speculative, &asked);
    assert_eq!(owner.remember(&speculative, at(0)).stored, 4);
    owner.sent(2, &text("b", 8), at(0));
    assert_eq!(owner.sweep(at(1), 100), SweepResult { removed: 4, more: false });
    let off = ExpiringLimits { speculative_ttl: Duration::ZERO, ..LIMITS };
    let mut owner = Owner::new(off);
    assert!(!owner.remember(&speculative, at(0)).kept);
    assert!(owner.sent(2, &asked, at(0)).kept);
}

#[test]
fn a_full_rank_forgets_the_end_of_what_was_used_longest_ago() {
    let mut owner = Owner::new(LIMITS);
    owner.expiring.set_rank(RankIndex(1), 0, 5 * APPROXIMATE_CHUNK_BYTES, at(0));
    let old = text("old", 4);
    let new = text("new", 3);
    owner.sent(1, &old, at(0));
    assert_eq!(owner.sent(1, &new, at(1)), GuessUpdate { kept: true, stored: 3, evicted: 2 });
    assert_eq!((owner.overlap(1, &old), owner.overlap(1, &new)), (2 * CHUNK, 3 * CHUNK));
    // More than fits at all: the beginning is stored.
    let long = text("long", 9);
    assert_eq!(owner.sent(1, &long, at(2)).stored, 5);
    assert_eq!(owner.overlap(1, &long), 5 * CHUNK);
    // A capacity that shrinks takes effect with the next sweep.
    owner.expiring.set_rank(RankIndex(1), 0, 2 * APPROXIMATE_CHUNK_BYTES, at(2));
    assert_eq!(owner.sweep(at(3), 100).removed, 3);
    assert_eq!(owner.overlap(1, &long), 2 * CHUNK);
}

#[test]
fn a_full_slice_evicts_for_new_chunks() {
    let mut owner = Owner::new(ExpiringLimits { chunks_max: 4, ..LIMITS });
    owner.sent(1, &text("a", 4), at(0));
    assert_eq!(owner.sent(2, &text("b", 3), at(0)).evicted, 3);
    assert_eq!(owner.expiring.len(), 4);
    let mut none = Owner::new(ExpiringLimits { chunks_max: 0, ..LIMITS });
    assert_eq!(none.sent(1, &text("a", 4), at(0)).stored, 0);
}

#[test]
fn a_lost_cache_is_forgotten_and_late_news_of_it_ignored() {
    let mut owner = Owner::new(LIMITS);
    let asked = text("a", 3);
    owner.sent(1, &asked, at(0));
    owner.sent(2, &asked, at(0));
    owner.expiring.set_rank(RankIndex(1), 1, 0, at(1));
    assert!(!owner.sent(1, &asked, at(1)).kept, "sent to the life before");
    // Bounded, and chunks sent to the new generation in the meantime stay.
    assert_eq!(owner.sweep(at(1), 2), SweepResult { removed: 2, more: true });
    let mut again = owner.prompt(1, GuessKind::Approximate, &asked[..600]);
    again.generation = 1;
    assert!(owner.remember(&again, at(2)).kept);
    assert_eq!(owner.sweep(at(2), 100).removed, 0);
    assert_eq!((owner.overlap(1, &asked), owner.overlap(2, &asked)), (CHUNK, 3 * CHUNK));
    // A shard that learns of the next generation first reports it with a prompt.
    again.generation = 2;
    again.chunks.clear();
    assert!(owner.remember(&again, at(3)).kept);
    assert_eq!(owner.sweep(at(3), 100).removed, 1);
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Sent { rank: u16, speculative: bool, name: u8, chunks: usize, generation: u32 },
    Wait(u64),
    Sweep(u32),
    Lost(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let sent = (0..4_u16, any::<bool>(), 0..5_u8, 0..12_usize, 0..3_u32);
    prop_oneof![
        6 => sent.prop_map(|(rank, speculative, name, chunks, generation)| Step::Sent {
            rank, speculative, name, chunks, generation
        }),
        2 => (1..4_000_u64).prop_map(Step::Wait),
        2 => (0..20_u32).prop_map(Step::Sweep),
        1 => (0..4_u16).prop_map(Step::Lost),
    ]
}

proptest! {
    #[test]
    fn never_more_than_fits_and_in_the_end_nothing(
        steps in proptest::collection::vec(step(), 1..80),
        rank_chunks in 1..20_usize,
        chunks_max in 0..40_usize,
    ) {
        let limits = ExpiringLimits {
            rank_bytes_max: rank_chunks * APPROXIMATE_CHUNK_BYTES,
            chunks_max,
            ..LIMITS
        };
        let mut owner = Owner::new(limits);
        let mut now = NanosSinceStart(0);
        let mut lives = [0_u32; 4];
        for step in steps {
            match step {
                Step::Sent { rank, speculative, name, chunks, generation } => {
                    let kind =
                        if speculative { GuessKind::Speculative } else { GuessKind::Approximate };
                    let asked = text(&format!("{name}"), chunks);
                    let mut prompt = owner.prompt(rank, kind, &asked);
                    prompt.generation = generation;
                    let list = 2 * usize::from(rank) + usize::from(speculative);
                    let known = owner.expiring.lists.get(list).map_or(0, |list| list.generation);
                    let done = owner.remember(&prompt, now);
                    prop_assert_eq!(done.kept, generation >= known);
                    if done.kept {
                        // All chunks that fit are stored now.
                        let fits = prompt.chunks.len().min(chunks_max).min(
                            (rank_chunks * APPROXIMATE_CHUNK_BYTES / kind.chunk_bytes()).max(1),
                        );
                        for key in &prompt.chunks[..fits] {
                            prop_assert!(owner.held.contains(&(prompt.rank, *key)));
                        }
                    }
                }
                Step::Wait(millis) => now = now.plus(Duration::from_millis(millis)),
                Step::Sweep(budget) => {
                    let swept = owner.sweep(now, budget);
                    prop_assert!(swept.removed <= budget);
                }
                Step::Lost(rank) => {
                    let life = &mut lives[usize::from(rank)];
                    *life += 1;
                    owner.expiring.set_rank(RankIndex(rank), *life, 0, now);
                }
            }
            prop_assert_eq!(owner.expiring.len(), owner.held.len());
            prop_assert!(owner.held.len() <= chunks_max);
            prop_assert!(owner.expiring.lists.iter().all(|list| list.count <= list.count_max));
        }
        // The rest of the current sweep, then a whole sweep.
        for pause in [LIMITS.approximate_ttl, SWEEP_PERIOD] {
            now = now.plus(pause);
            while owner.sweep(now, 7).more {}
        }
        prop_assert!(owner.expiring.is_empty() && owner.held.is_empty());
        prop_assert_eq!(owner.reader.entry_count(), 0);
    }
}
