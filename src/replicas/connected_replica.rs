//! A replica with its view of the load board, without sockets, clocks and threads: messages in,
//! messages out.

use super::local::LocalView;
use super::replica::{Outgoing, Replica};
use super::tenants::is_use;
use forebay_base::NanosSinceStart;
use forebay_board::LoadBoard;
use forebay_fleet::worker::FleetSnapshot;
use std::sync::Arc;

/// A router among its replicas.
#[derive(Debug)]
pub struct ConnectedReplica {
    pub(crate) replica: Replica,
    pub(crate) local: LocalView,
}

/// Result of a turn.
#[derive(Debug)]
pub struct ReplicaTurn {
    /// Load message of this router, if the load has changed or is due.
    pub load: Option<Outgoing>,
    /// Names of the replicas that are silent.
    pub silent: Vec<String>,
}

impl ConnectedReplica {
    /// A replica without peers and without a fleet. `board`: the load board of the router's shards.
    #[must_use]
    pub fn new(replica: Replica, board: Arc<LoadBoard>) -> Self {
        Self { replica, local: LocalView::new(board) }
    }

    /// Sets a new fleet, which extends the previous list of ranks.
    pub fn set_fleet(&mut self, fleet: &Arc<FleetSnapshot>, now: NanosSinceStart) {
        self.local.set_fleet(fleet, &mut self.replica, now);
    }

    /// The first message after a connection.
    pub fn connected(&mut self, now: NanosSinceStart) -> Option<Outgoing> {
        self.replica.connected(now)
    }

    /// When the next turn is due.
    #[must_use]
    pub const fn turn_at(&self) -> NanosSinceStart {
        self.replica.turn_at()
    }

    /// Reads a message of another replica. False for a malformed message about tenants' usage;
    /// other malformed messages are counted.
    pub fn read(&mut self, subject: &str, bytes: &[u8], now: NanosSinceStart) -> bool {
        if is_use(subject) {
            return self.local.hear_use(bytes, now);
        }
        if self.replica.hear(subject, bytes, now) {
            self.local.write_windows(&self.replica, now);
        }
        true
    }

    /// Windows that have opened or closed here since the last call.
    pub fn windows(&mut self, now: NanosSinceStart) -> Option<Outgoing> {
        self.replica.windows(&self.local.open_windows(now), now)
    }

    /// Writes the load of the other replicas to the load board. Returns a message with this
    /// router's changes.
    pub fn turn(&mut self, now: NanosSinceStart) -> ReplicaTurn {
        let ranks = self.local.ranks();
        let open = self.local.open_windows(now);
        let (silent, load) = self.replica.turn(&ranks, &open, now);
        self.local.write_elsewhere(&self.replica, &ranks);
        if !silent.is_empty() {
            self.local.write_windows(&self.replica, now);
        }
        ReplicaTurn { load, silent }
    }
}
