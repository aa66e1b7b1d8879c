//! Fixtures for tests of several modules.

use super::Dialect;
use super::EventSocket;
use super::FeedSuspicion;
use super::FleetSnapshot;
use super::LimitSource;
use super::Model;
use super::ModelKind;
use super::OtherFeed;
use super::Rank;
use super::Requester;
use super::Role;
use super::RoomLimits;
use super::SessionSeat;
use super::SuspicionSign;
use super::TierRanks;
use super::Worker;
use super::WorkerGeneration;
use super::WorkerState;
use super::pools;
use forebay_base::{DpRank, ModelIndex, PoolIndex, RankIndex, WorkerIndex};
use forebay_index::{KeySeed, ModelRoots};
use std::net::SocketAddr;

/// A request of a caller for the first model.
pub const REQUESTER: Requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };

/// A model of the first pool, on these ranks.
pub fn model(name: &str, ranks: &[u16]) -> Model {
    Model {
        name: name.into(),
        card_json: "".into(),
        ranks: ranks.iter().copied().map(RankIndex).collect(),
        pool: PoolIndex(0),
        prefill_pool: None,
        roots: ModelRoots::new(KeySeed(1), name),
        text: None,
        kind: ModelKind::Base,
    }
}

/// A suspicion about a rank that follows `tcp://h:9`, as the rank of the worker `b` does. With
/// `announced`, the endpoints are crossed.
pub fn suspicion(announced: Option<&str>) -> FeedSuspicion {
    let other = OtherFeed {
        name: "b".into(),
        worker: WorkerIndex(1),
        announced_here: announced.map(Into::into),
        announced_there: None,
    };
    let sign = match announced {
        Some(_) => SuspicionSign::Crossed(other),
        None => SuspicionSign::Shared(other),
    };
    FeedSuspicion { socket: EventSocket::Publisher, endpoint: "tcp://h:9".into(), sign }
}

/// The only rank of a worker, without limits.
pub fn rank(worker: u16) -> Rank {
    Rank {
        worker: WorkerIndex(worker),
        dp_rank: DpRank(0),
        dp_size: 1,
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        block_size_tokens: 16,
        kv_block_count: 0,
        kv_feed_live: false,
        feed_suspicion: None,
        losses: None,
        role: Role::Both,
        kv_transfer: None,
        kv_flow: None,
        page_tokens: None,
        topology: None,
        running_max: 0,
        limit_source: LimitSource::Declared,
        room: RoomLimits::default(),
        pool: PoolIndex(0),
        tiers: TierRanks::default(),
        seat: SessionSeat::default(),
        used_as: None,
    }
}

/// A worker that is up.
pub fn worker() -> Worker {
    Worker {
        name: "w".into(),
        authority: "w:1".into(),
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        dialect: Dialect::Vllm,
        state: WorkerState::Up,
        api_key: None,
        generation: WorkerGeneration::default(),
        connector: None,
    }
}

/// Three ranks of a worker: two serve `base` with its `adapter`, the third serves `other`. No rank
/// serves `nobody`.
pub fn three_ranks() -> FleetSnapshot {
    let room = RoomLimits { places_max: 4, kv_tokens_max: 1_520, prefill_tokens_max: 0 };
    let rank = |dp_rank| Rank {
        dp_rank: DpRank(dp_rank),
        dp_size: 3,
        kv_block_count: 100,
        room,
        ..rank(0)
    };
    FleetSnapshot {
        workers: vec![worker()],
        ranks: (0..3).map(rank).collect(),
        models: vec![
            model("base", &[0, 1]),
            model("adapter", &[0, 1]),
            model("other", &[2]),
            model("nobody", &[]),
        ],
        ..FleetSnapshot::default()
    }
}

/// Two pools on three ranks of a worker: `base` with its `adapter`, and `other`. No rank serves
/// `nobody`.
#[must_use]
pub fn two_pools() -> FleetSnapshot {
    let mut fleet = three_ranks();
    pools::assign(&mut fleet);
    fleet
}
