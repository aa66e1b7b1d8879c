//! State that a shard owns, in parts by use. A function takes only the parts that it touches. Only
//! callers of stages and functions that start tasks take the whole shard.

use super::env::Env;
use super::io::Io;
use super::links::Links;
use super::routing::RoutingState;
use super::workers::Workers;
use crate::runtime::Signal;
use ahash::AHashMap;
use forebay_base::{ShardIndex, WorkerIndex, since_1970};
use forebay_board::admit::InFlight;
use forebay_disagg::Rooms;
use forebay_identity::{AddressRules, Cors, TrustedNets};
use forebay_keys::TokenCache;
use forebay_mailbox::{PrefillOutcome, Ticket};
use forebay_net::{Socket, SocketCloser};
use forebay_prompt::parse::KnownTokens;
use forebay_router::queue::{Home, WaitTable};
use slab::Slab;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// State of a shard. Cells are never borrowed across an await.
pub(crate) struct Shard {
    pub(crate) env: Env,
    pub(crate) io: Io,
    pub(crate) workers: Workers,
    pub(crate) routing: RoutingState,
    pub(crate) links: Links,
    pub(crate) queues: Queues,
    pub(crate) intake: Intake,
    /// Weak self-reference, for tasks started while a request is served.
    pub(crate) me: Weak<Self>,
}

/// Connections and requests admitted by the shard.
pub(crate) struct Intake {
    /// Set by the first fleet.
    pub(crate) ready: Signal,
    clients: RefCell<Slab<SocketCloser>>,
    pub(crate) in_flight: Rc<InFlight>,
    pub(crate) addresses: Arc<AddressRules>,
    /// Proxies whose forwarded client addresses are trusted.
    pub(crate) trusted: RefCell<Rc<TrustedNets>>,
    pub(crate) cors: RefCell<Rc<Cors>>,
    tokens: RefCell<TokenCache>,
    /// See [`crate::runtime::watched`].
    pub(crate) holds_least_us: Option<u64>,
}

/// Requests and legs shared between shards: waiters and prefill legs.
pub(crate) struct Queues {
    /// Queues that this shard owns.
    pub(crate) home: RefCell<Home>,
    /// Prefill legs that this shard sends, for requests of any shard.
    pub(crate) prefills: RefCell<AHashMap<Ticket, Rc<Signal>>>,
    /// Outcomes awaited by this shard's requests for their prefill legs.
    pub(crate) legs: RefCell<WaitTable<PrefillOutcome>>,
    /// Draws bootstrap rooms for pairs.
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
        let clients = RefCell::default();
        let tokens = RefCell::default();
        let trusted = RefCell::new(Rc::new(trusted));
        let cors = RefCell::new(Rc::new(cors));
        Self { ready, clients, in_flight, addresses, trusted, cors, tokens, holds_least_us }
    }

    /// Counts a connection until [`Self::leave`]; returns its place.
    pub(crate) fn enter(&self, socket: &Socket) -> usize {
        self.clients.borrow_mut().insert(socket.closer())
    }

    /// Takes an ended connection out of the count.
    pub(crate) fn leave(&self, place: usize) {
        let ended = self.clients.borrow_mut().try_remove(place);
        debug_assert!(ended.is_some(), "a connection that ends twice");
    }

    /// Number of client connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Ends all client connections: their requests end as if their clients had left.
    pub(crate) fn cut_connections(&self) {
        self.clients.borrow().iter().for_each(|(_, client)| client.shut_down());
    }

    pub(crate) fn trusted(&self) -> Rc<TrustedNets> {
        Rc::clone(&self.trusted.borrow())
    }

    pub(crate) fn cors(&self) -> Rc<Cors> {
        Rc::clone(&self.cors.borrow())
    }

    /// Cache and clock for validating client tokens.
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

/// Parts for stages that send to workers.
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

    /// Random number for the id of a request without a client id.
    pub(crate) fn fresh_id(&self) -> u64 {
        self.routing.stages.borrow_mut().random.u64(..)
    }

    /// Handles a worker that failed a request: drops its idle connections on all shards.
    pub(crate) fn worker_failed(&self, worker: WorkerIndex) {
        self.forget_connections(worker);
        self.workers.suspect(worker);
        self.links.broadcast_failure(&self.env, worker);
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
