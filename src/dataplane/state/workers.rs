//! What the shard knows of the workers.

use super::env::Env;
use super::pulse::EnginePulse;
use crate::relay::UpstreamKey;
use forebay_base::limits::{MODELS_MAX, RANKS_MAX, WORKERS_MAX};
use forebay_base::{ModelIndex, RankIndex, WorkerIndex};
use forebay_fleet::account::{BlameScope, Count, FirstTokens};
use forebay_fleet::worker::{FleetSnapshot, RankLoad, ShardBoard};
use forebay_router::request::engine_refused;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// A fleet, in handles of which no other shard writes the count.
#[derive(Default)]
pub(crate) struct ShardFleet {
    snapshot: Arc<FleetSnapshot>,
    /// For the shard's offload thread.
    lent: LentFleet,
}

/// All shards share the inner count. The outer count is of one shard and its offload thread.
type LentFleet = Arc<Arc<FleetSnapshot>>;

impl ShardFleet {
    pub(crate) fn new(snapshot: Arc<FleetSnapshot>) -> Rc<Self> {
        Rc::new(Self { lent: Arc::new(Arc::clone(&snapshot)), snapshot })
    }

    /// A handle that another thread may hold.
    pub(crate) fn lend(&self) -> LentFleet {
        Arc::clone(&self.lent)
    }
}

impl Deref for ShardFleet {
    type Target = FleetSnapshot;

    fn deref(&self) -> &FleetSnapshot {
        &self.snapshot
    }
}

/// The fleet, the loads of its ranks, and signs of life.
pub(crate) struct Workers {
    pub(crate) fleet: RefCell<Rc<ShardFleet>>,
    pub(crate) board: ShardBoard,
    /// By [`WorkerIndex`]: changes whenever a byte of an answer comes from it.
    pub(crate) heard: Box<[Cell<u32>]>,
    /// The same, as the control plane was told last.
    shown: Box<[Cell<u32>]>,
    /// What answers show, by [`RankIndex`].
    pulses: Box<[EnginePulse]>,
    /// By [`ModelIndex`]; those past [`MODELS_MAX`] share the last.
    first_tokens: Box<[FirstTokens]>,
}

impl Workers {
    pub(crate) fn new(board: ShardBoard) -> Self {
        let [heard, shown] = [(); 2].map(|()| vec![Cell::new(0); WORKERS_MAX].into());
        let pulses = (0..RANKS_MAX).map(|_| EnginePulse::default()).collect();
        let first_tokens = (0..=MODELS_MAX).map(|_| FirstTokens::default()).collect();
        Self { fleet: RefCell::default(), board, heard, shown, pulses, first_tokens }
    }

    /// The fleet of this moment. The count that it takes is this shard's own.
    pub(crate) fn fleet(&self) -> Rc<ShardFleet> {
        Rc::clone(&self.fleet.borrow())
    }

    /// Which share of a model's first tokens show.
    pub(crate) fn first_tokens(&self, model: ModelIndex) -> Option<&FirstTokens> {
        self.first_tokens.get(model.index().min(MODELS_MAX))
    }

    /// A byte of an answer has come from the worker.
    #[inline]
    pub(crate) fn hear(&self, worker: WorkerIndex) {
        if let Some(heard) = self.heard.get(worker.index()) {
            heard.set(heard.get().wrapping_add(1));
        }
    }

    /// What answers show of a rank.
    pub(crate) fn pulse(&self, rank: RankIndex) -> Option<&EnginePulse> {
        self.pulses.get(rank.index())
    }

    /// Does the rank stand still, by what all shards have seen?
    pub(crate) fn is_stalled(&self, rank: RankIndex) -> bool {
        self.board.rank(rank).is_some_and(RankLoad::is_stalled)
    }

    pub(crate) fn heard_of(&self, worker: WorkerIndex) -> u32 {
        self.heard.get(worker.index()).map_or(0, Cell::get)
    }

    pub(crate) fn is_down(&self, worker: WorkerIndex) -> bool {
        let fleet = self.fleet.borrow();
        fleet.workers.get(worker.index()).is_some_and(|worker| worker.state.is_down())
    }

    /// Do its streams go on at other workers, by the operator's word?
    pub(crate) fn moves_streams(&self, worker: WorkerIndex) -> bool {
        self.fleet.borrow().moves_streams(worker)
    }

    /// The key of connections to one of its addresses.
    pub(crate) fn key(&self, worker: WorkerIndex, address: SocketAddr) -> UpstreamKey {
        let fleet = self.fleet.borrow();
        let is_tls = fleet.workers.get(worker.index()).is_some_and(|one| one.connector.is_some());
        UpstreamKey { address, secured_for: is_tls.then_some(worker) }
    }

    /// The control plane asks the worker again what it serves.
    pub(crate) fn suspect(&self, worker: WorkerIndex) {
        let fleet = self.fleet();
        let first = fleet.ranks.iter().position(|rank| rank.worker == worker);
        let load = first.and_then(RankIndex::try_from_index).and_then(|rank| self.board.rank(rank));
        if let Some(load) = load {
            load.signs().suspect();
        }
    }

    /// Tells the control plane which workers have sent something since the last call, and what
    /// their ranks show.
    pub(crate) fn show_life(&self) {
        let fleet = self.fleet.borrow();
        for (position, rank) in fleet.ranks.iter().enumerate() {
            let worker = rank.worker.index();
            let load = RankIndex::try_from_index(position).and_then(|rank| self.board.rank(rank));
            let (Some(heard), Some(shown), Some(pulse), Some(load)) =
                (self.heard.get(worker), self.shown.get(worker), self.pulses.get(position), load)
            else {
                continue;
            };
            if shown.replace(heard.get()) != heard.get() {
                load.signs().show_life();
            }
            pulse.show(load.signs());
        }
    }

    /// The engine of a rank had no room. Called after the lease was given back.
    pub(crate) fn engine_refused(&self, env: &Env, rank: RankIndex, model: ModelIndex) {
        env.count(Count::EngineRefusals);
        env.counters.held(BlameScope::Model);
        engine_refused(&self.fleet(), &self.board, rank, model, env.now());
    }
}
