//! Everything one shard owns, shared by its tasks through `Rc`.

use super::offload::Offload;
use super::signal::Signal;
use crate::ingress::BufferPool;
use crate::relay::{CachedTokens, UpstreamPool};
use ahash::AHashMap;
use forebay_base::limits::{
    INLINE_BODY_BYTES_MAX, LACK_LOG_PERIOD, LOAD_RING_MAX, ROUTED_OWN_MAX,
    STALE_CONNECTION_TIME_MAX,
};
use forebay_base::{Clock, NanosSinceStart, RankIndex, ShardIndex, WorkerIndex};
use forebay_config::Config;
use forebay_disagg::Rooms;
use forebay_fleet::account::{Count, ShardCounters, Stage, StageHistograms};
use forebay_fleet::admit::InFlight;
use forebay_fleet::mailbox::{MeshMessage, PrefillEnded, Ticket};
use forebay_fleet::worker::{FleetSnapshot, LoadReport, ShardBoard};
use forebay_http1::HeadLimits;
use forebay_index::{IndexReader, RoutedPrompt};
use forebay_prompt::parse::HintRules;
use forebay_ring::{Bell, Consumer, MeshSender};
use forebay_router::dispatch::RelayError;
use forebay_router::queue::{Home, Outbox, WaitTable};
use forebay_router::request::Stages;
use forebay_select::ToldPaths;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A fleet whose outer count is the shard's own.
pub(super) type OwnFleet = Rc<Arc<FleetSnapshot>>;

/// One shard's state. Cells are never borrowed across an await.
pub(super) struct Shard {
    /// Tells tenants apart; the same in all shards.
    pub(super) tenant_seed: u64,
    /// Which shard this is.
    pub(super) number: ShardIndex,
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    pub(super) board: ShardBoard,
    pub(super) index: IndexReader,
    pub(super) counters: Arc<ShardCounters>,
    pub(super) head_limits: HeadLimits,
    pub(super) fleet: RefCell<OwnFleet>,
    pub(super) in_flight: Rc<InFlight>,
    pub(super) buffers: Rc<BufferPool>,
    pub(super) upstreams: RefCell<UpstreamPool>,
    /// What requests decide with.
    pub(super) stages: RefCell<Stages>,
    /// What engines say of their load.
    pub(super) load_reports: RefCell<Consumer<LoadReport>>,
    /// What owners of slices have been told a moment ago.
    pub(super) told: RefCell<ToldPaths>,
    pub(super) histograms: RefCell<Box<StageHistograms>>,
    pub(super) cached_tokens: CachedTokens,
    /// Set once the first fleet is here.
    pub(super) ready: Signal,
    pub(super) draining: Signal,
    pub(super) connections: Cell<usize>,
    pub(super) mesh: RefCell<MeshSender<MeshMessage>>,
    /// Routed prompts for this shard's own slice; at most `ROUTED_OWN_MAX`.
    pub(super) routed: RefCell<VecDeque<Box<RoutedPrompt>>>,
    pub(super) bells: Vec<Arc<Bell>>,
    /// What all shards count, by number: how far each is with a drain.
    pub(super) shards: Vec<Arc<ShardCounters>>,
    /// The inbox has read all that the other shards had sent at some moment since this was cleared.
    pub(super) has_heard_all: Cell<bool>,
    /// The queues that this shard is home to.
    pub(super) home: RefCell<Home>,
    /// Messages that found their ring full, by receiving shard.
    pub(super) outbox: RefCell<Outbox<MeshMessage>>,
    /// How requests say what they wish.
    pub(super) hint_rules: RefCell<HintRules>,
    /// Prefill legs that this shard sends, for requests of any shard.
    pub(super) prefills: RefCell<AHashMap<Ticket, Rc<Signal>>>,
    /// The seats of this shard's requests whose prefill legs are under way.
    pub(super) legs: RefCell<WaitTable<PrefillEnded>>,
    /// See [`super::holds`].
    pub(super) holds_least_us: Option<u64>,
    /// The thread that does what takes long.
    pub(super) offload: Offload,
    /// Engines that are being told to abort a request.
    pub(super) aborting: Cell<usize>,
    /// By [`WorkerIndex`]: changes whenever a byte of an answer comes from it.
    pub(super) heard: Box<[Cell<u32>]>,
    /// Draws the rooms in which legs meet.
    pub(super) rooms: RefCell<Rooms>,
    /// When a lack of sockets is worth another line of the log.
    pub(super) say_lack_at: Cell<NanosSinceStart>,
    /// Itself, for tasks that are started on the way of a request.
    pub(super) me: Weak<Self>,
    /// When a drain cuts what is left.
    pub(super) drain_until: Cell<Option<NanosSinceStart>>,
}

impl Shard {
    /// The fleet of this moment. The count that it takes is this shard's own.
    pub(super) fn fleet(&self) -> OwnFleet {
        Rc::clone(&self.fleet.borrow())
    }

