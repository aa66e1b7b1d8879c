//! Models of every protocol between threads, checked over all interleavings and all values that the
//! memory model allows: `tools/ci/30-loom`. The code under test is the code that ships, on loom's
//! atomics (`ring/sync.rs`).
#![cfg(feature = "loom")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model that fails must stop")]
#![allow(clippy::print_stdout, reason = "says how much was explored")]

mod doubts;

mod ring_models {
    use forebay_board::{QueueCell, QueueDemand, QueueLimits};
    use forebay_ring::sync::{Arc, AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
    use forebay_ring::{Bell, Wake, latest, spsc};
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

    /// A new_request that found no place joins; at the same moment the only place is given back.
    /// Either the home, which looks once after the message, finds it, or who gave it back sees the
    /// waiter and wakes the home again.
    #[test]
    fn nobody_waits_beside_a_free_place() {
        loom::model(|| {
            let limits = QueueLimits { depth_max: 1, bytes_max: 0, tokens_max: 0 };
            let cell = Arc::new(QueueCell::default());
            let place_taken = Arc::new(AtomicU32::new(1));
            let queue = Arc::clone(&cell);
            let place = Arc::clone(&place_taken);
            let ending = thread::spawn(move || {
                place.fetch_sub(1, Ordering::Relaxed);
                queue.room_made()
            });
            cell.join(limits, QueueDemand::default()).unwrap();
            // Here the message goes to the home: its ring is Release and Acquire, and may as well
            // be one thread.
            let seen = cell.look();
            let found = place_taken.load(Ordering::Relaxed) == 0;
            let rung = ending.join().unwrap();
            assert!(found || rung, "the place is free and the waiter sleeps");
            // Rung after the look: the count has changed, so the home looks again.
            assert!(!rung || found || cell.look() != seen, "rung, and the home sees nothing new");
        });
    }

    /// The tenant that has a full queue asks for more while another one comes: that one gets its
    /// share, the first no more, and nothing is left of either.
    #[test]
    fn shares_of_a_full_queue_are_exact() {
        loom::model(|| {
            let limits = QueueLimits { depth_max: 1, bytes_max: 0, tokens_max: 0 };
            let wanted = |tenant| QueueDemand { tenant, weight: 1, ..QueueDemand::default() };
            let cell = Arc::new(QueueCell::default());
            cell.join(limits, wanted(0)).unwrap();
            let queue = Arc::clone(&cell);
            let greedy = thread::spawn(move || {
                assert!(queue.join(limits, wanted(0)).is_err(), "it has all, or twice its share");
            });
            cell.join(limits, wanted(1)).unwrap();
            greedy.join().unwrap();
            assert_eq!((cell.waiting(), cell.waiting_of(0), cell.waiting_of(1)), (2, 1, 1));
            cell.leave(wanted(0));
            assert!(!cell.is_below_share(limits, 1, 1), "no other tenant is left");
        });
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
                    let bell = Arc::clone(&bell);
                    let pushed = Arc::clone(&pushed);
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

    /// The same protocol with the fences left out loses a wake: they are needed, and loom can see
    /// it.
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
            let their_parked = Arc::clone(&parked);
            let their_rung = Arc::clone(&rung);
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

mod room_models {
    use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex};
    use forebay_board::{
        PinnedPrefixes, PromptNumber, RankLoad, UnstreamedPrompts, WindowOrigin, Windows,
    };
    use forebay_fleet::worker::{RoomDemand, RoomLimits};
    use forebay_index::{BlockKey, KeySeed, PrefixMarks, RootName};
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

    /// Places and tokens are one word: who looks from a third thread never sees one without the
    /// other.
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

    /// One thread enters a prompt and ends it, another passes the oldest. The tokens are taken off
    /// once, and no sum runs below zero on the way.
    #[test]
    fn tokens_of_a_passed_prompt_are_taken_off_once() {
        const TOKENS: u64 = 100;

        loom::model(|| {
            let load = Arc::new(RankLoad::default());
            let prompts = Arc::new(UnstreamedPrompts::default());
            let their_load = Arc::clone(&load);
            let their_prompts = Arc::clone(&prompts);
            let passing = thread::spawn(move || {
                let passed = their_prompts.pass(PromptNumber::new(1), 1);
                if passed.count > 0 {
                    their_load.sub_unseen(passed.tokens);
                    their_load.sub_prefills(passed.count, passed.tokens);
                }
            });
            let number = load.add_prefill(TOKENS);
            load.add_unseen(TOKENS);
            let slot = prompts.enter(number, TOKENS).expect("a free slot");
            if prompts.remove(slot) {
                load.sub_unseen(TOKENS);
                load.sub_prefill(TOKENS);
            }
            passing.join().unwrap();
            assert!(!load.has_unseen());
            assert_eq!(load.prefill_tokens(), 0);
        });
    }

    #[test]
    fn two_that_open_a_window_are_one_opening() {
        loom::model(|| {
            let windows = Arc::new(Windows::new());
            let pool = PoolIndex(0);
            let now = NanosSinceStart(10);
            let theirs = Arc::clone(&windows);
            let opening = thread::spawn(move || {
                theirs.open(pool, WindowOrigin::Here, now, NanosSinceStart(90))
            });
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
}

mod index_models {
    use forebay_base::RankIndex;
    use forebay_index::KvOp;
    use forebay_index::{BlockKey, KeySeed, RootName};
    use forebay_index::{IndexReader, Overlaps, Shape, SliceWriter, index_of_shape};
    use loom::thread;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    const SEED: KeySeed = KeySeed(1);
    /// Room for a few segments and cells.
    const SHAPE: Shape = Shape { segment_slots: 16, memory_bytes_max: 16 << 10 };
    /// Blocks of paths: one length, so that the root does not change.
    const BLOCK_BYTES: u16 = 2;
    /// Executions are explored up to so many switches away from a thread that could go on.
    const PREEMPTIONS_MAX: usize = 1;
    /// Past it a model ends with what it has explored; `FOREBAY_LOOM_SECONDS` sets another time.
    const MODEL_DURATION_MAX: Duration = Duration::from_secs(3);

    fn model_duration_max() -> Duration {
        let seconds = std::env::var("FOREBAY_LOOM_SECONDS");
        seconds.map_or(MODEL_DURATION_MAX, |text| Duration::from_secs(text.parse().unwrap()))
    }

    /// Runs `write` here and `read` in another thread, in all orders. The reader is the one that is
    /// spawned because loom looks for a conflict at the last access only: the writer's own loads
    /// would hide those of a reader before it.
    fn model<S: Send + 'static, T: Send + 'static>(
        set_up: impl Fn() -> (S, T) + Sync + Send + 'static,
        write: fn(&mut S),
        read: fn(&T),
        after: fn(&T),
    ) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS_MAX);
        builder.max_branches = 20_000;
        builder.max_duration = Some(model_duration_max());
        builder.checkpoint_interval = 100;
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let (mut writer, reader) = set_up();
            let reading = thread::spawn(move || {
                read(&reader);
                reader
            });
            write(&mut writer);
            after(&reading.join().unwrap());
        });
        let runs = runs.load(Ordering::Relaxed);
        println!("{runs} executions");
        assert!(runs > 100, "only {runs} executions: the threads do not meet");
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
        key >> 24 & 15
    }

    /// Two blocks whose probes start at one slot, away from the root's.
    fn colliding() -> ([u8; 2], [u8; 2]) {
        let of_root = home(root().to_word());
        let there = (of_root + 5) % 16;
        let mut found = blocks(move |key| home(key) == there);
        (found.next().unwrap(), found.next().unwrap())
    }

    /// A block whose probe starts where neither of those passes.
    fn elsewhere() -> [u8; 2] {
        let there = (home(root().to_word()) + 9) % 16;
        blocks(move |key| home(key) == there).next().unwrap()
    }

    fn apply(writer: &mut SliceWriter, rank: u16, block: &[u8], store: bool) {
        let parent = root();
        let key = root().child(SEED, block);
        let block_bytes = u16::try_from(block.len()).unwrap();
        let op = match store {
            true => KvOp::Store { parent, key, block_bytes },
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
        model(
            || {
                let (reader, mut writer) = one_slice();
                apply(&mut writer, 1, &colliding().0, true);
                (writer, reader)
            },
            |writer| {
                apply(writer, 1, &colliding().0, false);
                apply(writer, 2, &colliding().1, true);
            },
            |reader| {
                let seen = holders(reader, &colliding().0);
                assert!(seen.is_empty() || seen == [1], "{seen:?}");
            },
            |reader| assert_eq!(holders(reader, &colliding().1), [2]),
        );
    }

    #[test]
    fn a_slot_that_changes_back_gives_no_false_rank() {
        model(
            || {
                let (reader, mut writer) = one_slice();
                apply(&mut writer, 0, &elsewhere(), true);
                apply(&mut writer, 1, &colliding().0, true);
                (writer, reader)
            },
            |writer| {
                apply(writer, 1, &colliding().0, false);
                apply(writer, 2, &colliding().1, true);
                apply(writer, 2, &colliding().1, false);
                apply(writer, 3, &colliding().0, true);
            },
            |reader| {
                let seen = holders(reader, &colliding().0);
                assert!(seen.is_empty() || seen == [1] || seen == [3], "{seen:?}");
            },
            |reader| assert_eq!(holders(reader, &colliding().0), [3]),
        );
    }

    #[test]
    fn an_entry_that_is_shifted_is_always_found() {
        let found = |reader: &IndexReader| assert_eq!(holders(reader, &colliding().1), [2]);
        model(
            || {
                let (reader, mut writer) = one_slice();
                apply(&mut writer, 1, &colliding().0, true);
                apply(&mut writer, 2, &colliding().1, true);
                (writer, reader)
            },
            |writer| {
                apply(writer, 1, &colliding().0, false);
                apply(writer, 3, &colliding().0, true);
                apply(writer, 3, &colliding().0, false);
            },
            found,
            found,
        );
    }

    /// The segment is full enough to be split by the lowest bit of the key: one entry moves, beside
    /// the root perhaps.
    #[test]
    fn an_entry_that_moves_to_a_new_segment_is_always_found() {
        fn moves() -> [u8; 2] {
            blocks(|key| key & 1 == 1).next().unwrap()
        }
        let found = |reader: &IndexReader| assert_eq!(holders(reader, &moves()), [1]);
        model(
            || {
                let (reader, mut writer) = one_slice();
                apply(&mut writer, 1, &moves(), true);
                for block in blocks(|key| key & 1 == 0).take(11) {
                    apply(&mut writer, 2, &block, true);
                }
                (writer, reader)
            },
            |writer| {
                let last = blocks(|key| key & 1 == 0).nth(11).unwrap();
                apply(writer, 2, &last, true);
            },
            found,
            |reader| {
                assert_eq!(holders(reader, &moves()), [1]);
                assert_eq!(reader.entry_count(), 14);
            },
        );
    }

    /// Children of the root whose tags lie in one part of a leaf, which has room for two in models.
    fn tagged(number: usize) -> [u8; 2] {
        // The first two in slots of the lower half, the third in the upper half.
        let is_high = number == 2;
        let mut found = blocks(move |key| key >> 38 & 3 == 0 && (key >> 12 & 1 == 1) == is_high);
        found.nth(number % 2).unwrap()
    }

    /// Rank 1 holds the first two of them. The root has a list of lengths, and so tags from its
    /// second length on.
    fn fork() -> (SliceWriter, IndexReader) {
        let shape = Shape { memory_bytes_max: 64 << 10, ..SHAPE };
        let (reader, mut writers) = index_of_shape(1, SEED, shape);
        let mut writer = writers.remove(0);
        for block in [b"aaa".as_slice(), &tagged(0), &tagged(1)] {
            apply(&mut writer, 1, block, true);
        }
        (writer, reader)
    }

    #[test]
    fn a_child_is_found_while_its_leaf_of_tags_is_split() {
        let found = |reader: &IndexReader| assert_eq!(holders(reader, &tagged(0)), [1]);
        model(
            fork,
            |writer| apply(writer, 2, &tagged(2), true),
            found,
            |reader| {
                assert_eq!(holders(reader, &tagged(0)), [1]);
                assert_eq!(holders(reader, &tagged(1)), [1]);
                assert_eq!(holders(reader, &tagged(2)), [2]);
            },
        );
    }

    #[test]
    fn a_child_is_found_while_tags_of_others_go() {
        let found = |reader: &IndexReader| assert_eq!(holders(reader, &tagged(1)), [1]);
        model(
            || {
                let (mut writer, reader) = fork();
                apply(&mut writer, 2, &tagged(2), true);
                (writer, reader)
            },
            |writer| {
                apply(writer, 1, &tagged(0), false);
                apply(writer, 2, &tagged(2), false);
            },
            found,
            found,
        );
    }

    /// Applies one change of the path that ends with the last of `blocks`.
    fn apply_path(writer: &mut SliceWriter, rank: u16, blocks: &[&[u8]], store: bool) {
        let mut keys = vec![root()];
        for block in blocks {
            keys.push(keys.last().unwrap().child(SEED, block));
        }
        let parent = keys[keys.len() - 2];
        let key = keys[keys.len() - 1];
        let op = match store {
            true => KvOp::Store { parent, key, block_bytes: BLOCK_BYTES },
            false => KvOp::Remove { key },
        };
        writer.apply(RankIndex(rank), op);
    }

    /// Blocks of `text` that the ranks 1 and 2 hold.
    fn depths(reader: &IndexReader, text: &[u8]) -> (u32, u32) {
        let mut overlaps = Overlaps::new(16);
        reader.overlap(root(), text, &mut overlaps);
        (overlaps.get(RankIndex(1)).blocks, overlaps.get(RankIndex(2)).blocks)
    }

    /// An index in which rank 1 holds three blocks, in one run.
    fn one_run() -> (SliceWriter, IndexReader) {
        let (reader, mut writer) = one_slice();
        let path: [&[u8]; 3] = [b"aa", b"bb", b"cc"];
        (1..=3).for_each(|length| apply_path(&mut writer, 1, &path[..length], true));
        (writer, reader)
    }

    #[test]
    fn a_run_that_is_split_is_always_found() {
        model(
            one_run,
            |writer| apply_path(writer, 2, &[b"aa", b"dd"], true),
            |reader| assert_eq!(depths(reader, b"aabbcc"), (3, 0)),
            |reader| {
                assert_eq!(depths(reader, b"aabbcc"), (3, 0));
                assert_eq!(depths(reader, b"aadd"), (1, 0), "rank 2 does not hold the first");
                assert_eq!(reader.run_count(), 4, "root, head, both tails");
            },
        );
    }

    #[test]
    fn a_run_grows_and_is_cut_under_a_reader() {
        model(
            one_run,
            |writer| {
                apply_path(writer, 1, &[b"aa", b"bb", b"cc", b"dd"], true);
                apply_path(writer, 1, &[b"aa", b"bb", b"cc", b"dd"], false);
                apply_path(writer, 1, &[b"aa", b"bb", b"cc"], false);
            },
            |reader| {
                let (found, none) = depths(reader, b"aabbccdd");
                assert!((2..=4).contains(&found) && none == 0, "{found} blocks");
            },
            |reader| assert_eq!(depths(reader, b"aabbccdd"), (2, 0)),
        );
    }

    #[test]
    fn a_rank_that_comes_to_hold_a_run_is_seen_with_what_it_has() {
        model(
            one_run,
            |writer| {
                apply_path(writer, 2, &[b"aa"], true);
                apply_path(writer, 2, &[b"aa", b"bb"], true);
                apply_path(writer, 2, &[b"aa", b"bb", b"cc"], true);
                apply_path(writer, 1, &[b"aa", b"bb"], false);
            },
            |reader| {
                let (first, second) = depths(reader, b"aabbcc");
                assert!([1, 3].contains(&first) && second <= 3, "{first} and {second}");
                assert!(first == 3 || second == 3, "rank 1 lost a block after rank 2 had all");
            },
            |reader| assert_eq!(depths(reader, b"aabbcc"), (1, 3)),
        );
    }

    #[test]
    fn an_overflow_cell_in_its_next_life_gives_no_false_rank() {
        model(
            || {
                let (reader, mut writer) = one_slice();
                (0..5).for_each(|rank| apply(&mut writer, rank, &colliding().0, true));
                (8..12).for_each(|rank| apply(&mut writer, rank, &colliding().1, true));
                (writer, reader)
            },
            |writer| {
                apply(writer, 4, &colliding().0, false);
                apply(writer, 12, &colliding().1, true);
            },
            |reader| {
                let seen = holders(reader, &colliding().0);
                let allowed: [&[u16]; 3] = [&[], &[0, 1, 2, 3], &[0, 1, 2, 3, 4]];
                assert!(allowed.contains(&&*seen), "{seen:?}");
                let seen = holders(reader, &colliding().1);
                let allowed: [&[u16]; 3] = [&[], &[8, 9, 10, 11], &[8, 9, 10, 11, 12]];
                assert!(allowed.contains(&&*seen), "{seen:?}");
            },
            |reader| {
                assert_eq!(holders(reader, &colliding().0), [0, 1, 2, 3]);
                assert_eq!(holders(reader, &colliding().1), [8, 9, 10, 11, 12]);
            },
        );
    }
}

mod tenant_models {
    use forebay_base::NanosSinceStart;
    use forebay_board::TenantCell;
    use forebay_fleet::tenant::MinuteRate;
    use forebay_ring::sync::Arc;
    use loom::thread;

    const NOW: NanosSinceStart = NanosSinceStart(1_000_000_000);

    fn together<T: Send + 'static>(
        take: impl Fn(&TenantCell) -> T + Clone + Send + 'static,
    ) -> (Arc<TenantCell>, T, T) {
        let cell = Arc::new(TenantCell::default());
        let other = Arc::clone(&cell);
        let taking = take.clone();
        let other = thread::spawn(move || taking(&other));
        let here = take(&cell);
        (cell, here, other.join().unwrap())
    }

    #[test]
    fn the_last_request_of_a_minute_goes_to_one_shard() {
        loom::model(|| {
            let rate = MinuteRate::of(1).unwrap();
            let (cell, here, there) = together(move |cell| cell.take_request(rate, NOW).is_ok());
            assert!(here != there, "both or neither");
            assert_eq!(cell.requests(rate, NOW).remaining, 0);
        });
    }

    #[test]
    fn tokens_that_come_back_are_neither_lost_nor_doubled() {
        loom::model(|| {
            let rate = MinuteRate::of(100).unwrap();
            let (cell, ..) = together(move |cell| {
                let taken = cell.take_tokens(rate, NOW, 40).unwrap();
                cell.correct_tokens(taken, NOW, 10);
            });
            assert_eq!(cell.tokens(rate, NOW).remaining, 80);
        });
    }

    #[test]
    fn the_last_place_of_a_tenant_goes_to_one_shard() {
        loom::model(|| {
            let (cell, here, there) = together(|cell| {
                let entered = cell.enter(1);
                if entered {
                    assert_eq!(cell.in_flight().get(), 1, "both are in");
                    cell.in_flight().exit();
                }
                entered
            });
            assert!(here || there, "nobody is in");
            assert_eq!(cell.in_flight().get(), 0);
        });
    }
}
