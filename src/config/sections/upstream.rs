//! TLS configuration for each worker.

use super::schema::Config;
use super::worker::WorkerConfig;
use crate::values::url::{JwksUrl, WorkerUrl};
use forebay_tls::{CertificateFiles, ConnectFault, ConnectFiles, Connector};
use std::collections::HashMap;

/// Connectors of `https://` workers by their `host:port`.
pub type Connectors = HashMap<String, Connector>;

/// Connectors already read, so that each file is read once.
pub type KnownConnectors = HashMap<ConnectFiles, Connector>;

/// A worker with faulty TLS configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("worker {url}: {fault}")]
pub struct UpstreamFault {
    /// Position among the workers.
    pub position: usize,
    /// The URL as configured.
    pub url: String,
    /// Fault of its TLS configuration.
    pub fault: ConnectFault,
}

impl Config {
    /// Reads the TLS files for workers, each once.
    ///
    /// # Errors
    /// [`UpstreamFault`] of the first faulty worker.
    pub fn connectors(&self) -> Result<Connectors, UpstreamFault> {
        self.connectors_of(&self.workers)
    }

    /// Reads the TLS files for these workers, discovered workers included.
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

    /// TLS configuration for the server of `jwt.jwks`.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn jwks_connector(&self, url: &JwksUrl) -> Result<Option<Connector>, ConnectFault> {
        let files = ConnectFiles { ca: self.upstream_tls.ca.clone(), certificate: None };
        let is_tls = url.server.is_tls;
        is_tls.then(|| Connector::read(&files, &url.server.host)).transpose()
    }

    /// TLS configuration for a worker; `None` in plain text. `known`: connectors already read.
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
