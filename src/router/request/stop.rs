//! How a request ends without an answer from a worker: one function per cause builds the response
//! to the client.

use crate::dispatch::RelayError;
use forebay_base::RankIndex;
use forebay_board::account::FailedTrial;
use forebay_board::is_refusal;
use forebay_disagg::Obstacle;
use forebay_fleet::worker::{Dialect, FleetSnapshot};
use forebay_mailbox::EngineAnswer;
use forebay_prompt::parse::{Reason, Refusal};

/// Why a request ended without an answer from a worker.
#[derive(Debug)]
pub enum Stop {
    /// Refused on its head alone; the body is still on its way.
    BeforeBody(Refusal),
    /// Refused in the middle of its body; the start of the next request is unknown.
    InBody(Refusal),
    /// Refused after the request was read completely.
    Refused(Refusal),
    /// An engine refused the request itself; its answer goes to the client.
    Engine(Box<EngineAnswer>),
    /// The client has closed its connection.
    ClientGone,
    /// Broken off after the client had seen the head of an answer.
    Cut(RelayError),
    /// The drain of the router ended before the request did.
    Drained,
}

impl Stop {
    /// True if the client has left, or does not read.
    #[must_use]
    pub const fn is_by_client(&self) -> bool {
        matches!(
            self,
            Self::ClientGone | Self::Cut(RelayError::ClientGone | RelayError::ClientStalled)
        )
    }
}

/// The worker's answer to an attempt that failed.
#[derive(Debug, Default)]
pub struct WorkerReply {
    /// An answer that the client may get: from an engine that refused the request itself, or from
    /// the last worker that was left.
    pub answer: Option<Box<EngineAnswer>>,
    /// The failed trial of a rank: the result on another rank shows whether the request caused it.
    pub trial: Option<Box<FailedTrial>>,
    /// `Retry-After` of an engine without room, in seconds.
    pub retry_after_s: Option<u64>,
}

impl WorkerReply {
    const NONE: Self = Self { answer: None, trial: None, retry_after_s: None };
}

/// An attempt that ended without an answer.
#[derive(Debug)]
pub struct FailedAttempt {
    /// Rank of the attempt; at fault only where `error.blames_worker()`.
    pub rank: RankIndex,
    /// The other rank of a pair that failed as a whole: the next attempt avoids both, if it can.
    pub partner: Option<RankIndex>,
    /// How the attempt failed.
    pub error: RelayError,
    /// Details for the error message, beyond `error`. May be an engine's words, with or without a
    /// full stop at their end: the refusal adds the stop where none is.
    pub why: Option<String>,
    pub reply: WorkerReply,
    /// The client has the beginning of a stream, and another rank can continue it.
    pub is_resumable: bool,
    /// The only engine family that can continue the stream; `None`: all can.
    pub dialect_of_rest: Option<Dialect>,
    /// Another rank could have been tried, and the retry budget of the caller did not allow it.
    pub is_over_budget: bool,
}

impl FailedAttempt {
    /// The failure of a rank without further details.
    #[must_use]
    pub const fn of(rank: RankIndex, error: RelayError) -> Self {
        Self {
            rank,
            partner: None,
            error,
            why: None,
            reply: WorkerReply::NONE,
            is_resumable: false,
            dialect_of_rest: None,
            is_over_budget: false,
        }
    }
}

/// `limits.in_flight_max` or `limits.buffered_bytes_max` of a shard is reached, or
/// `limits.router_in_flight_max`.
#[must_use]
pub const fn in_flight_full() -> Refusal {
    Refusal::new(Reason::RejectedInFlight)
}

/// Engines had no room for the request, `REFUSALS_MAX` times.
#[must_use]
fn engines_busy() -> Refusal {
    let message = "The engines that serve this model have no room at the moment. Try again later.";
    Refusal::new(Reason::RejectedBusy).with_message(message)
}

/// The request's time in the queue is over.
#[must_use]
pub(super) fn waited_too_long(at_client_deadline: bool) -> Refusal {
    if at_client_deadline {
        Refusal::new(Reason::RequestDeadline)
    } else {
        Refusal::new(Reason::RejectedQueueWait)
    }
}

/// No worker is left for the request.
#[must_use]
pub fn no_worker(why: &str) -> Refusal {
    let message = format!("No worker can take this request: {why}. Try again later.");
    Refusal::new(Reason::NoHealthyWorker).with_message(message)
}

/// Every worker of the model serves only half a pair, and the request cannot be split.
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
pub(super) fn end_of_failure(fleet: &FleetSnapshot, failed: FailedAttempt) -> Stop {
    if let Some(answer) = failed.reply.answer {
        return Stop::Engine(answer);
    }
    let name = fleet.rank(failed.rank).map_or("?", |(_, worker)| &worker.name);
    let reason = match failed.error {
        RelayError::ClientGone | RelayError::ClientStalled => return Stop::ClientGone,
        error if !error.before_head() => return Stop::Cut(error),
        RelayError::FirstByteTimedOut | RelayError::ConnectTimedOut => Reason::UpstreamTimeout,
        // A router in front of this router receives the same reason, and tries another of its
        // workers.
        RelayError::Looped => Reason::RequestLoop,
        RelayError::EngineBusy => return Stop::Refused(engines_busy()),
        RelayError::OutOfSockets => return Stop::Refused(Refusal::new(Reason::OutOfSockets)),
        _ => Reason::UpstreamFailed,
    };
    let details = failed.why.as_deref().filter(|why| !why.trim().is_empty());
    let why = sentence(details.unwrap_or_else(|| failed.error.describe()));
    let message = match failed.error {
        RelayError::Looped => format!("The worker {name}: {why} Remove that worker."),
        // The details name the prefill worker's answer; without details the text is about a worker.
        RelayError::NoKvTransfer if details.is_some() => format!("{why} It was the worker {name}."),
        _ if failed.is_over_budget => format!(
            "The worker {name} failed: {why} No other worker was tried: the retries of this caller \
             are used up (`retry.budget_percent`). Try again later."
        ),
        _ => format!("The worker {name} failed: {why} Try again."),
    };
    Stop::Refused(Refusal::new(reason).with_message(message))
}

