//! Round trips, damage, and files.

use super::*;
use crate::base::ShardIndex;
use crate::block::{BlockKey, KeySeed};
use crate::framing::CHUNK_HEADER_BYTES;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

type Owned = (RankHead, Vec<(Block, Vec<EngineHash>)>);

fn header() -> Header {
    Header { written_unix_ns: 5, seed: KeySeed(77), slice_count: 3 }
}

fn key(word: u64) -> BlockKey {
    BlockKey::from_word(word.max(1)).unwrap()
}

fn rank(number: u32, blocks: Vec<(Block, Vec<EngineHash>)>) -> Owned {
    let name = RankName {
        worker: "gpu1:8000".into(),
        dp_rank: number,
        endpoint: "tcp://gpu1:5557".into(),
        topic: "kv@m".into(),
        model: "m".into(),
    };
    let head = RankHead {
        name,
        vocabulary: 1 << 60,
        block_size_tokens: 16,
        sequence: 900,
        payload_hash: u64::MAX,
        block_count: blocks.len() as u64,
    };
    (head, blocks)
}

fn chain(first: u64, count: u64) -> Vec<(Block, Vec<EngineHash>)> {
    let block = |number: u64| {
        let block = Block {
            parent: key(first + number),
            key: key(first + number + 1),
            block_bytes: u16::try_from(40 + number % 9).unwrap(),
            is_first: number == 0,
            slice: ShardIndex(2),
        };
        let name = EngineHash { hash: number << 50, group: u32::MAX, stores: 1 };
        (block, vec![name, EngineHash { group: 3, stores: 9, ..name }])
    };
    (0..count).map(block).collect()
}

fn written(ranks: &[Owned]) -> Vec<u8> {
    let mut encoder = Encoder::new(&header());
    for (head, blocks) in ranks {
        assert!(encoder.rank(head));
        blocks.iter().for_each(|(block, hashes)| encoder.block(block, hashes));
    }
    encoder.end();
    encoder.made().clone()
}

fn read(bytes: &[u8]) -> Result<Vec<Owned>, SnapshotError> {
    let (mut reader, header) = SnapshotReader::open(bytes)?;
    assert_eq!((header.seed.0, header.slice_count), (77, 3));
    let mut ranks: Vec<Owned> = Vec::new();
    loop {
        match reader.next_part()? {
            Part::Rank(head) => ranks.push((head, Vec::new())),
            Part::Blocks(mut blocks) => {
                let mut hashes = Vec::new();
                while let Some(block) = blocks.next_into(&mut hashes) {
                    ranks.last_mut().unwrap().1.push((block, hashes.clone()));
                }
            }
            Part::End => return Ok(ranks),
        }
    }
}

fn small() -> Vec<Owned> {
    vec![rank(0, chain(10, 3)), rank(1, chain(1 << 40, 2))]
}

#[test]
fn every_changed_bit_and_every_cut_is_refused() {
    let bytes = written(&small());
    assert_eq!(read(&bytes).unwrap(), small());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let error = read(&changed).expect_err("a changed bit");
            match at {
                0..8 => assert!(matches!(error, SnapshotError::Foreign)),
                8..10 => assert!(matches!(error, SnapshotError::Version(_))),
                _ => assert!(matches!(error, SnapshotError::Damaged { .. }), "{at}: {error}"),
            }
        }
        let error = read(&bytes[..at]).expect_err("a cut");
        let expected = match error {
            SnapshotError::Foreign => at == 0,
            SnapshotError::Cut { at: said } => said == at as u64,
            _ => false,
        };
        assert!(expected, "cut at {at}: {error}");
    }
    let mut longer = bytes;
    longer.push(0);
    let error = read(&longer).unwrap_err().to_string();
    assert!(error.contains("after the end"), "{error}");
}

#[test]
fn whole_chunks_that_are_lost_or_doubled_or_moved_are_refused() {
    // Large enough for ranks of several chunks.
    let ranks = vec![rank(0, chain(10, 9_000)), rank(1, chain(1 << 40, 9_000))];
    let bytes = written(&ranks);
    assert_eq!(read(&bytes).unwrap(), ranks);
    let mut chunks = Vec::new();
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let packed = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        let end = at + CHUNK_HEADER_BYTES + usize::try_from(packed).unwrap();
        chunks.push(&bytes[at..end]);
        at = end;
    }
    assert!(chunks.len() > 6, "{}", chunks.len());
    let put = |order: &[usize]| {
        let mut out = bytes[..HEADER_BYTES].to_vec();
        order.iter().for_each(|chunk| out.extend_from_slice(chunks[*chunk]));
        read(&out)
    };
    let all: Vec<usize> = (0..chunks.len()).collect();
    assert!(put(&all).is_ok());
    for at in 0..chunks.len() - 1 {
        let (mut lost, mut doubled, mut moved) = (all.clone(), all.clone(), all.clone());
        lost.remove(at);
        doubled.insert(at, at);
        moved.swap(at, at + 1);
        for order in [lost, doubled, moved] {
            assert!(put(&order).is_err(), "{order:?}");
        }
    }
}

