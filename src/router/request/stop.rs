//! How a request ends that no worker answers, and what its client is told: one function per cause.

use crate::dispatch::RelayError;
use forebay_base::RankIndex;
use forebay_disagg::Obstacle;
use forebay_fleet::account::FailedTrial;
use forebay_fleet::mailbox::EngineAnswer;
use forebay_fleet::worker::{Dialect, FleetSnapshot};
use forebay_prompt::parse::{Reason, Refusal};

/// Why a request ended without an answer from a worker.
#[derive(Debug)]
pub enum Stop {
    /// Refused on its head alone; the body is still on its way.
    BeforeBody(Refusal),
    /// Refused in the middle of its body; where the next request starts is unknown.
    InBody(Refusal),
    /// Refused after it was read completely.
    Refused(Refusal),
    /// An engine refused the request itself, and that is the answer.
    Engine(Box<EngineAnswer>),
    /// Nobody is left to answer.
    ClientGone,
    /// Broken off after the client had seen the head of an answer.
    Cut(RelayError),
}

/// What a worker has answered to an attempt that failed.
#[derive(Debug, Default)]
pub struct WorkerReply {
    /// An answer that the client may get: that of an engine which refused the request itself, or
    /// of a worker where no other is left.
    pub answer: Option<Box<EngineAnswer>>,
    /// The trial of a rank that failed: another rank shows whether the request is to blame.
    pub trial: Option<Box<FailedTrial>>,
    /// When an engine without room has asked to be asked again, in seconds.
    pub retry_after_s: Option<u64>,
}

impl WorkerReply {
    const NONE: Self = Self { answer: None, trial: None, retry_after_s: None };
}

/// An attempt that ended without an answer.
#[derive(Debug)]
pub struct Failed {
    /// Whose fault it is, as far as it is a worker's.
    pub rank: RankIndex,
    /// The other one of the pair, where the two failed together: the next attempt does without
    /// both, if it can.
    pub with: Option<RankIndex>,
    /// How the attempt failed.
    pub error: RelayError,
    /// For people, where the error alone says too little.
    pub why: Option<String>,
    /// What the worker has answered.
    pub reply: WorkerReply,
    /// Its client has the beginning of a stream, and another rank can go on with that.
    pub has_rest: bool,
    /// The engines that can, where not all can.
    pub only: Option<Dialect>,
}

impl Failed {
    /// The failure of one rank, about which no more is known.
    #[must_use]
    pub const fn of(rank: RankIndex, error: RelayError) -> Self {
        Self {
            rank,
            with: None,
            error,
            why: None,
            reply: WorkerReply::NONE,
            has_rest: false,
            only: None,
        }
    }
}

/// `limits.in_flight_max` or `limits.buffered_bytes_max` of a shard is reached, or
/// `limits.router_in_flight_max`.
#[must_use]
pub const fn in_flight_full() -> Refusal {
    Refusal::new(Reason::RejectedInFlight)
}

/// Engines had no room for the request, again and again.
#[must_use]
fn engines_busy() -> Refusal {
    let message = "The engines that serve this model have no room at the moment. Try again later.";
    Refusal::new(Reason::RejectedBusy).with_message(message)
}

/// Its time in the queue is over.
#[must_use]
pub(super) fn waited_too_long(client_gave_up: bool) -> Refusal {
    if client_gave_up {
        Refusal::new(Reason::RequestDeadline)
    } else {
        Refusal::new(Reason::RejectedQueueWait)
    }
}

/// Nothing is left to send to.
#[must_use]
pub fn no_worker(why: &str) -> Refusal {
    let message = format!("No worker can take this request: {why}. Try again later.");
    Refusal::new(Reason::NoHealthyWorker).with_message(message)
}

/// Every worker of its model needs it to be split, and it cannot be.
#[must_use]
pub(super) fn cannot_split(obstacle: Option<Obstacle>) -> Refusal {
    let why = obstacle
        .map_or_else(|| "its body is missing, or not understood".into(), |why| why.to_string());
    Refusal::new(Reason::BadRequest).with_message(format!(
        "The workers of this model compute prompts and answers on different machines, and this \
         request cannot be split: {why}."
    ))
}

/// The body exceeds `limits.body_bytes_max`.
#[must_use]
pub fn body_too_large(bytes_max: usize) -> Refusal {
    let message = format!(
        "The body is longer than the {bytes_max} bytes that this router accepts \
         (`limits.body_bytes_max`). Send a shorter one."
    );
    Refusal::new(Reason::BodyTooLarge).with_message(message)
}

/// How the request ends after its last attempt failed.
#[must_use]
pub(super) fn stop(fleet: &FleetSnapshot, failed: Failed) -> Stop {
    if let Some(answer) = failed.reply.answer {
        return Stop::Engine(answer);
    }
    let name = fleet.rank(failed.rank).map_or("?", |(_, worker)| &worker.name);
    let reason = match failed.error {
        RelayError::ClientGone | RelayError::ClientStalled => return Stop::ClientGone,
        error if !error.before_head() => return Stop::Cut(error),
        RelayError::FirstByteTimedOut | RelayError::ConnectTimedOut => Reason::UpstreamTimeout,
        // A router before this one hears it too, and asks another of its workers.
        RelayError::Looped => Reason::RequestLoop,
        RelayError::EngineBusy => return Stop::Refused(engines_busy()),
        RelayError::OutOfSockets => return Stop::Refused(Refusal::new(Reason::OutOfSockets)),
        _ => Reason::UpstreamFailed,
    };
    let why = failed.why.as_deref().unwrap_or_else(|| failed.error.describe());
    let message = match failed.error {
        RelayError::Looped => format!("The worker {name}: {why}. Remove that worker."),
        RelayError::NoKvTransfer => format!("{why} It was the worker {name}."),
        _ => format!("The worker {name} failed: {why}. Try again."),
    };
    Stop::Refused(Refusal::new(reason).with_message(message))
}

/// How the request ends that found no other worker after one had failed it. When none is left, the
/// client hears what the last one did; when one is left that has no room, or that has not been
/// reached in time, it hears that.
#[must_use]
pub(super) fn after(failed: Option<Stop>, stop: Stop) -> Stop {
    let none_left = |stop: &Stop| match stop {
        Stop::Refused(refusal) => refusal.reason() == Reason::NoHealthyWorker,
        _ => false,
    };
    failed.filter(|_| none_left(&stop)).unwrap_or(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: Reason) -> Stop {
        Stop::Refused(Refusal::new(reason))
    }

    fn reason(stop: &Stop) -> Reason {
        match stop {
            Stop::Refused(refusal) => refusal.reason(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failure_is_told_where_no_other_worker_is_left() {
        let failed = || Some(refused(Reason::UpstreamFailed));
        for told in [
            Reason::RejectedQueueFull,
            Reason::RejectedQueueWait,
            Reason::RejectedBusy,
            Reason::RequestDeadline,
            Reason::Draining,
        ] {
            assert_eq!(reason(&after(failed(), refused(told))), told);
        }
        let none = || refused(Reason::NoHealthyWorker);
        assert_eq!(reason(&after(failed(), none())), Reason::UpstreamFailed);
        assert_eq!(reason(&after(None, none())), Reason::NoHealthyWorker);
    }
}
