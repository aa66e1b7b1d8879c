//! The table of keys, replicas: the other routers of the same workers, by address or through NATS.

use crate::keys::key::{Form, flag};
use crate::keys::table::table;
use crate::values::url::WorkerUrl;
use forebay_tls::{CertificateFiles, ConnectFault, ConnectFiles, Connector};
use std::path::PathBuf;

table! {
    /// Other routers of the same workers. They share windows, limits and queues.
    pub struct ReplicasConfig in "replicas." {
        /// URLs of the admin APIs of all routers, `http://` or `https://`. The router's own address
        /// may be among them.
        peers: Vec<String> = Vec::new(), { reloadable: false };
        /// File with the token that peers ask for. It is read at each connection.
        token_file: Option<PathBuf> = None, {
            absent: "`admin_read_token_file`, else `admin_token_file`",
            reloadable: false,
        };
        /// PEM file with the authorities that sign certificates of peers.
        ca: Option<PathBuf> = None, { absent: "those of the system", reloadable: false };
        /// PEM file with the certificate that peers are shown.
        cert: Option<PathBuf> = None, { absent: "none", reloadable: false };
        /// PEM file with the private key of `replicas.cert`.
        key: Option<PathBuf> = None, { absent: "none", reloadable: false };
        /// This replica's name, in logs and `GET /replicas`.
        name: Option<String> = None, { absent: "made up", reloadable: false };
    }
}

table! {
    /// NATS between replicas, instead of `replicas.peers`.
    pub struct NatsConfig in "nats." {
        /// `nats://host:4222` or `tls://…`; several are separated by commas.
        url: Option<String> = None, {
            absent: "no NATS",
            form: Form::Urls,
            reloadable: false,
            flag: flag("Back pressure", "nats", "URL"),
        };
        /// First word of all subjects. Routers with the same prefix are replicas of each other.
        prefix: String = "forebay".to_owned(), { reloadable: false };
    }
}

impl ReplicasConfig {
    /// TLS configuration for a peer; `None` in plain text.
    ///
    /// # Errors
    /// [`ConnectFault`].
    pub fn connector(&self, peer: &WorkerUrl) -> Result<Option<Connector>, ConnectFault> {
        let certificate = self.cert.clone().zip(self.key.clone());
        let files = ConnectFiles {
            ca: self.ca.clone(),
            certificate: certificate.map(|(cert, key)| CertificateFiles { cert, key }),
        };
        peer.is_tls.then(|| Connector::read(&files, &peer.host)).transpose()
    }
}
