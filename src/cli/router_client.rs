//! Calls of a router's admin API, for commands.

use super::answerer::{Answerer, bounded};
use super::findings::error_at;
use super::process::warned;
use clap::Args;
use forebay_config::{AdminAddress, ConfigSource, Flags, shown_url};
use forebay_tls::{ConnectFiles, Connector};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde_json::Value;
use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// Longest time to connect, and then to wait for the response head.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Address of a router without another word.
const USUAL: &str = "http://127.0.0.1:9090";
/// Environment variable for a token, in place of a file.
const TOKEN_VARIABLE: &str = "FOREBAY_ADMIN_TOKEN";
/// Longest wait for the whole answer of a call. A reload may fetch keys first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Largest answer: the fleet of 4,096 ranks takes some 8 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Largest refusal of a stream.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Longest part of the metrics that is read to recognize an older router.
const METRICS_BYTES_MAX: usize = 32 << 20;
/// Metric that each version of a router has.
const BUILD_INFO: &str = "forebay_build_info{version=\"";
/// Part of each refusal of a router without a token, in each version.
const TOKEN_KEY: &str = "`admin_token_file`";

/// Flags that select a router.
#[derive(Debug, Args)]
pub(super) struct RouterArgs {
    /// Admin address of the router: `http://…`, `https://…`, `host:port` or `unix:/path`
    /// [default: that of --config, else http://127.0.0.1:9090]
    #[arg(long, visible_alias = "admin", value_name = "URL")]
    router: Option<String>,
    /// Configuration file of the router, which names its admin address and the file of its token
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// File with the token of the admin API [default: that of --config]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Authorities of the router's certificate [default: the authorities of the system]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Files that a connection to a router may need.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterFiles<'a> {
    /// File with the token of the admin API.
    pub(super) token: Option<&'a Path>,
    /// Authorities of the router's certificate.
    pub(super) ca: Option<&'a Path>,
}

/// A client of a router's admin API.
pub(super) struct RouterClient {
    client: Client,
    /// Address as the user wrote it, for messages.
    shown: String,
    base: Url,
    token: Option<String>,
    /// Version of a router from before the field `x-forebay-admin`; set by an answer.
    older: OnceCell<String>,
}

/// A call without an answer of success.
#[derive(Debug)]
pub(super) struct CallFault {
    /// Reason for the user.
    pub(super) reason: String,
    /// Answer of the router, if it was JSON.
    pub(super) answer: Value,
}

impl From<CallFault> for String {
    fn from(fault: CallFault) -> Self {
        fault.reason
    }
}

/// Admin API of a router, by its configuration.
#[derive(Default)]
struct RouterFacts {
    address: Option<String>,
    token_file: Option<PathBuf>,
}

impl RouterArgs {
    /// The configuration file of `-c`.
    pub(super) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The client that the flags select.
    pub(super) fn client(&self) -> Result<RouterClient, String> {
        let facts = self.config.as_deref().map(facts_of).transpose()?.unwrap_or_default();
        let router = self.router.as_ref().or(facts.address.as_ref());
        let token = self.token_file.as_deref().or(facts.token_file.as_deref());
        let files = RouterFiles { token, ca: self.ca_file.as_deref() };
        RouterClient::new(router.map_or(USUAL, |router| router), files)
    }
}

/// Admin address and token file of a configuration file.
fn facts_of(path: &Path) -> Result<RouterFacts, String> {
    let source = ConfigSource { file: Some(path.to_path_buf()), flags: Flags::default() };
    let loaded = source.load()?;
    if let Some(fault) = error_at(&loaded, "`admin") {
        return Err(format!("{fault}; mend the file, or name the router with --router"));
    }
    let config = loaded.config;
    let address = match &config.admin {
        AdminAddress::Tcp(address) => {
            let scheme = if config.admin_accept_files().is_some() { "https" } else { "http" };
            format!("{scheme}://{}", reachable(*address))
        }
        unix @ AdminAddress::Unix(_) => unix.to_string(),
    };
    let token_file = config.admin_token_file.or(config.admin_read_token_file);
    Ok(RouterFacts { address: Some(address), token_file })
}

/// Replaces the address of all interfaces by that of this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

