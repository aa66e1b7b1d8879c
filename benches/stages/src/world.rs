//! The fleet, its loads, and an index that is full: 8 workers with 2 ranks each.

use forebay_base::limits::RANKS_MAX;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, PoolIndex, RankIndex, WorkerIndex};
use forebay_board::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
use forebay_board::{LoadBoard, LoadReading, LoadReport, LoadReports, OwnLoad, ShardBoard};
use forebay_config::Config;
use forebay_fleet::worker::{
    Dialect, EngineTexts, FleetSnapshot, LimitSource, Model, ModelKind, ModelText, Pool, Rank,
    Requester, Role, RoomLimits, Serving, SessionSeat, TierRanks, Worker, WorkerGeneration,
    WorkerState,
};
use forebay_index::{
    BlockKey, BlockRoot, IndexReader, KeySeed, KvOp, ModelRoots, PrefixMarks, RootName,
    SliceWriter, index, slice_of,
};
use forebay_prompt::parse::{ApiRequest, Endpoint, scan};
use forebay_prompt::render::{RenderMethod, RenderThread, render_at};
use forebay_select::{MatchRequest, Prompt, PromptOverlaps};
use forebay_text::chat::{ChatTemplate, EngineRules, SpecialTokens, load_model_text_for};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A request of one caller for the only model.
pub(crate) const REQUESTER: Requester =
    Requester { caller: 1, model: ModelIndex(0), is_forced: false };
pub(crate) const MODEL: ModelIndex = ModelIndex(0);
pub(crate) const NOW: NanosSinceStart = NanosSinceStart(60_000_000_000);
/// The rank that holds most of the prompt.
pub(crate) const HOLDER: RankIndex = RankIndex(3);
/// The rank that holds a third of it.
const NEIGHBOR: RankIndex = RankIndex(7);
pub(crate) const RANK_COUNT: u16 = 16;
pub(crate) const BYTES_PER_TOKEN: f32 = 4.0;

const SEED: KeySeed = KeySeed(11);
const SHARD_COUNT: usize = 2;
const RANKS_PER_WORKER: u16 = 2;
const BLOCK_SIZE_TOKENS: u32 = 16;
const KV_BLOCK_COUNT: u32 = 16_384;
/// Blocks of other conversations, spread over the ranks.
const CONVERSATION_COUNT: usize = 1_600;
const CONVERSATION_BLOCKS: usize = 64;
const INDEX_BYTES_MAX: usize = 1 << 30;

/// Model text of the tests' tokenizer with Qwen's template.
pub(crate) fn model_text() -> Arc<ModelText> {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data"));
    let rules = EngineRules::Vllm;
    let parts = load_model_text_for(&data.join("tokenizer"), rules).unwrap();
    let source = std::fs::read_to_string(data.join("chat_templates/Qwen2.5.jinja")).unwrap();
    let template = ChatTemplate::compile(&source, &SpecialTokens::new()).unwrap();
    assert!(template.has_plan(), "the template is not learnt");
    let vocabulary = Arc::new(parts.vocabulary);
    Arc::new(ModelText { vocabulary, chat_encoder: None, chat_template: Some(template), rules })
}

pub(crate) fn root() -> BlockKey {
    let block_size_tokens = BLOCK_SIZE_TOKENS;
    BlockKey::root(SEED, &RootName { model: "m", block_size_tokens, ..RootName::default() })
}

pub(crate) fn fleet(text: Option<Arc<ModelText>>) -> FleetSnapshot {
    let all: Vec<RankIndex> = (0..RANK_COUNT).map(RankIndex).collect();
    let model = Model {
        name: "m".into(),
        card_json: "{}".into(),
        ranks: all.clone(),
        pool: PoolIndex(0),
        prefill_pool: None,
        roots: ModelRoots {
            blocks: vec![BlockRoot { block_size_tokens: BLOCK_SIZE_TOKENS, key: root() }],
            ..ModelRoots::new(SEED, "m")
        },
        text: EngineTexts::from_list(text.into_iter().collect()),
        kind: ModelKind::Base,
    };
    let kv_tokens = u64::from(KV_BLOCK_COUNT * BLOCK_SIZE_TOKENS);
    FleetSnapshot {
        generation: 1,
        workers: (0..RANK_COUNT / RANKS_PER_WORKER).map(worker).collect(),
        ranks: (0..RANK_COUNT).map(rank).collect(),
        models: vec![model],
        pools: vec![Pool { ranks: all, kv_tokens: kv_tokens * u64::from(RANK_COUNT) }],
        config: Arc::new(Config::default()),
        tenants: Arc::default(),
        serving: Serving::default(),
    }
}

