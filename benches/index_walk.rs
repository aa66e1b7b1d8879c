//! Cost of a walk (a hot one and one that leaves the caches), of keeping the index, and of
//! remembering where a prompt went.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that fails must stop"
)]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forebay::base::{NanosSinceStart, RankIndex};
use forebay::index::{
    BlockKey, ExpiringChunks, ExpiringLimits, GuessKind, IndexReader, KeySeed, KvOp, Overlaps,
    RootName, RoutedPrompt, SliceWriter, index, slice_of,
};
use std::hint::black_box;
use std::time::Duration;

const SEED: KeySeed = KeySeed(11);
const BLOCK_BYTES: usize = 64;
const SHARDS: usize = 2;

fn root() -> BlockKey {
    BlockKey::root(SEED, &RootName { model: "m", block_size_tokens: 16, ..RootName::default() })
}

/// Block lengths as 16 tokens of English have them: 64 bytes, give or take a third.
fn block_bytes(conversation: usize, block: usize) -> usize {
    let spread = conversation.wrapping_mul(0x9e37_79b9) ^ block.wrapping_mul(0x85eb_ca6b);
    BLOCK_BYTES - 20 + (spread >> 8) % 41
}

fn conversation_text(conversation: usize, blocks: usize) -> (Vec<u8>, Vec<usize>) {
    let lengths: Vec<usize> = (0..blocks).map(|block| block_bytes(conversation, block)).collect();
    let mut text = Vec::with_capacity(blocks * BLOCK_BYTES);
    for (block, length) in lengths.iter().enumerate() {
        let mut bytes = format!("{conversation}/{block}/").into_bytes();
        bytes.resize(*length, b'x');
        text.extend(bytes);
    }
    (text, lengths)
}

fn store(writers: &mut [SliceWriter], rank: RankIndex, text: &[u8], lengths: &[usize]) {
    let mut parent = root();
    let mut at = 0;
    let mut slice = None;
    for length in lengths {
        let key = parent.child(SEED, &text[at..at + length]);
        let slice = *slice.get_or_insert_with(|| slice_of(key, SHARDS).index());
        let block_bytes = u16::try_from(*length).unwrap();
        writers[slice].apply(rank, KvOp::Store { parent, key, block_bytes });
        parent = key;
        at += length;
    }
}

fn filled(conversations: usize, blocks: usize, ranks: u16) -> (IndexReader, Vec<Vec<u8>>) {
    let (reader, mut writers) = index(SHARDS, SEED, 4 << 30);
    let texts = (0..conversations)
        .map(|conversation| {
            let (text, lengths) = conversation_text(conversation, blocks);
            for rank in 0..ranks {
                store(&mut writers, RankIndex(rank), &text, &lengths);
            }
            text
        })
        .collect();
    (reader, texts)
}

fn walks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("walk");
    for (name, blocks, ranks) in
        [("hot", 128, 1), ("hot", 1_000, 1), ("hot_4_ranks", 128, 4), ("hot_64_ranks", 128, 64)]
    {
        let (reader, texts) = filled(4, blocks, ranks);
        let mut overlaps = Overlaps::new(64);
        group.throughput(Throughput::Elements(blocks as u64));
        group.bench_function(BenchmarkId::new(name, blocks), |bencher| {
            bencher.iter(|| {
                overlaps.clear();
                reader.overlap(root(), black_box(&texts[1]), &mut overlaps);
                overlaps.get(RankIndex(0))
            });
        });
        // Not left to the bench: a filter may skip it.
        overlaps.clear();
        reader.overlap(root(), &texts[1], &mut overlaps);
        assert_eq!(overlaps.get(RankIndex(0)).blocks, u32::try_from(blocks).unwrap());
    }
    // Many conversations, so that each walk meets entries that no cache holds any more.
    let (reader, texts) = filled(8_000, 128, 1);
    let mut overlaps = Overlaps::new(64);
    let mut next = 0;
    group.bench_function(BenchmarkId::new("cold_of_1M_entries", 128), |bencher| {
        bencher.iter(|| {
            next = (next + 2_477) % texts.len();
            overlaps.clear();
            reader.overlap(root(), black_box(&texts[next]), &mut overlaps);
            overlaps.get(RankIndex(0))
        });
    });
    let (unknown, _) = conversation_text(usize::MAX / 2, 128);
    group.bench_function("unknown_prompt", |bencher| {
        bencher.iter(|| {
            overlaps.clear();
            reader.overlap(root(), black_box(&unknown), &mut overlaps);
            overlaps.get(RankIndex(0))
        });
    });
    group.finish();
}

