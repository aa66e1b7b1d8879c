//! Why no other worker goes on with a stream that has lost its worker.

/// The reasons, each with a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotContinued {
    /// The request asks for what a continuation cannot ask for again.
    Request,
    /// The engine tells no token ids there, the worker was one of a pair, or it returned none.
    Engine,
    /// The answer has more than text, or is not understood.
    Answer,
    /// A limit is reached: ids of one stream, bytes of one event, or bytes held.
    TooLong,
    /// The worker failed where a character may be half sent.
    Character,
    /// No other worker took the rest: none had room in time, or `retry.attempts_max` or
    /// `retry.budget_percent` is reached.
    NoWorker,
}

impl NotContinued {
    /// All of them, in the order of their index.
    pub const ALL: [Self; 6] =
        [Self::Request, Self::Engine, Self::Answer, Self::TooLong, Self::Character, Self::NoWorker];

    /// The label of its metric.
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
