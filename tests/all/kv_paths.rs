//! From an engine's bytes to the rank that is chosen: KV events with tiers, adapters, images and in
//! odd orders, through the feed's state, the index, the walk and the selection.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that fails must stop"
)]

use forebay::base::{
    DpRank, ModelIndex, NanosSinceStart, PoolIndex, RankIndex, ShardIndex, WorkerIndex,
};
use forebay::board::{LoadBoard, LoadReports};
use forebay::config::KvConfig;
use forebay::index::{
    BlockKey, IndexReader, KeySeed, Overlaps, PrefixMarks, RootName, SliceWriter, index, slice_of,
};
use forebay::kv_events::{
    BatchOutcome, BlockText, EventKind, FeedCounters, LowerTiers, Naming, RankFeed, SliceOps, Tier,
    Tree,
};
use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::render::render;
use forebay::select::{
    PickRequest, Policy, Prices, PromptSize, RoundRobin, TierOverlaps, pick, weigh_tiers,
};
use forebay::text::Vocabulary;
use forebay::text::chat::{ChatTemplate, EngineRules, SpecialTokens};
use forebay::worker::{
    FleetSnapshot, Leg, LimitSource, ModelText, Rank, Requester, Role, RoomLimits, SessionSeat,
    TierRanks,
};
use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(super) const SEED: KeySeed = KeySeed(7);
const SHARDS: usize = 3;
pub(super) const BLOCK: usize = BLOCK_TOKENS as usize;
pub(super) const BLOCK_TOKENS: u32 = 4;
/// Tiers of rank `r` have the numbers `HOST + r` and `DISK + r`.
const HOST: u16 = 900;
const DISK: u16 = 950;

/// A token is a byte.
pub(super) struct Bytes;

impl BlockText for Bytes {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        out.extend(token_ids.iter().map(|token| u8::try_from(*token).unwrap()));
        true
    }
}

/// A `BlockStored` or `BlockRemoved` of vLLM 0.33, written by hand.
#[derive(Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) stored: bool,
    pub(super) hashes: &'a [u64],
    pub(super) parent: Option<u64>,
    pub(super) tokens: &'a [u32],
    pub(super) block_size: u64,
    pub(super) medium: &'a str,
    pub(super) lora: Option<&'a str>,
    pub(super) is_remote: bool,
    /// One bare string for each block.
    pub(super) extra_keys: &'a [&'a str],
}

pub(super) const STORED: Event<'static> = Event {
    stored: true,
    hashes: &[],
    parent: None,
    tokens: &[],
    block_size: BLOCK_TOKENS as u64,
    medium: "GPU",
    lora: None,
    is_remote: false,
    extra_keys: &[],
};
pub(super) const REMOVED: Event<'static> = Event { stored: false, ..STORED };

fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    write_array_len(out, u32::try_from(items.len()).unwrap()).unwrap();
    items.iter().for_each(|item| write(out, item));
}

fn number(out: &mut Vec<u8>, number: u64) {
    write_uint(out, number).unwrap();
}

impl Event<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let key = |out: &mut Vec<u8>, key: &str| write_str(out, key).unwrap();
        let fields = if self.stored { 8 } else { 3 };
        write_map_len(out, fields + u32::from(self.is_remote)).unwrap();
        key(out, "type");
        key(out, if self.stored { "BlockStored" } else { "BlockRemoved" });
        key(out, "block_hashes");
        list(out, self.hashes, |out, hash| number(out, *hash));
        key(out, "medium");
        key(out, self.medium);
        if self.is_remote {
            key(out, "locality");
            key(out, "REMOTE");
        }
        if !self.stored {
            return;
        }
        key(out, "parent_block_hash");
        match self.parent {
            Some(parent) => number(out, parent),
            None => write_nil(out).unwrap(),
        }
        key(out, "token_ids");
        list(out, self.tokens, |out, token| number(out, u64::from(*token)));
        key(out, "block_size");
        number(out, self.block_size);
        key(out, "lora_name");
        match self.lora {
            Some(name) => key(out, name),
            None => write_nil(out).unwrap(),
        }
        key(out, "extra_keys");
        list(out, self.extra_keys, |out, word| {
            list(out, &[*word], |out, word| write_str(out, word).unwrap());
        });
    }
}

