//! Ranks that share a pool (Mooncake store, HiCache L3, LMCache), from engines' bytes to the rank
//! that is chosen.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]

use super::kv_paths::{
    BLOCK_TOKENS, Bytes, CREDIT, Event, REMOVED, ROOT, Rig, STORED, chosen, fleet, hashes, tokens,
};
use forebay::base::{RankIndex, ShardIndex};
use forebay::index::slice_of;
use forebay::kv_events::{Naming, PoolBlocks};
use forebay::select::TierOverlaps;
use forebay::worker::FleetSnapshot;
use rmp::encode::{write_array_len, write_f64, write_map_len, write_str};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const POOL: RankIndex = RankIndex(1_000);
const TEXT: &str = "one two three four five six seven eight "; // 40 bytes, 10 blocks

/// Three ranks, of which the first two share a pool.
struct Shared {
    rig: Rig<Bytes>,
    pool: Rc<RefCell<PoolBlocks<Bytes>>>,
    fleet: FleetSnapshot,
}

impl Shared {
    fn new() -> Self {
        let mut rig = Rig::new(vec![Bytes, Bytes, Bytes]);
        let naming = Naming {
            seed: super::kv_paths::SEED,
            model: "m".into(),
            text: Some(Bytes),
            slice_of,
            shard_count: rig.writers.len(),
        };
        let pool = PoolBlocks::new(naming, 10_000, Duration::ZERO, POOL);
        let pool = Rc::new(RefCell::new(pool));
        let mut fleet = fleet(3);
        for rank in 0..2 {
            rig.feeds[rank].share(Rc::clone(&pool));
            fleet.ranks[rank].tiers.kv_pool = Some(POOL);
        }
        Self { rig, pool, fleet }
    }

    fn take(&mut self, rank: u16, event: Event<'_>) {
        self.rig.take(rank, &[event]);
        self.post();
    }

    fn clear(&mut self, rank: u16) {
        let mut out = Vec::new();
        write_array_len(&mut out, 2).unwrap();
        write_f64(&mut out, 0.0).unwrap();
        write_array_len(&mut out, 1).unwrap();
        write_map_len(&mut out, 1).unwrap();
        write_str(&mut out, "type").unwrap();
        write_str(&mut out, "AllBlocksCleared").unwrap();
        self.rig.take_payload(rank, &out);
        self.post();
    }

    /// As a feed does after each message.
    fn post(&mut self) {
        self.rig.next();
        let mut pool = self.pool.borrow_mut();
        while let Some((slice, batch)) = pool.next_batch() {
            let ShardIndex(index) = slice;
            for op in &batch.ops {
                self.rig.writers[usize::from(index)].apply(batch.rank, *op);
            }
            pool.posted(slice, batch.ops.len());
        }
    }

    /// Bytes of the text that a rank has on its device, with its host, with its disks, and with its
    /// pool.
    fn held(&self, rank: u16) -> [u32; 4] {
        let found = self.rig.found(&ROOT, TEXT.as_bytes());
        let tiers = self.fleet.ranks[usize::from(rank)].tiers;
        let held = TierOverlaps::of(RankIndex(rank), tiers, &found);
        [held.device, held.host, held.disk, held.kv_pool].map(|overlap| overlap.bytes)
    }

    fn chosen(&self) -> u16 {
        chosen(&self.fleet, CREDIT, &self.rig.found(&ROOT, TEXT.as_bytes()), 40)
    }
}

#[test]
fn what_one_rank_wrote_counts_for_each_rank_of_the_pool() {
    let mut shared = Shared::new();
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    let stored = Event { hashes: &all, tokens: &ids, ..STORED };
    let start = Event { hashes: &all[..4], tokens: &ids[..16], ..STORED };
    shared.take(0, stored);
    shared.take(0, Event { medium: "cpu", ..stored });
    shared.take(2, start);
    assert_eq!([shared.held(0), shared.held(1)], [[40; 4], [0, 0, 0, 40]]);
    assert_eq!(shared.held(2), [16; 4], "outside of the pool");
    assert_eq!(shared.chosen(), 0, "the device counts most");
    // The writer's device lets go: the other rank is as good, and better than a short beginning.
    shared.take(0, Event { hashes: &all, ..REMOVED });
    assert_eq!([shared.held(0), shared.held(1)], [[0, 0, 0, 40]; 2]);
    assert!(shared.chosen() < 2, "20 bytes' worth against 16");
    // A short beginning on the device and the rest from the pool.
    shared.take(1, start);
    assert_eq!((shared.held(1), shared.chosen()), ([16, 16, 16, 40], 1));
}

