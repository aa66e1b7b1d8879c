//! Any bytes as a snapshot. Must hold: reading ends, and a beginning of the bytes is never a whole snapshot if all of them are
//! one; what is whole can be written and is read back equal; bytes inside chunks with sound checksums are checked all the
//! same; what a rank is restored from it can be written again, with a parent before its children, and nothing twice.

use forebay::base::ShardIndex;
use forebay::block::BlockKey;
use forebay::control::kv_events::{Left, Restoring};
use forebay::framing::put_chunk;
use forebay::snapshot::{Block, Encoder, EngineHash, Header, Part, RankHead, SnapshotReader};
use std::collections::HashSet;

type Blocks = Vec<(Block, Vec<EngineHash>)>;
type Ranks = Vec<(RankHead, Blocks)>;

const ENTRIES_MAX: usize = 100;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    file(data);
    // As a rank and as blocks, in chunks whose checksums hold: DEFLATE has blocks that are not compressed.
    let (&first, rest) = data.split_first().unwrap_or((&0, &[]));
    for mark in [*b"RANK", *b"BLCK", *b"DONE"] {
        let rest = &rest[..rest.len().min(usize::from(u16::MAX))];
        let mut framed = header().encode();
        if mark == *b"BLCK" {
            let mut encoder = Encoder::new(&header());
            assert!(encoder.rank(&RankHead { block_count: 3, ..RankHead::default() }));
            framed.clone_from(encoder.made());
        }
        put_chunk(mark, &stored_block(rest), rest.len(), u32::from(first % 4), &mut framed);
        file(&framed);
    }
}

fn header() -> Header {
    Header { written_unix_ns: 1, seed: forebay::block::KeySeed(2), slice_count: 2 }
}

fn file(data: &[u8]) {
    let (ranks, whole) = read(data);
    if let Some(header) = whole {
        assert!(read(&data[..data.len() - 1]).1.is_none(), "cut and yet whole");
        let mut encoder = Encoder::new(&header);
        for (head, blocks) in &ranks {
            assert!(encoder.rank(head), "a name that was read can be written");
            blocks.iter().for_each(|(block, names)| encoder.block(block, names));
        }
        encoder.end();
        let (again, whole) = read(encoder.made());
        assert!(whole.is_some() && again == ranks, "written and read back");
    }
    ranks.iter().for_each(|(_, blocks)| restore(blocks));
}

/// All that can be read, and the header if nothing is missing.
fn read(data: &[u8]) -> (Ranks, Option<Header>) {
    let mut ranks = Ranks::new();
    let Ok((mut reader, header)) = SnapshotReader::open(data) else { return (ranks, None) };
    loop {
        let before = reader.offset();
        match reader.next_part() {
            Ok(Part::Rank(head)) => ranks.push((head, Vec::new())),
            Ok(Part::Blocks(mut blocks)) => {
                let (_, all) = ranks.last_mut().expect("blocks belong to a rank");
                let (mut names, due) = (Vec::new(), all.len() + blocks.len());
                while let Some(block) = blocks.next_into(&mut names) {
                    all.push((block, names.clone()));
                }
                assert_eq!(all.len(), due, "as many as were said");
            }
            Ok(Part::End) => {
                assert_eq!(reader.offset(), data.len() as u64);
                return (ranks, Some(header));
            }
            Err(_) => return (ranks, None),
        }
        assert!(reader.offset() > before && reader.offset() <= data.len() as u64);
    }
}

fn slice_of(_: BlockKey, shard_count: usize) -> ShardIndex {
    ShardIndex(u16::try_from(shard_count - 1).unwrap())
}

fn restore(blocks: &Blocks) {
    for shard_count in [1, 2] {
        let (first, left) = restored(blocks, shard_count);
        let all = left.over_limit + left.orphans + left.odd + first.len();
        assert_eq!(all, blocks.len(), "every block is taken or counted");
        let mut keys = HashSet::new();
        for (block, names) in &first {
            let is_late = first.iter().any(|(other, _)| other.key == block.parent);
            assert!(!is_late || keys.contains(&block.parent) || is_in_a_circle(&first, block));
            assert!(keys.insert(block.key) && !names.is_empty());
        }
        if !first.iter().any(|(block, _)| is_in_a_circle(&first, block)) {
            let (again, left) = restored(&first, shard_count);
            assert_eq!((again.len(), left), (first.len(), Left::default()));
        }
    }
}

fn restored(blocks: &Blocks, shard_count: usize) -> (Blocks, Left) {
    let mut restoring = Restoring::new(slice_of, shard_count, 2, ENTRIES_MAX);
    blocks.iter().for_each(|(block, names)| restoring.add(block, names));
    let (held, mut ops, left) = restoring.finish();
    let mut all = Blocks::new();
    let each = held.each(|block, names| {
        all.push((*block, names.to_vec()));
        Ok::<(), ()>(())
    });
    assert_eq!(each, Ok(()));
    let op_count: usize = ops.slices_mut().map(|(_, ops)| ops.len()).sum();
    assert_eq!((op_count, held.block_count()), (all.len(), all.len()));
    (all, left)
}

/// Keys that no hash has made may follow from each other.
fn is_in_a_circle(blocks: &Blocks, block: &Block) -> bool {
    let mut at = block.parent;
    for _ in 0..=blocks.len() {
        let Some((parent, _)) = blocks.iter().find(|(other, _)| other.key == at) else {
            return false;
        };
        at = parent.parent;
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
