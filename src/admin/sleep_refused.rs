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
}
