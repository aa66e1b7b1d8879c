//! Checks the keys of TLS. Reads the files.

use super::check::{Check, collide};
use crate::sections::schema::Config;
use crate::sections::tls::{CertificateConfig, ClientAuth, TlsConfig};
use forebay_base::limits::{CERTIFICATES_MAX, LISTENERS_MAX};
use forebay_base::{FileFault, since_1970};
use forebay_tls::{
    CertificateFault, CertificateFiles, LoadedCertificate, MissingIssuer, date_text,
    leaf_for_authority, read_authorities,
};
use std::path::Path;
use std::time::Duration;

/// Working renewals do not come this close to expiry.
const EXPIRES_SOON: Duration = Duration::from_hours(7 * 24);
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// A certificate of the router in findings.
struct ShownCertificate<'a> {
    /// Place of the key with its file.
    origin: &'a str,
    /// The key and the file.
    subject: String,
    file: &'a Path,
    /// The other side of its connections.
    readers: &'static str,
}

impl Check<'_> {
    pub(crate) fn tls(&mut self, config: &Config) {
        let TlsConfig { cert, key, .. } = &config.tls;
        let mut known = Vec::new();
        match (cert, key) {
            (Some(cert), Some(key)) => {
                let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
                let first = self.certificate("tls", &files);
                known.extend(first.map(|first| ("`tls.cert`", first)));
            }
            (Some(_), None) => self.error("tls.cert", "`tls.cert` has no `tls.key`", "add the key"),
            (None, Some(_)) => {
                self.error("tls.key", "`tls.key` has no `tls.cert`", "add the certificate");
            }
            (None, None) => {}
        }
        for (position, further) in config.certificates.iter().enumerate() {
            let path = format!("certificate.{position}");
            let unset = CertificateConfig::default();
            if further.cert == unset.cert || further.key == unset.key {
                self.error(&path, "a certificate needs `cert` and `key`", "add both");
            } else if let Some(found) = self.certificate(&path, &further.files()) {
                if let Some((other, _)) = known.iter().find(|(_, known)| known.is_same(&found)) {
                    let file = further.cert.display();
                    let what = format!("`certificate.cert` {file} has the certificate of {other}");
                    let help = "remove the table, or name the files of another certificate";
                    self.warning(&format!("{path}.cert"), what, help);
                }
                known.push(("another [[certificate]]", found));
            }
        }
        if config.certificates.len() >= CERTIFICATES_MAX {
            let what = format!("more than {CERTIFICATES_MAX} certificates");
            self.error("certificate", what, "a wildcard certificate is for many names");
        }
        self.clients(config);
        self.listeners(config);
    }

    /// Checks a pair of files of the table at `path`, such as `certificate.0`; returns the
    /// certificate, if it can be used.
    pub(crate) fn certificate(
        &mut self,
        path: &str,
        files: &CertificateFiles,
    ) -> Option<LoadedCertificate> {
        let shown = path.split('.').next().unwrap_or(path);
        let read = LoadedCertificate::read(files);
        match &read {
            Ok(certified) => {
                if certified.is_slow {
                    let name = files.key.display();
                    let what = format!("`{shown}.key` {name}: RSA with more than 2048 bits");
                    let help =
                        "each handshake holds a shard for milliseconds; use an ECDSA key (P-256)";
                    self.warning(&format!("{path}.key"), what, help);
                }
                let key = format!("{shown}.cert");
                let readers = if path == "admin_tls" { "callers of `admin`" } else { "clients" };
                self.usable(&format!("{path}.cert"), &key, files, readers, certified);
            }
            Err(CertificateFault::Cert(FileFault { what, help })) => {
                self.error(&format!("{path}.cert"), format!("`{shown}.cert` {what}"), help);
            }
            Err(CertificateFault::Key(FileFault { what, help })) => {
                self.error(&format!("{path}.key"), format!("`{shown}.key` {what}"), help);
            }
        }
        read.ok()
    }

    /// Checks a certificate that workers or peers are shown. A file at fault has its finding
    /// already.
    pub(crate) fn client_certificate(
        &mut self,
        origin: &str,
        files: &CertificateFiles,
        readers: &'static str,
    ) {
        let key = if origin.starts_with("worker.") { "tls_cert" } else { origin };
        if let Ok(certified) = LoadedCertificate::read(files) {
            self.usable(origin, key, files, readers, &certified);
        }
    }

    fn usable(
        &mut self,
        origin: &str,
        key: &str,
        files: &CertificateFiles,
        readers: &'static str,
        certified: &LoadedCertificate,
    ) {
        let file = &*files.cert;
        let subject = format!("`{key}` {}", file.display());
        let shown = ShownCertificate { origin, subject, file, readers };
        self.chain(&shown, certified);
        self.validity(&shown, certified);
    }

    /// Certificates that stand behind the first, or are missing there.
    fn chain(&mut self, shown: &ShownCertificate<'_>, certified: &LoadedCertificate) {
        let ShownCertificate { origin, subject, readers, .. } = shown;
        if let Some(stray) = &certified.stray {
            let what = format!("{subject}: {stray} is no issuer of the chain");
            let help = "a certificate behind the first issues a certificate before it: write the \
                issuers in their order, without others";
            return self.warning(origin, what, help);
        }
        // Public authorities issue no certificate of a server from a root (CA/Browser Forum,
        // Baseline Requirements, section 6.1.7), and write the URL of the issuer. A private
        // authority without a URL may be a root, which its clients have: `doctor` notes that.
        if let Some(MissingIssuer { subject: name, issuer, is_intermediate: true }) =
            &certified.missing_issuer
        {
            let what =
                format!("{subject} has {name} without the certificate of its issuer {issuer}");
            let help = format!(
                "append the intermediate certificates, as in fullchain.pem of certbot: {readers} \
                 do not have them, and refuse the connection"
            );
            self.warning(origin, what, help);
        }
    }

    fn validity(&mut self, shown: &ShownCertificate<'_>, certified: &LoadedCertificate) {
        let ShownCertificate { origin, subject, file, readers } = shown;
        let until_valid = certified.begins_at.map(|at| at.saturating_sub(since_1970()));
        if let Some(until_valid) = until_valid.filter(|left| !left.is_zero()) {
            let date = date_text(since_1970() + until_valid);
            let what = format!("{subject} is valid only from {date}");
            let help = format!("{readers} refuse it until then; compare the clock of this machine");
            self.warning(origin, what, help);
        }
        let Some(left) = certified.expires_at.map(|at| at.saturating_sub(since_1970())) else {
            return;
        };
        let name = file.display();
        if left.is_zero() {
            let what = format!("{subject} has expired");
            let help = format!(
                "{readers} refuse this certificate of the router: renew {name}, then reload"
            );
            self.warning(origin, what, help);
        } else if left < EXPIRES_SOON {
            let days = left.as_secs() / SECONDS_PER_DAY;
            let what = format!("{subject} expires in {days} days");
            self.warning(origin, what, format!("renew {name}, then reload"));
        }
    }

    fn clients(&mut self, config: &Config) {
        let tls = &config.tls;
        let is_asked = tls.client_auth != ClientAuth::Off;
        if is_asked && tls.cert.is_none() && config.certificates.is_empty() {
            let what = "`tls.client_auth` asks no client: without `tls.cert` and `tls.key` all \
                        ports speak plain HTTP";
            self.error("tls.client_auth", what, "add both, or remove `tls.client_auth`");
        }
        match &tls.client_ca {
            None if is_asked => {
                let help = "name the file with the authorities of clients";
                self.error("tls.client_auth", "`tls.client_auth` needs `tls.client_ca`", help);
            }
            Some(path) => self.authorities("tls.client_ca", "tls.client_ca", path),
            None => {}
        }
    }

    /// A file of authorities. `key` is its place, and `shown` its name.
    pub(crate) fn authorities(&mut self, key: &str, shown: &str, path: &Path) {
        let leaf = read_authorities(path).and_then(|_| leaf_for_authority(path));
        match leaf {
            Ok(Some(leaf)) => {
                let path = path.display();
                let what = format!("`{shown}` {path} has the certificate {leaf}, and no authority");
                let help = "name the file of the authority that issued it: the other side shows a \
                    certificate of that authority, and no handshake succeeds";
                self.warning(key, what, help);
            }
            Ok(None) => {}
            Err(FileFault { what, help }) => self.error(key, format!("`{shown}` {what}"), help),
        }
    }

    fn listeners(&mut self, config: &Config) {
        if config.listeners.len() > LISTENERS_MAX {
            let what = format!("{} listeners, more than {LISTENERS_MAX}", config.listeners.len());
            self.error("listener", what, "[::] listens on all addresses of the host");
        }
        let admin = config.admin.port_address().map(|admin| ("admin", admin));
        let first = std::iter::once(("listen", config.listen)).chain(admin);
        for (position, listener) in config.listeners.iter().enumerate() {
            let path = format!("listener.{position}");
            if listener.is_unset() {
                let address = format!("{path}.address");
                let place = self.either(&address, &path);
                self.error(place, "a listener has no `address`", "add address = \"host:port\"");
                continue;
            }
            let before = config.listeners.iter().take(position);
            let before = before.map(|other| ("listener", other.address));
            for (name, other) in first.clone().chain(before) {
                if collide(listener.address, other) {
                    let what =
                        format!("`listener` {} collides with `{name}` {other}", listener.address);
                    self.error(&format!("{path}.address"), what, "give each its own port");
                }
            }
            if config.listener_speaks_tls(listener) && config.accept_files().is_none() {
                let help = "add tls.cert and tls.key";
                self.error(&format!("{path}.tls"), "TLS needs a certificate", help);
            }
        }
        if !config.certificates.is_empty() && config.tls.cert.is_none() {
            let is_used = config.listeners.iter().any(|one| config.listener_speaks_tls(one));
            if !is_used {
                let help = "set tls.cert and tls.key, or tls = true in a [[listener]]";
                self.warning("certificate", "no listener speaks TLS", help);
            }
        }
    }
}
