//! Failures of a rank: what they count against, their weight, and what is held against the rank.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::Requester;
use std::time::Duration;

/// Weight of a failure in the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureWeight {
    /// The rank refused the request as wrong (4xx). Callers cause most of these refusals.
    Refused,
    /// The same for a leg of a pair: no sibling is tried, so a refusal is all that is seen.
    RefusedLeg,
    /// The rank failed the request.
    Failed,
}

impl FailureWeight {
    /// Units of the score.
    #[must_use]
    pub const fn points(self) -> u32 {
        match self {
            Self::Refused | Self::RefusedLeg => 1,
            Self::Failed => 2,
        }
    }
}

/// Does the status of an answer refuse the request as wrong?
#[must_use]
pub const fn is_refusal(status: u16) -> bool {
    matches!(status, 300..=499)
}

/// Requests that a failure counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// The request alone: other requests of its caller may fail too.
    Caller,
    /// The model on the rank: the same request was served by another rank.
    Model,
    /// The rank: no request could have caused the failure.
    Rank,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFailure {
    pub rank: RankIndex,
    pub requester: Requester,
    /// Requests that the failure counts against.
    pub scope: FailureScope,
    pub weight: FailureWeight,
    /// Status of the answer; 0 without an answer.
    pub status: u16,
    /// The request was a trial, and the rank is to blame.
    pub is_trial: bool,
}

/// Conditions and length of a pause.
#[derive(Clone, Copy, Debug)]
pub struct BreakerRules {
    /// Failures after which a rank may be paused.
    pub failures: u32,
    pub open: Duration,
}

/// Failures held against a rank, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFailures {
    /// Weights of failures, less what successes took off.
    pub score: u32,
    /// Status of the last failure; 0 without an answer.
    pub status: u16,
    pub is_one_model: bool,
    pub is_one_caller: bool,
    /// End of the pause; 0: no pause.
    pub until: NanosSinceStart,
    /// Pauses since the last long streak of successes.
    pub pauses: u32,
}

/// Result of a claim on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerClaim {
    /// No pause covers the request.
    Free,
    /// The rank is half open, and this request is a trial.
    Trial,
    /// The same where only refusals count against the rank: a trial beside any number of trials.
    FreeTrial,
}
