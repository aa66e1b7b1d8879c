//! Idle connections to workers, per address. Engines close idle connections after 5 s (uvicorn's
//! default), so the router drops them before, and checks each connection before use: the
//! outstanding read has seen a close.

use super::Upstream;
use super::key::UpstreamKey;
use ahash::AHashMap;
use forebay_base::NanosSinceStart;
use forebay_base::limits::UPSTREAM_IDLE_MAX;
use std::time::Duration;

/// The idle connections of a shard.
#[derive(Debug)]
pub struct UpstreamPool {
    #[expect(clippy::vec_box, reason = "a connection is not moved into and out of the pool")]
    idle: AHashMap<UpstreamKey, Vec<Box<Upstream>>>,
    idle_max: Duration,
}

impl UpstreamPool {
    /// `idle_max`: how long a connection may wait for its next request.
    #[must_use]
    pub fn new(idle_max: Duration) -> Self {
        Self { idle: AHashMap::new(), idle_max }
    }

    /// How long connections may wait from now on, with the connections that wait already.
    pub const fn set_idle_max(&mut self, idle_max: Duration) {
        self.idle_max = idle_max;
    }

    /// The connection that was used last and is still good. `is_for_long`: only connections for
    /// long requests.
    pub fn take(
        &mut self,
        key: UpstreamKey,
        now: NanosSinceStart,
        is_for_long: bool,
    ) -> Option<Box<Upstream>> {
        let idle = self.idle.get_mut(&key)?;
        while let Some(last) =
            idle.iter().rposition(|upstream| upstream.is_for_long || !is_for_long)
        {
            let mut upstream = idle.remove(last);
            if now < upstream.idle_since.plus(self.idle_max) && upstream.reader.is_quiet() {
                return Some(upstream);
            }
        }
        None
    }

    /// Stores a connection behind a complete answer.
    pub fn put(&mut self, mut upstream: Box<Upstream>, now: NanosSinceStart) {
        let idle = self.idle.entry(upstream.key).or_default();
        // Starts the read that sees the worker close and that receives the next answer. Now no
        // request waits for the read; before the next request, that request would wait.
        let is_sent = upstream.writer.is_flushed();
        let good = is_sent && upstream.input.is_empty() && upstream.reader.is_quiet();
        if good && idle.len() < UPSTREAM_IDLE_MAX {
            upstream.idle_since = now;
            upstream.input = Vec::new();
            idle.push(upstream);
        }
    }

    /// Closes connections that waited too long. Called once per second.
    pub fn sweep(&mut self, now: NanosSinceStart) {
        let idle_max = self.idle_max;
        for idle in self.idle.values_mut() {
            idle.retain(|upstream| now < upstream.idle_since.plus(idle_max));
        }
        self.idle.retain(|_, idle| !idle.is_empty());
    }

    /// Closes all idle connections of a key: its worker failed.
    pub fn purge(&mut self, key: UpstreamKey) {
        self.idle.remove(&key);
    }
}