fn batch(events: &[Event<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 3).unwrap();
    write_f64(&mut out, 0.0).unwrap();
    list(&mut out, events, |out, event| event.write(out));
    write_uint(&mut out, 0).unwrap();
    out
}

pub(super) fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Hashes of a chain of blocks, as an engine has them: each of the whole text up to its end.
pub(super) fn hashes(text: &str) -> Vec<u64> {
    (BLOCK..=text.len()).step_by(BLOCK).map(|end| fnv(&text.as_bytes()[..end])).collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Ranks, their feeds and the index between.
pub(super) struct Rig<T> {
    pub(super) feeds: Vec<RankFeed<T>>,
    pub(super) counters: FeedCounters,
    sent: u64,
    pub(super) reader: IndexReader,
    pub(super) writers: Vec<SliceWriter>,
}

impl<T: BlockText> Rig<T> {
    pub(super) fn new(texts: Vec<T>) -> Self {
        let (reader, writers) = index(SHARDS, SEED, 1 << 24);
        let feed = |text| {
            let naming = Naming {
                seed: SEED,
                model: "m".into(),
                text: Some(text),
                slice_of,
                shard_count: SHARDS,
            };
            let mut feed = RankFeed::new(naming, 10_000);
            feed.set_lower_tiers(LowerTiers { host: true, disk: true, ttl: Duration::ZERO }, true);
            feed
        };
        let feeds = texts.into_iter().map(feed).collect();
        Self { feeds, counters: FeedCounters::new(), sent: 0, reader, writers }
    }

    pub(super) fn take(&mut self, rank: u16, events: &[Event<'_>]) {
        self.take_payload(rank, &batch(events));
    }

    pub(super) fn take_payload(&mut self, rank: u16, payload: &[u8]) {
        let mut ops = SliceOps::new(SHARDS);
        let feed = &mut self.feeds[usize::from(rank)];
        let parts: [&[u8]; 3] = [b"", &self.sent.to_be_bytes(), payload];
        feed.message(&parts, &self.counters, &mut ops);
        for (tree, ShardIndex(slice), ops) in ops.trees_mut() {
            let number = match tree {
                Tree::Tier(Tier::Device) => rank,
                Tree::Tier(Tier::Host) => HOST + rank,
                Tree::Tier(Tier::Disk) => DISK + rank,
                // No event here is of a window, or of a second block size.
                Tree::Window(_) | Tree::Odd => continue,
            };
            for op in ops.drain(..) {
                self.writers[usize::from(slice)].apply(RankIndex(number), op);
            }
        }
    }

    pub(super) fn next(&mut self) {
        self.sent += 1;
    }

    /// The publishers begin again.
    pub(super) fn restart(&mut self) {
        self.sent = 0;
    }

    pub(super) fn found(&self, root: &RootName<'_>, text: &[u8]) -> Overlaps {
        let mut found = Overlaps::new(1_024);
        self.reader.overlap(BlockKey::root(SEED, root), text, &mut found);
        found
    }

    fn count(&self, outcome: BatchOutcome) -> u64 {
        self.counters.event_count(EventKind::Stored, outcome)
    }
}

pub(super) const ROOT: RootName<'static> =
    RootName { model: "m", block_size_tokens: BLOCK_TOKENS, lora: "", cache_salt: "" };
pub(super) const CREDIT: KvConfig = KvConfig {
    host_credit_percent: 80,
    disk_credit_percent: 30,
    pool_credit_percent: 50,
    tier_ttl: Duration::ZERO,
};

pub(super) fn fleet(ranks: u16) -> FleetSnapshot {
    let rank = |number: u16| Rank {
        worker: WorkerIndex(0),
        dp_rank: DpRank(u32::from(number)),
        dp_size: u32::from(ranks),
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        block_size_tokens: BLOCK_TOKENS,
        kv_block_count: 0,
        running_max: 0,
        limit_source: LimitSource::Declared,
        kv_feed_live: true,
        feed_suspicion: None,
        losses: None,
        role: Role::Both,
        kv_transfer: None,
        kv_flow: None,
        page_tokens: None,
        topology: None,
        room: RoomLimits::default(),
        pool: PoolIndex(0),
        tiers: TierRanks {
            host: Some(RankIndex(HOST + number)),
            disk: Some(RankIndex(DISK + number)),
            ..TierRanks::default()
        },
        seat: SessionSeat::default(),
        used_as: None,
    };
    FleetSnapshot { ranks: (0..ranks).map(rank).collect(), ..FleetSnapshot::default() }
}

pub(super) fn chosen(
    fleet: &FleetSnapshot,
    config: KvConfig,
    found: &Overlaps,
    prompt_bytes: u64,
) -> u16 {
    let ranks: Vec<RankIndex> =
        (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index).collect();
    let mut overlaps = Overlaps::new(1_024);
    weigh_tiers(fleet, &ranks, config, found, &mut overlaps);
    let request = PickRequest {
        requester: Requester { caller: 0, model: ModelIndex(0), is_forced: false },
        leg: Leg::Whole,
        ranks: &ranks,
        board: &LoadBoard::new(),
        reports: &LoadReports::new(std::time::Duration::from_secs(5)),
        now: NanosSinceStart(0),
        overlaps: &overlaps,
        fleet,
        prices: Prices::LEAST,
        prompt: PromptSize::new(prompt_bytes, 1.0),
        marks: &PrefixMarks::NONE,
        session: None,
        anchor: None,
    };
    let mut turn = RoundRobin::default();
    let mut random = fastrand::Rng::with_seed(1);
    pick(Policy::Kv, &request, &mut turn, &mut random).unwrap().0
}

#[test]
fn a_long_prefix_on_the_host_beats_a_short_one_on_the_device_as_far_as_it_is_worth() {
    let mut rig = Rig::new(vec![Bytes, Bytes, Bytes]);
    let text = "one two three four five six seven eight "; // 40 bytes, 10 blocks
    let all = hashes(text);
    let ids = tokens(text);
    let stored = Event { hashes: &all, tokens: &ids, ..STORED };
    let start = Event { hashes: &all[..4], tokens: &ids[..16], ..STORED };
    rig.take(0, &[start]);
    // Rank 1 had all of it; the device let it go after the copy to the host.
    rig.take(1, &[stored, Event { medium: "CPU", ..stored }]);
    rig.next();
    rig.take(1, &[Event { hashes: &all, ..REMOVED }]);
    // Rank 2 has it on disk alone, by way of a copy that names hashes only.
    let named = Event { tokens: &[], block_size: 0, medium: "FS", ..stored };
    rig.take(2, &[stored, named, Event { hashes: &all, ..REMOVED }]);
    assert_eq!(rig.counters.tier_block_count(Tier::Device), 4);
    assert_eq!(rig.counters.tier_block_count(Tier::Host), 10);
    assert_eq!(rig.counters.tier_block_count(Tier::Disk), 10);

    let fleet = fleet(3);
    let found = rig.found(&ROOT, text.as_bytes());
    let held = |rank: u16| {
        let tiers = fleet.ranks[usize::from(rank)].tiers;
        let held = TierOverlaps::of(RankIndex(rank), tiers, &found);
        [held.device.bytes, held.host.bytes, held.disk.bytes]
    };
    assert_eq!([held(0), held(1), held(2)], [[16, 16, 16], [0, 40, 40], [0, 0, 40]]);
    let with = |host_credit_percent, disk_credit_percent| KvConfig {
        host_credit_percent,
        disk_credit_percent,
        pool_credit_percent: 0,
        tier_ttl: Duration::ZERO,
    };
    assert_eq!(chosen(&fleet, CREDIT, &found, 40), 1, "32 bytes' worth against 16 and 12");
    assert_eq!(chosen(&fleet, with(30, 20), &found, 40), 0, "12 and 8 against 16");
    assert_eq!(chosen(&fleet, with(30, 90), &found, 40), 2);
    assert_eq!(chosen(&fleet, with(0, 0), &found, 40), 0);

    // The host lets go as well, then everything is cleared.
    rig.next();
    rig.take(1, &[Event { hashes: &all, medium: "CPU", ..REMOVED }]);
    assert_eq!(chosen(&fleet, CREDIT, &rig.found(&ROOT, text.as_bytes()), 40), 0);
    rig.next();
    rig.take(0, &[Event { hashes: &all[..4], ..REMOVED }]);
    rig.take(2, &[Event { hashes: &all, medium: "FS", ..REMOVED }]);
    assert_eq!(rig.found(&ROOT, text.as_bytes()).iter_held().count(), 0);
    assert_eq!(rig.reader.entry_count(), 0);
}

#[test]
fn a_chain_that_arrives_backwards_is_whole_in_the_end() {
    let mut rig = Rig::new(vec![Bytes]);
    let text = "abcdefghijklmnopqrst"; // 5 blocks
    let all = hashes(text);
    let ids = tokens(text);
    for position in (0..5).rev() {
        let event = Event {
            hashes: &all[position..=position],
            parent: position.checked_sub(1).map(|before| all[before]),
            tokens: &ids[position * BLOCK..][..BLOCK],
            ..STORED
        };
        assert_eq!(rig.found(&ROOT, text.as_bytes()).iter_held().count(), 0);
        rig.take(0, &[event]);
        rig.next();
    }
    assert_eq!((rig.count(BatchOutcome::Orphaned), rig.count(BatchOutcome::Applied)), (4, 1));
    assert_eq!(rig.found(&ROOT, text.as_bytes()).get(RankIndex(0)).blocks, 5);
    assert_eq!((rig.counters.orphan_count(), rig.counters.orphans_gone_count().applied), (0, 4));
    assert!(rig.counters.byte_count() > 0);
}

#[test]
fn adapters_and_salts_share_no_blocks_with_their_model_or_each_other() {
    let mut rig = Rig::new(vec![Bytes, Bytes, Bytes]);
    let text = "the same text again.";
    let all = hashes(text);
    let ids = tokens(text);
    let plain = Event { hashes: &all, tokens: &ids, ..STORED };
    rig.take(0, &[plain]);
    rig.take(1, &[Event { lora: Some("tuned"), extra_keys: &["tuned"; 5], ..plain }]);
    rig.take(2, &[Event { extra_keys: &["salty"], ..plain }]);
    for (root, holder) in [
        (ROOT, 0),
        (RootName { lora: "tuned", ..ROOT }, 1),
        (RootName { cache_salt: "salty", ..ROOT }, 2),
    ] {
        let found = rig.found(&root, text.as_bytes());
        for rank in 0..3 {
            let bytes = if rank == holder { 20 } else { 0 };
            assert_eq!(found.get(RankIndex(rank)).bytes, bytes, "{root:?} rank {rank}");
        }
    }
    let both = RootName { lora: "tuned", cache_salt: "salty", ..ROOT };
    assert_eq!(rig.found(&both, text.as_bytes()).iter_held().count(), 0);
}

/// vLLM 0.17 to 0.30 name an image by a bare string, as they do a salt: behind a parent it is never
/// a salt.
#[test]
fn an_images_name_is_not_taken_for_a_salt_in_the_middle_of_a_chain() {
    let mut rig = Rig::new(vec![Bytes]);
    let text = "0123456789abcdef";
    let all = hashes(text);
    let ids = tokens(text);
    rig.take(0, &[Event { hashes: &all[..1], tokens: &ids[..4], ..STORED }]);
    rig.next();
    let with_image = Event {
        hashes: &all[1..],
        parent: Some(all[0]),
        tokens: &ids[4..],
        extra_keys: &["9f86d081884c7d65", "9f86d081884c7d65"],
        ..STORED
    };
    rig.take(0, &[with_image]);
    assert_eq!(rig.count(BatchOutcome::NotText), 1);
    assert_eq!(rig.found(&ROOT, text.as_bytes()).get(RankIndex(0)).bytes, 4);
}

const TEMPLATES: [&str; 2] = [
    // Loops over parts, and prints images.
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}\
     {% else %}<image>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}",
    // Knows strings only.
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
];

