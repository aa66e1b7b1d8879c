//! The shard's view of the workers.

use super::env::Env;
use super::pulse::EnginePulse;
use crate::relay::UpstreamKey;
use forebay_base::limits::{MODELS_MAX, RANKS_MAX, WORKERS_MAX};
use forebay_base::{ModelIndex, RankIndex, WorkerIndex};
use forebay_board::account::{BlameScope, Count, FirstTokens};
use forebay_board::{RankLoad, ShardBoard};
use forebay_fleet::worker::FleetSnapshot;
use forebay_router::request::engine_refused;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// Fleet snapshot behind handles whose reference count no other shard writes.
#[derive(Default)]
pub(crate) struct ShardFleet {
    snapshot: Arc<FleetSnapshot>,
    /// Handle for the offload thread.
    lent: LentFleet,
}

/// All shards share the inner count. Only a shard and its offload thread write the outer count.
type LentFleet = Arc<Arc<FleetSnapshot>>;

impl ShardFleet {
    pub(crate) fn new(snapshot: Arc<FleetSnapshot>) -> Rc<Self> {
        Rc::new(Self { lent: Arc::new(Arc::clone(&snapshot)), snapshot })
    }

    /// Handle for the offload thread.
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

/// The fleet, the loads of its ranks, and signs of life of its workers.
pub(crate) struct Workers {
    pub(crate) fleet: RefCell<Rc<ShardFleet>>,
    pub(crate) board: ShardBoard,
    /// Answer chunks received by [`WorkerIndex`], wrapping.
    pub(crate) receipts: Box<[Cell<u32>]>,
    /// `receipts` at the last report to the control plane.
    shown: Box<[Cell<u32>]>,
    /// Signs of engines by [`RankIndex`].
    pulses: Box<[EnginePulse]>,
    /// By [`ModelIndex`]. Models past [`MODELS_MAX`] share the last entry.
    first_tokens: Box<[FirstTokens]>,
}

impl Workers {
    pub(crate) fn new(board: ShardBoard) -> Self {
        let [receipts, shown] = [(); 2].map(|()| vec![Cell::new(0); WORKERS_MAX].into());
        let pulses = (0..RANKS_MAX).map(|_| EnginePulse::default()).collect();
        let first_tokens = (0..=MODELS_MAX).map(|_| FirstTokens::default()).collect();
        Self { fleet: RefCell::default(), board, receipts, shown, pulses, first_tokens }
    }

    /// Current fleet. The handle's count is written by this shard only.
    pub(crate) fn fleet(&self) -> Rc<ShardFleet> {
        Rc::clone(&self.fleet.borrow())
    }

    /// Share of streams among recent requests for the model.
    pub(crate) fn first_tokens(&self, model: ModelIndex) -> Option<&FirstTokens> {
        self.first_tokens.get(model.index().min(MODELS_MAX))
    }

    /// Counts answer bytes received from the worker. An error is no sign of life: a server in
    /// front of an engine that hangs may answer it.
    #[inline]
    pub(crate) fn count_receipt(&self, worker: WorkerIndex, status: u16) {
        if status < 400
            && let Some(receipts) = self.receipts.get(worker.index())
        {
            receipts.set(receipts.get().wrapping_add(1));
        }
    }

    pub(crate) fn pulse(&self, rank: RankIndex) -> Option<&EnginePulse> {
        self.pulses.get(rank.index())
    }

    /// True if the rank is stalled, by the signs of all shards.
    pub(crate) fn is_stalled(&self, rank: RankIndex) -> bool {
        self.board.rank(rank).is_some_and(RankLoad::is_stalled)
    }

    pub(crate) fn receipts_of(&self, worker: WorkerIndex) -> u32 {
        self.receipts.get(worker.index()).map_or(0, Cell::get)
    }

    pub(crate) fn is_down(&self, worker: WorkerIndex) -> bool {
        let fleet = self.fleet.borrow();
        fleet.workers.get(worker.index()).is_some_and(|worker| worker.state.is_down())
    }

    /// True if the operator has ordered the worker's streams to move to other workers.
    pub(crate) fn moves_streams(&self, worker: WorkerIndex) -> bool {
        self.fleet.borrow().moves_streams(worker)
    }

    /// Pool key of connections to an address of the worker.
    pub(crate) fn key(&self, worker: WorkerIndex, address: SocketAddr) -> UpstreamKey {
        let fleet = self.fleet.borrow();
        let is_tls =
            fleet.workers.get(worker.index()).is_some_and(|worker| worker.connector.is_some());
        UpstreamKey { address, secured_for: is_tls.then_some(worker) }
    }

    /// Makes the control plane query again which models the worker serves.
    pub(crate) fn suspect(&self, worker: WorkerIndex) {
        let fleet = self.fleet();
        let first = fleet.ranks.iter().position(|rank| rank.worker == worker);
        let load = first.and_then(RankIndex::try_from_index).and_then(|rank| self.board.rank(rank));
        if let Some(load) = load {
            load.signs().suspect();
        }
    }

    /// Reports to the control plane which workers have sent bytes since the last call, and the
    /// signs of their ranks.
    pub(crate) fn show_life(&self) {
        let fleet = self.fleet.borrow();
        for (position, rank) in fleet.ranks.iter().enumerate() {
            let worker = rank.worker.index();
            let load = RankIndex::try_from_index(position).and_then(|rank| self.board.rank(rank));
            let (Some(receipts), Some(shown), Some(pulse), Some(load)) = (
                self.receipts.get(worker),
                self.shown.get(worker),
                self.pulses.get(position),
                load,
            ) else {
                continue;
            };
            if shown.replace(receipts.get()) != receipts.get() {
                load.signs().show_life();
            }
            pulse.show(load.signs());
        }
    }

    /// Accounts for an engine without room. Called after the lease was returned.
    pub(crate) fn engine_refused(&self, env: &Env, rank: RankIndex, model: ModelIndex) {
        env.count(Count::EngineRefusals);
        env.counters.held(BlameScope::Model);
        engine_refused(&self.fleet(), &self.board, rank, model, env.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_board::LoadBoard;

    /// Whatever error a server answers, it does not prove that an engine works.
    #[test]
    fn errors_are_no_sign_of_life() {
        let workers = Workers::new(ShardBoard::from(LoadBoard::new()));
        let worker = WorkerIndex::try_from_index(3).unwrap();
        for status in 100..=599 {
            let before = workers.receipts_of(worker);
            workers.count_receipt(worker, status);
            let counted = workers.receipts_of(worker) - before;
            assert_eq!(counted, u32::from(status < 400), "{status}");
        }
    }
}
