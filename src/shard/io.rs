//! Buffers, connections to workers, and the thread beside the shard.

use super::env::Env;
use crate::relay::{CachedTokens, Upstream, UpstreamPool};
use crate::runtime::Offload;
use forebay_base::NanosSinceStart;
use forebay_base::limits::{INLINE_BODY_BYTES_MAX, LACK_LOG_PERIOD};
use forebay_fleet::account::Count;
use forebay_net::BufferPool;
use forebay_router::dispatch::RelayError;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// What requests are sent and computed with.
pub(super) struct Io {
    pub(super) buffers: Rc<BufferPool>,
    /// Idle connections to workers.
    pub(super) upstreams: RefCell<UpstreamPool>,
    /// The thread for long computations.
    pub(super) offload: Offload,
    pub(super) cached_tokens: CachedTokens,
    /// Engines that are being told to abort a request.
    pub(super) aborting: Cell<usize>,
    /// From then on, a lack of sockets is worth another line of the log.
    pub(super) say_lack_at: Cell<NanosSinceStart>,
}

impl Io {
    pub(super) fn new(offload: Offload, upstream_idle: Duration) -> Self {
        Self {
            buffers: forebay_net::buffers(),
            upstreams: RefCell::new(UpstreamPool::new(upstream_idle)),
            offload,
            cached_tokens: CachedTokens::new(),
            aborting: Cell::new(0),
            say_lack_at: Cell::default(),
        }
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

    /// Keeps a connection for the next request to that address.
    pub(super) fn keep(&self, env: &Env, address: SocketAddr, upstream: Upstream) {
        self.upstreams.borrow_mut().put(address, upstream, env.now());
    }

    /// Counts and logs a failed connection, if the router had no socket for it.
    pub(super) fn note_lack_of_sockets(&self, env: &Env, error: RelayError) {
        if error == RelayError::OutOfSockets {
            self.out_of_sockets(env, "a worker could not be connected to");
        }
    }

    /// The same, in words of what could not be done. The log gets a line from time to time.
    pub(super) fn out_of_sockets(&self, env: &Env, what: &'static str) {
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
