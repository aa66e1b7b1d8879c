//! How messages travel between replicas. A transport never waits: a message that it has no room for
//! is dropped, and the full load of the next second makes up for it.

use super::nats::Nats;
use bytes::Bytes;
use std::time::Duration;

/// Longest wait for the last message of a router that ends.
pub(crate) const LEAVE_TIME_MAX: Duration = Duration::from_millis(300);

/// A message of another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Version and kind of the message, perhaps behind a prefix: `forebay.v1.load`.
    pub(crate) subject: String,
    /// JSON, or anything else.
    pub(crate) payload: Bytes,
}

/// A change of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Other replicas can be asked from now on, for the first time or again.
    Connected,
    /// No other replica can be reached.
    Unreachable,
}

/// The way to the other replicas.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Through a NATS server.
    Nats(Nats),
}

impl Transport {
    /// Sends at once, or not at all. `word`: the kind of the message.
    pub(crate) fn send(&self, word: &str, bytes: Vec<u8>) -> bool {
        match self {
            Self::Nats(nats) => nats.send(word, bytes),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Nats(nats) => nats.is_connected(),
        }
    }

    /// Waits until sent messages have left, for [`LEAVE_TIME_MAX`] at most.
    pub(crate) async fn flush(&self) {
        match self {
            Self::Nats(nats) => nats.flush().await,
        }
    }
}
