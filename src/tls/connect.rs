//! The client side of TLS: authorities, the server's name, the client's certificate.

use super::certificate::{CertificateFault, CertificateFiles, LoadedCertificate, read_authorities};
use super::session::Session;
use forebay_base::FileFault;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, Error, RootCertStore};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error as ThisError;

/// Sessions of a server that a thread caches.
const SESSIONS_MAX: usize = 32;

/// The files of a TLS client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectFiles {
    /// Certificate authorities of servers; `None`: the system's authorities.
    pub ca: Option<PathBuf>,
    /// Certificate for servers that ask for it.
    pub certificate: Option<CertificateFiles>,
}

/// Fault of the TLS configuration.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum ConnectFault {
    /// [`ConnectFiles::ca`], or the authorities of the system.
    #[error("{0}")]
    Ca(FileFault),
    /// The files of [`ConnectFiles::certificate`].
    #[error("{0}")]
    Certificate(#[from] CertificateFault),
    /// A name that no certificate can have.
    #[error("{0:?} is no host name")]
    Name(String),
    /// An error of rustls that is not about files.
    #[error("{0}")]
    Other(#[from] Error),
}

/// Connects to a server by name. A handle: clones share the state.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
    content: Arc<Content>,
}

/// Contents of the files.
#[derive(Debug, PartialEq)]
struct Content {
    authorities: Vec<TrustAnchor<'static>>,
    /// The certificate alone: another key implies another certificate.
    own: Vec<CertificateDer<'static>>,
}

impl Connector {
    /// Reads all files. `server` is the name that the server's certificate must have.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn read(files: &ConnectFiles, server: &str) -> Result<Self, ConnectFault> {
        let server = name_of(server)?;
        let authorities = match &files.ca {
            Some(path) => read_authorities(path),
            None => of_system(),
        };
        let authorities = authorities.map_err(ConnectFault::Ca)?;
        let anchors = authorities.roots.clone();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(authorities);
        let own =
            files.certificate.as_ref().map(LoadedCertificate::read).transpose()?.map(|own| own.key);
        let chain = own.as_ref().map_or_else(Vec::new, |own| own.cert.clone());
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        };
        config.alpn_protocols = vec![super::HTTP_1_1.to_vec()];
        config.resumption = Resumption::disabled();
        let content = Arc::new(Content { authorities: anchors, own: chain });
        Ok(Self { config: Arc::new(config), server, content })
    }

    /// The same configuration for another server name.
    ///
    /// # Errors
    /// [`ConnectFault::Name`].
    pub fn to(&self, server: &str) -> Result<Self, ConnectFault> {
        let config = Arc::clone(&self.config);
        let content = Arc::clone(&self.content);
        Ok(Self { config, server: name_of(server)?, content })
    }

    /// True if authorities, client certificate and server name are equal.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same = || Arc::ptr_eq(&self.content, &other.content);
        self.server == other.server && (is_same() || self.content == other.content)
    }

    /// True if either was made from the other by [`Self::of_thread`], or both from a third
    /// connector.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        self.server == other.server && Arc::ptr_eq(&self.content, &other.content)
    }

    /// A copy with its own session cache, so that threads share no lock.
    #[must_use]
    pub fn of_thread(&self) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        let server = self.server.clone();
        let content = Arc::clone(&self.content);
        Self { config: Arc::new(config), server, content }
    }

    /// A session with a newly connected server.
    ///
    /// # Errors
    /// An error of rustls; not the server's fault.
    pub fn session(&self) -> Result<Session, Error> {
        let config = Arc::clone(&self.config);
        let server = self.server.clone();
        UnbufferedClientConnection::new(config, server).map(Session::client)
    }

    /// The rustls configuration, for the control plane's HTTP client.
    #[must_use]
    pub fn config(&self) -> ClientConfig {
        ClientConfig::clone(&self.config)
    }
}

fn name_of(server: &str) -> Result<ServerName<'static>, ConnectFault> {
    let name = ServerName::try_from(server.to_owned());
    name.map_err(|_| ConnectFault::Name(server.to_owned()))
}

fn of_system() -> Result<RootCertStore, FileFault> {
    let mut authorities = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = authorities.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(authorities);
    }
    let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
    let what = format!("the system has no certificates of authorities{why}");
    Err(FileFault::new(what, "install the package ca-certificates, or name a file"))
}
