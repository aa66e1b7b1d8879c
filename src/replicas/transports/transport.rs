//! Transports between replicas. A transport never waits: without room it drops a message, and the
//! full load of the next second compensates.

use super::mesh::Mesh;
use super::nats::Nats;
use crate::wire::ReplicaId;
use forebay_config::Config;
use std::io;

/// The transport to the other replicas.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Through a NATS server.
    Nats(Nats),
    /// From router to router.
    Peers(Mesh),
}

impl Transport {
    /// The configured transport; `None` without replicas.
    ///
    /// # Errors
    /// As for [`Mesh::new`].
    pub(crate) fn new(own: ReplicaId, config: &Config) -> io::Result<Option<Self>> {
        let mesh = Mesh::new(own, config)?.map(Self::Peers);
        Ok(mesh.or_else(|| Nats::new(config).map(Self::Nats)))
    }

    /// Sends at once, or drops the message. `word`: the kind of the message.
    pub(crate) fn send(&self, word: &str, bytes: Vec<u8>) -> bool {
        match self {
            Self::Nats(nats) => nats.send(word, bytes),
            Self::Peers(mesh) => mesh.send(word, &bytes),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Nats(nats) => nats.is_connected(),
            Self::Peers(mesh) => mesh.is_connected(),
        }
    }

    /// The direct connections, if this transport uses them.
    pub(crate) const fn mesh(&self) -> Option<&Mesh> {
        match self {
            Self::Nats(_) => None,
            Self::Peers(mesh) => Some(mesh),
        }
    }

    /// Waits briefly until sent messages have left.
    pub(crate) async fn flush(&self) {
        match self {
            Self::Nats(nats) => nats.flush().await,
            Self::Peers(mesh) => mesh.flush().await,
        }
    }
}
