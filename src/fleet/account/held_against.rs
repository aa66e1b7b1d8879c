//! What the refusals and failures of workers are held against.

use crate::worker::FailureScope;

/// What a refusal or a failure of a worker is held against, each with a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldAgainst {
    /// The caller alone: the rank serves others as before.
    Caller,
    /// The model on the rank: other models go on.
    Model,
    /// The rank, for all requests.
    Rank,
}

impl HeldAgainst {
    /// All of them, in the order of their index.
    pub const ALL: [Self; 3] = [Self::Caller, Self::Model, Self::Rank];

    /// The label of its metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Model => "model",
            Self::Rank => "rank",
        }
    }
}

impl From<FailureScope> for HeldAgainst {
    fn from(scope: FailureScope) -> Self {
        match scope {
            FailureScope::Caller => Self::Caller,
            FailureScope::Model => Self::Model,
            FailureScope::Rank => Self::Rank,
        }
    }
}
