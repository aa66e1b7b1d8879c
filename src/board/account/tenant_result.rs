//! Outcomes of requests that are counted by tenant.

/// Outcome of a request for its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantResult {
    /// The answer of an engine, below 500.
    Answered,
    /// The router refused: no room, no time, or a limit of the tenant.
    Refused,
    /// The router refused a request with a fault: its key, model or form.
    Invalid,
    /// A status of 500 or more, or an answer that was cut.
    Failed,
    /// The client left before the end.
    Left,
}

impl TenantResult {
    /// All outcomes, in the order of their cells.
    pub const ALL: [Self; 5] =
        [Self::Answered, Self::Refused, Self::Invalid, Self::Failed, Self::Left];

    /// Value of the label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }
}
