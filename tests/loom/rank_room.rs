//! Models of the room of a rank: places and tokens.

use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_board::RankLoad;
use forebay_fleet::worker::{RoomDemand, RoomLimits};
use forebay_ring::sync::{Arc, AtomicU32, Ordering};
use loom::thread;

const WANTED: RoomDemand = RoomDemand { kv_tokens: 60, prefill_tokens: 0 };

/// Two that want a rank's last place, or its last tokens: never both have it, and what they
/// give back is all there.
fn two_takers(limits: RoomLimits) {
    loom::model(move || {
        let load = Arc::new(RankLoad::default());
        let holders = Arc::new(AtomicU32::new(0));
        let taking = |load: Arc<RankLoad>, holders: Arc<AtomicU32>| {
            move || {
                let taken = load.try_acquire(limits, WANTED).is_some();
                if taken {
                    assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "both have it");
                    holders.fetch_sub(1, Ordering::Relaxed);
                    load.release(WANTED.kv_tokens);
                }
                taken
            }
        };
        let other = thread::spawn(taking(Arc::clone(&load), Arc::clone(&holders)));
        let here = taking(Arc::clone(&load), holders)();
        let there = other.join().unwrap();
        assert!(here || there, "nobody has it");
        assert_eq!((load.in_flight(), load.kv_tokens()), (0, 0));
    });
}

#[test]
fn the_last_place_goes_to_one() {
    two_takers(RoomLimits { places_max: 1, ..RoomLimits::default() });
}

#[test]
fn the_last_tokens_go_to_one() {
    two_takers(RoomLimits { kv_tokens_max: 100, ..RoomLimits::default() });
}

/// One request runs, and two that are refused at the same moment give their places back. Then
/// the one ends while two shards look for room: what is noted is what the engine had, and the
/// end lets one through.
#[test]
fn after_a_refusal_one_end_lets_one_through() {
    const NOW: NanosSinceStart = NanosSinceStart(1_000_000);
    loom::model(|| {
        let limits = RoomLimits::default();
        let load = Arc::new(RankLoad::default());
        for _ in 0..3 {
            assert!(load.try_acquire(limits, WANTED).is_some());
        }
        let refused = |load: &RankLoad| {
            load.release(WANTED.kv_tokens);
            load.refused(ModelIndex(0), NOW);
        };
        let theirs = Arc::clone(&load);
        let other = thread::spawn(move || refused(&theirs));
        refused(&load);
        other.join().unwrap();
        assert_eq!(load.places_now(None, NOW), Some(1));
        load.release(WANTED.kv_tokens);
        let take = move |load: &RankLoad| {
            load.try_acquire(load.room_at(limits, None, NOW), WANTED).is_some()
        };
        let theirs = Arc::clone(&load);
        let other = thread::spawn(move || take(&theirs));
        let here = take(&load);
        let there = other.join().unwrap();
        assert!(here != there, "one end, one more");
    });
}

/// Places and tokens are a single word: a third thread never reads the place without its tokens.
#[test]
fn places_and_tokens_come_and_go_together() {
    loom::model(|| {
        let load = Arc::new(RankLoad::default());
        let theirs = Arc::clone(&load);
        let other = thread::spawn(move || {
            assert!(theirs.try_acquire(RoomLimits::default(), WANTED).is_some());
            theirs.release(WANTED.kv_tokens);
        });
        // An empty rank takes any size; one that holds 60 tokens has no room for 60 more
        // under 100.
        let limits = RoomLimits { kv_tokens_max: 100, ..RoomLimits::default() };
        if load.try_acquire(limits, WANTED).is_some() {
            load.release(WANTED.kv_tokens);
        }
        other.join().unwrap();
        assert_eq!((load.in_flight(), load.kv_tokens()), (0, 0));
    });
}
