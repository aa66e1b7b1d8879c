//! Round trips, damage, and files.

use super::*;
use crate::framing::CHUNK_HEADER_BYTES;
use forebay_base::ShardIndex;
use forebay_index::{BlockKey, KeySeed};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use twox_hash::XxHash3_64;

type Ranks = Vec<(RankHead, Vec<SnapshotEntry>)>;
type Owned = (Ranks, Vec<Link>);

fn header() -> Header {
    Header { written_unix_ns: 5, seed: KeySeed(77), slice_count: 3 }
}

fn key(word: u64) -> BlockKey {
    BlockKey::from_word(word.max(1)).unwrap()
}

fn rank(number: u32, entries: Vec<SnapshotEntry>) -> (RankHead, Vec<SnapshotEntry>) {
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
        trees: 3,
        whole_groups: vec![u32::MAX, 0],
        forgetful_groups: vec![1],
        entry_count: entries.len() as u64,
    };
    (head, entries)
}

fn chain(first: u64, count: u64) -> Vec<SnapshotEntry> {
    let entry = |number: u64| SnapshotEntry {
        id: number << 50,
        key: key(first + number + 1),
        stores: [1, 0, u32::try_from(number).unwrap()],
    };
    (0..count).map(entry).collect()
}

fn links(first: u64, count: u64) -> Vec<Link> {
    let link = |number: u64| Link {
        parent: key(first + number),
        key: key(first + number + 1),
        block_bytes: u16::try_from(40 + number % 9).unwrap(),
        slice: ShardIndex(2),
    };
    (0..count).map(link).collect()
}

fn written((ranks, links): &Owned) -> Vec<u8> {
    let mut encoder = Encoder::new(&header());
    for (head, entries) in ranks {
        assert!(encoder.rank(head));
        entries.iter().for_each(|entry| encoder.entry(entry));
    }
    links.iter().for_each(|link| encoder.link(link));
    encoder.end();
    encoder.made().clone()
}

fn read(bytes: &[u8]) -> Result<Owned, SnapshotError> {
    let (mut reader, header) = SnapshotReader::open(bytes)?;
    assert_eq!((header.seed.0, header.slice_count), (77, 3));
    let mut ranks = Ranks::new();
    let mut links = Vec::new();
    loop {
        match reader.next_part()? {
            Part::Rank(head) => ranks.push((head, Vec::new())),
            Part::Entries(entries) => ranks.last_mut().unwrap().1.extend(entries),
            Part::Links(more) => links.extend(more),
            Part::End => return Ok((ranks, links)),
        }
    }
}

fn small() -> Owned {
    (vec![rank(0, chain(10, 3)), rank(1, chain(1 << 40, 2))], links(10, 3))
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
    let ranks = vec![rank(0, chain(10, 30_000)), rank(1, chain(1 << 40, 30_000))];
    let all = (ranks, links(10, 30_000));
    let bytes = written(&all);
    assert_eq!(read(&bytes).unwrap(), all);
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
        let mut lost = all.clone();
        let mut doubled = all.clone();
        let mut moved = all.clone();
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
    let checksum = XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]).to_le_bytes();
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
    assert_eq!(read(encoder.made()).unwrap(), Owned::default());
}

fn write_file(path: &Path, (ranks, links): &Owned) -> std::io::Result<u64> {
    let mut writer = SnapshotWriter::create(path, &header())?;
    for (head, entries) in ranks {
        assert!(writer.rank(head));
        for entry in entries {
            writer.entry(entry)?;
        }
    }
    for link in links {
        writer.link(link)?;
    }
    writer.finish()
}

fn read_file(path: &Path) -> Owned {
    let mut file = SnapshotFile::open(path).unwrap().expect("a file");
    let contents = file.check().unwrap();
    let mut ranks: Ranks = contents
        .ranks
        .values()
        .map(|place| {
            let mut entries = Vec::new();
            file.entries(place, |entry| entries.push(entry)).unwrap();
            (place.head.clone(), entries)
        })
        .collect();
    ranks.sort_by_key(|(head, _)| head.name.dp_rank);
    let links = (0..contents.paths.len()).filter_map(|at| contents.paths.link(at)).collect();
    (ranks, links)
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
    assert!(half.rank(&small().0[0].0));
    drop(half);
    assert_eq!(read_file(&path), small(), "the one before stays");
    let ranks = vec![rank(0, chain(1, 30_000)), rank(1, chain(1 << 50, 20_000))];
    let large = (ranks, links(1, 40_000));
    // Who reads the one before reads it to its end.
    let mut open = SnapshotFile::open(&path).unwrap().unwrap();
    write_file(&path, &large).unwrap();
    assert_eq!(open.check().unwrap().ranks.len(), 2);
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

/// As root, a snapshot took the place of a device.
#[test]
fn a_snapshot_takes_the_place_of_no_link_and_of_no_other_kind_of_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("real", at("link")).unwrap();
    write_file(&at("link"), &small()).unwrap();
    assert!(at("link").is_symlink() && !at("real").is_symlink());
    assert_eq!(read_file(&at("real")), small());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let error = write_file(&at("socket"), &small()).unwrap_err();
    assert_eq!(error.to_string(), "it is no regular file");
}

#[test]
fn a_file_that_changes_under_its_reader_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    write_file(&path, &small()).unwrap();
    let mut file = SnapshotFile::open(&path).unwrap().unwrap();
    let contents = file.check().unwrap();
    let place = contents.ranks.values().find(|place| place.head.name.dp_rank == 1).unwrap();
    let ranks = vec![rank(0, chain(10, 3)), rank(1, chain(1 << 41, 2))];
    fs::write(&path, written(&(ranks, Vec::new()))).unwrap();
    let mut entries = Vec::new();
    let _ = file.entries(place, |entry| entries.push(entry));
    fs::write(&path, "no").unwrap();
    assert!(file.entries(place, |_| {}).is_err());
}

prop_compose! {
    fn any_entry()(
        id in any::<u64>(),
        word in 1_u64..,
        stores in any::<[u32; 3]>(),
    ) -> SnapshotEntry {
        let stores = if stores == [0; 3] { [1, 0, 0] } else { stores };
        SnapshotEntry { id, key: key(word), stores }
    }
}

prop_compose! {
    fn any_link()(
        parent in 1_u64..,
        word in 1_u64..,
        block_bytes in 1_u16..1 << 15,
        slice in any::<u16>(),
    ) -> Link {
        // Key and parent differ.
        let word = if word == parent { parent.wrapping_add(1).max(1) } else { word };
        Link { parent: key(parent), key: key(word), block_bytes, slice: ShardIndex(slice) }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        ranks in proptest::collection::vec(proptest::collection::vec(any_entry(), 0..8), 0..4),
        links in proptest::collection::vec(any_link(), 0..8),
    ) {
        let ranks: Ranks =
            (0..).zip(ranks).map(|(number, entries)| rank(number, entries)).collect();
        let all = (ranks, links);
        prop_assert_eq!(read(&written(&all)).unwrap(), all);
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
            Ok(all) => prop_assert!(changed == bytes && all == small()),
            Err(_) => prop_assert!(changed != bytes),
        }
    }
}
