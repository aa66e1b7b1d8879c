//! What the control plane's thread does with the KV events of 64 ranks, from the bytes of a message
//! to operations for the slices, in steady state: sessions are stored and evicted in turn.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that fails must stop"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::engine::{BlockHash, CacheEvent, Tokenizer, encode_batch};
use forebay::index::{KeySeed, slice_of};
use forebay::kv_decode::{Decoder, KvEvent};
use forebay::kv_events::{BatchResult, FeedCounters, Naming, RankFeed, SliceOps};
use forebay::text::Vocabulary;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

const RANKS: usize = 64;
/// Sessions of a rank; half of them are held.
const SESSIONS: usize = 64;
const SESSION_BLOCKS: usize = 64;
const BLOCK_TOKENS: u32 = 16;

/// Messages that store and that remove the sessions of one rank.
struct Messages {
    stores: Vec<Vec<Vec<u8>>>,
    removes: Vec<Vec<u8>>,
}

/// Sessions are announced in stores of so many blocks.
fn messages(rank: usize, token_ids: &[u32], store_blocks: usize) -> Messages {
    let mut random = fastrand::Rng::with_seed(rank as u64);
    let hash = |session: usize, block: usize| {
        BlockHash(((1 << 60) + (rank << 32) + session * SESSION_BLOCKS + block) as u64)
    };
    let mut store = |session: usize, first: usize| CacheEvent::Stored {
        hashes: (first..first + store_blocks).map(|block| hash(session, block)).collect(),
        parent: first.checked_sub(1).map(|block| hash(session, block)),
        token_ids: (0..store_blocks * BLOCK_TOKENS as usize)
            .map(|_| *random.choice(token_ids).unwrap())
            .collect(),
        salt: String::new(),
    };
    let encode = |events: &[CacheEvent]| encode_batch(0.0, events, 0, BLOCK_TOKENS);
    let stores = (0..SESSIONS).map(|session| {
        let firsts = (0..SESSION_BLOCKS).step_by(store_blocks);
        firsts.map(|first| encode(&[store(session, first)])).collect()
    });
    let stores = stores.collect();
    let removes = (0..SESSIONS).map(|session| {
        let blocks = (0..SESSION_BLOCKS).rev();
        let removes: Vec<_> =
            blocks.map(|block| CacheEvent::Removed { hash: hash(session, block) }).collect();
        encode(&removes)
    });
    Messages { stores, removes: removes.collect() }
}

/// All ranks, and where each is in its sessions.
struct Fleet {
    ranks: Vec<(RankFeed<Arc<Vocabulary>>, Messages)>,
    counters: FeedCounters,
    ops: SliceOps,
    sequence: u64,
    session: usize,
}

impl Fleet {
    fn new(model_dir: &Path, store_blocks: usize) -> Self {
        let text = std::fs::read_to_string(model_dir.join("tokenizer.json")).unwrap();
        let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(&text).unwrap());
        let tokenizer = Tokenizer::from_model_dir(model_dir).unwrap();
        let token_ids =
            tokenizer.encode("the router sends each request to the worker", false).unwrap();
        let rank = |rank| {
            let naming = Naming {
                seed: KeySeed(7),
                model: "m".into(),
                text: Some(Arc::clone(&vocabulary)),
                slice_of,
                shard_count: 1,
            };
            (RankFeed::new(naming, usize::MAX), messages(rank, &token_ids, store_blocks))
        };
        let ranks = (0..RANKS).map(rank).collect();
        let counters = FeedCounters::new();
        Self { ranks, counters, ops: SliceOps::new(1), sequence: 0, session: 0 }
    }

    /// One session comes to each rank, and an old one goes. The operations made.
    fn turn(&mut self) -> usize {
        let comes = self.session % SESSIONS;
        let goes = (self.session + SESSIONS / 2) % SESSIONS;
        let mut count = 0;
        for (feed, messages) in &mut self.ranks {
            let payloads = messages.stores[comes].iter().chain([&messages.removes[goes]]);
            for (sequence, payload) in (self.sequence..).zip(payloads) {
                let parts: [&[u8]; 3] = [b"", &sequence.to_be_bytes(), payload];
                let taken = feed.message(&parts, &self.counters, &mut self.ops);
                assert_eq!(taken.result, BatchResult::Applied);
            }
            // What goes into the rings: read once and dropped.
            count += self.ops.slices_mut().map(|(_, ops)| ops.drain(..).count()).sum::<usize>();
        }
        self.sequence += 1 + self.ranks[0].1.stores[0].len() as u64;
        self.session += 1;
        count
    }
}

fn feeds(criterion: &mut Criterion) {
    let model_dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer"));
    let mut group = criterion.benchmark_group("kv_feed");
    group.sample_size(20);
    let changed = 2 * RANKS * SESSION_BLOCKS;
    for store_blocks in [64, 1] {
        let mut fleet = Fleet::new(model_dir, store_blocks);
        (0..SESSIONS).for_each(|_| assert!(fleet.turn() > 0));
        assert_eq!(fleet.turn(), changed, "each block is stored and removed");
        group.throughput(Throughput::Elements(changed as u64));
        let name = format!("store_{store_blocks}_and_remove");
        group.bench_function(name, |bencher| bencher.iter(|| fleet.turn()));
        let mut decoder = Decoder::new();
        let (_, messages) = &fleet.ranks[0];
        group.throughput(Throughput::Elements(SESSION_BLOCKS as u64));
        let mut decode = |payloads: &[Vec<u8>]| {
            for payload in payloads {
                let each =
                    |event: KvEvent<'_>| assert!(!matches!(black_box(event), KvEvent::Malformed));
                decoder.decode(payload, each).unwrap();
            }
        };
        group.bench_function(format!("decode_store_{store_blocks}"), |bencher| {
            bencher.iter(|| decode(&messages.stores[3]));
        });
        group.bench_function(format!("decode_remove_{store_blocks}"), |bencher| {
            bencher.iter(|| decode(&messages.removes[3..4]));
        });
    }
    group.finish();
}

criterion_group!(benches, feeds);
criterion_main!(benches);
