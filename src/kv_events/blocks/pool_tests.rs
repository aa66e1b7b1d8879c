//! [`PoolBlocks`] case by case: what several ranks store in one place.

use super::super::pool::{EventScope, PoolBlocks};
use super::tests::{Letters, keys_of, naming, remove, store};
use super::*;
use forebay_base::RankIndex;
use forebay_index::KvOp;
use forebay_kv_decode::Medium;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(100);
const NUMBER: RankIndex = RankIndex(1_000);

/// A pool, and what the index has of it.
struct Rig {
    pool: PoolBlocks<Letters>,
    held: BTreeSet<u64>,
    start: Instant,
}

impl Rig {
    fn new(entries_max: usize) -> Self {
        Self::with_ttl(entries_max, TTL)
    }

    fn with_ttl(entries_max: usize, ttl: Duration) -> Self {
        let pool = PoolBlocks::new(naming(), entries_max, ttl, NUMBER);
        Self { pool, held: BTreeSet::new(), start: Instant::now() }
    }

    fn store(&mut self, parent: Option<u64>, hashes: &[u64], tokens: &[u32]) -> BatchOutcome {
        let event = BlockStored { medium: Medium::Shared, ..store(parent, hashes, tokens) };
        let outcome = self.pool.stored(&event, 2);
        self.post();
        outcome
    }

    fn remove(&mut self, hashes: &[u64]) {
        self.pool.removed(&BlockRemoved { medium: Medium::Shared, ..remove(hashes) });
        self.post();
    }

    fn expire(&mut self, second: u64) {
        assert!(self.pool.expire(self.start + Duration::from_secs(second), 10_000));
        self.post();
    }

    /// All that is to be posted, in batches.
    fn post(&mut self) {
        while let Some((slice, batch)) = self.pool.next_batch() {
            assert_eq!(batch.rank, NUMBER);
            for op in &batch.ops {
                match op {
                    KvOp::Store { key, .. } => {
                        assert!(self.held.insert(key.to_word()), "stored twice");
                    }
                    KvOp::Remove { key } => {
                        assert!(self.held.remove(&key.to_word()), "removed unknown");
                    }
                    KvOp::Hold { .. } => panic!("pools have no windows"),
                }
            }
            self.pool.posted(slice, batch.ops.len());
        }
    }
}

#[test]
fn a_block_is_one_whoever_stored_it() {
    let mut rig = Rig::new(100);
    for _ in 0..20 {
        assert_eq!(rig.store(None, &[10, 11], &[0, 1, 2, 3]), BatchOutcome::Applied);
    }
    assert_eq!(rig.held, keys_of(&["ab", "abcd"]));
    rig.remove(&[11]);
    assert_eq!((rig.held.clone(), rig.pool.block_count()), (keys_of(&["ab"]), 1));
    rig.remove(&[11, 99]);
    assert_eq!(rig.store(Some(10), &[11], &[2, 3]), BatchOutcome::Applied);
    assert_eq!(rig.held.len(), 2);
    rig.remove(&[11, 10]);
    assert_eq!((rig.held.len(), rig.pool.block_count()), (0, 0));
}

/// Another rank stores only what is missing, behind blocks that it did not store itself.
#[test]
fn one_rank_continues_what_another_began() {
    let mut rig = Rig::new(100);
    assert_eq!(rig.store(Some(11), &[12], &[4, 5]), BatchOutcome::Orphaned);
    assert_eq!(rig.held.len(), 0);
    rig.store(None, &[10, 11], &[0, 1, 2, 3]);
    assert_eq!(rig.held.len(), 3);
}

/// A block whose parent comes late would begin to age with it.
#[test]
fn what_waits_for_its_parent_is_not_young_for_ever() {
    for (second, wanted) in [(10, 3), (30, 1)] {
        let mut rig = Rig::new(100);
        rig.expire(0);
        assert_eq!(rig.store(Some(10), &[11, 12], &[2, 3, 4, 5]), BatchOutcome::Orphaned);
        (1..=second).for_each(|second| rig.expire(second));
        rig.store(None, &[10], &[0, 1]);
        assert_eq!(rig.held.len(), wanted, "after {second} s");
    }
}

#[test]
fn what_is_not_stored_again_leaves_whatever_removals_are_told() {
    let mut rig = Rig::new(100);
    rig.store(None, &[10, 11], &[0, 1, 2, 3]);
    rig.expire(0);
    rig.expire(60);
    rig.store(None, &[10], &[0, 1]);
    rig.expire(60);
    rig.expire(99);
    assert_eq!(rig.held.len(), 2);
    rig.expire(100);
    assert_eq!(rig.held, keys_of(&["ab"]), "the other was stored again");
    // No removal makes a pool trusted: others remove unheard.
    rig.remove(&[77]);
    rig.expire(159);
    assert_eq!(rig.held.len(), 1);
    rig.expire(160);
    assert_eq!((rig.held.len(), rig.pool.block_count()), (0, 0));
}

/// One block a prompt.
fn single(rig: &mut Rig, hash: u64) -> BatchOutcome {
    let first = hash % 26;
    let second = hash / 26;
    let tokens = [first, second].map(|token| u32::try_from(token).unwrap());
    rig.store(None, &[hash], &tokens)
}

