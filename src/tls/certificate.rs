//! Certificates and keys in files. Read by the control plane and by `forebay check`; never by a
//! shard.

use crate::certificate_fields::CertificateFields;
use forebay_base::limits::TLS_FILE_BYTES_MAX;
use forebay_base::open_file;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureAlgorithm};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use webpki::EndEntityCert;

/// Length of a 2048-bit RSA public key in DER, with its exponent.
const RSA_2048_BYTES_MAX: usize = 300;

/// Files of a certificate chain and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// PEM: the certificate, then its intermediates.
    pub cert: PathBuf,
    /// PEM: the certificate's private key.
    pub key: PathBuf,
}

/// A usable certificate with its key.
#[derive(Clone, Debug)]
pub struct LoadedCertificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// Host names of the certificate, in lower case; `*.` for a single label.
    pub names: Vec<String>,
    /// Expiry since 1970; `None` if the date cannot be parsed.
    pub expires_at: Option<Duration>,
    /// A handshake takes several milliseconds: RSA with more than 2048 bits.
    pub is_slow: bool,
}

/// Fault of a pair of files. The texts begin with the path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateFault {
    /// The file of the certificate.
    #[error("{0}")]
    Cert(String),
    /// The file of the key.
    #[error("{0}")]
    Key(String),
}

impl LoadedCertificate {
    /// Reads and checks a pair of files.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn read(files: &CertificateFiles) -> Result<Self, CertificateFault> {
        let cert = files.cert.display();
        let key = files.key.display();
        let chain = read_certificates(&files.cert).map_err(CertificateFault::Cert)?;
        let fault = |what: String| CertificateFault::Cert(format!("{cert}: {what}"));
        let first = chain.first().ok_or_else(|| fault("it holds no certificate".to_owned()))?;
        let names = names_of(first).map_err(fault)?;
        let CertificateFields { expires_at, key_bytes } = CertificateFields::read(first);
        let text = read(&files.key).map_err(CertificateFault::Key)?;
        let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
            CertificateFault::Key(format!("{key}: {}", key_fault(&text, &error)))
        })?;
        let fits = CertifiedKey::from_der(chain, private, &default_provider());
        let certified = fits.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                CertificateFault::Key(format!("{key} is not the key of {cert}"))
            }
            error => CertificateFault::Key(format!("{key}: {error}")),
        })?;
        let is_rsa = certified.key.algorithm() == SignatureAlgorithm::RSA;
        let is_slow = is_rsa && key_bytes > RSA_2048_BYTES_MAX;
        Ok(Self { key: Arc::new(certified), names, expires_at, is_slow })
    }
}

/// Reads certificates of authorities.
///
/// # Errors
/// The fault of the file, with its path.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = authorities.add(certificate);
        added.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(authorities)
}

/// Certificates in file order; never empty.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let shown = path.display();
    match read {
        Ok(chain) if chain.is_empty() => Err(format!("{shown}: it holds no certificate in PEM")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(format!("{shown}: {}", pem_fault(&error))),
    }
}

/// Formats a fault as text: the library reports sections as bytes.
fn pem_fault(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let marker = String::from_utf8_lossy(end_marker);
            format!("the end of a section is missing: -----END {marker}-----")
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("a section begins with another line: {}", String::from_utf8_lossy(line))
        }
        error => error.to_string(),
    }
}

fn key_fault(text: &[u8], error: &pem::Error) -> String {
    let is_encrypted = text.windows(9).any(|part| part == b"ENCRYPTED");
    match error {
        pem::Error::NoItemsFound if is_encrypted => {
            "the private key is encrypted; write it without a passphrase: openssl pkey".to_owned()
        }
        pem::Error::NoItemsFound => "it holds no private key in PEM".to_owned(),
        error => pem_fault(error),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let file = open_file(path).map(|file| file.take(TLS_FILE_BYTES_MAX as u64 + 1));
    let read = file.and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| format!("{shown}: {error}"))?;
    if bytes.len() > TLS_FILE_BYTES_MAX {
        return Err(format!("{shown}: it is longer than {TLS_FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, String> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    Ok(parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
}
