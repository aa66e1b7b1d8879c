//! Certificates and keys in files. Read by the control plane and by `forebay check`; never by a
//! shard.

use crate::certificate_fields::{CertificateFields, common_name};
use forebay_base::limits::TLS_FILE_BYTES_MAX;
use forebay_base::{FileFault, read_bytes};
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use webpki::EndEntityCert;

/// Shortest RSA key of TLS, and the longest that signs in a millisecond.
const RSA_BITS: usize = 2048;

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
    /// Beginning of its validity, since 1970; `None` if the date cannot be parsed.
    pub begins_at: Option<Duration>,
    /// Expiry since 1970; `None` if the date cannot be parsed.
    pub expires_at: Option<Duration>,
    /// A handshake takes several milliseconds: RSA with more than 2048 bits.
    pub is_slow: bool,
    /// Name of a certificate of the file that issued no certificate before it.
    pub stray: Option<String>,
    /// Issuer of the first certificate, unless its certificate is in the file.
    pub missing_issuer: Option<MissingIssuer>,
}

/// The issuer of a certificate that stands in its file without the certificate of the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingIssuer {
    /// Name of the certificate, in quotes.
    pub subject: String,
    /// Name of the issuer, in quotes.
    pub issuer: String,
    /// The certificate has a URL of the issuer's certificate. Authorities write the URL for
    /// intermediates, which clients do not have.
    pub is_intermediate: bool,
}

/// Fault of a pair of files.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateFault {
    /// The file of the certificate.
    #[error("{0}")]
    Cert(FileFault),
    /// The file of the key.
    #[error("{0}")]
    Key(FileFault),
}

const OF_CERTIFICATE: &str = "write the certificate and its chain into it, in PEM";
const OF_KEY: &str = "write the certificate's private key into it, in PEM";
pub(crate) const OF_AUTHORITIES: &str = "write certificates of authorities into it, in PEM";
const OF_DER_CERTIFICATE: &str = "convert it: openssl x509 -inform DER -in OLD -out NEW";
const OF_DER_KEY: &str = "convert it: openssl pkey -inform DER -in OLD -out NEW";
/// The file holds both: the certificate and its key.
const OF_PKCS12: &str = "it is PKCS #12, with both certificate and key: openssl pkcs12 -nodes -in \
    OLD -out NEW, and name NEW for both";
/// OpenSSL 3.0 signs requests as version 1 unless it is given extensions.
const OF_VERSION: &str = "make it with extensions: openssl x509 -req -extfile FILE, and in FILE \
    the line subjectAltName=DNS:NAME; or openssl req -x509 -addext subjectAltName=DNS:NAME";
const OF_ORDER: &str = "put the certificate of the key first, then its issuers in their order";
const OF_LENGTH: &str = "make another key: openssl genpkey -algorithm EC -pkeyopt \
    ec_paramgen_curve:P-256 -out KEY; then ask for its certificate";
const OF_PASSPHRASE: &str = "write it without a passphrase: openssl pkey -in KEY -out NEW";

impl LoadedCertificate {
    /// Reads and checks a pair of files.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn read(files: &CertificateFiles) -> Result<Self, CertificateFault> {
        let cert = files.cert.display();
        let key = files.key.display();
        let read_chain = read_certificates(&files.cert, OF_CERTIFICATE);
        let chain = read_chain.map_err(CertificateFault::Cert)?;
        let at_fault = |what: &str, help: &str| {
            CertificateFault::Cert(FileFault::new(format!("{cert}: {what}"), help))
        };
        let none = || at_fault("it holds no certificate", OF_CERTIFICATE);
        let first = chain.first().ok_or_else(none)?;
        let names = names_of(first).map_err(|error| match error {
            webpki::Error::UnsupportedCertVersion => {
                at_fault("the certificate is X.509 version 1, and TLS needs version 3", OF_VERSION)
            }
            webpki::Error::BadDer => at_fault("it is no X.509 certificate", OF_CERTIFICATE),
            error => at_fault(&format!("TLS cannot use the certificate: {error}"), OF_CERTIFICATE),
        })?;
        let CertificateFields { begins_at, expires_at, rsa_bits, .. } =
            CertificateFields::read(first);
        let of_key = |what: String, help: &str| CertificateFault::Key(FileFault::new(what, help));
        let text = read(&files.key, OF_KEY).map_err(CertificateFault::Key)?;
        let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
            let is_encrypted = text.windows(9).any(|part| part == b"ENCRYPTED");
            match error {
                // PKCS 8 has a label of its own, and OpenSSL's older form a line that is no base64.
                _ if is_encrypted => {
                    of_key(format!("{key}: the private key is encrypted"), OF_PASSPHRASE)
                }
                pem::Error::NoItemsFound => of_key(
                    format!("{key}: it holds no private key in PEM"),
                    help_of_binary(&text, OF_DER_KEY, OF_KEY),
                ),
                error => of_key(format!("{key}: {}", pem_fault(&error)), OF_KEY),
            }
        })?;
        let stray = stray_of(&chain);
        let missing_issuer = missing_issuer(&chain);
        let first_name = name_of(first);
        let fits = CertifiedKey::from_der(chain.clone(), private.clone_key(), &default_provider());
        let certified = fits.map_err(|error| match (error, rsa_bits) {
            (rustls::Error::InconsistentKeys(_), _) if fits_later(&chain, private) => {
                at_fault(&format!("the first certificate, {first_name}, is not of {key}"), OF_ORDER)
            }
            (rustls::Error::InconsistentKeys(_), _) => {
                of_key(format!("{key} is not the key of {cert}"), OF_KEY)
            }
            (_, Some(bits)) if bits < RSA_BITS => {
                at_fault(&format!("RSA with {bits} bits, and TLS needs {RSA_BITS}"), OF_LENGTH)
            }
            (error, _) => of_key(format!("{key}: {error}"), OF_KEY),
        })?;
        let is_slow = rsa_bits.is_some_and(|bits| bits > RSA_BITS);
        let key = Arc::new(certified);
        Ok(Self { key, names, begins_at, expires_at, is_slow, stray, missing_issuer })
    }

    /// True if clients get the same certificate from both.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.key.cert.first() == other.key.cert.first()
    }
}

