//! Faults of a session, and the side at fault.

use rustls::{AlertDescription, CertificateError, Error};
use thiserror::Error as ThisError;

/// Reason why a session failed. An alert for the peer may be in `outgoing`.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum SessionFault {
    /// An error of rustls about the peer's bytes or the session's own.
    #[error("{0}")]
    Protocol(#[from] Error),
    /// A message exceeds the session's limit.
    #[error("a message of the TLS layer is too long")]
    TooLong,
}

/// Reason why a handshake failed: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The peer closed, or the connection broke.
    Closed,
    /// The time limit was exceeded.
    TimedOut,
    /// The peer does not speak TLS.
    NotTls,
    /// No version, cipher or protocol in common.
    Incompatible,
    /// A certificate is missing, or was refused.
    Certificate(CertificateRefusal),
    /// Any other protocol violation, or an alert.
    Malformed,
}

/// Reason to refuse a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// The validity period has ended.
    Expired,
    /// The validity period has not begun.
    NotYetValid,
    /// The certificate is for another name.
    WrongName,
    /// The issuer is not a known authority.
    UnknownIssuer,
    /// The certificate is not for this side of a connection.
    WrongUse,
    /// Any other fault, or the certificate is missing.
    Invalid,
    /// The peer refuses this side's certificate, or requires a certificate.
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
            // A forged authority may have the name of a known authority and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::WrongUse
            }
            _ => Self::Invalid,
        }
    }
}

impl SessionFault {
    /// The fault as the reason of a failed handshake.
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
        // A client that refuses the certificate may also just close.
        Error::AlertReceived(AlertDescription::CloseNotify | AlertDescription::UserCanceled) => {
            HandshakeFault::Closed
        }
        _ => HandshakeFault::Malformed,
    }
}
