//! A stream of a router's admin API, for commands.

use forebay_tls::{ConnectFiles, Connector};
use std::path::Path;
use std::time::Duration;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Longest time to connect, and then to wait for the response head.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Environment variable for a token, in place of a file.
const TOKEN_VARIABLE: &str = "FOREBAY_ADMIN_TOKEN";

/// Opens a stream of a router.
pub(super) struct RouterStream {
    client: reqwest::Client,
    url: String,
    token: Option<String>,
}

/// Files that a connection to a router may need.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamFiles<'a> {
    /// File with the token of the admin API.
    pub(super) token: Option<&'a Path>,
    /// Authorities of the router's certificate.
    pub(super) ca: Option<&'a Path>,
}

impl RouterStream {
    /// Prepares a stream of the given admin address and path.
    pub(super) fn new(router: &str, path: &str, files: StreamFiles<'_>) -> Result<Self, String> {
        let StreamFiles { token: token_file, ca: ca_file } = files;
        let base = router.trim_end_matches('/');
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(SILENCE_MAX);
        if let Some(rest) = base.strip_prefix("https://") {
            let files = ConnectFiles { ca: ca_file.map(Path::to_path_buf), certificate: None };
            let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let connector = Connector::read(&files, host).map_err(|error| error.to_string())?;
            client = client.use_preconfigured_tls(connector.config());
        } else if !base.starts_with("http://") {
            return Err(format!("--router {base:?} has to begin with http:// or https://"));
        }
        let token = match token_file {
            None => std::env::var(TOKEN_VARIABLE).ok(),
            Some(file) => {
                let read = std::fs::read_to_string(file);
                Some(read.map_err(|error| format!("cannot read {}: {error}", file.display()))?)
            }
        };
        let token = token.map(|token| token.trim().to_owned());
        let client = client.build().map_err(|error| format!("no client: {error}"))?;
        Ok(Self { client, url: format!("{base}{path}"), token })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Opens the stream, which is the body of the response.
    pub(super) async fn open(&self) -> Result<reqwest::Response, String> {
        let mut call = self.client.get(&self.url);
        if let Some(token) = &self.token {
            call = call.bearer_auth(token);
        }
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

/// The innermost error: the outer errors contain the URL, which the caller prints.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
