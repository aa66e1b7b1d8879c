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

mod index_models {
    use forebay::base::RankIndex;
    use forebay::block::{BlockKey, KeySeed, RootName};
    use forebay::index::{IndexReader, Overlaps, Shape, SliceWriter, index_of_shape};
    use forebay::mailbox::KvOp;
    use loom::thread;

    const SEED: KeySeed = KeySeed(1);
    /// Room for a few segments and cells.
    const SHAPE: Shape = Shape { segment_slots: 16, memory_bytes_max: 16 << 10 };
    /// Blocks of all that is stored here: one length, so that the root does not change.
    const BLOCK_BYTES: u16 = 2;
    /// Executions are explored up to so many switches away from a thread that could go on.
    const PREEMPTIONS_MAX: usize = 2;

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS_MAX);
        builder.max_branches = 100_000;
        builder.check(run);
    }

    fn root() -> BlockKey {
        BlockKey::root(SEED, &RootName::default())
    }

    /// First blocks whose keys have the property, with the table's own choice of bits.
    fn blocks(wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = [u8; 2]> {
        let block = |number: u16| number.to_le_bytes();
        (0..u16::MAX).map(block).filter(move |block| wanted(root().child(SEED, block).to_word()))
    }

    const fn home(key: u64) -> u64 {
        key >> 32 & 15
    }

    /// Two blocks whose probes start at one slot, away from the root's.
    fn colliding() -> ([u8; 2], [u8; 2]) {
        let of_root = home(root().to_word());
        let there = (of_root + 5) % 16;
        let mut found = blocks(move |key| home(key) == there);
        (found.next().unwrap(), found.next().unwrap())
    }

    fn apply(writer: &mut SliceWriter, rank: u16, block: &[u8], store: bool) {
        let (parent, key) = (root(), root().child(SEED, block));
        let op = match store {
            true => KvOp::Store { parent, key, block_bytes: BLOCK_BYTES },
            false => KvOp::Remove { key },
        };
        writer.apply(RankIndex(rank), op);
    }

    fn holders(reader: &IndexReader, block: &[u8]) -> Vec<u16> {
        let mut overlaps = Overlaps::new(16);
        reader.overlap(root(), block, &mut overlaps);
        let mut ranks: Vec<u16> = overlaps.iter_held().map(|(rank, _)| rank.0).collect();
        ranks.sort_unstable();
        ranks
    }

    fn one_slice() -> (IndexReader, SliceWriter) {
        let (reader, mut writers) = index_of_shape(1, SEED, SHAPE);
        (reader, writers.remove(0))
    }

    #[test]
    fn a_slot_that_changes_hands_gives_no_false_rank() {
        model(|| {
            let (first, second) = colliding();
            let (reader, mut writer) = one_slice();
            apply(&mut writer, 1, &first, true);
            let writing = thread::spawn(move || {
                apply(&mut writer, 1, &first, false);
                apply(&mut writer, 2, &second, true);
                writer
            });
            let seen = holders(&reader, &first);
            assert!(seen.is_empty() || seen == [1], "{seen:?}");
            drop(writing.join().unwrap());
            assert_eq!((holders(&reader, &first), holders(&reader, &second)), (vec![], vec![2]));
        });
    }

    #[test]
    fn a_slot_that_changes_back_gives_no_false_rank() {
        model(|| {
            let (first, second) = colliding();
            let keeper =
                blocks(|key| home(key) == (home(root().to_word()) + 9) % 16).next().unwrap();
            let (reader, mut writer) = one_slice();
            apply(&mut writer, 0, &keeper, true);
            apply(&mut writer, 1, &first, true);
            let writing = thread::spawn(move || {
                apply(&mut writer, 1, &first, false);
                apply(&mut writer, 2, &second, true);
                apply(&mut writer, 2, &second, false);
                apply(&mut writer, 3, &first, true);
                writer
            });
            let seen = holders(&reader, &first);
            assert!(seen.is_empty() || seen == [1] || seen == [3], "{seen:?}");
            drop(writing.join().unwrap());
            assert_eq!(holders(&reader, &first), [3]);
        });
    }

    #[test]
    fn an_entry_that_is_shifted_is_always_found() {
        model(|| {
            let (first, second) = colliding();
            let (reader, mut writer) = one_slice();
            apply(&mut writer, 1, &first, true);
            apply(&mut writer, 2, &second, true);
            let writing = thread::spawn(move || {
                apply(&mut writer, 1, &first, false);
                writer
            });
            assert_eq!(holders(&reader, &second), [2]);
            drop(writing.join().unwrap());
            assert_eq!(holders(&reader, &second), [2]);
        });
    }

    #[test]
    fn an_entry_that_moves_to_a_new_segment_is_always_found() {
        model(|| {
            let (reader, mut writer) = one_slice();
            // The segment is full enough to be split by the lowest bit: one entry moves, beside the root perhaps.
            let moves = blocks(|key| key & 1 == 1).next().unwrap();
            let mut stay = blocks(|key| key & 1 == 0);
            apply(&mut writer, 1, &moves, true);
            for block in stay.by_ref().take(10) {
                apply(&mut writer, 2, &block, true);
            }
            let bytes_before = reader.memory_bytes();
            let last = stay.next().unwrap();
            let writing = thread::spawn(move || {
                apply(&mut writer, 2, &last, true);
                writer
            });
            assert_eq!(holders(&reader, &moves), [1]);
            drop(writing.join().unwrap());
            assert!(reader.memory_bytes() > bytes_before, "it was split");
            assert_eq!(holders(&reader, &moves), [1]);
        });
    }

    #[test]
    fn an_overflow_cell_in_its_next_life_gives_no_false_rank() {
        model(|| {
            let (first, second) = colliding();
            let (reader, mut writer) = one_slice();
            (0..5).for_each(|rank| apply(&mut writer, rank, &first, true));
            (8..12).for_each(|rank| apply(&mut writer, rank, &second, true));
            let writing = thread::spawn(move || {
                apply(&mut writer, 4, &first, false);
                apply(&mut writer, 12, &second, true);
                writer
            });
            let seen = holders(&reader, &first);
            assert!(seen == [0, 1, 2, 3] || seen == [0, 1, 2, 3, 4] || seen.is_empty(), "{seen:?}");
            drop(writing.join().unwrap());
            assert_eq!(holders(&reader, &first), [0, 1, 2, 3]);
            assert_eq!(holders(&reader, &second), [8, 9, 10, 11, 12]);
        });
    }
}
