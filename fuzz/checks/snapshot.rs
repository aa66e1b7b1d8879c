//! Any bytes as a snapshot. Must hold: reading ends, and a beginning of the bytes is never a whole
//! snapshot if all of them are one; what is whole can be written and is read back equal; bytes
//! inside chunks with sound checksums are checked all the same; of what a rank is restored from it
//! every entry is taken or counted, and the index is told a parent before its children, and nothing
//! twice.

use forebay_base::ShardIndex;
use forebay_index::{BlockKey, KvOp};
use forebay_kv_events::{LowerTiers, RestoreBuilder};
use forebay_snapshot::framing::put_chunk;
use forebay_snapshot::{
    Encoder, Header, Link, Part, Paths, RankHead, SnapshotEntry, SnapshotReader,
};
use std::collections::HashSet;
use std::time::Duration;

type Ranks = Vec<(RankHead, Vec<SnapshotEntry>)>;

const ENTRIES_MAX: usize = 100;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    file(data);
    // As a rank and as blocks, in chunks whose checksums hold: DEFLATE has blocks that are not
    // compressed.
    let (&first, rest) = data.split_first().unwrap_or((&0, &[]));
    for mark in [*b"RANK", *b"HELD", *b"LINK", *b"DONE"] {
        let rest = &rest[..rest.len().min(usize::from(u16::MAX))];
        let mut framed = header().encode();
        if mark == *b"HELD" {
            let mut encoder = Encoder::new(&header());
            assert!(encoder.rank(&RankHead { entry_count: 3, ..RankHead::default() }));
            framed.clone_from(encoder.made());
        }
        put_chunk(mark, &stored_block(rest), rest.len(), u32::from(first % 4), &mut framed);
        file(&framed);
    }
}

fn header() -> Header {
    Header { written_unix_ns: 1, seed: forebay_index::KeySeed(2), slice_count: 2 }
}

fn file(data: &[u8]) {
    let (ranks, links, whole) = read(data);
    if let Some(header) = whole {
        assert!(read(&data[..data.len() - 1]).2.is_none(), "cut and yet whole");
        let mut encoder = Encoder::new(&header);
        for (head, entries) in &ranks {
            assert!(encoder.rank(head), "a name that was read can be written");
            entries.iter().for_each(|entry| encoder.entry(entry));
        }
        links.iter().for_each(|link| encoder.link(link));
        encoder.end();
        let again = read(encoder.made());
        assert!(again.2.is_some() && again.0 == ranks && again.1 == links, "written, read back");
    }
    ranks.iter().for_each(|(head, entries)| restore(head.trees, entries, &links));
}

/// All that can be read, and the header if nothing is missing.
fn read(data: &[u8]) -> (Ranks, Vec<Link>, Option<Header>) {
    let mut ranks = Ranks::new();
    let mut links = Vec::new();
    let Ok((mut reader, header)) = SnapshotReader::open(data) else { return (ranks, links, None) };
    loop {
        let before = reader.offset();
        match reader.next_part() {
            Ok(Part::Rank(head)) => ranks.push((head, Vec::new())),
            Ok(Part::Entries(entries)) => {
                let (_, all) = ranks.last_mut().expect("entries belong to a rank");
                let due = all.len() + entries.size_hint().0;
                all.extend(entries);
                assert_eq!(all.len(), due, "as many as were said");
            }
            Ok(Part::Links(more)) => links.extend(more),
            Ok(Part::End) => {
                assert_eq!(reader.offset(), data.len() as u64);
                return (ranks, links, Some(header));
            }
            Err(_) => return (ranks, links, None),
        }
        assert!(reader.offset() > before && reader.offset() <= data.len() as u64);
    }
}

fn slice_of(_: BlockKey, shard_count: usize) -> ShardIndex {
    ShardIndex(u16::try_from(shard_count - 1).unwrap())
}

fn restore(trees: u8, entries: &[SnapshotEntry], links: &[Link]) {
    for shard_count in [1, 2] {
        let mut paths = Paths::new(links.to_vec());
        paths.reassign_slices(slice_of, 2, shard_count);
        let lower_tiers = LowerTiers { host: shard_count == 1, disk: true, ttl: Duration::ZERO };
        let mut restoring =
            RestoreBuilder::new(&paths, shard_count, lower_tiers, trees, ENTRIES_MAX);
        restoring.add_all(entries.to_vec());
        let (blocks, mut ops, left) = restoring.finish();
        let all = left.over_limit + left.orphans + left.tiers + left.odd + blocks.len();
        assert_eq!(all, entries.len(), "every entry is taken or counted");
        for (_, slice, ops) in ops.trees_mut() {
            let told: Vec<_> = ops.iter().collect();
            let mut keys = HashSet::new();
            for op in &told {
                let KvOp::Store { parent, key, .. } = op else { panic!("nothing to remove") };
                let is_late =
                    |other: &&KvOp| matches!(other, KvOp::Store { key, .. } if key == parent);
                let late = told.iter().any(is_late) && !keys.contains(parent);
                assert!(!late || is_in_a_circle(links, *key), "a child before its parent");
                assert!(keys.insert(*key) && slice.index() < shard_count);
            }
        }
    }
}

/// Keys that no hash has made may follow from each other.
fn is_in_a_circle(links: &[Link], key: BlockKey) -> bool {
    let mut at = key;
    for _ in 0..=links.len() {
        let Some(link) = links.iter().find(|link| link.key == at) else { return false };
        at = link.parent;
    }
    true
}

fn stored_block(plain: &[u8]) -> Vec<u8> {
    let length = u16::try_from(plain.len()).unwrap();
    let mut out = vec![1];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend_from_slice(plain);
    out
}