impl RouterClient {
    /// Prepares calls to an admin address. Connects later.
    pub(super) fn new(router: &str, files: RouterFiles<'_>) -> Result<Self, String> {
        let RouterFiles { token: token_file, ca: ca_file } = files;
        let mut client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(SILENCE_MAX);
        let written = router.trim_end_matches('/');
        let mut base = written.to_owned();
        if let Some(path) = written.strip_prefix("unix:") {
            client = client.unix_socket(path);
            "http://localhost".clone_into(&mut base);
        } else if !written.contains("://") {
            base = format!("http://{written}");
        }
        if let Some(rest) = base.strip_prefix("https://") {
            let files = ConnectFiles { ca: ca_file.map(Path::to_path_buf), certificate: None };
            let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let connector = Connector::read(&files, host).map_err(|error| error.to_string())?;
            client = client.use_preconfigured_tls(connector.config());
        } else if !base.starts_with("http://") {
            return Err(format!(
                "--router {written:?} is no host:port, http://, https:// or unix:/ address"
            ));
        }
        let parsed = Url::parse(&base).map_err(|error| format!("--router {written:?}: {error}"));
        let client = client.build().map_err(|error| format!("no client: {error}"))?;
        let token = token(token_file)?;
        let older = OnceCell::new();
        Ok(Self { client, shown: shown_url(written), base: parsed?, token, older })
    }

    /// The address as the user wrote it.
    pub(super) fn address(&self) -> &str {
        &self.shown
    }

    /// A request for a path of decoded segments.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(path);
        }
        let request = self.client.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// The JSON answer to a GET, with a member that each answer to this call has.
    pub(super) async fn get(&self, path: &[&str], member: &str) -> Result<Value, CallFault> {
        self.call(self.request(Method::GET, path), member).await
    }

    /// The JSON answer to a POST, as for [`Self::get`]. Without a body none is sent.
    pub(super) async fn post(
        &self,
        path: &[&str],
        body: Option<&Value>,
        member: &str,
    ) -> Result<Value, CallFault> {
        let request = self.request(Method::POST, path);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        self.call(request, member).await
    }

    /// Sends a request, and returns its JSON answer. An answer without `member` is of no router,
    /// whatever its fields and metrics claim.
    pub(super) async fn call(
        &self,
        request: RequestBuilder,
        member: &str,
    ) -> Result<Value, CallFault> {
        let answered = timeout(ANSWER_TIME_MAX, async {
            let answer = timeout(ANSWER_TIME_MAX, request.send()).await.map_err(|_| late())?;
            let answer = answer.map_err(|error| self.unreached(&error))?;
            let mut seen = Answerer::of(&answer);
            let text = text_of(answer, ANSWER_BYTES_MAX).await?;
            self.recognize_older(&mut seen, &text).await;
            Ok((seen, text))
        });
        let answered = answered.await.unwrap_or_else(|_| Err(late()));
        let (mut seen, text) = answered.map_err(|reason| CallFault {
            reason: format!("{}: {reason}", self.shown),
            answer: Value::Null,
        })?;
        let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let is_success = (200..300).contains(&seen.status);
        seen.is_admin &= !is_success || answer.get(member).is_some();
        if seen.is_admin {
            self.warning().into_iter().for_each(warned);
        }
        if seen.is_admin && is_success {
            return Ok(answer);
        }
        let reason = seen.reason(&answer, &text, self.token.is_some());
        let answer = if seen.is_admin { answer } else { Value::Null };
        Err(CallFault { reason: format!("{}: {reason}", self.shown), answer })
    }

    /// The response with a stream as its body, or the reason for its absence.
    pub(super) async fn open(&self, path: &[&str]) -> Result<Response, String> {
        let response = self.request(Method::GET, path).send().await;
        let response = response.map_err(|error| self.unreached(&error))?;
        let mut seen = Answerer::of(&response);
        if seen.status == 200 {
            self.recognize_older(&mut seen, "").await;
        }
        if seen.is_admin && seen.status == 200 {
            return Ok(response);
        }
        // A refusal of a router is short. A longer page is of another server.
        let text = text_of(response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
        self.recognize_older(&mut seen, &text).await;
        let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        Err(seen.reason(&answer, &text, self.token.is_some()))
    }

    /// Warns of an older router that has answered.
    pub(super) fn warning(&self) -> Option<String> {
        let version = self.older.get()?;
        let shown = &self.shown;
        Some(format!(
            "warning: {shown}: an older build of the router answers (version {version}): figures \
             may be missing; upgrade it"
        ))
    }

    /// Takes an answer without the field `x-forebay-admin` for that of an older router, if the same
    /// address has a router's metrics, or asks for the token by its key.
    async fn recognize_older(&self, seen: &mut Answerer, text: &str) {
        if seen.is_admin || !seen.reason.is_empty() {
            return;
        }
        let asks_for_token = matches!(seen.status, 401 | 403) && text.contains(TOKEN_KEY);
        if self.older.get().is_none()
            && !asks_for_token
            && let Some(version) = self.version_in_metrics().await
        {
            let _ = self.older.set(version);
        }
        seen.is_admin = asks_for_token || self.older.get().is_some();
    }

    async fn version_in_metrics(&self) -> Option<String> {
        let answered = timeout(SILENCE_MAX, async {
            let answer = self.request(Method::GET, &["metrics"]).send().await.ok()?;
            text_of(answer, METRICS_BYTES_MAX).await.ok()
        });
        version_in(&answered.await.ok()??)
    }

    fn unreached(&self, error: &reqwest::Error) -> String {
        let cause = cause(error);
        let help = unreached_help(&cause, self.base.scheme() == "https");
        format!("{cause}; {help}")
    }
}

