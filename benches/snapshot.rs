//! Cost of a snapshot of 100,000 blocks of one rank: the copy, which is all that the control plane's loop does; packing and
//! unpacking, which have threads of their own.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that fails must stop"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::base::ShardIndex;
use forebay::block::{BlockKey, KeySeed, RootName, Vocabulary};
use forebay::control::kv_events::{FeedCounters, Held, Naming, RankFeed, RankState, Restoring};
use forebay::index::slice_of;
use forebay::snapshot::{Block, Encoder, EngineHash, Header, Part, RankHead, SnapshotReader};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

const SEED: KeySeed = KeySeed(3);
const BLOCKS: u64 = 100_000;
/// Blocks of one prompt.
const CHAIN: u64 = 128;
const SHARDS: usize = 2;

fn restoring() -> Restoring {
    let mut restoring = Restoring::new(slice_of, SHARDS, SHARDS, usize::MAX);
    restoring.reserve(usize::try_from(BLOCKS).unwrap());
    restoring
}

fn held() -> Held {
    let root = BlockKey::root(SEED, &RootName { model: "m", ..RootName::default() });
    let (mut restoring, mut parent) = (restoring(), root);
    for number in 0..BLOCKS {
        let is_first = number % CHAIN == 0;
        parent = if is_first { root } else { parent };
        let key = parent.child(SEED, &number.to_le_bytes());
        let slice = ShardIndex(0);
        let block = Block { parent, key, block_bytes: 64, is_first, slice };
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        restoring.add(&block, &[EngineHash { hash, group: u32::MAX, stores: 1 }]);
        parent = key;
    }
    restoring.finish().0
}

fn packed(held: &Held) -> Vec<u8> {
    let mut encoder = Encoder::new(&Header { written_unix_ns: 0, seed: SEED, slice_count: 2 });
    encoder.rank(&RankHead { block_count: BLOCKS, ..RankHead::default() });
    let each = held.each(|block, names| {
        encoder.block(block, names);
        Ok::<(), Infallible>(())
    });
    each.unwrap();
    encoder.end();
    std::mem::take(encoder.made())
}

fn unpacked(bytes: &[u8]) -> Restoring {
    let (mut reader, _) = SnapshotReader::open(bytes).unwrap();
    let (mut restoring, mut names) = (restoring(), Vec::new());
    loop {
        match reader.next_part().unwrap() {
            Part::Rank(_) => {}
            Part::Blocks(mut blocks) => {
                while let Some(block) = blocks.next_into(&mut names) {
                    restoring.add(&block, &names);
                }
            }
            Part::End => return restoring,
        }
    }
}

fn snapshot(criterion: &mut Criterion) {
    let held = held();
    let bytes = packed(&held);
    let naming: Naming<Arc<Vocabulary>> =
        Naming { seed: SEED, model: "m".into(), text: None, slice_of, shard_count: SHARDS };
    let mut feed = RankFeed::new(naming, usize::MAX);
    let state =
        RankState { held: held.clone(), sequence: 1, payload_hash: 2, block_size_tokens: 16 };
    feed.restore(state, &FeedCounters::new());
    let mut group = criterion.benchmark_group("snapshot");
    group.sample_size(20).throughput(Throughput::Elements(BLOCKS));
    // Freed elsewhere in the router, by the thread that writes.
    group.bench_function("copy", |bencher| bencher.iter_with_large_drop(|| feed.state()));
    group.bench_function(format!("pack to {} bytes", bytes.len()), |bencher| {
        bencher.iter(|| packed(black_box(&held)));
    });
    group.bench_function("unpack", |bencher| {
        bencher.iter_with_large_drop(|| unpacked(black_box(&bytes)));
    });
    group.finish();
}

criterion_group!(benches, snapshot);
criterion_main!(benches);
