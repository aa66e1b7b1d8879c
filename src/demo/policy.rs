//! The policies that the demo compares.

/// The two policies that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoPolicy {
    /// Selects the engine that holds the prefix.
    Kv,
    /// Selects each engine in turn.
    RoundRobin,
}

impl DemoPolicy {
    /// Name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::RoundRobin => "round_robin",
        }
    }
}
