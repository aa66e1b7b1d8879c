//! Buffers, connections to workers, and the thread beside the shard.

use super::env::Env;
use crate::relay::{Upstream, UpstreamPool};
use crate::runtime::Offload;
use ahash::AHashMap;
use forebay_base::limits::{
    FREED_HERE_BYTES_MAX, INLINE_BODY_BYTES_MAX, LACK_LOG_PERIOD, READ_BYTES,
};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::account::Count;
use forebay_json::UsageFinder;
use forebay_link::Turnstile;
use forebay_net::BufferPool;
use forebay_router::dispatch::RelayError;
use forebay_tls::{Connector, Session};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What requests are sent and computed with.
pub(crate) struct Io {
    pub(crate) buffers: Rc<BufferPool>,
    /// Idle connections to workers.
    pub(crate) upstreams: RefCell<UpstreamPool>,
    pub(crate) handshakes: Handshakes,
    /// The thread for long computations.
    pub(crate) offload: Offload,
    /// Finds the tokens that engines report.
    pub(crate) usage: UsageFinder,
    /// Engines that are being told to abort a request.
    pub(crate) aborting: Cell<usize>,
    /// From then on, a lack of sockets is worth another line of the log.
    pub(crate) say_lack_at: Cell<NanosSinceStart>,
}

/// What all handshakes of the shard share.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// How sessions with workers begin, each with what this shard remembers of earlier ones.
    connectors: RefCell<AHashMap<WorkerIndex, Connector>>,
    /// Those of clients pass here, one in a turn.
    pub(crate) clients: Turnstile,
    /// Those with workers pass here: a flood of clients does not hold them up.
    pub(crate) workers: Turnstile,
}

impl Io {
    pub(crate) fn new(offload: Offload, upstream_idle: Duration) -> Self {
        Self {
            buffers: forebay_net::buffers(),
            upstreams: RefCell::new(UpstreamPool::new(upstream_idle)),
            handshakes: Handshakes::default(),
            offload,
            usage: UsageFinder::default(),
            aborting: Cell::new(0),
            say_lack_at: Cell::default(),
        }
    }

    /// A session with a worker, which may know this shard from an earlier one.
    pub(crate) fn session(
        &self,
        worker: WorkerIndex,
        connector: &Connector,
    ) -> Result<Session, RelayError> {
        let mut connectors = self.handshakes.connectors.borrow_mut();
        let own = connectors.entry(worker).or_insert_with(|| connector.of_thread());
        if !own.is_of(connector) {
            // A reload has found other files, or another name.
            *own = connector.of_thread();
        }
        own.session().map_err(|_| RelayError::ConnectFailed)
    }

    /// Takes a buffer back. A large one is freed elsewhere.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() > FREED_HERE_BYTES_MAX {
            self.offload.free(buffer.capacity(), buffer);
        } else {
            self.buffers.give(buffer);
        }
    }

    /// The same if it is large; a small one stays.
    pub(crate) fn recycle_large(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() > INLINE_BODY_BYTES_MAX {
            self.recycle(std::mem::take(buffer));
        }
    }

    /// Frees the beginning of a body that is not read to its end. Where `limits.buffered_bytes_max`
    /// refuses many at once, their memory would stay beside that of the others.
    pub(crate) fn free_refused(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() > FREED_HERE_BYTES_MAX {
            self.recycle(std::mem::take(buffer));
        } else if buffer.capacity() > READ_BYTES {
            forebay_heap::free_now(std::mem::take(buffer));
        }
    }

    /// Keeps a connection for the next request to the same worker.
    pub(crate) fn keep(&self, env: &Env, upstream: Upstream) {
        self.upstreams.borrow_mut().put(upstream, env.now());
    }

    /// Counts and logs a failed connection, if the router had no socket for it.
    pub(crate) fn note_lack_of_sockets(&self, env: &Env, error: RelayError) {
        if error == RelayError::OutOfSockets {
            self.out_of_sockets(env, "a worker could not be connected to");
        }
    }

    /// The same, in words of what could not be done. The log gets a line from time to time.
    pub(crate) fn out_of_sockets(&self, env: &Env, what: &'static str) {
        env.count(Count::OutOfSockets);
        let now = env.now();
        if now >= self.say_lack_at.get() {
            self.say_lack_at.set(now.plus(LACK_LOG_PERIOD));
            tracing::error!(
                shard = env.number.0,
                "out of file descriptors, ports or memory: {what}. Raise the limit of open files (LimitNOFILE=), or lower \
                 `limits.connections_max`; forebay_out_of_sockets_total counts on"
            );
        }
    }
}