fn address(worker: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 8_000 + worker))
}

fn worker(index: u16) -> Worker {
    Worker {
        name: format!("10.0.0.1:{}", 8_000 + index).into(),
        authority: format!("10.0.0.1:{}", 8_000 + index).into(),
        address: address(index),
        dialect: Dialect::Vllm,
        state: WorkerState::Up,
        api_key: None,
        generation: WorkerGeneration::default(),
        connector: None,
    }
}

fn rank(index: u16) -> Rank {
    let worker = index / RANKS_PER_WORKER;
    Rank {
        worker: WorkerIndex(worker),
        dp_rank: DpRank(u32::from(index % RANKS_PER_WORKER)),
        dp_size: u32::from(RANKS_PER_WORKER),
        address: address(worker),
        block_size_tokens: BLOCK_SIZE_TOKENS,
        kv_block_count: KV_BLOCK_COUNT,
        running_max: 256,
        limit_source: LimitSource::Declared,
        kv_feed_live: true,
        role: Role::Both,
        kv_transfer: None,
        kv_flow: None,
        page_tokens: None,
        feed_suspicion: None,
        losses: None,
        topology: None,
        room: RoomLimits {
            places_max: 256,
            kv_tokens_max: u64::from(KV_BLOCK_COUNT * BLOCK_SIZE_TOKENS),
            prefill_tokens_max: 0,
        },
        pool: PoolIndex(0),
        tiers: TierRanks::default(),
        seat: SessionSeat::default(),
        used_as: None,
    }
}

/// The load board and what engines report; no two ranks are equal. The leases keep the loads.
pub(crate) fn loads(fleet: &FleetSnapshot) -> (ShardBoard, LoadReports, Vec<Lease>) {
    let board = ShardBoard::from(LoadBoard::new());
    let mut reports = LoadReports::new(Duration::from_secs(5));
    let mut leases = Vec::new();
    for (number, rank) in (0_u32..).zip((0..RANK_COUNT).map(RankIndex)) {
        board.rank(rank).unwrap().set_queue(fleet.queue_of(rank));
        // It has computed 10 tokens in a millisecond, and its queue began so long ago.
        let past = board.past(rank).unwrap();
        past.prefill_began(10, NanosSinceStart(NOW.0 - 2_000_000));
        past.prefill_ended(10, 0, NanosSinceStart(NOW.0 - 1_000_000));
        let tokens = 64 + 3 * u64::from(number);
        let cost = LeaseCost {
            prefill_tokens: tokens,
            decode_tokens: 2 * tokens,
            kv_tokens: 2 * tokens,
            shared_tokens: 0,
        };
        for _ in 0..=number % 4 {
            let limits = fleet.room(rank);
            let marks = &PrefixMarks::NONE;
            let prefixes = PromptPrefixes { marks, bytes_per_token: 4.0 };
            let wanted = LeaseRequest { rank, requester: REQUESTER, cost, limits, prefixes };
            leases.push(Lease::try_take(&board, wanted, NOW).unwrap());
        }
        past.prefill_began(tokens, NanosSinceStart(NOW.0 - 1_000_000));
        let reading = LoadReading {
            running: number % 4 + 2,
            waiting: u32::from(number % 4 == 0),
            used_tokens: Some(4_000),
            capacity_tokens: Some(u64::from(KV_BLOCK_COUNT * BLOCK_SIZE_TOKENS)),
            ..LoadReading::default()
        };
        let own = OwnLoad::of(board.rank(rank).unwrap());
        reports.take(LoadReport::new(rank, NOW, &reading, own));
    }
    (board, reports, leases)
}

/// An index with some 100,000 blocks on 16 ranks, and `text`: most of it on [`HOLDER`], a third on
/// [`NEIGHBOR`], the first two blocks on all.
pub(crate) fn filled_index(text: &[u8], shard_count: usize) -> IndexReader {
    let (reader, mut writers) = index(shard_count, SEED, INDEX_BYTES_MAX);
    let mut random = fastrand::Rng::with_seed(2);
    for number in 0..CONVERSATION_COUNT {
        let rank = RankIndex(u16::try_from(number).unwrap() % RANK_COUNT);
        let blocks = (0..CONVERSATION_BLOCKS).map(|block| {
            let mut bytes = format!("{number}/{block}/").into_bytes();
            bytes.resize(random.usize(44..=84), b'x');
            bytes
        });
        let blocks: Vec<Vec<u8>> = blocks.collect();
        store(&mut writers, rank, blocks.iter().map(Vec::as_slice));
    }
    let blocks: Vec<&[u8]> = cut(text);
    for rank in (0..RANK_COUNT).map(RankIndex) {
        let held = match rank {
            HOLDER => blocks.len() * 9 / 10,
            NEIGHBOR => blocks.len() / 3,
            _ => 2,
        };
        store(&mut writers, rank, blocks.iter().copied().take(held));
    }
    assert!(reader.entry_count() > 100_000);
    reader
}