#[test]
fn a_rank_that_clears_or_restarts_takes_nothing_out_of_the_pool() {
    let mut shared = Shared::new();
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    let stored = Event { hashes: &all, tokens: &ids, medium: "EXTERNAL", ..STORED };
    shared.take(0, stored);
    shared.take(0, Event { medium: "GPU", ..stored });
    shared.clear(0);
    assert_eq!([shared.held(0), shared.held(1)], [[0, 0, 0, 40]; 2]);
    // Numbers that begin again: another process.
    shared.take(0, Event { medium: "GPU", ..stored });
    shared.rig.restart();
    shared.clear(0);
    assert_eq!([shared.held(0), shared.held(1)], [[0, 0, 0, 40]; 2]);
}

#[test]
fn several_writers_write_one_block_and_any_removal_removes_it() {
    let mut shared = Shared::new();
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    let stored = Event { hashes: &all, tokens: &ids, medium: "OBJ", is_remote: true, ..STORED };
    (0..2).for_each(|rank| shared.take(rank, stored));
    let removed = Event { hashes: &all[8..], medium: "OBJ", is_remote: true, ..REMOVED };
    shared.take(1, removed);
    assert_eq!([shared.held(0), shared.held(1)], [[0, 0, 0, 32]; 2]);
    // A rank outside says nothing of the pool.
    shared.take(2, Event { hashes: &all, ..removed });
    shared.take(2, stored);
    assert_eq!((shared.held(1), shared.held(2)), ([0, 0, 0, 32], [0; 4]));
    shared.take(0, Event { hashes: &all, ..removed });
    assert_eq!((shared.held(0), shared.rig.reader.entry_count()), ([0; 4], 0));
}

/// Engines write on to the pool what they copy to the host. The host lets go first.
#[test]
fn what_the_host_has_is_in_the_pool_too() {
    let mut shared = Shared::new();
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    for medium in ["CPU", "CPU_PINNED"] {
        shared.take(0, Event { hashes: &all, tokens: &ids, medium, ..STORED });
        assert_eq!([shared.held(0), shared.held(1)], [[0, 40, 40, 40], [0, 0, 0, 40]], "{medium}");
        shared.take(0, Event { hashes: &all, medium, ..REMOVED });
        assert_eq!([shared.held(0), shared.held(1)], [[0, 0, 0, 40]; 2], "{medium}");
        shared.take(1, Event { hashes: &all, medium: "DISK", ..REMOVED });
        assert_eq!(shared.held(0), [0; 4]);
    }
}

#[test]
fn each_medium_has_its_place() {
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    let stored = Event { hashes: &all, tokens: &ids, ..STORED };
    // By medium and locality: what a rank of a pool has then, and a rank without one.
    for (medium, is_remote, with_pool, alone) in [
        ("GPU", false, [40, 40, 40, 40], [40, 40, 40, 40]),
        ("GPU", true, [0; 4], [0; 4]),
        ("CPU", false, [0, 40, 40, 40], [0, 40, 40, 40]),
        ("CPU_PINNED", false, [0, 40, 40, 40], [0, 40, 40, 40]),
        ("CPU", true, [0, 0, 0, 40], [0; 4]),
        ("cpu", false, [0, 0, 0, 40], [0; 4]),
        ("STORAGE", false, [0, 0, 0, 40], [0, 0, 40, 40]),
        ("FS", false, [0, 0, 0, 40], [0, 0, 40, 40]),
        ("FS", true, [0, 0, 0, 40], [0; 4]),
        ("OBJ", true, [0, 0, 0, 40], [0; 4]),
        ("DISK", false, [0, 0, 0, 40], [0, 0, 40, 40]),
        ("EXTERNAL", false, [0, 0, 0, 40], [0; 4]),
        ("TAPE", false, [0; 4], [0; 4]),
    ] {
        let mut shared = Shared::new();
        shared.take(0, Event { medium, is_remote, ..stored });
        shared.take(2, Event { medium, is_remote, ..stored });
        assert_eq!(shared.held(0), with_pool, "{medium} {is_remote}");
        assert_eq!(shared.held(2), alone, "{medium} {is_remote}");
    }
}

/// LMCache's chunks are larger than the engine's blocks: they stand under the engine's root.
#[test]
fn larger_chunks_of_the_pool_match_prompts_of_the_engines_blocks() {
    let mut shared = Shared::new();
    let all = hashes(TEXT);
    let ids = tokens(TEXT);
    shared.take(1, Event { hashes: &all[..1], tokens: &ids[..4], ..STORED });
    let size = u64::from(BLOCK_TOKENS) * 5;
    let chunks = Event { hashes: &[7, 8], tokens: &ids, block_size: size, medium: "CPU", ..STORED };
    shared.take(1, chunks);
    assert_eq!((shared.held(0)[3], shared.held(1)), (40, [4, 40, 40, 40]));
}
