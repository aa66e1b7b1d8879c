//! Model of prefixes that requests of a rank share.

use forebay_board::{PinnedPrefixes, RankLoad};
use forebay_fleet::worker::{RoomDemand, RoomLimits};
use forebay_index::{BlockKey, KeySeed, PrefixMarks, RootName};
use forebay_ring::sync::Arc;
use loom::thread;

/// Two requests with a common prefix, each on a thread, take and give back their tokens as
/// leases do. The prefix counts once, at the end
/// nothing is held, and no sum runs below zero on the way.
#[test]
fn a_shared_prefix_counts_once() {
    const PREFIX_TOKENS: u64 = 100;
    const ALL_TOKENS: u64 = 130;

    fn run(load: &RankLoad, prefixes: &PinnedPrefixes, marks: &PrefixMarks) {
        let kv_tokens = ALL_TOKENS - prefixes.shared_tokens(marks);
        let wanted = RoomDemand { kv_tokens, prefill_tokens: 0 };
        let taken = load.try_acquire(RoomLimits::default(), wanted).unwrap();
        let pinned = prefixes.pin(marks, |_| PREFIX_TOKENS);
        let own_tokens = ALL_TOKENS - pinned.tokens;
        load.correct(taken, own_tokens + pinned.new_tokens);
        let held = load.kv_tokens();
        assert!((own_tokens..=2 * ALL_TOKENS).contains(&held), "{held} tokens");
        load.release(own_tokens + prefixes.unpin(marks, pinned));
    }

    let root = BlockKey::root(KeySeed(1), &RootName::default());
    let marks = PrefixMarks::of(root, &[7; 512]);
    assert_eq!(marks.names().len(), 1);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let load = Arc::new(RankLoad::default());
        let prefixes = Arc::new(PinnedPrefixes::default());
        // Loom does not know `OnceLock`, which has the slots.
        run(&load, &prefixes, &marks);
        let their_load = Arc::clone(&load);
        let their_prefixes = Arc::clone(&prefixes);
        let theirs = marks.clone();
        let other = thread::spawn(move || run(&their_load, &their_prefixes, &theirs));
        run(&load, &prefixes, &marks);
        other.join().unwrap();
        assert_eq!((load.in_flight(), load.kv_tokens()), (0, 0));
        assert_eq!(prefixes.shared_tokens(&marks), 0);
    });
}
