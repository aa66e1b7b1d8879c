//! Models of every protocol between threads, checked over all interleavings and all values that the memory
//! model allows: `cargo test --release --features loom --test loom`. The code under test is the code that ships,
//! on loom's atomics (`ring/sync.rs`).
#![cfg(feature = "loom")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model that fails must stop")]

mod ring_models {
    use forebay::ring::sync::{Arc, AtomicBool, AtomicUsize, Ordering, fence};
    use forebay::ring::{Bell, Wake, latest, spsc};
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

    #[test]
    fn latest_takes_the_newest_or_gives_it_back() {
        loom::model(|| {
            let (writer, reader) = latest();
            let writing = thread::spawn(move || {
                let first = writer.write(Track::new(1)).map(Track::into_inner);
                let second = writer.write(Track::new(2)).map(Track::into_inner);
                (first, second)
            });
            let early = reader.take().map(Track::into_inner);
            let (first, second) = writing.join().unwrap();
            let late = reader.take().map(Track::into_inner);
            assert_eq!(first, None);
            match (early, second, late) {
                // Each value reaches exactly one side, and what the reader sees never goes back.
                (None, Some(1), Some(2)) | (Some(1), None, Some(2)) | (Some(2), Some(1), None) => {}
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn latest_drops_the_unread() {
        loom::model(|| {
            let (writer, reader) = latest();
            let writing = thread::spawn(move || drop(writer.write(Track::new(1))));
            drop(reader.take());
            drop(reader);
            writing.join().unwrap();
        });
    }

    /// Stands for the descriptor: a wake stays until the sleeper reads it.
    struct Flag(Arc<AtomicBool>);

    impl Wake for Flag {
        fn wake(&self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn doorbell_never_loses_a_wake() {
        loom::model(|| {
            let rung = Arc::new(AtomicBool::new(false));
            let bell = Arc::new(Bell::new(Flag(Arc::clone(&rung))));
            let (mut producer, mut consumer) = spsc(2);
            let ringer = Arc::clone(&bell);
            let sending = thread::spawn(move || {
                producer.push(7).unwrap();
                ringer.ring();
            });
            bell.park();
            let sleeps = consumer.is_empty();
            if !sleeps {
                assert_eq!(consumer.pop(), Some(7));
                bell.unpark();
            }
            sending.join().unwrap();
            if sleeps {
                assert!(rung.load(Ordering::Acquire), "lost wake-up");
                assert_eq!(consumer.pop(), Some(7));
            }
        });
    }

    #[test]
    fn doorbell_never_loses_a_snapshot() {
        loom::model(|| {
            let rung = Arc::new(AtomicBool::new(false));
            let bell = Arc::new(Bell::new(Flag(Arc::clone(&rung))));
            let (writer, reader) = latest();
            let ringer = Arc::clone(&bell);
            let sending = thread::spawn(move || {
                let _ = writer.write(7);
                ringer.ring();
            });
            bell.park();
            let sleeps = reader.is_empty();
            sending.join().unwrap();
            assert!(!sleeps || rung.load(Ordering::Acquire), "lost wake-up");
            assert_eq!(reader.take(), Some(7));
        });
    }

    #[test]
    fn doorbell_with_two_senders_wakes_once() {
        struct Count(Arc<AtomicUsize>);
        impl Wake for Count {
            fn wake(&self) {
                self.0.fetch_add(1, Ordering::AcqRel);
            }
        }
        loom::model(|| {
            let wakes = Arc::new(AtomicUsize::new(0));
            let bell = Arc::new(Bell::new(Count(Arc::clone(&wakes))));
            let pushed = Arc::new(AtomicUsize::new(0));
            let sending: Vec<_> = (0..2)
                .map(|_| {
                    let (bell, pushed) = (Arc::clone(&bell), Arc::clone(&pushed));
                    thread::spawn(move || {
                        pushed.fetch_add(1, Ordering::Release);
                        bell.ring();
                    })
                })
                .collect();
            bell.park();
            let seen = pushed.load(Ordering::Acquire);
            for sender in sending {
                sender.join().unwrap();
            }
            let wakes = wakes.load(Ordering::Acquire);
            assert!(seen == 2 || wakes == 1, "saw {seen} of 2 and was woken {wakes} times");
            assert!(wakes <= 1, "one park, {wakes} wakes");
        });
    }

    /// The same protocol with the fences left out loses a wake: they are needed, and loom can see it.
    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn doorbell_without_fences_loses_a_wake() {
        unfenced(false, false);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn doorbell_with_the_sender_fence_alone_loses_a_wake() {
        unfenced(true, false);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn doorbell_with_the_shard_fence_alone_loses_a_wake() {
        unfenced(false, true);
    }

    fn unfenced(sender_fence: bool, shard_fence: bool) {
        loom::model(move || {
            let parked = Arc::new(AtomicBool::new(false));
            let rung = Arc::new(AtomicBool::new(false));
            let (mut producer, consumer) = spsc(2);
            let (their_parked, their_rung) = (Arc::clone(&parked), Arc::clone(&rung));
            let sending = thread::spawn(move || {
                producer.push(7).unwrap();
                if sender_fence {
                    fence(Ordering::SeqCst);
                }
                if their_parked.load(Ordering::Acquire) {
                    their_rung.store(true, Ordering::Release);
                }
            });
            parked.store(true, Ordering::Release);
            if shard_fence {
                fence(Ordering::SeqCst);
            }
            let sleeps = consumer.is_empty();
            sending.join().unwrap();
            assert!(!sleeps || rung.load(Ordering::Acquire), "lost wake-up");
        });
    }
}
