//! What a transport delivers: messages of other replicas, and changes of its connections.

use bytes::Bytes;
use std::time::Duration;

/// Longest wait for the last message of a router that ends.
pub(crate) const LEAVE_TIME_MAX: Duration = Duration::from_millis(300);

/// A message of another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Version and kind of the message, perhaps behind a prefix: `forebay.v1.load`.
    pub subject: String,
    /// JSON, or anything else.
    pub payload: Bytes,
}

/// A change of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Other replicas can be asked from now on, for the first time or again.
    Connected,
    /// No other replica can be reached.
    Unreachable,
}
