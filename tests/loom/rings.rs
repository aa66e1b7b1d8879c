//! Models of the ring: a producer and a consumer.

use forebay_ring::spsc;
use loom::alloc::Track;
use loom::thread;

#[test]
fn spsc_hands_over_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc(2);
        let pushing = thread::spawn(move || {
            for value in 0..3 {
                if producer.push(Track::new(value)).is_err() {
                    return value;
                }
            }
            3
        });
        let mut next = 0;
        for _ in 0..2 {
            if let Some(value) = consumer.pop() {
                assert_eq!(*value.get_ref(), next);
                next += 1;
            }
        }
        let pushed = pushing.join().unwrap();
        assert!(pushed >= 2, "full below its capacity");
        while let Some(value) = consumer.pop() {
            assert_eq!(*value.get_ref(), next);
            next += 1;
        }
        assert_eq!(next, pushed);
    });
}

#[test]
fn spsc_of_one_slot_reuses_it() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc(1);
        let pushing = thread::spawn(move || {
            let first = producer.push(Track::new(1)).is_ok();
            let second = producer.push(Track::new(2)).is_ok();
            (first, second)
        });
        let early = consumer.pop().map(Track::into_inner);
        let (first, second) = pushing.join().unwrap();
        let late = consumer.pop().map(Track::into_inner);
        assert!(first);
        match (early, late) {
            (None, Some(1)) => assert!(!second),
            (Some(1), Some(2)) => assert!(second),
            (Some(1), None) => assert!(!second),
            other => panic!("{other:?}"),
        }
        assert!(consumer.is_empty());
    });
}

/// `Track` reports a value that is never dropped, or dropped twice.
#[test]
fn spsc_drops_what_is_left() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc(2);
        let pushing = thread::spawn(move || {
            let _ = producer.push(Track::new(1));
            let _ = producer.push(Track::new(2));
        });
        drop(consumer.pop());
        drop(consumer);
        pushing.join().unwrap();
    });
}