/// The text with the end of a sentence.
fn sentence(text: &str) -> String {
    let text = text.trim_end_matches(|end: char| end.is_whitespace() || end == '.');
    let end = if text.ends_with(['!', '?', ':']) { "" } else { "." };
    format!("{text}{end}")
}

/// How a request ends when its next attempt finds no worker. If no worker is left, the client gets
/// the error of the last attempt. If a worker is left but has no room, or the wait ran out, the
/// client gets that refusal, unless a worker has refused the request itself (3xx, 4xx).
#[must_use]
pub(super) fn end_without_worker(failed: Option<Stop>, stop: Stop) -> Stop {
    let none_left = |stop: &Stop| match stop {
        Stop::Refused(refusal) => refusal.reason() == Reason::NoHealthyWorker,
        _ => false,
    };
    let failed = failed.filter(|failed| is_refused_by_worker(failed) || none_left(&stop));
    failed.unwrap_or(stop)
}

/// How a request ends when its next attempt fails too: a worker that has refused the request itself
/// has the last word, unless the client has left or has the head of an answer.
#[must_use]
pub(super) fn end_after(before: Option<Stop>, stop: Stop) -> Stop {
    let may_replace = matches!(stop, Stop::Refused(_));
    before.filter(|before| may_replace && is_refused_by_worker(before)).unwrap_or(stop)
}

/// Has a worker refused the request as wrong (3xx, 4xx)?
fn is_refused_by_worker(stop: &Stop) -> bool {
    match stop {
        Stop::Engine(answer) => is_refusal(answer.status),
        _ => false,
    }
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

    /// Engines end their words as they like.
    #[test]
    fn a_refusal_is_made_of_whole_sentences() {
        let message = |error, why: &str| {
            let failed = FailedAttempt {
                why: Some(why.to_owned()),
                ..FailedAttempt::of(RankIndex(0), error)
            };
            match end_of_failure(&FleetSnapshot::default(), failed) {
                Stop::Refused(refusal) => refusal.message().to_owned(),
                other => panic!("{other:?}"),
            }
        };
        for (why, closed) in [
            ("no memory", "no memory."),
            ("no memory.", "no memory."),
            ("no memory...\n", "no memory."),
            ("why?", "why?"),
            ("no!", "no!"),
        ] {
            let text = message(RelayError::NoKvTransfer, why);
            assert_eq!(text, format!("{closed} It was the worker ?."));
            let text = message(RelayError::PrefillFailed, why);
            assert_eq!(text, format!("The worker ? failed: {closed} Try again."));
        }
        let text = message(RelayError::NoKvTransfer, " ");
        assert!(text.starts_with("The worker ? failed: its answer"), "{text}");
    }

    fn answered(status: u16) -> Option<Stop> {
        let answer = EngineAnswer { status, body: Vec::new(), received: None };
        Some(Stop::Engine(Box::new(answer)))
    }

    /// The siblings of the rank that had refused a wrong request were full: the client got a 429 in
    /// place of the refusal.
    #[test]
    fn a_worker_that_refuses_the_request_has_the_last_word() {
        for (status, is_answer) in [(400, true), (429, true), (500, false)] {
            for refusal in [Reason::RejectedQueueFull, Reason::RejectedQueueWait] {
                let end = end_without_worker(answered(status), refused(refusal));
                assert_eq!(matches!(end, Stop::Engine(_)), is_answer, "{status} {refusal:?}");
            }
        }
    }

    /// A wrong request failed at the sibling too: the client got a 502 in place of the refusal.
    #[test]
    fn a_refusal_outlives_the_failure_of_a_sibling() {
        let after = |status, stop| matches!(end_after(answered(status), stop), Stop::Engine(_));
        for reason in [Reason::UpstreamFailed, Reason::UpstreamTimeout, Reason::RejectedBusy] {
            assert!(after(400, refused(reason)) && !after(500, refused(reason)));
        }
        assert!(!after(400, Stop::ClientGone));
        assert!(!after(400, Stop::Cut(RelayError::ClosedMidStream)), "the client has a head");
        assert_eq!(
            reason(&end_after(None, refused(Reason::UpstreamFailed))),
            Reason::UpstreamFailed
        );
    }

    #[test]
    fn the_last_failure_is_reported_when_no_other_worker_is_left() {
        let failed = || Some(refused(Reason::UpstreamFailed));
        for refusal in [
            Reason::RejectedQueueFull,
            Reason::RejectedQueueWait,
            Reason::RejectedBusy,
            Reason::RequestDeadline,
            Reason::Draining,
        ] {
            assert_eq!(reason(&end_without_worker(failed(), refused(refusal))), refusal);
        }
        let none = || refused(Reason::NoHealthyWorker);
        assert_eq!(reason(&end_without_worker(failed(), none())), Reason::UpstreamFailed);
        assert_eq!(reason(&end_without_worker(None, none())), Reason::NoHealthyWorker);
    }
}
