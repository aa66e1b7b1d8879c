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
use forebay_fleet::mailbox::{PrefillEnded, Ticket};
use forebay_identity::{AddressRules, Cors, TrustedNets};
use forebay_keys::TokenCache;
use forebay_prompt::parse::KnownTokens;
use forebay_router::queue::{Home, WaitTable};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One shard's state. Cells are never borrowed across an await.
pub(super) struct Shard {
    pub(super) env: Env,
    pub(super) io: Io,
    pub(super) workers: Workers,
    pub(super) routing: RoutingState,
    pub(super) links: Links,
    pub(super) queues: Queues,
    pub(super) intake: Intake,
    /// Itself, for tasks that are started on the way of a request.
    pub(super) me: Weak<Self>,
}

/// Connections and requests that the shard takes.
pub(super) struct Intake {
    /// Set once the first fleet is here.
    pub(super) ready: Signal,
    pub(super) connections: Cell<usize>,
    pub(super) in_flight: Rc<InFlight>,
    pub(super) addresses: Arc<AddressRules>,
    /// Proxies that speak for their clients.
    pub(super) trusted: RefCell<Rc<TrustedNets>>,
    pub(super) cors: RefCell<Rc<Cors>>,
    tokens: RefCell<TokenCache>,
    /// See [`crate::runtime::watched`].
    pub(super) holds_least_us: Option<u64>,
}

/// What crosses between shards on the way of a request: waiters and prefill legs.
pub(super) struct Queues {
    /// The queues that this shard is home to.
    pub(super) home: RefCell<Home>,
    /// Prefill legs that this shard sends, for requests of any shard.
    pub(super) prefills: RefCell<AHashMap<Ticket, Rc<Signal>>>,
    /// The seats of this shard's requests whose prefill legs are under way.
    pub(super) legs: RefCell<WaitTable<PrefillEnded>>,
    /// Draws the rooms in which legs meet.
    pub(super) rooms: RefCell<Rooms>,
}

impl Intake {
    pub(super) fn new(
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
    pub(super) fn trusted(&self) -> Rc<TrustedNets> {
        Rc::clone(&self.trusted.borrow())
    }

    /// What pages of other sites are told at this moment.
    pub(super) fn cors(&self) -> Rc<Cors> {
        Rc::clone(&self.cors.borrow())
    }

    /// What tokens of clients are checked with.
    pub(super) fn known_tokens(&self) -> KnownTokens<'_> {
        KnownTokens { cache: &self.tokens, now_s: || since_1970().as_secs() }
    }
}

impl Queues {
    pub(super) fn new(number: ShardIndex, rooms_seed: u64) -> Self {
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
pub(super) struct Sending<'a> {
    pub(super) env: &'a Env,
    pub(super) io: &'a Io,
    pub(super) workers: &'a Workers,
}

impl Shard {
    pub(super) const fn sending(&self) -> Sending<'_> {
        Sending { env: &self.env, io: &self.io, workers: &self.workers }
    }

    /// A worker failed under a request: its idle connections are dropped, here and on the other
    /// shards.
    pub(super) fn worker_failed(&self, worker: WorkerIndex) {
        self.forget_connections(worker);
        self.workers.suspect(worker);
        self.links.tell_of_failure(&self.env, worker);
    }

    /// Drops idle connections to every address of a worker.
    pub(super) fn forget_connections(&self, worker: WorkerIndex) {
        let fleet = self.workers.fleet();
        let mut upstreams = self.io.upstreams.borrow_mut();
        for rank in fleet.ranks.iter().filter(|rank| rank.worker == worker) {
            upstreams.purge(self.workers.key(worker, rank.address));
        }
    }
}
