//! Cost of a snapshot of 100,000 blocks of one rank: the copy, which is all that the control
//! plane's loop does; packing and unpacking, which have threads of their own.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that fails must stop"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::base::ShardIndex;
use forebay::index::{BlockKey, KeySeed, RootName, slice_of};
use forebay::kv_events::{
    FeedCounters, LowerTiers, Naming, RankFeed, RankState, RestoreBuilder, RestoredBlocks,
};
use forebay::snapshot::{
    Encoder, Header, Link, Part, Paths, RankHead, SnapshotEntry, SnapshotReader,
};
use forebay::text::Vocabulary;
use std::hint::black_box;
use std::sync::Arc;

const SEED: KeySeed = KeySeed(3);
const BLOCKS: u64 = 100_000;
/// Blocks of one prompt.
const CHAIN: u64 = 128;
const SHARDS: usize = 2;

fn made_up() -> (Vec<SnapshotEntry>, Vec<Link>) {
    let root = BlockKey::root(SEED, &RootName { model: "m", ..RootName::default() });
    let mut parent = root;
    let block = |number: u64| {
        parent = if number.is_multiple_of(CHAIN) { root } else { parent };
        let key = parent.child(SEED, &number.to_le_bytes());
        let link = Link { parent, key, block_bytes: 64, slice: ShardIndex(0) };
        parent = key;
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (SnapshotEntry { id, key, stores: [1, 0, 0] }, link)
    };
    let (mut entries, links): (Vec<_>, Vec<_>) = (0..BLOCKS).map(block).unzip();
    entries.sort_by_key(|entry| entry.id);
    (entries, links)
}

fn restored(entries: Vec<SnapshotEntry>, paths: &Paths) -> RestoredBlocks {
    let mut restoring = RestoreBuilder::new(paths, SHARDS, LowerTiers::default(), 1, usize::MAX);
    restoring.add_all(entries);
    restoring.finish().0
}

fn packed(entries: impl Iterator<Item = SnapshotEntry>, links: &[Link]) -> Vec<u8> {
    let mut encoder = Encoder::new(&Header { written_unix_ns: 0, seed: SEED, slice_count: 2 });
    encoder.rank(&RankHead { entry_count: BLOCKS, ..RankHead::default() });
    entries.for_each(|entry| encoder.entry(&entry));
    links.iter().for_each(|link| encoder.link(link));
    encoder.end();
    std::mem::take(encoder.made())
}

fn unpacked(bytes: &[u8]) -> RestoredBlocks {
    let (mut reader, _) = SnapshotReader::open(bytes).unwrap();
    let mut entries = Vec::new();
    let mut links = Vec::new();
    loop {
        match reader.next_part().unwrap() {
            Part::Rank(_) => {}
            Part::Entries(more) => entries.extend(more),
            Part::Links(more) => links.extend(more),
            Part::End => return restored(entries, &Paths::new(links)),
        }
    }
}

fn snapshot(criterion: &mut Criterion) {
    let (entries, links) = made_up();
    let bytes = packed(entries.iter().copied(), &links);
    let naming: Naming<Arc<Vocabulary>> =
        Naming { seed: SEED, model: "m".into(), text: None, slice_of, shard_count: SHARDS };
    let mut feed = RankFeed::new(naming, usize::MAX);
    let blocks = restored(entries, &Paths::new(links.clone()));
    let state = RankState { blocks, sequence: 1, payload_hash: 2, block_size_tokens: 16 };
    feed.restore(state, &FeedCounters::new());
    let kept = feed.state().unwrap().blocks.kept;
    let mut group = criterion.benchmark_group("snapshot");
    group.sample_size(20).throughput(Throughput::Elements(BLOCKS));
    // Freed elsewhere in the router, by the thread that writes.
    group.bench_function("copy", |bencher| bencher.iter_with_large_drop(|| feed.state()));
    group.bench_function(format!("pack to {} bytes", bytes.len()), |bencher| {
        bencher.iter(|| packed(black_box(&kept).entries(), &links));
    });
    group.bench_function("unpack", |bencher| {
        bencher.iter_with_large_drop(|| unpacked(black_box(&bytes)));
    });
    group.finish();
}

criterion_group!(benches, snapshot);
criterion_main!(benches);
