//! Everything one shard owns, in parts that are used together. A function takes the parts that it
//! touches. The whole shard is for what calls the stages or starts tasks.

use super::env::Env;
use super::io::Io;
use super::links::Links;
use super::routing::RoutingState;
use super::workers::Workers;
use crate::runtime::Signal;
use ahash::AHashMap;
use forebay_base::{ShardIndex, WorkerIndex, since_1970};
use forebay_disagg::Rooms;
use forebay_fleet::admit::InFlight;
use forebay_fleet::mailbox::{PrefillOutcome, Ticket};
use forebay_identity::{AddressRules, Cors, TrustedNets};
use forebay_keys::TokenCache;
use forebay_prompt::parse::KnownTokens;
use forebay_router::queue::{Home, WaitTable};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One shard's state. Cells are never borrowed across an await.
pub(crate) struct Shard {
    pub(crate) env: Env,
    pub(crate) io: Io,
    pub(crate) workers: Workers,
    pub(crate) routing: RoutingState,
    pub(crate) links: Links,
    pub(crate) queues: Queues,
    pub(crate) intake: Intake,
    /// Itself, for tasks that are started on the way of a request.
    pub(crate) me: Weak<Self>,
}

/// Connections and requests that the shard takes.
pub(crate) struct Intake {
    /// Set once the first fleet is here.
    pub(crate) ready: Signal,
    pub(crate) connections: Cell<usize>,
    pub(crate) in_flight: Rc<InFlight>,
    pub(crate) addresses: Arc<AddressRules>,
    /// Proxies that speak for their clients.
    pub(crate) trusted: RefCell<Rc<TrustedNets>>,
    pub(crate) cors: RefCell<Rc<Cors>>,
    tokens: RefCell<TokenCache>,
    /// See [`crate::runtime::watched`].
    pub(crate) holds_least_us: Option<u64>,
}

/// What crosses between shards on the way of a request: waiters and prefill legs.
pub(crate) struct Queues {
    /// The queues that this shard is home to.
    pub(crate) home: RefCell<Home>,
    /// Prefill legs that this shard sends, for requests of any shard.
    pub(crate) prefills: RefCell<AHashMap<Ticket, Rc<Signal>>>,
    /// The seats of this shard's requests whose prefill legs are under way.
    pub(crate) legs: RefCell<WaitTable<PrefillOutcome>>,
    /// Draws the rooms in which legs meet.
    pub(crate) rooms: RefCell<Rooms>,
}

impl Intake {
    pub(crate) fn new(
        in_flight: Rc<InFlight>,
        addresses: Arc<AddressRules>,
        trusted: TrustedNets,
        cors: Cors,
        holds_least_us: Option<u64>,
    ) -> Self {
        let ready = Signal::default();
        let connections = Cell::new(0);
        let tokens = RefCell::default();
        let trusted = RefCell::new(Rc::new(trusted));
        let cors = RefCell::new(Rc::new(cors));
        Self { ready, connections, in_flight, addresses, trusted, cors, tokens, holds_least_us }
    }

    /// The proxies of this moment.
    pub(crate) fn trusted(&self) -> Rc<TrustedNets> {
        Rc::clone(&self.trusted.borrow())
    }

    /// What pages of other sites are told at this moment.
    pub(crate) fn cors(&self) -> Rc<Cors> {
        Rc::clone(&self.cors.borrow())
    }

    /// What tokens of clients are checked with.
    pub(crate) fn known_tokens(&self) -> KnownTokens<'_> {
        KnownTokens { cache: &self.tokens, now_s: || since_1970().as_secs() }
    }
}

impl Queues {
    pub(crate) fn new(number: ShardIndex, rooms_seed: u64) -> Self {
        Self {
            home: RefCell::default(),
            prefills: RefCell::default(),
            legs: RefCell::new(WaitTable::new(number)),
            rooms: RefCell::new(Rooms::new(number, rooms_seed)),
        }
    }
}

/// What a stage that talks to workers may touch.
#[derive(Clone, Copy)]
pub(crate) struct SendParts<'a> {
    pub(crate) env: &'a Env,
    pub(crate) io: &'a Io,
    pub(crate) workers: &'a Workers,
}

impl Shard {
    pub(crate) const fn sending(&self) -> SendParts<'_> {
        SendParts { env: &self.env, io: &self.io, workers: &self.workers }
    }

    /// Number for the id of a request whose client sends none.
    pub(crate) fn fresh_id(&self) -> u64 {
        self.routing.stages.borrow_mut().random.u64(..)
    }

    /// A worker failed under a request: its idle connections are dropped, here and on the other
    /// shards.
    pub(crate) fn worker_failed(&self, worker: WorkerIndex) {
        self.forget_connections(worker);
        self.workers.suspect(worker);
        self.links.tell_of_failure(&self.env, worker);
    }

    /// Drops idle connections to every address of a worker.
    pub(crate) fn forget_connections(&self, worker: WorkerIndex) {
        let fleet = self.workers.fleet();
        let mut upstreams = self.io.upstreams.borrow_mut();
        for rank in fleet.ranks.iter().filter(|rank| rank.worker == worker) {
            upstreams.purge(self.workers.key(worker, rank.address));
        }
    }
}