fn keeping(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    let conversations: Vec<_> =
        (0..800).map(|conversation| conversation_text(conversation, 128)).collect();
    group.throughput(Throughput::Elements(800 * 128));
    group.sample_size(10);
    group.bench_function("store_100k_blocks", |bencher| {
        bencher.iter_batched(
            || index(SHARDS, SEED, 1 << 30),
            |(reader, mut writers)| {
                for (text, lengths) in &conversations {
                    store(&mut writers, RankIndex(0), text, lengths);
                }
                (reader, writers)
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// What a shard does to tell of a routed prompt.
fn routed(reader: &IndexReader, text: &[u8], kind: GuessKind) -> Box<RoutedPrompt> {
    let mut chunks = Vec::new();
    reader.chunk_path(root(), text, kind, &mut chunks);
    Box::new(RoutedPrompt { rank: RankIndex(1), generation: 0, kind, root: root(), chunks })
}

/// 8 KB prompts: telling the owner (on the request's path), and what the owner does with it.
fn remembering(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("remember_8k");
    let limits = ExpiringLimits {
        approximate_ttl: Duration::from_secs(120),
        speculative_ttl: Duration::from_secs(2),
        rank_bytes_max: 1 << 30,
        chunks_max: 1 << 20,
    };
    for kind in [GuessKind::Approximate, GuessKind::Speculative] {
        let (reader, mut writers) = index(1, SEED, 1 << 30);
        let mut slice = writers.remove(0);
        let mut expiring = ExpiringChunks::new(limits);
        let texts: Vec<Vec<u8>> = (0..4_096_u32)
            .map(|seed| format!("{seed} ").bytes().cycle().take(8_192).collect())
            .collect();
        let mut now = NanosSinceStart(0);
        group.bench_function(BenchmarkId::new("tell", format!("{kind:?}")), |bencher| {
            bencher.iter(|| routed(&reader, black_box(&texts[1]), kind));
        });
        let one = routed(&reader, &texts[0], kind);
        group.bench_function(BenchmarkId::new("renew", format!("{kind:?}")), |bencher| {
            bencher.iter(|| {
                now.0 += 1_000;
                expiring.remember(black_box(&one), now, |rank, op| slice.apply(rank, op))
            });
        });
        let all: Vec<_> = texts.iter().map(|text| routed(&reader, text, kind)).collect();
        let mut next = 0;
        let ttl = Duration::from_secs(200);
        group.bench_function(
            BenchmarkId::new("store_and_expire", format!("{kind:?}")),
            |bencher| {
                bencher.iter(|| {
                    next = (next + 1) % all.len();
                    // Once round: everything from the last round has expired.
                    if next == 0 {
                        now = now.plus(ttl);
                    }
                    let mut apply = |rank, op| slice.apply(rank, op);
                    let done = expiring.remember(&all[next], now, &mut apply);
                    (done, expiring.sweep(now.plus(ttl), 64, &mut apply))
                });
            },
        );
        let mut overlaps = Overlaps::new(64);
        let mut path = Vec::new();
        for prompt in &all {
            expiring.remember(prompt, now, |rank, op| slice.apply(rank, op));
        }
        group.bench_function(BenchmarkId::new("walk", format!("{kind:?}")), |bencher| {
            bencher.iter(|| {
                overlaps.clear();
                reader.chunk_path(root(), black_box(&texts[9]), kind, &mut path);
                reader.overlap_of_path(&path, kind, &mut overlaps);
                overlaps.get(RankIndex(1))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, walks, keeping, remembering);
criterion_main!(benches);
