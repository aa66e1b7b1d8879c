//! Outcomes of requests that are counted by tenant.

/// Outcome of a request for its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantResult {
    /// Any answer below 500 but a refusal for lack of room.
    Answered,
    /// The router refused with 429.
    Refused,
    /// A status of 500 or more, or an answer that was cut.
    Failed,
    /// The client left before the end.
    Left,
}

impl TenantResult {
    /// All outcomes, in the order of their cells.
    pub const ALL: [Self; 4] = [Self::Answered, Self::Refused, Self::Failed, Self::Left];

    /// Value of the label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }
}
