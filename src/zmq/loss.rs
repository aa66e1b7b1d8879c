//! Why connections end, in the few words that metrics know.

/// Why a connection ended; the words are the metrics label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The engine closed it.
    Closed,
    /// The system reported an error.
    Io,
    /// The other side broke the protocol.
    Protocol,
    /// Nothing came although something had to: no answer to a PING, or events that only a replay
    /// knew of.
    Silent,
}

impl LossReason {
    /// All, with their metrics label.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Closed, "closed"),
        (Self::Io, "io"),
        (Self::Protocol, "protocol"),
        (Self::Silent, "silent"),
    ];
}
