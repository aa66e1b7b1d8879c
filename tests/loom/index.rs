//! Models of a slice of the index: its writer and a reader.

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

/// Runs `write` here and `read` in another thread, in all orders. The reader is
/// spawned because loom looks for a conflict at the last access only: the writer's own loads would
/// hide the loads of a reader before it.
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

/// A block whose probe starts where neither block passes.
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

/// [`fork`] in the first of two slices: a reader knows the lengths of first blocks by their bits.
fn fork_in_slices() -> (SliceWriter, IndexReader) {
    let shape = Shape { memory_bytes_max: 64 << 10, ..SHAPE };
    let (reader, mut writers) = index_of_shape(2, SEED, shape);
    let mut writer = writers.swap_remove(0);
    for length in [3, 2] {
        apply(&mut writer, 1, &in_first_slice(length), true);
    }
    (writer, reader)
}

/// A block of that length whose paths are in the first of two slices.
fn in_first_slice(length: usize) -> Vec<u8> {
    let blocks = (0..=u8::MAX).map(|byte| vec![byte; length]);
    let mut found = blocks.filter(|block| root().child(SEED, block).to_word() >> 63 == 0);
    found.next().unwrap()
}

#[test]
fn a_first_block_is_found_while_lengths_come_and_go() {
    let found = |reader: &IndexReader| assert_eq!(holders(reader, &in_first_slice(2)), [1]);
    model(
        fork_in_slices,
        |writer| {
            apply(writer, 2, &in_first_slice(4), true);
            apply(writer, 1, &in_first_slice(3), false);
            apply(writer, 2, &in_first_slice(4), false);
        },
        found,
        found,
    );
}

#[test]
fn a_first_block_is_found_while_its_root_gets_a_list() {
    let found = |reader: &IndexReader| assert_eq!(holders(reader, &in_first_slice(2)), [1]);
    model(
        || {
            let (mut writer, reader) = fork_in_slices();
            apply(&mut writer, 1, &in_first_slice(3), false);
            (writer, reader)
        },
        |writer| {
            apply(writer, 2, &in_first_slice(5), true);
            apply(writer, 2, &in_first_slice(4), true);
            apply(writer, 2, &in_first_slice(5), false);
        },
        found,
        |reader| {
            assert_eq!(holders(reader, &in_first_slice(2)), [1]);
            // The other block may be the first half of this block.
            assert!(holders(reader, &in_first_slice(4)).contains(&2));
        },
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
