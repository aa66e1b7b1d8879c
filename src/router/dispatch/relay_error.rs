//! Errors between a worker and a client, by the party at fault and the phase.

use forebay_tls::CertificateRefusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayError {
    /// The worker refused the connection, or its host is unreachable.
    ConnectFailed,
    /// This host has no socket for a connection: no descriptor, port or memory.
    OutOfSockets,
    /// The worker did not accept the connection in time.
    ConnectTimedOut,
    /// TLS with the worker could not begin.
    HandshakeFailed,
    /// The worker's certificate is not accepted, or the worker does not accept the router's.
    CertificateRefused(CertificateRefusal),
    /// The connection ended before a byte of the answer came.
    ClosedBeforeHead,
    /// The connection ended in the middle of the answer's head.
    ClosedInHead,
    /// The worker sent something that is not an HTTP/1.1 answer.
    HeadInvalid,
    /// The worker sent interim answers (1xx) and no end of them.
    InterimEndless,
    /// No answer came in time.
    FirstByteTimedOut,
    /// The worker was marked down and sent nothing, before a byte of the answer came.
    DownBeforeHead,
    /// The rank was seen to stand still, before a byte of the answer's body came.
    Stalled,
    /// The connection ended after the head of an answer and before its body.
    ClosedBeforeBody,
    /// The answer's chunked framing is broken from the start.
    BodyInvalidAtOnce,
    /// The engine answered 500, or sent an error event before any part of its answer.
    EngineFailed,
    /// The answer of the prefill leg lacks what the decode leg has to be sent.
    NoKvTransfer,
    /// The worker leads to a router that the request came through.
    Looped,
    /// The prefill leg of the request failed.
    PrefillFailed,
    /// The answer is no longer needed.
    Cancelled,
    /// The answer ended before its announced end.
    ClosedMidStream,
    /// The answer's chunked framing is broken.
    BodyInvalid,
    /// The engine sent an error in the middle of a stream.
    FailedMidStream,
    /// The worker stopped sending in the middle of an answer.
    StreamIdle,
    /// The worker was marked down and sent nothing more.
    DownMidStream,
    /// The engine answered that it has no room (429, 503, 529).
    EngineBusy,
    /// The worker refused the caller for now (429). Its other callers are served.
    CallerLimited,
    /// A request that tried a rank that may be ill was answered with an error.
    TrialFailed,
    /// The engine refused the rest of a stream that another engine had begun.
    RestRefused,
    /// The operator moved the worker's streams to other workers.
    Moved,
    /// The client left.
    ClientGone,
    /// The client stopped reading.
    ClientStalled,
}

impl RelayError {
    /// True if no byte of an answer can have reached the client, so that another rank may be tried.
    #[must_use]
    pub const fn before_head(self) -> bool {
        matches!(
            self,
            Self::ConnectFailed
                | Self::OutOfSockets
                | Self::ConnectTimedOut
                | Self::HandshakeFailed
                | Self::CertificateRefused(_)
                | Self::ClosedBeforeHead
                | Self::ClosedInHead
                | Self::HeadInvalid
                | Self::InterimEndless
                | Self::FirstByteTimedOut
                | Self::DownBeforeHead
                | Self::Stalled
                | Self::ClosedBeforeBody
                | Self::BodyInvalidAtOnce
                | Self::EngineFailed
                | Self::NoKvTransfer
                | Self::Looped
                | Self::PrefillFailed
                | Self::EngineBusy
                | Self::CallerLimited
                | Self::TrialFailed
                | Self::RestRefused
        )
    }

    /// True if no engine has received a byte of the request, since none was sent or a router
    /// refused it unread: any other rank may be tried.
    #[must_use]
    pub const fn is_unsent(self) -> bool {
        matches!(
            self,
            Self::ConnectFailed
                | Self::ConnectTimedOut
                | Self::HandshakeFailed
                | Self::CertificateRefused(_)
                | Self::Looped
        )
    }

    /// The same failure; `is_resent`: the request had been written to an earlier connection.
    #[must_use]
    pub const fn resent(self, is_resent: bool) -> Self {
        if is_resent { self.once_sent() } else { self }
    }

