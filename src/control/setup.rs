//! What the control plane is given at start.

use super::lifecycle::HandoverSetup;
use super::tls::{ServerTls, TlsSetup};
use forebay_admin::{Access, AdminSocket, ClientCallers};
use forebay_base::{Clock, RouterId};
use forebay_config::{Config, Reloader};
use forebay_fleet::mailbox::ControlEnd;
use forebay_fleet::worker::LoadBoard;
use forebay_index::{IndexReader, KeySeed};
use forebay_keys::KeyRing;
use forebay_snapshot::SnapshotFile;
use std::sync::Arc;
use tokio::sync::watch;

/// Everything that the control plane is given at start.
#[derive(Debug)]
pub struct ControlSetup {
    /// What was configured.
    pub config: Arc<Config>,
    /// The process clock.
    pub clock: Clock,
    /// What the router calls itself towards workers.
    pub router_id: RouterId,
    /// The secret of the block keys; the shards use the same.
    pub seed: KeySeed,
    /// The last snapshot. The seed is from it.
    pub snapshot: Option<SnapshotFile>,
    /// Its side of the rings.
    pub end: ControlEnd,
    /// What is in flight where.
    pub board: Arc<LoadBoard>,
    /// For the gauges.
    pub index: IndexReader,
    /// From the process before, and for the next process.
    pub handover: HandoverSetup,
    /// The admin API's socket.
    pub admin: AdminSocket,
    /// TLS to clients and workers.
    pub tls: TlsSetup,
    /// Certificates for callers of the admin API; `None` without TLS.
    pub admin_tls: Option<ServerTls>,
    /// Callers of the admin API by the port of clients, if that port is open to them.
    pub callers: Option<ClientCallers>,
    /// Access rules of the admin API.
    pub access: Access,
    /// Turns true to drain; the next true cuts.
    pub stopped: watch::Receiver<bool>,
    /// The keys that clients may use; `None`: no key is asked for.
    pub api_keys: Option<KeyRing>,
    /// Also drain on SIGTERM and SIGINT; the second signal cuts.
    pub signals: bool,
    /// Reads the configuration again, for SIGHUP and `POST /admin/reload`; `None` where it came
    /// from no file or flags.
    pub reloader: Option<Reloader>,
    /// How long feeds wait for what.
    pub feed_timers: forebay_kv_events::FeedTimers,
}
