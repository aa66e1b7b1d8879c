//! What the client is told when the router itself has to answer: one function per cause.

use super::request::Stop;
use crate::base::RankIndex;
use crate::parse::{Reason, Refusal};
use crate::relay::RelayError;
use crate::worker::FleetSnapshot;
use std::time::Duration;

/// Told to clients of a full router until the drain rate is measured: short, because a place may free any moment.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// `limits.in_flight_max` or `limits.buffered_bytes_max` of this shard is reached.
pub(super) fn in_flight_full() -> Refusal {
    Refusal::new(Reason::RejectedInFlight).with_retry_after(RETRY_AFTER)
}

/// Every eligible rank has as many requests in flight as it may.
pub(super) fn no_room() -> Refusal {
    Refusal::new(Reason::RejectedBusy).with_retry_after(RETRY_AFTER)
}

/// Nothing is left to send to.
pub(super) fn no_worker(why: &str) -> Refusal {
    let message = format!("No worker can take this request: {why}. Try again later.");
    Refusal::new(Reason::NoHealthyWorker).with_message(message)
}

/// The body exceeds `limits.body_bytes_max`.
pub(super) fn body_too_large(bytes_max: usize) -> Refusal {
    let message = format!(
        "The body is longer than the {bytes_max} bytes that this router accepts \
         (`limits.body_bytes_max`). Send a shorter one."
    );
    Refusal::new(Reason::BodyTooLarge).with_message(message)
}

/// How the request ends after its last attempt failed.
pub(super) fn stop(fleet: &FleetSnapshot, rank: RankIndex, error: RelayError) -> Stop {
    let name = fleet.rank(rank).map_or("?", |(_, worker)| &worker.name);
    let reason = match error {
        RelayError::ClientGone | RelayError::ClientStalled => return Stop::ClientGone,
        error if !error.before_head() => return Stop::Cut(error),
        RelayError::FirstByteTimedOut | RelayError::ConnectTimedOut => Reason::UpstreamTimeout,
        _ => Reason::UpstreamFailed,
    };
    let message = format!("The worker {name} failed: {}. Try again.", error.describe());
    Stop::Refused(Refusal::new(reason).with_message(message))
}
