//! Why an order to sleep or to wake up is refused.

/// Why an engine is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepRefused {
    /// No worker has the name.
    Unknown,
    /// Only vLLM has the calls.
    Engine,
    /// It drains or leaves by another order.
    Drains,
    /// It cannot be woken before it sleeps.
    FallsAsleep,
    /// It cannot be sent to sleep before it is awake.
    WakesUp,
}

impl SleepRefused {
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Unknown => "no worker has this name: GET /workers lists their names",
            Self::Engine => "only vLLM engines sleep, with --enable-sleep-mode",
            Self::Drains => "the worker drains or leaves: undrain it first",
            Self::WakesUp => "the engine is waking up: call again once it is awake",
            Self::FallsAsleep => "the engine is falling asleep: call again once it sleeps",
        }
    }
}
