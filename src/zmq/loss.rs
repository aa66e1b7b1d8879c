//! Why connections end, as a metrics label.

/// Why a connection ended, the metrics label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The engine closed the connection.
    Closed,
    /// The operating system reported an error.
    Io,
    /// The peer broke the protocol.
    Protocol,
    /// The peer sent no answer to a PING, or a replay contained events that the stream lacked.
    Silent,
}

impl LossReason {
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Closed, "closed"),
        (Self::Io, "io"),
        (Self::Protocol, "protocol"),
        (Self::Silent, "silent"),
    ];
}