#[test]
fn keys_that_are_made_in_another_way_are_refused() {
    let mut bytes = written(&small());
    bytes[32] ^= 1;
    let checksum = xxh3_64(&bytes[..HEADER_BYTES - 8]).to_le_bytes();
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&checksum);
    assert!(matches!(read(&bytes), Err(SnapshotError::Keys)));
}

#[test]
fn names_that_are_too_long_leave_their_rank_out() {
    let mut encoder = Encoder::new(&header());
    let (mut head, _) = rank(0, Vec::new());
    head.name.model = "m".repeat(5_000);
    assert!(!encoder.rank(&head));
    encoder.end();
    assert_eq!(read(encoder.made()).unwrap(), []);
}

fn write_file(path: &Path, ranks: &[Owned]) -> std::io::Result<u64> {
    let mut writer = SnapshotWriter::create(path, &header())?;
    for (head, blocks) in ranks {
        assert!(writer.rank(head));
        for (block, hashes) in blocks {
            writer.block(block, hashes)?;
        }
    }
    writer.finish()
}

fn read_file(path: &Path) -> Vec<Owned> {
    let mut file = SnapshotFile::open(path).unwrap().expect("a file");
    let contents = file.check().unwrap();
    let mut ranks: Vec<Owned> = contents
        .values()
        .map(|place| {
            let mut blocks = Vec::new();
            file.blocks(place, |block, names| blocks.push((*block, names.to_vec()))).unwrap();
            (place.head.clone(), blocks)
        })
        .collect();
    ranks.sort_by_key(|(head, _)| head.name.dp_rank);
    ranks
}

#[test]
fn files_are_whole_secret_and_replaced_in_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    assert!(SnapshotFile::open(&path).unwrap().is_none());
    // What a crash has left beside it goes; what is younger, or somebody else's, stays.
    let beside = |name: &str, age_s: u64| {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    };
    beside("s.0123456789abcdef.new", 7_200);
    beside("s.fedcba9876543210.new", 60);
    beside("s.notes.new", 7_200);
    beside("snapshot", 7_200);
    let bytes = write_file(&path, &small()).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.permissions().mode() & 0o777), (bytes, 0o600));
    assert_eq!(read_file(&path), small());

    let mut half = SnapshotWriter::create(&path, &header()).unwrap();
    assert!(half.rank(&small()[0].0));
    drop(half);
    assert_eq!(read_file(&path), small(), "the one before stays");
    let large = vec![rank(0, chain(1, 30_000)), rank(1, chain(1 << 50, 20_000))];
    // Who reads the one before reads it to its end.
    let mut open = SnapshotFile::open(&path).unwrap().unwrap();
    write_file(&path, &large).unwrap();
    assert_eq!(open.check().unwrap().len(), 2);
    assert_eq!(read_file(&path), large);
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["s", "s.fedcba9876543210.new", "s.notes.new", "snapshot"]);

    assert!(write_file(&dir.path().join("none/s"), &small()).is_err());
    let error = SnapshotFile::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn a_file_that_changes_under_its_reader_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    write_file(&path, &small()).unwrap();
    let mut file = SnapshotFile::open(&path).unwrap().unwrap();
    let contents = file.check().unwrap();
    let place = contents.values().find(|place| place.head.name.dp_rank == 1).unwrap();
    let other = written(&[rank(0, chain(10, 3)), rank(1, chain(1 << 41, 2))]);
    fs::write(&path, other).unwrap();
    let mut blocks = Vec::new();
    let _ = file.blocks(place, |block, _| blocks.push(*block));
    fs::write(&path, "no").unwrap();
    assert!(file.blocks(place, |_, _| {}).is_err());
}

prop_compose! {
    fn any_block()(
        parent in 1_u64..,
        key_word in 1_u64..,
        block_bytes in 1_u16..1 << 15,
        is_first in any::<bool>(),
        slice in any::<u16>(),
        names in proptest::collection::vec((any::<u64>(), any::<u32>(), 1_u32..), 0..4),
    ) -> (Block, Vec<EngineHash>) {
        // Key and parent differ.
        let key_word = if key_word == parent { parent.wrapping_add(1).max(1) } else { key_word };
        let block = Block {
            parent: key(parent),
            key: key(key_word),
            block_bytes,
            is_first,
            slice: ShardIndex(slice),
        };
        let name = |(hash, group, stores)| EngineHash { hash, group, stores };
        (block, names.into_iter().map(name).collect())
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        ranks in proptest::collection::vec(proptest::collection::vec(any_block(), 0..8), 0..4),
    ) {
        let ranks: Vec<Owned> =
            (0..).zip(ranks).map(|(number, blocks)| rank(number, blocks)).collect();
        prop_assert_eq!(read(&written(&ranks)).unwrap(), ranks);
    }

    #[test]
    fn damage_is_refused_and_never_panics(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bytes = written(&small());
        let mut changed = bytes.clone();
        for (at, byte) in edits {
            changed[at.index(bytes.len())] = byte;
        }
        match read(&changed) {
            Ok(ranks) => prop_assert!(changed == bytes && ranks == small()),
            Err(_) => prop_assert!(changed != bytes),
        }
    }
}
