//! Certificates of the ports for clients: read at the start, and again with each reload. Shards
//! get them with the fleet.

use forebay_admin::AdminAcceptor;
use forebay_base::since_1970;
use forebay_config::{Config, Connectors};
use forebay_tls::{AcceptFiles, Acceptor, FilesFault, Tickets};
use std::time::Duration;
use tracing::{error, info, warn};

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// Whole days until the end of a certificate; `None`: it has expired. Times since 1970.
fn days_left(expires_at: Duration, now: Duration) -> Option<u64> {
    Some(expires_at.checked_sub(now)?.as_secs() / SECONDS_PER_DAY)
}

/// TLS on both sides of the router.
#[derive(Debug, Default)]
pub struct TlsSetup {
    /// Certificates for clients; `None` in plain text.
    pub server: Option<ServerTls>,
    /// How sessions with workers begin.
    pub connectors: Connectors,
}

/// Replaces connectors with newly read ones; true if a worker gets another certificate, authority
/// or name. An equal connector stays, with its memory of sessions.
pub(super) fn take_connectors(connectors: &mut Connectors, mut read: Connectors) -> bool {
    let mut is_new = false;
    for (authority, connector) in &mut read {
        match connectors.get(authority) {
            Some(before) if before.is_like(connector) => connector.clone_from(before),
            Some(_) => is_new = true,
            None => {}
        }
    }
    *connectors = read;
    is_new
}

/// Certificates for clients, and the keys of tickets, which outlive the certificates.
#[derive(Debug)]
pub struct ServerTls {
    acceptor: Acceptor,
    tickets: Tickets,
}

impl ServerTls {
    /// Reads all files.
    ///
    /// # Errors
    /// The faulty file, and its fault.
    pub fn read(files: &AcceptFiles) -> Result<Self, FilesFault> {
        let tickets = Tickets::new()?;
        Ok(Self { acceptor: Acceptor::read(files, &tickets)?, tickets })
    }

    /// Reads all files again. Unreadable files leave the earlier certificates in use.
    pub(super) fn read_again(&mut self, files: &AcceptFiles) {
        match Acceptor::read(files, &self.tickets) {
            Ok(acceptor) => {
                self.acceptor = acceptor;
                let text = "certificates read again: new connections get them";
                match self.acceptor.expires_at().map(|at| days_left(at, since_1970())) {
                    Some(None) => warn!(
                        help = "renew the file, then `forebay reload`",
                        "{text}; a certificate has expired, and clients refuse it"
                    ),
                    days => info!(expire_in_days = days.flatten(), "{text}"),
                }
            }
            Err(fault) => {
                error!(%fault, "certificates not read again: those from before stay in use");
            }
        }
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        self.acceptor.clone()
    }
}

/// Certificates of the admin API.
#[derive(Debug)]
pub(super) struct AdminTls {
    tls: ServerTls,
    shown: AdminAcceptor,
}

impl AdminTls {
    pub(super) fn new(tls: ServerTls) -> Self {
        let shown = AdminAcceptor::new(tls.acceptor());
        Self { tls, shown }
    }

    /// Certificates that callers get.
    pub(super) fn shown(&self) -> AdminAcceptor {
        self.shown.clone()
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        self.tls.acceptor()
    }

    /// Reads the files again, of the paths that the router was started with.
    pub(super) fn read_again(&mut self, config: &Config) {
        if let Some(files) = config.admin_accept_files() {
            self.tls.read_again(&files);
            self.shown.replace(self.tls.acceptor());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M1: an expired certificate had `expire_in_days=0` in an INFO.
    #[test]
    fn an_expired_certificate_has_no_days_left() {
        let day = |days: u64| Duration::from_secs(days * SECONDS_PER_DAY);
        assert_eq!(days_left(day(9), day(2)), Some(7));
        assert_eq!(days_left(day(9), day(9)), Some(0), "today");
        assert_eq!(days_left(day(9), day(10)), None);
    }
}
