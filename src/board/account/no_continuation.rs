//! Reasons why a stream of a failed worker is not continued by another worker.

/// The reasons, with a counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoContinuation {
    /// The request has parameters that a continuation cannot repeat.
    Request,
    /// The endpoint reports no token ids, the worker was part of a pair, or the engine returned
    /// none.
    Engine,
    /// The answer contains more than text, or the router cannot parse the answer.
    Answer,
    /// A limit is reached: ids per stream, bytes per event, or bytes held.
    TooLong,
    /// The stream ended in a place where a character may be half sent.
    Character,
    /// No other worker took the rest: none had room in time, or `retry.attempts_max` or
    /// `retry.budget_percent` is reached.
    NoWorker,
}

impl NoContinuation {
    /// All reasons, in the order of their index.
    pub const ALL: [Self; 6] =
        [Self::Request, Self::Engine, Self::Answer, Self::TooLong, Self::Character, Self::NoWorker];

    /// Value of the metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Engine => "engine",
            Self::Answer => "answer",
            Self::TooLong => "too-long",
            Self::Character => "character",
            Self::NoWorker => "no-worker",
        }
    }
}
