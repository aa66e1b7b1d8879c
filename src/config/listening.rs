//! Where the router listens, and what it speaks there.

use super::schema::Config;
use super::tls::{AdminTlsConfig, CertificateConfig, ClientAuth, ListenerConfig, TlsConfig};
use forebay_tls::{AcceptFiles, CertificateFiles};

impl Config {
    /// Does `listen` speak TLS?
    #[must_use]
    pub const fn speaks_tls(&self) -> bool {
        self.tls.cert.is_some()
    }

    /// Does that listener speak TLS?
    #[must_use]
    pub fn listener_speaks_tls(&self, listener: &ListenerConfig) -> bool {
        listener.tls.unwrap_or(self.speaks_tls())
    }

    /// The files of TLS to clients; `None` without any.
    #[must_use]
    pub fn accept_files(&self) -> Option<AcceptFiles> {
        let TlsConfig { cert, key, client_ca, client_auth } = &self.tls;
        let first = cert.clone().zip(key.clone()).map(|(cert, key)| CertificateFiles { cert, key });
        let further = self.certificates.iter().map(CertificateConfig::files);
        let certificates: Vec<_> = first.into_iter().chain(further).collect();
        (!certificates.is_empty()).then(|| AcceptFiles {
            certificates,
            client_ca: client_ca.clone().filter(|_| *client_auth != ClientAuth::Off),
            needs_client: *client_auth == ClientAuth::Required,
        })
    }

    /// The files of the admin API, if it speaks TLS.
    #[must_use]
    pub fn admin_accept_files(&self) -> Option<AcceptFiles> {
        let AdminTlsConfig { cert, key, client_ca } = self.admin_tls.clone();
        let certificates = vec![CertificateFiles { cert: cert?, key: key? }];
        Some(AcceptFiles { certificates, needs_client: client_ca.is_some(), client_ca })
    }
}
