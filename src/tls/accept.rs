//! The server side of TLS: certificates by server name, client authentication, session tickets.

use super::certificate::{
    CertificateFault, CertificateFiles, LoadedCertificate, OF_AUTHORITIES, read_authorities,
};
use super::session::Session;
use forebay_base::FileFault;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert,
    UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error as ThisError;

/// The files of a TLS server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptFiles {
    /// The first certificate is for clients without a known server name.
    pub certificates: Vec<CertificateFiles>,
    /// Certificate authorities of clients; `None`: no client authentication.
    pub client_ca: Option<PathBuf>,
    /// Clients without a certificate are refused.
    pub needs_client: bool,
}

#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum FilesFault {
    /// A pair of [`AcceptFiles::certificates`].
    #[error("{fault}")]
    Certificate {
        /// Position in the list.
        position: usize,
        /// Fault of the pair.
        fault: CertificateFault,
    },
    /// The file of [`AcceptFiles::client_ca`].
    #[error("{0}")]
    ClientCa(FileFault),
    /// An error of rustls that is not about files.
    #[error("{0}")]
    Other(#[from] Error),
}

/// Keys that encrypt session tickets. They outlive a reload. Servers with client authentication do
/// not use them.
#[derive(Clone, Debug)]
pub struct Tickets(Arc<dyn ProducesTickets>);

impl Tickets {
    /// Fresh keys, renewed every six hours.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new() -> Result<Self, Error> {
        Ticketer::new().map(Self)
    }
}

/// A certificate that clients get.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    /// Host names of the certificate.
    pub names: Vec<String>,
    /// Beginning of its validity, since 1970; `None` if the date cannot be parsed.
    pub begins_at: Option<Duration>,
    /// Expiry since 1970; `None` if the date cannot be parsed.
    pub expires_at: Option<Duration>,
}

/// Accepts TLS sessions. A handle: clones share the state.
#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    certificates: Arc<[ServedCertificate]>,
    /// Client authentication is on; client certificates may be long.
    asks_client: bool,
}

impl Acceptor {
    /// Reads all files.
    ///
    /// # Errors
    /// [`FilesFault`] of the first file at fault.
    pub fn read(files: &AcceptFiles, tickets: &Tickets) -> Result<Self, FilesFault> {
        let read = |(position, files)| {
            LoadedCertificate::read(files)
                .map_err(|fault| FilesFault::Certificate { position, fault })
        };
        let certified = files.certificates.iter().enumerate().map(read);
        let certified = certified.collect::<Result<Vec<_>, _>>()?;
        let served = certified.iter().map(|pair| ServedCertificate {
            names: pair.names.clone(),
            begins_at: pair.begins_at,
            expires_at: pair.expires_at,
        });
        let certificates = served.collect();
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(
                clients_of(path, files.needs_client).map_err(FilesFault::ClientCa)?,
            ),
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName::new(certified)));
        config.alpn_protocols = vec![super::HTTP_1_1.to_vec()];
        if files.client_ca.is_some() {
            // A resumed session sends no certificate again: a revoked certificate would stay in
            // use.
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = Arc::clone(&tickets.0);
        }
        // A session store would need a lock between shards. Tickets need none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), certificates, asks_client: files.client_ca.is_some() })
    }

    /// A session with a newly connected client.
    ///
    /// # Errors
    /// An error of rustls; not the client's fault.
    pub fn session(&self) -> Result<Session, Error> {
        let connection = UnbufferedServerConnection::new(Arc::clone(&self.config))?;
        Ok(Session::server(connection, self.asks_client))
    }

    /// The rustls configuration, for a loop with its own I/O.
    #[must_use]
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Time since 1970 at which the first certificate expires.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        self.certificates.iter().filter_map(|certificate| certificate.expires_at).min()
    }

    /// All certificates, in the order of the configuration.
    #[must_use]
    pub fn certificates(&self) -> &[ServedCertificate] {
        &self.certificates
    }
}

fn clients_of(path: &Path, is_needed: bool) -> Result<Arc<dyn ClientCertVerifier>, FileFault> {
    let authorities = Arc::new(read_authorities(path)?);
    let provider = Arc::new(default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(authorities, provider);
    let builder = if is_needed { builder } else { builder.allow_unauthenticated() };
    let fault = |error| FileFault::new(format!("{}: {error}", path.display()), OF_AUTHORITIES);
    let verifier = builder.build().map_err(fault)?;
    Ok(Arc::new(ShortChains(verifier)))
}

/// Intermediate certificates of a client's chain. Trying each as the issuer of each other takes
/// milliseconds for a dozen.
const INTERMEDIATES_MAX: usize = 2;

/// Refuses long chains before any signature is verified.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > INTERMEDIATES_MAX {
            return Err(CertificateError::UnknownIssuer.into());
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Certificates by their names.
#[derive(Debug, Default)]
struct ByName {
    all: Vec<Arc<CertifiedKey>>,
    /// Positions in `all`, in file order. Wildcards are stored without their `*`.
    exact: HashMap<String, Vec<usize>>,
    wild: HashMap<String, Vec<usize>>,
}

impl ByName {
    fn new(certified: Vec<LoadedCertificate>) -> Self {
        let mut by_name = Self::default();
        for (position, pair) in certified.into_iter().enumerate() {
            for name in pair.names {
                let (names, name) = match name.strip_prefix('*') {
                    Some(rest) => (&mut by_name.wild, rest.to_owned()),
                    None => (&mut by_name.exact, name),
                };
                names.entry(name).or_default().push(position);
            }
            by_name.all.push(pair.key);
        }
        by_name
    }

    /// Positions of the certificates for that name.
    fn of(&self, name: &str) -> &[usize] {
        let name = name.to_ascii_lowercase();
        let wild = || self.wild.get(name.get(name.find('.')?..)?);
        self.exact.get(&name).or_else(wild).map(Vec::as_slice).unwrap_or_default()
    }
}

impl ResolvesServerCert for ByName {
    /// A client without a known server name gets the first certificate, and checks the name itself.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().map(|name| self.of(name)).unwrap_or_default();
        let suits =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let named = named.iter().filter_map(|position| self.all.get(*position));
        let found = named.clone().find(suits).or_else(|| named.clone().next());
        let any = || self.all.iter().find(suits).or_else(|| self.all.first());
        found.or_else(any).map(Arc::clone)
    }
}