fn prompt_of(body: &str, text: &ModelText) -> String {
    let mut request = ApiRequest::default();
    scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request).unwrap();
    let mut out = Vec::new();
    render(&request, body.as_bytes(), text, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The same words with an image between them: what a text-only conversation has stored counts up to
/// the image.
#[test]
fn no_prompt_with_an_image_matches_beyond_it() {
    let tokenizer = include_str!("../data/tokenizer/tokenizer.json");
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(tokenizer).unwrap());
    for (position, template) in TEMPLATES.into_iter().enumerate() {
        let chat_template = ChatTemplate::compile(template, &SpecialTokens::new()).unwrap();
        let text = ModelText {
            vocabulary: Arc::clone(&vocabulary),
            chat_encoder: None,
            chat_template: Some(chat_template),
            rules: EngineRules::Vllm,
        };
        let body = |parts: &str| {
            format!(
                r#"{{"messages":[{{"role":"system","content":"Answer with great care."}},
                {{"role":"user","content":[{parts}]}}]}}"#
            )
        };
        let before = r#"{"type":"text","text":"Look at this: "}"#;
        let after = r#"{"type":"text","text":"What is to be seen on it?"}"#;
        let words = prompt_of(&body(&format!("{before},{after}")), &text);
        let whole = &words[..words.len() / BLOCK * BLOCK];
        let mut rig = Rig::new(vec![Bytes]);
        rig.take(0, &[Event { hashes: &hashes(whole), tokens: &tokens(whole), ..STORED }]);
        assert_eq!(
            rig.found(&ROOT, words.as_bytes()).get(RankIndex(0)).bytes as usize,
            whole.len()
        );

        let last_words = if position == 0 { "Look at this: " } else { "<|im_start|>user\n" };
        let limit = words.find(last_words).unwrap() + last_words.len();
        for image in [
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}"#,
            r#"{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}"#,
            r#"{"type":"video_url","video_url":{"url":"x"}}"#,
            r#"{"type":"something_new","text":"x"}"#,
        ] {
            let prompt = prompt_of(&body(&format!("{before},{image},{after}")), &text);
            assert_eq!(prompt.len(), limit, "{prompt}");
            let found = rig.found(&ROOT, prompt.as_bytes()).get(RankIndex(0));
            assert!(found.bytes as usize <= limit && found.bytes > 0, "{image}");
        }
    }
}

