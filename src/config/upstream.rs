//! What TLS to each worker needs.

use super::schema::Config;
use super::url::{JwksUrl, WorkerUrl};
use super::worker::WorkerConfig;
use forebay_tls::{CertificateFiles, ConnectFault, ConnectFiles, Connector};
use std::collections::HashMap;

/// How sessions with the workers of `https://` begin, by their `host:port`.
pub type Connectors = HashMap<String, Connector>;

/// What was read for others, so that each file is read once.
pub type KnownConnectors = HashMap<ConnectFiles, Connector>;

/// Which worker cannot be connected to, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("worker {url}: {fault}")]
pub struct UpstreamFault {
    /// Position among the workers.
    pub position: usize,
    /// The URL as it was written.
    pub url: String,
    /// What is wrong with it.
    pub fault: ConnectFault,
}

impl Config {
    /// Reads the files of TLS to workers, each once.
    ///
    /// # Errors
    /// [`UpstreamFault`] of the first worker at fault.
    pub fn connectors(&self) -> Result<Connectors, UpstreamFault> {
        self.connectors_of(&self.workers)
    }

    /// The same for these workers, also those that came later.
    ///
    /// # Errors
    /// [`UpstreamFault`].
    pub fn connectors_of(&self, workers: &[WorkerConfig]) -> Result<Connectors, UpstreamFault> {
        let mut known = KnownConnectors::new();
        let mut connectors = Connectors::new();
        for (position, worker) in workers.iter().enumerate() {
            let connector = self.connector(worker, &mut known).map_err(|fault| {
                let url = worker.url.clone();
                UpstreamFault { position, url, fault }
            })?;
            let authority = WorkerUrl::parse(&worker.url).map(|url| url.authority);
            connectors.extend(authority.ok().zip(connector));
        }
        Ok(connectors)
    }

    /// How TLS to the server of `jwt.jwks` begins.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn jwks_connector(&self, url: &JwksUrl) -> Result<Option<Connector>, ConnectFault> {
        let files = ConnectFiles { ca: self.upstream_tls.ca.clone(), certificate: None };
        let is_tls = url.server.is_tls;
        is_tls.then(|| Connector::read(&files, &url.server.host)).transpose()
    }

    /// How TLS to a worker begins; `None` in plain text. `known`: what was read for others.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn connector(
        &self,
        worker: &WorkerConfig,
        known: &mut KnownConnectors,
    ) -> Result<Option<Connector>, ConnectFault> {
        let Some(url) = WorkerUrl::parse(&worker.url).ok().filter(|url| url.is_tls) else {
            return Ok(None);
        };
        let name = worker.tls.tls_name.as_deref().unwrap_or(&url.host);
        let files = self.connect_files(worker);
        if let Some(connector) = known.get(&files) {
            return connector.to(name).map(Some);
        }
        let connector = Connector::read(&files, name)?;
        known.insert(files, connector.clone());
        Ok(Some(connector))
    }

    fn connect_files(&self, worker: &WorkerConfig) -> ConnectFiles {
        let own = &worker.tls;
        let all = &self.upstream_tls;
        // A certificate and its key belong together.
        let pair = match (&own.tls_cert, &own.tls_key) {
            (None, None) => (&all.cert, &all.key),
            own => own,
        };
        ConnectFiles {
            ca: own.tls_ca.clone().or_else(|| all.ca.clone()),
            certificate: pair
                .0
                .clone()
                .zip(pair.1.clone())
                .map(|(cert, key)| CertificateFiles { cert, key }),
        }
    }
}
