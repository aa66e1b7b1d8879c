//! Checks the keys of TLS to workers. Reads the files.

use super::check::Check;
use crate::sections::schema::Config;
use crate::sections::worker::{WorkerConfig, WorkerTlsConfig};
use crate::values::url::WorkerUrl;
use forebay_base::FileFault;
use forebay_tls::{CertificateFault, CertificateFiles, ConnectFault, ConnectFiles, Connector};
use std::collections::HashMap;
use std::net::IpAddr;

impl Check<'_> {
    pub(crate) fn upstream_tls(&mut self, config: &Config) {
        let all = &config.upstream_tls;
        if all.cert.is_some() != all.key.is_some() {
            let what = "`upstream_tls.cert` and `upstream_tls.key` belong together";
            let key = self.either("upstream_tls.cert", "upstream_tls.key");
            self.error(key, what, "give both or none");
        }
        if let (Some(cert), Some(key)) = (&all.cert, &all.key) {
            let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
            self.client_certificate("upstream_tls.cert", &files, "workers");
        }
        let mut known = HashMap::new();
        for url in config.discovery.dns.iter().filter(|url| url.starts_with("https://")) {
            // Checks only the files: names of discovered workers are unknown yet.
            let worker = WorkerConfig { url: url.clone(), ..WorkerConfig::default() };
            let tls = WorkerTlsConfig { tls_name: Some("localhost".into()), ..worker.tls };
            self.tls_of_worker(config, "discovery", &WorkerConfig { tls, ..worker }, &mut known);
        }
        for (position, worker) in config.workers.iter().enumerate() {
            self.tls_of_worker(config, &format!("worker.{position}"), worker, &mut known);
        }
    }

    fn tls_of_worker(
        &mut self,
        config: &Config,
        path: &str,
        worker: &WorkerConfig,
        known: &mut HashMap<ConnectFiles, Connector>,
    ) {
        let own = &worker.tls;
        let Ok(url) = WorkerUrl::parse(&worker.url) else { return };
        if !url.is_tls {
            return;
        }
        if own.tls_cert.is_some() != own.tls_key.is_some() {
            let what = "`tls_cert` and `tls_key` belong together";
            let key = if own.tls_cert.is_some() { "tls_cert" } else { "tls_key" };
            self.error(&format!("{path}.{key}"), what, "give both or none");
        }
        if own.tls_name.as_ref().is_some_and(|name| name.parse::<IpAddr>().is_ok()) {
            let help = "an address in `url` is checked without this key";
            self.error(&format!("{path}.tls_name"), "`tls_name` is an address", help);
        }
        if let (Some(cert), Some(key)) = (&own.tls_cert, &own.tls_key) {
            let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
            self.client_certificate(&format!("{path}.tls_cert"), &files, "workers");
        }
        let Err(fault) = config.connector(worker, known) else { return };
        let at = |own_is_set: bool, own: &str, all: &str| {
            if own_is_set { format!("{path}.{own}") } else { format!("upstream_tls.{all}") }
        };
        let key = match &fault {
            ConnectFault::Ca(_) => at(own.tls_ca.is_some(), "tls_ca", "ca"),
            ConnectFault::Certificate(CertificateFault::Cert(_)) => {
                at(own.tls_cert.is_some(), "tls_cert", "cert")
            }
            ConnectFault::Certificate(CertificateFault::Key(_)) => {
                at(own.tls_key.is_some(), "tls_key", "key")
            }
            ConnectFault::Name(_) | ConnectFault::Other(_) => format!("{path}.url"),
        };
        let FileFault { what, help } = in_words(fault);
        self.error(&key, format!("TLS to {}: {what}", worker.url), help);
    }
}

/// The fault, and what to do about it.
pub(crate) fn in_words(fault: ConnectFault) -> FileFault {
    use CertificateFault::{Cert, Key};
    match fault {
        ConnectFault::Ca(fault) | ConnectFault::Certificate(Cert(fault) | Key(fault)) => fault,
        ConnectFault::Name(_) => {
            let help = "write a host name, or an address, as the certificate has it";
            FileFault::new(fault.to_string(), help)
        }
        ConnectFault::Other(_) => FileFault::new(fault.to_string(), ""),
    }
}
