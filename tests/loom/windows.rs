//! Models of the rejection windows.

use forebay_base::{NanosSinceStart, PoolIndex};
use forebay_board::{WindowOrigin, Windows};
use forebay_ring::sync::Arc;
use loom::thread;

#[test]
fn two_that_open_a_window_are_one_opening() {
    loom::model(|| {
        let windows = Arc::new(Windows::new());
        let pool = PoolIndex(0);
        let now = NanosSinceStart(10);
        let theirs = Arc::clone(&windows);
        let opening =
            thread::spawn(move || theirs.open(pool, WindowOrigin::Here, now, NanosSinceStart(90)));
        let here = windows.open(pool, WindowOrigin::Here, now, NanosSinceStart(100));
        let there = opening.join().unwrap();
        assert!(here != there, "opened by {}", u32::from(here) + u32::from(there));
        assert_eq!((windows.edges(), windows.openings(pool)), (1, 1));
        assert_eq!(windows.open_until(pool, now), Some(NanosSinceStart(100)));
        assert!(windows.may_be_open(now));
    });
}

#[test]
fn openings_and_closings_alternate() {
    loom::model(|| {
        let windows = Arc::new(Windows::new());
        let pool = PoolIndex(0);
        let now = NanosSinceStart(10);
        let until = NanosSinceStart(90);
        assert!(windows.open(pool, WindowOrigin::Here, now, until));
        let theirs = Arc::clone(&windows);
        let closing = thread::spawn(move || theirs.close(pool, WindowOrigin::Here, now));
        let opened = windows.open(pool, WindowOrigin::Here, now, until);
        assert!(closing.join().unwrap(), "it was open all the time");
        assert_eq!(opened, windows.open_here_until(pool, now).is_some());
        assert_eq!(windows.edges(), 2 + u64::from(opened));
    });
}