#[test]
fn a_full_pool_goes_on_and_the_oldest_leave_first() {
    for (ttl, removal) in [(TTL, false), (TTL, true), (Duration::ZERO, true)] {
        let mut rig = Rig::with_ttl(80, ttl);
        // All within one look at the time.
        for hash in 0..400 {
            assert_eq!(single(&mut rig, hash), BatchOutcome::Applied);
            if removal {
                rig.remove(&[999]);
            }
            let held = usize::try_from(hash + 1).unwrap().min(80);
            assert!((held - 1..=held).contains(&rig.held.len()), "{} of {held}", rig.held.len());
        }
        rig.remove(&(330..400).collect::<Vec<u64>>());
        assert!(rig.held.len() <= 10, "the youngest were there");
    }
}

#[test]
fn one_large_event_keeps_its_own_blocks() {
    let mut rig = Rig::new(80);
    for hash in 0..79 {
        single(&mut rig, hash);
    }
    let tokens: Vec<u32> = (0..80).map(|token| token % 7).collect();
    // As a feed hands them on: in parts.
    rig.store(None, &(1_000..1_020).collect::<Vec<u64>>(), &tokens[..40]);
    rig.store(Some(1_019), &(1_020..1_040).collect::<Vec<u64>>(), &tokens[40..]);
    assert_eq!(rig.held.len(), 80);
    rig.remove(&(1_000..1_040).collect::<Vec<u64>>());
    assert_eq!(rig.held.len(), 40, "all of the event were there");
    // One that is larger than all of the pool takes a half of it.
    let mut rig = Rig::new(8);
    (0..8).for_each(|hash| {
        single(&mut rig, hash);
    });
    assert_eq!(rig.store(None, &(20..40).collect::<Vec<u64>>(), &tokens[..40]), BatchOutcome::Full);
    assert_eq!(rig.held.len(), 8);
    rig.remove(&(0..8).collect::<Vec<u64>>());
    assert_eq!(rig.held.len(), 4);
}

#[test]
fn blocks_that_are_stored_again_need_no_room() {
    let mut rig = Rig::new(80);
    let all: Vec<u64> = (0..80).collect();
    all.iter().for_each(|hash| {
        single(&mut rig, *hash);
    });
    let before = rig.held.clone();
    for hash in all {
        single(&mut rig, hash);
        assert_eq!(rig.held, before);
    }
}

/// What comes and goes leaves no trace in the ages.
#[test]
fn removed_blocks_take_no_memory() {
    let mut rig = Rig::new(80);
    for hash in 0..40 {
        single(&mut rig, hash);
    }
    let before = rig.pool.byte_count();
    for hash in 100..700 {
        single(&mut rig, hash);
        rig.remove(&[hash]);
    }
    assert!(rig.pool.byte_count() <= before * 2, "{} after {before}", rig.pool.byte_count());
}

#[test]
fn at_its_limit_the_oldest_blocks_go() {
    let mut rig = Rig::new(8);
    let store_next = |rig: &mut Rig, from: u64| {
        for hash in from..from + 4 {
            let token = u32::try_from(hash).unwrap();
            rig.store(None, &[hash], &[token, token / 26]);
        }
    };
    store_next(&mut rig, 0);
    rig.expire(0);
    rig.expire(30);
    store_next(&mut rig, 100);
    rig.expire(30);
    let before = rig.held.clone();
    assert_eq!(before.len(), 8);
    store_next(&mut rig, 200);
    assert_eq!(rig.held.len(), 8, "the first four went");
    let kept = before.intersection(&rig.held).count();
    assert_eq!(kept, 4);
}

#[test]
fn a_pool_empties_a_piece_at_a_time() {
    let mut rig = Rig::new(100);
    for hash in 0..50 {
        single(&mut rig, hash);
    }
    let mut pieces = 0;
    while !rig.pool.shed(8) {
        let before = rig.held.len();
        rig.post();
        assert!((1..=8).contains(&(before - rig.held.len())));
        pieces += 1;
    }
    assert!(pieces >= 7 && rig.held.is_empty(), "{pieces} pieces");
    assert_eq!((rig.pool.block_count(), rig.pool.number()), (0, NUMBER));
}

#[test]
fn another_time_to_live_keeps_what_is_there() {
    let mut rig = Rig::with_ttl(100, Duration::ZERO);
    rig.store(None, &[10], &[0, 1]);
    rig.expire(1_000);
    rig.pool.set_ttl(TTL);
    rig.expire(1_001);
    rig.expire(1_100);
    assert_eq!(rig.held.len(), 1);
    rig.expire(1_101);
    assert_eq!(rig.held.len(), 0);
}

#[test]
fn events_belong_to_the_pool_by_where_the_blocks_lie() {
    for (medium, in_other_process, wanted) in [
        (Medium::Device, false, EventScope::Rank),
        (Medium::Device, true, EventScope::Rank),
        (Medium::Host, false, EventScope::RankAndPool),
        (Medium::Host, true, EventScope::Pool),
        (Medium::Disk, false, EventScope::Pool),
        (Medium::Disk, true, EventScope::Pool),
        (Medium::Shared, false, EventScope::Pool),
        (Medium::Unknown, false, EventScope::Rank),
        (Medium::Unknown, true, EventScope::Rank),
    ] {
        let at = if in_other_process { medium.in_other_process() } else { medium };
        assert_eq!(EventScope::of(at), wanted, "{medium:?} {in_other_process}");
    }
}
