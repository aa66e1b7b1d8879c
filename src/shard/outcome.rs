//! From a failed exchange to what the client is told.

use super::request::Stop;
use crate::base::RankIndex;
use crate::parse::Refusal;
use crate::relay::RelayError;
use crate::worker::FleetSnapshot;

/// How the request ends after its last attempt failed.
pub(super) fn stop(fleet: &FleetSnapshot, rank: RankIndex, error: RelayError) -> Stop {
    let name = fleet.rank(rank).map_or("?", |(_, worker)| &worker.name);
    match error {
        RelayError::ClientGone | RelayError::ClientStalled => Stop::ClientGone,
        RelayError::FirstByteTimedOut | RelayError::ConnectTimedOut => {
            Stop::Refused(Refusal::upstream_timeout(name, error.describe()))
        }
        error if error.before_head() => {
            Stop::Refused(Refusal::upstream_failed(name, error.describe()))
        }
        error => Stop::Cut(error),
    }
}
