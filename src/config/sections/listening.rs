//! Listening addresses and their protocols.

use super::schema::Config;
use super::tls::{AdminTlsConfig, CertificateConfig, ClientAuth, ListenerConfig, TlsConfig};
use forebay_tls::{AcceptFiles, CertificateFiles};

impl Config {
    /// True if `listen` uses TLS.
    #[must_use]
    pub const fn speaks_tls(&self) -> bool {
        self.tls.cert.is_some()
    }

    /// True if that listener uses TLS.
    #[must_use]
    pub fn listener_speaks_tls(&self, listener: &ListenerConfig) -> bool {
        listener.tls.unwrap_or(self.speaks_tls())
    }

    /// TLS files for clients; `None` without a certificate.
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

    /// TLS files of the admin API, if it uses TLS.
    #[must_use]
    pub fn admin_accept_files(&self) -> Option<AcceptFiles> {
        let AdminTlsConfig { cert, key, client_ca } = self.admin_tls.clone();
        let certificates = vec![CertificateFiles { cert: cert?, key: key? }];
        Some(AcceptFiles { certificates, needs_client: client_ca.is_some(), client_ca })
    }
}
