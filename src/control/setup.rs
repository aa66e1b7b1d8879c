//! Setup of the control plane.

use super::lifecycle::HandoverSetup;
use super::tls::{ServerTls, TlsSetup};
use forebay_admin::{Access, AdminSocket, ClientCallers};
use forebay_base::{Clock, RouterId};
use forebay_board::LoadBoard;
use forebay_config::{Config, Reloader};
use forebay_index::{IndexReader, KeySeed};
use forebay_keys::KeyRing;
use forebay_mailbox::ControlEnd;
use forebay_snapshot::SnapshotFile;
use std::sync::Arc;
use tokio::sync::watch;

/// Parts of the process that the control plane starts with.
#[derive(Debug)]
pub struct ControlSetup {
    pub config: Arc<Config>,
    pub clock: Clock,
    /// Identity of the router towards workers.
    pub router_id: RouterId,
    /// The secret of the block keys; the shards use the same.
    pub seed: KeySeed,
    /// The last snapshot, which also contains the seed.
    pub snapshot: Option<SnapshotFile>,
    /// The control plane's side of the rings.
    pub end: ControlEnd,
    /// Load of all ranks.
    pub board: Arc<LoadBoard>,
    /// The radix index, for gauges.
    pub index: IndexReader,
    /// Handover from the process before, and to the next process.
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
    /// Keys of clients; without keys, clients need no key.
    pub api_keys: Option<KeyRing>,
    /// Also drain on SIGTERM and SIGINT; the second signal cuts.
    pub signals: bool,
    /// Reads the configuration again, for SIGHUP and `POST /admin/reload`; `None` where it came
    /// from no file or flags.
    pub reloader: Option<Reloader>,
    pub feed_timers: forebay_kv_events::FeedTimers,
    /// Lines that the log has dropped since the start.
    pub log_dropped: fn() -> u64,
}