/// Data beside the prompt: nothing is matched.
#[test]
fn prompts_with_embeddings_or_images_beside_them_are_not_matched() {
    let tokenizer = include_str!("../data/tokenizer/tokenizer.json");
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(tokenizer).unwrap());
    let text =
        ModelText { vocabulary, chat_encoder: None, chat_template: None, rules: EngineRules::Vllm };
    let rendered = |endpoint, body: &str| {
        let mut request = ApiRequest::default();
        scan(body.as_bytes(), endpoint, &mut request).unwrap();
        render(&request, body.as_bytes(), &text, &mut Vec::new()).is_ok()
    };
    assert!(rendered(Endpoint::Completions, r#"{"prompt":"hello"}"#));
    assert!(rendered(Endpoint::Generate, r#"{"text":"hello","image_data":null}"#));
    assert!(!rendered(Endpoint::Completions, r#"{"prompt":"hello","prompt_embeds":"AAAA"}"#));
    for key in ["image_data", "video_data", "audio_data", "input_embeds"] {
        assert!(
            !rendered(Endpoint::Generate, &format!(r#"{{"text":"hello","{key}":["x"]}}"#)),
            "{key}"
        );
    }
}

/// What SGLang 0.5.23 wrote for a page in host memory, of an adapter and with a salt.
#[test]
fn an_engines_own_page_in_host_memory_lands_in_the_hosts_tree_under_its_names() {
    let vectors = include_str!("../data/kv_events/vectors.jsonl");
    let line = vectors.lines().find(|line| line.contains("sglang-0.5.23-cpu_salt_session_lora"));
    let vector: serde_json::Value = serde_json::from_str(line.unwrap()).unwrap();
    let hex = vector["payload_hex"].as_str().unwrap();
    let digits = (0..hex.len()).step_by(2);
    let payload: Vec<u8> =
        digits.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let mut rig = Rig::new(vec![Bytes]);
    rig.take_payload(0, &payload);
    let text: Vec<u8> = (100..116).collect();
    let root =
        RootName { block_size_tokens: 16, lora: "sql-adapter", cache_salt: "tenant-A", ..ROOT };
    let found = rig.found(&root, &text);
    assert_eq!(
        [RankIndex(0), RankIndex(HOST), RankIndex(DISK)].map(|rank| found.get(rank).bytes),
        [0, 16, 16]
    );
    for other in [RootName { lora: "", ..root }, RootName { cache_salt: "", ..root }] {
        assert_eq!(rig.found(&other, &text).iter_held().count(), 0);
    }
}
