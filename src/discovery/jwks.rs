//! Fetches a JSON Web Key Set from a URL.

use super::http::{WorkerClient, builder};
use forebay_config::{JwksUrl, TimeoutsConfig};
use forebay_tls::Connector;
use std::time::Duration;

/// Fetches keys from a single URL.
#[derive(Debug)]
pub struct JwksFetch {
    asker: WorkerClient,
    path: String,
}

impl JwksFetch {
    /// `connector`: TLS configuration; `None` for plain text. Follows no redirects.
    ///
    /// # Errors
    /// The system has no randomness or no resolver.
    pub fn new(
        timeouts: &TimeoutsConfig,
        url: &JwksUrl,
        connector: Option<&Connector>,
        timeout: Duration,
    ) -> reqwest::Result<Self> {
        let mut client = builder(timeouts);
        if let Some(connector) = connector {
            client = client.use_preconfigured_tls(connector.config());
        }
        let asker = WorkerClient::new(client.build()?, &url.base(), None, timeout);
        Ok(Self { asker, path: url.path.clone() })
    }

    /// The body of the response.
    ///
    /// # Errors
    /// The error as text.
    pub async fn get(&self) -> Result<String, String> {
        self.asker.get(&self.path).await.map_err(|error| error.to_string())
    }
}
