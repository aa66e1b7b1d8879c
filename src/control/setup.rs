//! What the control plane is given at start.

use forebay_base::Clock;
use forebay_config::{Config, Reloader};
use forebay_fleet::mailbox::ControlEnd;
use forebay_fleet::worker::LoadBoard;
use forebay_index::{IndexReader, KeySeed};
use forebay_snapshot::SnapshotFile;
use std::net::TcpListener;
use std::sync::Arc;
use tokio::sync::watch;

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
