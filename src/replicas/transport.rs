//! How messages travel between replicas. A transport never waits: a message that it has no room for
//! is dropped, and the full load of the next second makes up for it.

use super::mesh::Mesh;
use super::nats::Nats;
use super::wire::ReplicaId;
use forebay_config::Config;
use std::io;

/// The way to the other replicas.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Through a NATS server.
    Nats(Nats),
    /// From router to router.
    Peers(Mesh),
}

impl Transport {
    /// The transport of the configuration; `None` for a router that is alone.
    ///
    /// # Errors
    /// As [`Mesh::new`].
    pub(crate) fn new(own: ReplicaId, config: &Config) -> io::Result<Option<Self>> {
        let mesh = Mesh::new(own, config)?.map(Self::Peers);
        Ok(mesh.or_else(|| Nats::new(&config.nats).map(Self::Nats)))
    }

    /// Sends at once, or not at all. `word`: the kind of the message.
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

    /// Direct connections, if these are the way.
    pub(crate) const fn mesh(&self) -> Option<&Mesh> {
        match self {
            Self::Nats(_) => None,
            Self::Peers(mesh) => Some(mesh),
        }
    }

    /// Waits until sent messages have left, but not for long.
    pub(crate) async fn flush(&self) {
        match self {
            Self::Nats(nats) => nats.flush().await,
            Self::Peers(mesh) => mesh.flush().await,
        }
    }
}