    /// What requests decide with, after all reports that have come; bounded by their ring. One load
    /// of a shared line when there is none.
    pub(super) fn informed(&self) -> RefMut<'_, Stages> {
        let (mut stages, mut ring) = (self.stages.borrow_mut(), self.load_reports.borrow_mut());
        for _ in 0..LOAD_RING_MAX {
            let Some(report) = ring.pop() else { break };
            stages.reports.take(report);
        }
        stages
    }

    pub(super) fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Counts a panic that was caught, and says what became of it.
    pub(super) fn panicked(&self, what: &str) {
        self.counters.add(Count::TasksPanicked, 1);
        tracing::error!(shard = self.number.0, "{what} (this is a bug)");
    }

    /// Counts a connection that could not be had, if it is the router that had none, and says so
    /// from time to time.
    pub(super) fn note_lack_of_sockets(&self, error: RelayError) {
        if error == RelayError::OutOfSockets {
            self.out_of_sockets("a worker could not be connected to");
        }
    }

    /// The same, in words of what could not be done.
    pub(super) fn out_of_sockets(&self, what: &'static str) {
        self.counters.add(Count::OutOfSockets, 1);
        let now = self.now();
        if now >= self.say_lack_at.get() {
            self.say_lack_at.set(now.plus(LACK_LOG_PERIOD));
            tracing::error!(
                shard = self.number.0,
                "out of file descriptors, ports or memory: {what}. Raise the limit of open files (LimitNOFILE=), or lower \
                 `limits.connections_max`; forebay_out_of_sockets_total counts on"
            );
        }
    }

    /// Records the time since `start` and returns the present.
    pub(super) fn time(&self, stage: Stage, start: NanosSinceStart) -> NanosSinceStart {
        let now = self.now();
        self.histograms.borrow_mut().record(stage, now.since(start));
        now
    }

    /// Had the pooled connection been closed before the request was written to it at `sent_at`?
    pub(super) fn was_stale(&self, error: RelayError, sent_at: NanosSinceStart) -> bool {
        let until = sent_at.plus(STALE_CONNECTION_TIME_MAX);
        error.may_be_stale() && self.now() < until
    }

    /// Takes a buffer back. A large one is freed elsewhere.
    pub(super) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() > INLINE_BODY_BYTES_MAX {
            self.offload.free(buffer.capacity(), buffer);
        } else {
            self.buffers.give(buffer);
        }
    }

    /// The same if it is large; a small one stays.
    pub(super) fn recycle_large(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() > INLINE_BODY_BYTES_MAX {
            self.recycle(std::mem::take(buffer));
        }
    }

    /// A worker failed under a request: its idle connections are dropped, here and on the other
    /// shards.
    pub(super) fn worker_failed(&self, worker: WorkerIndex) {
        self.forget_connections(worker);
        self.suspect(worker);
        let mut mesh = self.mesh.borrow_mut();
        let peers: Vec<_> = mesh.peers().collect();
        for peer in peers {
            if mesh.send(peer, MeshMessage::WorkerFailed { worker }).is_err() {
                self.counters.add(Count::MeshDropped, 1);
            } else if let Some(bell) = self.bells.get(peer.index()) {
                bell.ring();
            }
        }
    }

    /// The control plane asks the worker again what it serves.
    pub(super) fn suspect(&self, worker: WorkerIndex) {
        let fleet = self.fleet();
        let first = fleet.ranks.iter().position(|rank| rank.worker == worker);
        let load = first.and_then(RankIndex::try_from_index).and_then(|rank| self.board.rank(rank));
        if let Some(load) = load {
            load.suspect();
        }
    }

    /// The shard that sends a rank's prefill legs; this one if that one is dead.
    pub(super) fn home_of_rank(&self, rank: RankIndex) -> ShardIndex {
        let home = ShardIndex::try_from_index(rank.index() % self.bells.len().max(1));
        home.filter(|&home| !self.has_ended(home)).unwrap_or(self.number)
    }

    /// Drops idle connections to every address of a worker.
    pub(super) fn forget_connections(&self, worker: WorkerIndex) {
        let fleet = self.fleet();
        let mut upstreams = self.upstreams.borrow_mut();
        for rank in fleet.ranks.iter().filter(|rank| rank.worker == worker) {
            upstreams.purge(rank.address);
        }
    }

    /// Hands a routed prompt to the owner of its slice; drops and counts it when there is no room.
    pub(super) fn post_routed(&self, owner: ShardIndex, prompt: Box<RoutedPrompt>) {
        let posted = if owner == self.number {
            let mut own = self.routed.borrow_mut();
            let has_room = own.len() < ROUTED_OWN_MAX;
            if has_room {
                own.push_back(prompt);
            }
            has_room
        } else {
            self.mesh.borrow_mut().send(owner, MeshMessage::Routed(prompt)).is_ok()
        };
        if !posted {
            self.counters.add(Count::GuessedPromptsDropped, 1);
        } else if let Some(bell) = self.bells.get(owner.index()) {
            bell.ring();
        }
    }
}