fn late() -> String {
    format!("no answer in {} s; read the log of the router", ANSWER_TIME_MAX.as_secs())
}

/// Version of a router by its metrics.
fn version_in(metrics: &str) -> Option<String> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(BUILD_INFO))?;
    Some(bounded(line.split_once('"')?.0))
}

/// The token of the file, else of the environment.
fn token(file: Option<&Path>) -> Result<Option<String>, String> {
    match file {
        Some(file) => forebay_config::read_token(file).map(Some).map_err(|fault| fault.to_string()),
        None => Ok(std::env::var(TOKEN_VARIABLE).ok().map(|token| token.trim().to_owned())),
    }
}

async fn text_of(mut answer: Response, bytes_max: usize) -> Result<String, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| cause(&error))? {
        if bytes.len() + piece.len() > bytes_max {
            return Err(format!("an answer of over {bytes_max} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Advice for a connection without an HTTP answer.
fn unreached_help(cause: &str, is_tls: bool) -> &'static str {
    const NO_HTTP: [&str; 4] = [
        "invalid HTTP",
        "connection closed",
        "reset by peer",
        "unexpected message", // a server that speaks first
    ];
    if is_tls && cause.contains("InvalidContentType") {
        return "what answers there speaks no TLS: write http://";
    }
    if !is_tls && NO_HTTP.iter().any(|part| cause.contains(part)) {
        return "what answers there speaks no plain HTTP; for a TLS port write https://";
    }
    "does the router run, and is this its `admin` address?"
}

/// The innermost error: the outer errors contain the URL, which the caller prints.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_in_every_form() {
        let base = |router: &str| {
            let files = RouterFiles { token: None, ca: None };
            RouterClient::new(router, files).map(|client| client.base.to_string())
        };
        assert_eq!(base("127.0.0.1:9090").unwrap(), "http://127.0.0.1:9090/");
        assert_eq!(base("http://r:1/").unwrap(), "http://r:1/");
        assert_eq!(base("unix:/run/forebay/admin.sock").unwrap(), "http://localhost/");
        assert!(base("ftp://r").unwrap_err().contains("http://"));
        assert_eq!(reachable("0.0.0.0:9".parse().unwrap()).to_string(), "127.0.0.1:9");
        assert_eq!(reachable("[::]:9".parse().unwrap()).to_string(), "[::1]:9");
        assert_eq!(reachable("10.0.0.1:9".parse().unwrap()).to_string(), "10.0.0.1:9");
    }

    #[test]
    fn a_name_cannot_leave_its_segment() {
        let files = RouterFiles { token: None, ca: None };
        let client = RouterClient::new("h:1", files).unwrap();
        let url = |name: &str| {
            let request = client.request(Method::GET, &["workers", name, "drain"]).build();
            request.unwrap().url().to_string()
        };
        assert_eq!(url("10.0.0.7:8000"), "http://h:1/workers/10.0.0.7:8000/drain");
        assert_eq!(url("a/b?c#d"), "http://h:1/workers/a%2Fb%3Fc%23d/drain");
    }

    #[test]
    fn a_version_is_read_off_the_metrics_of_a_router_alone() {
        let metrics = "# HELP x\nforebay_build_info{version=\"0.1.0\"} 1\n";
        assert_eq!(version_in(metrics).as_deref(), Some("0.1.0"));
        for other in ["", "forebay_build_info{version=\"0.1", "nginx_up 1\n"] {
            assert_eq!(version_in(other), None, "{other}");
        }
        let foreign = "x_forebay_build_info{version=\"1\"} 1";
        assert_eq!(version_in(foreign), None);
    }

    #[test]
    fn an_address_without_an_answer_has_advice() {
        assert!(unreached_help("invalid HTTP version parsed", false).contains("https://"));
        assert!(unreached_help("corrupt message of type InvalidContentType", true).contains("TLS"));
        assert!(unreached_help("Connection refused", false).contains("does the router run"));
    }
}
