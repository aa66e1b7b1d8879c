//! The control plane: everything that is not the request path. One thread, one `tokio` runtime on
//! it.
//!
//! Owns the fleet and its snapshots ([`fleet`]), the KV-event feeds ([`feeds`], `kv_events`), what
//! of them outlives a restart ([`snapshots`]), and the admin API with its metrics ([`admin`],
//! [`scrape`], [`explain`], [`windows`]). `forebay_discovery` tells what workers are,
//! `forebay_replicas` what other routers do. Reaches the shards through [`ports`] and nothing else:
//! rings, a newest-wins cell, bells, counters. Limits: one task per worker and per rank, 256
//! notices under way, every answer of a worker bounded in time and bytes. Must never make a shard
//! wait, and never count on a worker's good will.

mod access;
mod admin;
mod admin_flow;
mod admin_port;
mod catalogue;
mod explain;
mod explaining;
#[cfg(test)]
mod explain_tests;
mod feeds;
mod fleet;
#[cfg(test)]
mod fleet_tests;
mod metrics_text;
mod ports;
mod reload;
mod roles;
mod run;
mod scrape;
mod scrape_flow;
mod scrape_load;
mod scrape_replicas;
mod snapshots;
mod stop;
mod systemd;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
mod text_log;
mod tier_numbers;
mod watchdog;
mod windows;
mod workers;

use forebay_base::Clock;
use forebay_config::{Config, Reloader};
use forebay_fleet::mailbox::ControlEnd;
use forebay_fleet::worker::LoadBoard;
use forebay_index::{IndexReader, KeySeed};
use forebay_snapshot::SnapshotFile;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;

pub use admin::{AdminRoute, admin_routes};
pub use catalogue::all_metrics;
pub use run::run;
pub use snapshots::refuse_snapshot;

/// Everything that the control plane is given at start.
#[derive(Debug)]
pub struct ControlSetup {
    /// What was configured.
    pub config: Arc<Config>,
    /// The process clock.
    pub clock: Clock,
    /// The secret of the block keys; the shards use the same.
    pub seed: KeySeed,
    /// The last snapshot, whose seed it is.
    pub snapshot: Option<SnapshotFile>,
    /// Its side of the rings.
    pub end: ControlEnd,
    /// What is in flight where.
    pub board: Arc<LoadBoard>,
    /// For the gauges.
    pub index: IndexReader,
    /// The admin API's socket, non-blocking.
    pub admin: TcpListener,
    /// What calls that change something have to show; `None`: nothing.
    pub admin_token: Option<String>,
    /// Turns true to drain; the next true cuts.
    pub stopped: watch::Receiver<bool>,
    /// Also drain on SIGTERM and SIGINT; the second signal cuts.
    pub signals: bool,
    /// Reads the configuration again, for SIGHUP and `POST /admin/reload`; `None` where it came
    /// from no file or flags.
    pub reloader: Option<Reloader>,
    /// How long feeds wait for what.
    pub feed_timers: forebay_kv_events::FeedTimers,
}

/// Why the control plane cannot run.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No runtime, signal or socket.
    #[error("{0}; check the limit of open files (ulimit -n)")]
    Io(#[from] std::io::Error),
    /// Shards have ended without being told to.
    #[error("{ended} of {shards} shards ended by a fault (this is a bug)")]
    ShardEnded {
        /// How many.
        ended: usize,
        /// Of how many.
        shards: usize,
    },
    /// A shard has made no progress for `timeouts.stall_abort`.
    #[error(
        "shard {shard} made no progress for {patience:?} (key `timeouts.stall_abort`; this is a bug)"
    )]
    ShardStalled {
        /// Which.
        shard: usize,
        /// For how long.
        patience: Duration,
    },
    /// Shards had not ended some seconds after the deadline of a drain.
    #[error("shards did not end in time after the drain: left without them")]
    ShardsLate,
    /// A panic, which is in the log.
    #[error("the control plane panicked (this is a bug)")]
    Panicked,
    /// No HTTP client.
    #[error("no HTTP client for health checks: {0}")]
    Client(reqwest::Error),
}
