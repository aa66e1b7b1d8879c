//! Reasons to refuse a sleep or wake-up order.

/// Reason why the order is not sent to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepRefusal {
    /// No worker has the name.
    Unknown,
    /// Only vLLM supports sleep.
    Engine,
    /// The worker drains or leaves by another order.
    Drains,
    /// The engine must finish falling asleep before it can wake.
    FallsAsleep,
    /// The engine must finish waking up before it can sleep.
    WakesUp,
}

impl SleepRefusal {
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
