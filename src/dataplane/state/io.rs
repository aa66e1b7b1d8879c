//! Buffers, connections to workers, and the offload thread.

use super::env::Env;
use crate::relay::{Upstream, UpstreamPool};
use crate::runtime::Offload;
use ahash::AHashMap;
use forebay_base::limits::{
    FREED_HERE_BYTES_MAX, INLINE_BODY_BYTES_MAX, LACK_LOG_PERIOD, READ_BYTES,
};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::account::Count;
use forebay_json::UsageFinder;
use forebay_link::Turnstile;
use forebay_net::BufferPool;
use forebay_router::dispatch::RelayError;
use forebay_tls::{Connector, Session};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Buffers, connections and the offload thread of a shard.
pub(crate) struct Io {
    pub(crate) buffers: Rc<BufferPool>,
    /// Idle connections to workers.
    pub(crate) upstreams: RefCell<UpstreamPool>,
    pub(crate) handshakes: Handshakes,
    /// The thread for long computations.
    pub(crate) offload: Offload,
    /// Finds the tokens that engines report.
    pub(crate) usage: UsageFinder,
    /// Abort calls in flight.
    pub(crate) aborting: Cell<usize>,
    /// Earliest time of the next log line about a lack of sockets.
    pub(crate) next_lack_log_at: Cell<NanosSinceStart>,
}

/// Handshake state shared by all connections of the shard.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// TLS connectors by worker, with the resumable sessions of this shard.
    connectors: RefCell<AHashMap<WorkerIndex, Connector>>,
    /// Client handshakes: at most 1 per turn.
    pub(crate) clients: Turnstile,
    /// Worker handshakes have their own turnstile: a flood of clients does not delay them.
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
            next_lack_log_at: Cell::default(),
        }
    }

    /// TLS session with a worker, resumed where possible.
    pub(crate) fn session(
        &self,
        worker: WorkerIndex,
        connector: &Connector,
    ) -> Result<Session, RelayError> {
        let mut connectors = self.handshakes.connectors.borrow_mut();
        let own = connectors.entry(worker).or_insert_with(|| connector.of_thread());
        if !own.is_of(connector) {
            // A reload has changed the certificate files or the name.
            *own = connector.of_thread();
        }
        own.session().map_err(|_| RelayError::ConnectFailed)
    }

    /// Returns a buffer to the pool. The offload thread frees a large buffer.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() > FREED_HERE_BYTES_MAX {
            self.offload.free(buffer.capacity(), buffer);
        } else {
            self.buffers.give(buffer);
        }
    }

    /// Recycles a large buffer and keeps a small buffer in place.
    pub(crate) fn recycle_large(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() > INLINE_BODY_BYTES_MAX {
            self.recycle(std::mem::take(buffer));
        }
    }

    /// Frees the beginning of a refused body. Where `limits.buffered_bytes_max` refuses many bodies
    /// at once, their memory would otherwise add to the memory of admitted bodies.
    pub(crate) fn free_refused(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() > FREED_HERE_BYTES_MAX {
            self.recycle(std::mem::take(buffer));
        } else if buffer.capacity() > READ_BYTES {
            forebay_heap::free_now(std::mem::take(buffer));
        }
    }

    /// Keeps a connection for the next request to the same worker.
    pub(crate) fn keep(&self, env: &Env, upstream: Box<Upstream>) {
        self.upstreams.borrow_mut().put(upstream, env.turn_began_at());
    }

    /// Counts and logs a failed connection, if the router had no socket for it.
    pub(crate) fn note_lack_of_sockets(&self, env: &Env, error: RelayError) {
        if error == RelayError::OutOfSockets {
            self.out_of_sockets(env, "a worker could not be connected to");
        }
    }

    /// Counts a lack of sockets, and logs it at most once per [`LACK_LOG_PERIOD`].
    pub(crate) fn out_of_sockets(&self, env: &Env, what: &'static str) {
        env.count(Count::OutOfSockets);
        let now = env.now();
        if now >= self.next_lack_log_at.get() {
            self.next_lack_log_at.set(now.plus(LACK_LOG_PERIOD));
            tracing::error!(
                shard = env.number.0,
                "out of file descriptors, ports or memory: {what}. Raise the limit of open files (LimitNOFILE=), or lower \
                 `limits.connections_max`; forebay_out_of_sockets_total counts on"
            );
        }
    }
}
