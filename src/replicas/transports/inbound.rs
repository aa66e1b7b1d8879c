//! Events of a transport: messages of other replicas, and changes of connections.

use bytes::Bytes;
use std::time::Duration;

/// Longest wait for the last message of a router that stops.
pub(crate) const LEAVE_TIME_MAX: Duration = Duration::from_millis(300);

/// A message of another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundMessage {
    /// Version and kind of the message, after an optional prefix: `forebay.v1.load`.
    pub subject: String,
    /// JSON of a message, or invalid bytes.
    pub payload: Bytes,
}

/// A change of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Other replicas are reachable, for the first time or again.
    Connected,
    /// No other replica is reachable.
    Unreachable,
}
