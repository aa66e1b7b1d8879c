//! The fleet of a run, as the control plane would discover it.

use crate::plan::SimPlan;
use crate::traces::trace::Trace;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{DpRank, PoolIndex, RankIndex, WorkerIndex};
use forebay_config::Config;
use forebay_fleet::worker::{
    Dialect, EngineLimits, FleetSnapshot, KvTransfer, Model, ModelKind, PlacesLimit, Rank, Role,
    RoomLimits, SessionSeat, TierRanks, Worker, WorkerGeneration, WorkerState, pools,
};
use forebay_index::{BlockKey, BlockRoot, KeySeed, ModelRoots, RootName};
use std::net::SocketAddr;
use std::sync::Arc;

/// Seed of all block keys of a run.
pub(crate) const SEED: KeySeed = KeySeed(1);

fn role(plan: &SimPlan, rank: RankIndex) -> Role {
    match plan.prefill_ranks {
        0 => Role::Both,
        prefill_ranks if rank.index() < prefill_ranks => Role::Prefill,
        _ => Role::Decode,
    }
}

/// Index number of a rank's host tier.
fn host_number(rank: RankIndex, plan: &SimPlan) -> Option<RankIndex> {
    let number = RankIndex::try_from_index((RANKS_MAX - 1).checked_sub(rank.index())?);
    number.filter(|_| plan.blocks.host > 0)
}

/// Index number of the pool.
fn pool_number(plan: &SimPlan) -> Option<RankIndex> {
    let number = RankIndex::try_from_index((RANKS_MAX - 1).checked_sub(plan.ranks)?);
    number.filter(|_| plan.blocks.pool > 0)
}

/// Request limit that the engine of a rank declares; 0: none.
fn declared(rank: RankIndex, plan: &SimPlan) -> u32 {
    let speed = plan.speed(rank.index());
    if speed.declares_limit { speed.sequences_max } else { 0 }
}

/// As `src/control/fleet/snapshot.rs` has it.
fn places(rank: RankIndex, plan: &SimPlan, config: &Config) -> PlacesLimit {
    let engine = EngineLimits { running_max: declared(rank, plan), reports_load: true };
    PlacesLimit::of(&config.flow, None, role(plan, rank), engine)
}

/// An address where no engine listens.
fn nowhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

fn worker(rank: RankIndex) -> Worker {
    Worker {
        name: format!("r{}", rank.0).into(),
        authority: format!("r{}:1", rank.0).into(),
        address: nowhere(),
        dialect: Dialect::Vllm,
        state: WorkerState::Up,
        api_key: None,
        generation: WorkerGeneration::default(),
        connector: None,
    }
}

fn model(ranks: impl Iterator<Item = RankIndex>, block_size_tokens: u32, root: BlockKey) -> Model {
    Model {
        name: "m".into(),
        card_json: "".into(),
        ranks: ranks.collect(),
        pool: PoolIndex(0),
        prefill_pool: None,
        roots: ModelRoots {
            blocks: vec![BlockRoot { block_size_tokens, key: root }],
            ..ModelRoots::new(SEED, "m")
        },
        text: None,
        kind: ModelKind::Base,
    }
}

/// The ranks of the plan, which serve a single model, and the root of its blocks.
pub(crate) fn fleet(
    trace: &Trace,
    plan: &SimPlan,
    config: &Arc<Config>,
) -> (Arc<FleetSnapshot>, BlockKey) {
    let block_size_tokens = trace.block_tokens;
    let name = RootName { model: "m", block_size_tokens, ..RootName::default() };
    let root = BlockKey::root(SEED, &name);
    let numbers = || (0..plan.ranks.min(RANKS_MAX)).filter_map(RankIndex::try_from_index);
    let device_blocks = plan.device_blocks(trace);
    let block_count = |rank: RankIndex| device_blocks(rank.index()) as u32;
    let kv_use_percent = u64::from(config.flow.queue.kv_use_percent);
    // As `src/control/feeds/kv_feeds.rs` has it.
    let follows_pool = config.kv.pool_credit_percent > 0;
    let room = |rank, kv_tokens: u64| RoomLimits {
        places_max: places(rank, plan, config).places_max,
        kv_tokens_max: kv_tokens.saturating_mul(kv_use_percent) / 100,
        prefill_tokens_max: RoomLimits::prefill_tokens_max(
            config.flow.queue.prefill_tokens_max,
            config.flow.queue.mode,
        ),
    };
    let room_of = |rank: RankIndex| {
        let kv_tokens = u64::from(block_count(rank)) * u64::from(block_size_tokens);
        room(rank, kv_tokens)
    };
    let rank = |rank: RankIndex| Rank {
        worker: WorkerIndex(rank.0),
        dp_rank: DpRank(0),
        dp_size: 1,
        address: nowhere(),
        block_size_tokens,
        kv_block_count: block_count(rank),
        running_max: declared(rank, plan),
        limit_source: places(rank, plan, config).source,
        kv_feed_live: true,
        feed_suspicion: None,
        losses: None,
        role: role(plan, rank),
        kv_transfer: (role(plan, rank) == Role::Prefill).then_some(KvTransfer::TwoPhase),
        kv_flow: None,
        page_tokens: None,
        topology: None,
        room: room_of(rank),
        pool: PoolIndex(0),
        tiers: TierRanks {
            host: host_number(rank, plan),
            kv_pool: pool_number(plan).filter(|_| follows_pool),
            ..TierRanks::default()
        },
        seat: SessionSeat::of("r", DpRank(u32::from(rank.0))),
        used_as: None,
    };
    let mut fleet = FleetSnapshot {
        generation: 1,
        workers: numbers().map(worker).collect(),
        ranks: numbers().map(rank).collect(),
        models: vec![model(numbers(), block_size_tokens, root)],
        config: Arc::clone(config),
        ..FleetSnapshot::default()
    };
    pools::assign(&mut fleet);
    fleet.check_invariants();
    (Arc::new(fleet), root)
}