/// Does the key belong to a certificate of the chain behind the first?
fn fits_later(chain: &[CertificateDer<'static>], private: PrivateKeyDer<'static>) -> bool {
    let Ok(signing) = default_provider().key_provider.load_private_key(private) else {
        return false;
    };
    let later = chain.iter().skip(1);
    later
        .cloned()
        .any(|one| CertifiedKey::new(vec![one], Arc::clone(&signing)).keys_match().is_ok())
}

/// Name of the first certificate that issued none before it.
fn stray_of(chain: &[CertificateDer<'_>]) -> Option<String> {
    let fields: Vec<_> = chain.iter().map(|one| CertificateFields::read(one)).collect();
    let behind = chain.iter().enumerate().skip(1);
    let stray = behind.zip(fields.iter().skip(1)).find(|((position, _), own)| {
        !fields.iter().take(*position).any(|before| before.issuer == own.subject)
    });
    stray.map(|((_, certificate), _)| name_of(certificate))
}

/// A certificate that signs itself is whole, and so is a file with the certificate of the issuer.
fn missing_issuer(chain: &[CertificateDer<'_>]) -> Option<MissingIssuer> {
    let first = chain.first()?;
    let own = CertificateFields::read(first);
    let mut behind = chain.iter().skip(1);
    let is_there = own.issuer == own.subject
        || behind.any(|later| CertificateFields::read(later).subject == own.issuer);
    let missing = || MissingIssuer {
        subject: name_of(first),
        issuer: quoted(common_name(own.issuer)),
        is_intermediate: own.names_issuer_url,
    };
    (!is_there).then(missing)
}

/// The host name of a certificate, else its common name, in quotes.
fn name_of(certificate: &CertificateDer<'_>) -> String {
    let host = names_of(certificate).ok().and_then(|names| names.into_iter().next());
    quoted(host.or_else(|| common_name(CertificateFields::read(certificate).subject)))
}

fn quoted(name: Option<String>) -> String {
    name.map_or_else(|| "a certificate without a name".to_owned(), |name| format!("{name:?}"))
}

/// Name of the first certificate of a file without any that can issue: no certificate is of such
/// an authority. `None` for a file with an authority. A certificate that signs itself is its own
/// authority.
///
/// # Errors
/// The fault of the file, with its path.
pub fn leaf_for_authority(path: &Path) -> Result<Option<String>, FileFault> {
    let all = read_certificates(path, OF_AUTHORITIES)?;
    let may_issue = |certificate: &CertificateDer<'_>| {
        let read = CertificateFields::read(certificate);
        read.is_authority || read.issuer == read.subject
    };
    let is_without = !all.iter().any(may_issue);
    Ok(all.first().filter(|_| is_without).map(name_of))
}

/// Reads certificates of authorities.
///
/// # Errors
/// The fault of the file, with its path.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, FileFault> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path, OF_AUTHORITIES)? {
        let fault = |error| FileFault::new(format!("{}: {error}", path.display()), OF_AUTHORITIES);
        authorities.add(certificate).map_err(fault)?;
    }
    Ok(authorities)
}

/// Certificates in file order; never empty.
fn read_certificates(path: &Path, form: &str) -> Result<Vec<CertificateDer<'static>>, FileFault> {
    let text = read(path, form)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let help = help_of_binary(&text, OF_DER_CERTIFICATE, form);
    let fault = |what: &str| FileFault::new(format!("{}: {what}", path.display()), help);
    match read {
        Ok(chain) if chain.is_empty() => Err(fault("it holds no certificate in PEM")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(fault(&pem_fault(&error))),
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

/// What to do about a file without PEM. In binary form a certificate or key is a sequence of more
/// than 127 bytes; PKCS #12 begins with its version 3, and keys have lower versions.
fn help_of_binary<'h>(bytes: &[u8], of_der: &'h str, of_text: &'h str) -> &'h str {
    let [0x30, length @ 0x80..=0x84, rest @ ..] = bytes else { return of_text };
    let inner = rest.get(usize::from(length & 0xf)..).unwrap_or_default();
    if inner.starts_with(&[2, 1, 3]) { OF_PKCS12 } else { of_der }
}

/// The bytes of a file. Comments between the sections of PEM may have any encoding.
fn read(path: &Path, form: &str) -> Result<Vec<u8>, FileFault> {
    let read = read_bytes(path, TLS_FILE_BYTES_MAX);
    read.map_err(|error| FileFault::of_read(path, &error, form))
}

fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let parsed = EndEntityCert::try_from(certificate)?;
    Ok(parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
}