    /// The same failure of a request that had been written to an earlier connection.
    #[must_use]
    pub const fn once_sent(self) -> Self {
        if self.is_unsent() { Self::ClosedBeforeHead } else { self }
    }

    /// True if another rank may help. Not after a time-out of minutes: the request may still be
    /// running.
    #[must_use]
    pub const fn may_retry(self) -> bool {
        self.before_head()
            && !matches!(self, Self::FirstByteTimedOut | Self::NoKvTransfer | Self::OutOfSockets)
    }

    /// True if a fresh connection to the same worker may help: the pooled connection may have
    /// closed while it was idle.
    #[must_use]
    pub const fn may_be_stale(self) -> bool {
        matches!(self, Self::ClosedBeforeHead)
    }

    /// True if the request cannot have caused the failure.
    #[must_use]
    pub const fn is_ranks_own(self) -> bool {
        self.is_unsent()
            || matches!(self, Self::DownBeforeHead | Self::DownMidStream | Self::Stalled)
    }

    /// True if the worker is at fault, not the client.
    #[must_use]
    pub const fn blames_worker(self) -> bool {
        !matches!(
            self,
            Self::ClientGone
                | Self::OutOfSockets
                | Self::ClientStalled
                // A client could have written the hops that were refused.
                | Self::Looped
                | Self::EngineBusy
                | Self::CallerLimited
                | Self::TrialFailed
                | Self::RestRefused
                | Self::Moved
                | Self::PrefillFailed
                | Self::Cancelled
        )
    }

    /// True if the rest of a stream may continue at another rank.
    #[must_use]
    pub const fn leaves_rest(self) -> bool {
        self.blames_worker() || matches!(self, Self::Moved)
    }

    /// Description of the worker's failure, for error messages and logs.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::ConnectFailed => "the connection was refused",
            Self::OutOfSockets => "the router is out of file descriptors or ports",
            Self::ConnectTimedOut => "the connection was not accepted in time",
            Self::HandshakeFailed => "the TLS handshake failed",
            Self::CertificateRefused(refusal) => match refusal {
                CertificateRefusal::Expired => "its TLS certificate has expired",
                CertificateRefusal::NotYetValid => "its TLS certificate is not valid yet",
                CertificateRefusal::WrongName => "its TLS certificate is for another name",
                CertificateRefusal::UnknownIssuer => "its TLS certificate has an unknown issuer",
                CertificateRefusal::WrongUse => "its TLS certificate is not for a server",
                CertificateRefusal::Invalid => "its TLS certificate is not valid",
                CertificateRefusal::ByPeer => "it did not accept the router's TLS certificate",
            },
            Self::ClosedBeforeHead => "the connection was closed before an answer came",
            Self::ClosedInHead => "the connection was closed in the middle of the answer's head",
            Self::HeadInvalid => "the answer was not valid HTTP/1.1",
            Self::InterimEndless => "it sent interim answers without end",
            Self::FirstByteTimedOut => "no answer came in time",
            Self::DownBeforeHead | Self::DownMidStream => "it is down and sends nothing",
            Self::Stalled => "it stands still: no answer of it moves",
            Self::ClosedBeforeBody => "the connection was closed after the answer's head",
            Self::BodyInvalidAtOnce => "the answer's chunked framing was broken",
            Self::EngineFailed => "it answered that it failed",
            Self::NoKvTransfer => "its answer does not say where the prompt's KV is",
            Self::Looped => "it leads back to a router that the request came through",
            Self::PrefillFailed => "the prefill that it waited for failed",
            Self::Cancelled => "it was not wanted any more",
            Self::ClosedMidStream => "the connection was closed before the end of the answer",
            Self::BodyInvalid => "the answer's chunked framing was broken",
            Self::FailedMidStream => "it said that it failed",
            Self::StreamIdle => "the answer stopped in the middle",
            Self::EngineBusy => "it has no room",
            Self::CallerLimited => "it takes nothing more of this caller for now",
            Self::TrialFailed => "it answered the request that tried it with an error",
            Self::RestRefused => "it refused the rest of the stream",
            Self::Moved => "it was emptied, and no other worker took the stream",
            Self::ClientGone => "the client left",
            Self::ClientStalled => "the client stopped reading",
        }
    }
}
