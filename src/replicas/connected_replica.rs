//! A replica with its view of the load board, without sockets, clocks and threads: messages come
//! in, messages go out.

use super::local::LocalView;
use super::replica::{Outgoing, Replica};
use super::wire::ReplicaId;
use forebay_base::NanosSinceStart;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard};
use std::sync::Arc;

/// A router among its replicas, in front of a fleet that does not change.
#[derive(Debug)]
pub struct ConnectedReplica {
    replica: Replica,
    local: LocalView,
}

impl ConnectedReplica {
    /// Alone. `board`: the load board of the router's shards.
    #[must_use]
    pub fn new(
        id: ReplicaId,
        board: Arc<LoadBoard>,
        fleet: &Arc<FleetSnapshot>,
        now: NanosSinceStart,
    ) -> Self {
        let mut replica = Replica::new(id, format!("router-{id}"), now);
        let mut local = LocalView::new(board);
        local.set_fleet(fleet, &mut replica, now);
        Self { replica, local }
    }

    /// The first message, of a router that is connected now.
    pub fn connected(&mut self, now: NanosSinceStart) -> Option<Outgoing> {
        self.replica.connected(now)
    }

    /// When the next turn is due.
    #[must_use]
    pub const fn turn_at(&self) -> NanosSinceStart {
        self.replica.turn_at()
    }

    /// Reads a message of another replica.
    pub fn hear(&mut self, subject: &str, bytes: &[u8], now: NanosSinceStart) {
        if self.replica.hear(subject, bytes, now) {
            self.local.write_windows(&self.replica, now);
        }
    }

    /// A turn: writes what the other replicas have to the load board. The messages that say what
    /// has changed here.
    pub fn turn(&mut self, now: NanosSinceStart) -> impl Iterator<Item = Outgoing> {
        let (ranks, open) = (self.local.ranks(), self.local.open_windows(now));
        let edge = self.replica.windows(&open, now);
        let (gone, load) = self.replica.turn(&ranks, &open, now);
        self.local.write_elsewhere(&self.replica, &ranks);
        if !gone.is_empty() {
            self.local.write_windows(&self.replica, now);
        }
        [edge, load].into_iter().flatten()
    }
}
