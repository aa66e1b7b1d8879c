//! A stream of a router's admin API, for commands.

use super::router_client::{RouterClient, SILENCE_MAX, cause};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

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
        let call = self.client.request(reqwest::Method::GET, &self.path);
        let answer = timeout(SILENCE_MAX, call.send()).await.map_err(silent)?;
        let answer = answer.map_err(|error| cause(&error))?;
        match answer.status().as_u16() {
            200 => Ok(answer),
            401 | 403 => Err("the router wants a token: --token-file".to_owned()),
            404 => Err("the router is of a version without this stream".to_owned()),
            421 => Err("use the router's address, or add the name to `admin_hosts`".to_owned()),
            503 => Err("the stream is open in too many places".to_owned()),
            status => Err(format!("{} answers {status}", self.url)),
        }
    }
}

pub(super) fn silent(_: Elapsed) -> String {
    format!("nothing for {} s", SILENCE_MAX.as_secs())
}
