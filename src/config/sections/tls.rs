//! The table of keys, TLS: certificates for clients, the check of clients, further addresses, and
//! TLS to workers.

use crate::keys::key::flag;
use crate::keys::table::{table, words};
use forebay_tls::CertificateFiles;
use std::net::SocketAddr;
use std::path::PathBuf;

table! {
    /// TLS to clients. With `cert` and `key`, `listen` speaks TLS. A reload reads all files again.
    pub struct TlsConfig in "tls." {
        /// PEM file with the certificate and its chain, for clients that name no other server.
        cert: Option<PathBuf> = None,
            { absent: "no TLS", flag: flag("TLS", "tls-cert", "FILE") };
        /// PEM file with the private key of `tls.cert`.
        key: Option<PathBuf> = None,
            { absent: "none", flag: flag("TLS", "tls-key", "FILE") };
        /// PEM file with the authorities that sign certificates of clients.
        client_ca: Option<PathBuf> = None, { absent: "none" };
        /// Whether clients show a certificate.
        client_auth: ClientAuth = ClientAuth::Off;
    }
}

table! {
    /// TLS of the admin API, on a port. A reload reads the files again.
    pub struct AdminTlsConfig in "admin_tls." {
        /// PEM file with the certificate and its chain.
        cert: Option<PathBuf> = None, { absent: "no TLS", reloadable: false };
        /// PEM file with the private key of `admin_tls.cert`.
        key: Option<PathBuf> = None, { absent: "none", reloadable: false };
        /// PEM file with the authorities of callers. With it, each caller has to show a
        /// certificate.
        client_ca: Option<PathBuf> = None, { absent: "none", reloadable: false };
    }
}

table! {
    /// TLS to workers with `https://`. A reload reads all files again.
    pub struct UpstreamTlsConfig in "upstream_tls." {
        /// PEM file with the authorities that sign certificates of workers.
        ca: Option<PathBuf> = None, { absent: "those of the system" };
        /// PEM file with the certificate that workers are shown.
        cert: Option<PathBuf> = None, { absent: "none" };
        /// PEM file with its private key.
        key: Option<PathBuf> = None, { absent: "none" };
    }
}

words! {
    /// Whether clients show a certificate.
    pub enum ClientAuth {
        /// Clients are not asked for a certificate.
        Off = "off",
        /// A client may show a certificate. A wrong certificate is refused.
        Optional = "optional",
        /// A client without a certificate is refused.
        Required = "required",
    }
}

table! {
    /// One table per further certificate. The client's server name (SNI) selects the certificate.
    pub struct CertificateConfig in "certificate." {
        /// PEM file with the certificate and its chain.
        cert: PathBuf = PathBuf::new(), { absent: "required" };
        /// PEM file with its private key.
        key: PathBuf = PathBuf::new(), { absent: "required" };
    }
}

table! {
    /// One table per further address where clients connect, beside `listen`.
    #[derive(Copy)]
    pub struct ListenerConfig in "listener." {
        /// Where clients connect.
        address: SocketAddr = SocketAddr::from(([0, 0, 0, 0], 0)),
            { absent: "required", reloadable: false };
        /// Speak TLS there.
        tls: Option<bool> = None, { absent: "as `listen`", reloadable: false };
    }
}

impl ListenerConfig {
    /// True if the table lacks the key.
    #[must_use]
    pub const fn is_unset(&self) -> bool {
        self.address.port() == 0 && self.address.ip().is_unspecified()
    }
}

impl CertificateConfig {
    pub(crate) fn files(&self) -> CertificateFiles {
        CertificateFiles { cert: self.cert.clone(), key: self.key.clone() }
    }
}
