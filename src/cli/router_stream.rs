//! A stream of a router's admin API, for commands.

use super::router_client::RouterClient;

/// Opens a stream of a router.
pub(super) struct RouterStream {
    client: RouterClient,
    path: Vec<&'static str>,
    url: String,
}

impl RouterStream {
    /// Prepares the stream of a path.
    pub(super) fn new(client: RouterClient, path: &'static str) -> Self {
        let url = format!("{}{path}", client.address());
        Self { client, path: path.split('/').skip(1).collect(), url }
    }

    /// Address of the router.
    #[cfg(feature = "top")]
    pub(super) fn router(&self) -> &str {
        self.client.address()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Opens the stream, which is the body of the response.
    pub(super) async fn open(&self) -> Result<reqwest::Response, String> {
        self.client.open(&self.path).await
    }
}