/// Blocks as tokens cut a text: 64 bytes, give or take a third.
fn cut(text: &[u8]) -> Vec<&[u8]> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut blocks = Vec::new();
    let mut rest = text;
    while rest.len() > 84 {
        let (block, after) = rest.split_at(random.usize(44..=84));
        blocks.push(block);
        rest = after;
    }
    blocks
}

fn store<'a>(writers: &mut [SliceWriter], rank: RankIndex, blocks: impl Iterator<Item = &'a [u8]>) {
    let mut parent = root();
    let shard_count = writers.len();
    let mut slice = None;
    for block in blocks {
        let key = parent.child(SEED, block);
        let slice = *slice.get_or_insert_with(|| slice_of(key, shard_count).index());
        let block_bytes = u16::try_from(block.len()).unwrap();
        writers[slice].apply(rank, KvOp::Store { parent, key, block_bytes });
        parent = key;
    }
}

/// A request, and all that it is matched against.
pub(crate) struct World {
    pub(crate) fleet: FleetSnapshot,
    index: IndexReader,
    pub(crate) body: Vec<u8>,
    request: ApiRequest,
}

impl World {
    pub(crate) fn new(body_bytes: usize) -> Self {
        Self::of_shards(body_bytes, SHARD_COUNT)
    }

    /// The index has a slice for each shard.
    pub(crate) fn of_shards(body_bytes: usize, shard_count: usize) -> Self {
        let body = super::inputs::chat_body(body_bytes);
        let mut request = ApiRequest::default();
        scan(&body, Endpoint::ChatCompletions, &mut request).unwrap();
        let text = model_text();
        let mut rendered = Vec::new();
        render_at(RenderThread::Shard, &request, &body, &text, &mut rendered).unwrap();
        let index = filled_index(&rendered, shard_count);
        Self { fleet: fleet(Some(text)), index, body, request }
    }

    fn ask(&self) -> MatchRequest<'_> {
        MatchRequest {
            index: &self.index,
            fleet: &self.fleet,
            model: self.model(),
            request: &self.request,
            body: &self.body,
            thread: RenderThread::Shard,
        }
    }

    pub(crate) fn model(&self) -> &Model {
        &self.fleet.models[MODEL.index()]
    }

    /// Renders the prompt.
    pub(crate) fn render(&self, prompt: &mut Prompt) {
        let buffer = prompt.end();
        prompt.begin(buffer);
        assert_eq!(prompt.write_text(&self.ask()), Some(Ok(RenderMethod::Plan)));
    }

    /// Walks the index for a rendered prompt.
    pub(crate) fn walk(&self, matched: &mut PromptOverlaps, prompt: &mut Prompt) {
        matched.walk(&self.ask(), prompt, &self.model().ranks, BYTES_PER_TOKEN);
    }

    /// What is found of the prompt.
    pub(crate) fn matched(&self) -> (PromptOverlaps, Prompt) {
        let mut matched = PromptOverlaps::new(RANKS_MAX);
        let mut prompt = Prompt::default();
        self.render(&mut prompt);
        self.walk(&mut matched, &mut prompt);
        let found = |rank| matched.overlaps().get(rank).bytes;
        assert!(found(HOLDER) > found(NEIGHBOR) && found(NEIGHBOR) > found(RankIndex(0)));
        // Another working memory learns the same from the prompt.
        let mut recalled = PromptOverlaps::new(RANKS_MAX);
        recalled.recall(&prompt);
        for rank in (0..RANK_COUNT).map(RankIndex) {
            let by_events = |of: &PromptOverlaps| of.by_events(rank, TierRanks::default());
            assert_eq!(recalled.overlaps().get(rank), matched.overlaps().get(rank));
            assert_eq!(by_events(&recalled), by_events(&matched));
        }
        (matched, prompt)
    }
}
