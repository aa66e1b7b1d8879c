//! What goes wrong with a session, and whose doing it is.

use rustls::{AlertDescription, CertificateError, Error};
use thiserror::Error as ThisError;

/// Why a session cannot go on. An alert for the other side may wait in its output.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum SessionFault {
    /// What rustls says of the other side's bytes, or of ours.
    #[error("{0}")]
    Protocol(#[from] Error),
    /// More bytes of one message than a session keeps.
    #[error("a message of the TLS layer is too long")]
    TooLong,
}

/// Why a handshake did not come to its end: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The other side closed, or the connection broke.
    Closed,
    /// Its time was over.
    TimedOut,
    /// The other side does not speak TLS.
    NotTls,
    /// No version, cipher or protocol that both sides know.
    Incompatible,
    /// A certificate is missing, or one side does not accept the other's.
    Certificate(CertificateRefusal),
    /// Anything else that is against the protocol, or an alert.
    Malformed,
}

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It is for another name.
    WrongName,
    /// No known authority has signed it.
    UnknownIssuer,
    /// It is not for this side of a connection.
    WrongUse,
    /// Anything else, or there is none.
    Invalid,
    /// The other side does not accept ours, or misses it.
    ByPeer,
}

impl CertificateRefusal {
    const fn of(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            // An authority may have the name of a known one, and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::WrongUse
            }
            _ => Self::Invalid,
        }
    }
}

impl SessionFault {
    /// The same as why a handshake failed.
    #[must_use]
    pub const fn in_handshake(&self) -> HandshakeFault {
        match self {
            Self::TooLong => HandshakeFault::Malformed,
            Self::Protocol(error) => of_error(error),
        }
    }
}

const fn of_error(error: &Error) -> HandshakeFault {
    match error {
        Error::InvalidCertificate(error) => {
            HandshakeFault::Certificate(CertificateRefusal::of(error))
        }
        Error::InvalidCertRevocationList(_)
        | Error::NoCertificatesPresented
        | Error::UnsupportedNameType => HandshakeFault::Certificate(CertificateRefusal::Invalid),
        Error::AlertReceived(
            AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired,
        ) => HandshakeFault::Certificate(CertificateRefusal::ByPeer),
        Error::PeerIncompatible(_)
        | Error::NoApplicationProtocol
        | Error::AlertReceived(
            AlertDescription::HandshakeFailure
            | AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity
            | AlertDescription::NoApplicationProtocol
            | AlertDescription::UnrecognisedName,
        ) => HandshakeFault::Incompatible,
        // A client that does not like our certificate may also just close.
        Error::AlertReceived(AlertDescription::CloseNotify | AlertDescription::UserCanceled) => {
            HandshakeFault::Closed
        }
        _ => HandshakeFault::Malformed,
    }
}
