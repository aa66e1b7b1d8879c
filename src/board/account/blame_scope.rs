//! Scopes that refusals and failures of workers are held against.

use crate::FailureScope;

/// Scope that a refusal or a failure of a worker is held against, with a counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlameScope {
    /// The caller alone: the rank serves other callers as before.
    Caller,
    /// The model on the rank: other models are unaffected.
    Model,
    /// The rank, for all requests.
    Rank,
}

impl BlameScope {
    /// All scopes, in the order of their index.
    pub const ALL: [Self; 3] = [Self::Caller, Self::Model, Self::Rank];

    /// Value of the metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Model => "model",
            Self::Rank => "rank",
        }
    }
}

impl From<FailureScope> for BlameScope {
    fn from(scope: FailureScope) -> Self {
        match scope {
            FailureScope::Caller => Self::Caller,
            FailureScope::Model => Self::Model,
            FailureScope::Rank => Self::Rank,
        }
    }
}
