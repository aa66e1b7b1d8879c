//! Small HTTP queries to workers, each bounded in time and bytes.

use super::names::resolver::NamedResolver;
use bytes::Bytes;
use forebay_base::limits::ENGINE_CALL_TIME_MAX;
use forebay_base::{RouterId, is_out_of_sockets};
use forebay_config::{Config, Connectors, TimeoutsConfig, WorkerConfig, WorkerUrl};
use forebay_http1::header::REASON;
use forebay_prompt::parse::Reason;
use forebay_tls::Connector;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HOST, HeaderValue, VIA};
use reqwest::{ClientBuilder, RequestBuilder};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tracing::warn;

/// Longest response that is read; `/metrics` of a large server has some hundred kilobytes.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Client for queries to workers. Follows no redirects: a worker could direct the router to any
/// server.
pub(crate) fn builder(timeouts: &TimeoutsConfig) -> ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(timeouts.upstream_idle)
        .connect_timeout(timeouts.connect)
        .dns_resolver(Arc::new(NamedResolver))
}

/// HTTP clients of all workers: a shared client for plain text, and a client per worker for TLS.
/// Clones share the state.
#[derive(Clone, Debug)]
pub struct WorkerClients {
    pub(crate) plain: reqwest::Client,
    /// TLS clients by the `host:port` of their workers.
    secured: Rc<RefCell<HashMap<String, SecuredClient>>>,
    /// This router's id in `Via` fields to workers.
    router_id: Option<RouterId>,
    /// Addresses of workers by `host:port`. A worker without an entry is queried at an address of
    /// its name.
    addresses: Rc<RefCell<HashMap<String, SocketAddr>>>,
}

/// TLS client of a worker.
#[derive(Debug)]
struct SecuredClient {
    client: reqwest::Client,
    /// `https://name:port`, with the name of the certificate.
    base: String,
    /// The host of the URL.
    host: String,
    timeouts: TimeoutsConfig,
    connector: Connector,
}

impl SecuredClient {
    /// `base` names the certificate to check; the connection goes to the URL's address.
    fn connect(&mut self, at: Option<SocketAddr>) -> reqwest::Result<()> {
        let client = builder(&self.timeouts).use_preconfigured_tls(self.connector.config());
        let host = HostOf { host: self.host.clone(), at };
        self.client = client.dns_resolver(Arc::new(host)).build()?;
        Ok(())
    }
}

impl WorkerClients {
    /// `connectors`: TLS configuration of each worker.
    ///
    /// # Errors
    /// The system has no randomness or no resolver.
    pub fn new(config: &Config, connectors: &Connectors) -> reqwest::Result<Self> {
        let plain = builder(&config.timeouts).build()?;
        let clients =
            Self { plain, secured: Rc::default(), router_id: None, addresses: Rc::default() };
        clients.renew(config, &config.workers, connectors)?;
        Ok(clients)
    }

    /// Adds the router's id to each query, so that a worker URL that leads back here is detected.
    #[must_use]
    pub fn of_router(self, router_id: RouterId) -> Self {
        Self { router_id: Some(router_id), ..self }
    }

    /// Replaces the TLS clients of these workers for queries from now on.
    ///
    /// # Errors
    /// Like [`Self::new`]; nothing changes then.
    pub fn renew(
        &self,
        config: &Config,
        workers: &[WorkerConfig],
        connectors: &Connectors,
    ) -> reqwest::Result<()> {
        let mut renewed = HashMap::new();
        for worker in workers {
            let Ok(url) = WorkerUrl::parse(&worker.url) else { continue };
            let Some(connector) = connectors.get(&url.authority) else { continue };
            let base = match &worker.tls.tls_name {
                Some(name) => format!("https://{name}:{}", url.port),
                None => format!("https://{}", url.authority),
            };
            let mut secured = SecuredClient {
                client: self.plain.clone(),
                base,
                host: url.host,
                timeouts: config.timeouts,
                connector: connector.clone(),
            };
            secured.connect(self.address(&url.authority))?;
            renewed.insert(url.authority, secured);
        }
        self.secured.borrow_mut().extend(renewed);
        Ok(())
    }

    /// The worker's address, if it was set.
    pub(crate) fn address(&self, authority: &str) -> Option<SocketAddr> {
        self.addresses.borrow().get(authority).copied()
    }

    /// Sets the worker's address for queries, or returns to its name. Connections to the old
    /// address are not reused.
    pub(crate) fn aim(&self, authority: &str, at: Option<SocketAddr>) {
        // A URL cannot contain a zone: the resolver adds it to the name's address.
        let at = at.filter(|at| !matches!(at, SocketAddr::V6(at) if at.scope_id() != 0));
        let mut addresses = self.addresses.borrow_mut();
        let before = match at {
            Some(at) => addresses.insert(authority.to_owned(), at),
            None => addresses.remove(authority),
        };
        if before == at {
            return;
        }
        if let Some(secured) = self.secured.borrow_mut().get_mut(authority)
            && let Err(error) = secured.connect(at)
        {
            warn!(worker = authority, %error, "asked as before, not at its new address");
        }
    }

    /// Drops TLS clients and addresses of removed workers.
    pub fn forget(&self, is_known: impl Fn(&str) -> bool) {
        self.secured.borrow_mut().retain(|authority, _| is_known(authority));
        self.addresses.borrow_mut().retain(|authority, _| is_known(authority));
    }

    /// Sends a POST without a body to a worker.
    ///
    /// # Errors
    /// The response that was not a 200, or the error.
    pub async fn call(
        &self,
        authority: &str,
        api_key: Option<String>,
        path: &str,
    ) -> Result<(), String> {
        let asker = self.asker(authority, api_key, ENGINE_CALL_TIME_MAX);
        let request = asker.server.question(path).post();
        asker.ask(request, path).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Forwards a call to a worker's engine. A `body` makes it a JSON POST. Returns the status, the
    /// body cut at `bytes_max`, and whether it was cut.
    ///
    /// # Errors
    /// The reason for a missing response.
    pub async fn hand(
        &self,
        authority: &str,
        api_key: Option<String>,
        target: &str,
        body: Option<Bytes>,
        bytes_max: usize,
    ) -> Result<(u16, String, bool), String> {
        let asker = self.asker(authority, api_key, ENGINE_CALL_TIME_MAX);
        let question = asker.server.question(target);
        let request = match body {
            Some(body) if body.is_empty() => question.post(),
            Some(body) => question.post().header(CONTENT_TYPE, "application/json").body(body),
            None => question.get(),
        };
        let path = target.split('?').next().unwrap_or_default();
        let answer = asker.answer(request, path, bytes_max).await;
        answer
            .map(|WorkerAnswer { status, body, is_cut }| (status, text(body), is_cut))
            .map_err(|error| error.to_string())
    }

    /// Queries the worker named `authority` at its current address.
    pub(crate) fn asker(
        &self,
        authority: &str,
        api_key: Option<String>,
        timeout: Duration,
    ) -> WorkerClient {
        let server = AskedServer::Worker { clients: self.clone(), authority: authority.to_owned() };
        WorkerClient { server, api_key, timeout }
    }
}

/// Resolves every name to this host.
struct HostOf {
    host: String,
    /// Address of the host.
    at: Option<SocketAddr>,
}

impl Resolve for HostOf {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.host.clone();
        let at = self.at;
        Box::pin(async move {
            let found: Vec<_> = match at {
                Some(at) => vec![at],
                None => return NamedResolver.resolve(host.parse()?).await,
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Cause of a query that got no connection: a host without a listener refuses at once.
pub(crate) const NO_CONNECTION: &str = "no connection in time";
/// Cause of a query that a server took and did not answer; the time follows.
pub(crate) const NO_ANSWER: &str = "no answer within";

/// Reason for a failed query.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    /// No response in time, or an invalid response.
    #[error("{path}: {cause}")]
    Failed { path: String, cause: String },
    /// Connection refused: no listener.
    #[error("{path}: {cause}")]
    Refused { path: String, cause: String },
    /// This host had no descriptor or port left for the query.
    #[error("{path}: out of file descriptors or ports")]
    OutOfSockets { path: String },
    /// The query came back to this router.
    #[error(
        "{path}: this address leads to the router itself, or to a router that has this one as a \
         worker"
    )]
    Loop { path: String },
    /// A response past the limit.
    #[error("{path}: the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong { path: String },
    /// Any status that is not 200.
    #[error("{path}: status {status}")]
    Status { path: String, status: u16 },
}

impl AskError {
    /// The HTTP status, if the server responded.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// True if no load of the engine explains the fault: no listener, another server, or a path
    /// or a key that a server refuses.
    pub(crate) const fn is_never_load(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Loop { .. } | Self::Status { status: 401 | 403 | 404, .. }
        )
    }

    /// True if another address of the name may respond.
    pub(crate) const fn is_unreached(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Failed { .. })
    }
}

/// Sends queries to a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerClient {
    server: AskedServer,
    api_key: Option<String>,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum AskedServer {
    /// A server at `http://host:port`.
    Plain { client: reqwest::Client, base: String },
    /// A worker; its address may change.
    Worker { clients: WorkerClients, authority: String },
}

/// A query in preparation.
struct WorkerQuestion<'a> {
    client: reqwest::Client,
    url: String,
    /// Value of `Host`, if it differs from `url`.
    host: Option<&'a str>,
    router_id: Option<RouterId>,
}

impl AskedServer {
    fn question(&self, path: &str) -> WorkerQuestion<'_> {
        let (clients, authority) = match self {
            Self::Plain { client, base } => {
                let url = format!("{base}{path}");
                return WorkerQuestion { client: client.clone(), url, host: None, router_id: None };
            }
            Self::Worker { clients, authority } => (clients, authority),
        };
        let router_id = clients.router_id;
        if let Some(SecuredClient { client, base, .. }) = clients.secured.borrow().get(authority) {
            let url = format!("{base}{path}");
            return WorkerQuestion {
                client: client.clone(),
                url,
                host: Some(authority),
                router_id,
            };
        }
        let (url, host) = match clients.address(authority) {
            Some(at) => (format!("http://{at}{path}"), Some(&**authority)),
            None => (format!("http://{authority}{path}"), None),
        };
        WorkerQuestion { client: clients.plain.clone(), url, host, router_id }
    }
}

impl WorkerQuestion<'_> {
    fn with_own_fields(&self, mut request: RequestBuilder) -> RequestBuilder {
        if let Some(host) = self.host {
            request = request.header(HOST, host);
        }
        if let Some(router_id) = &self.router_id {
            request = request.header(VIA, format!("1.1 {}", router_id.as_str()));
        }
        request
    }

    fn get(&self) -> RequestBuilder {
        self.with_own_fields(self.client.get(&self.url))
    }

    fn post(&self) -> RequestBuilder {
        self.with_own_fields(self.client.post(&self.url))
    }
}

impl WorkerClient {
    /// For the worker at `base`, `http://host:port` without a trailing slash.
    pub(crate) fn new(
        client: reqwest::Client,
        base: &str,
        api_key: Option<String>,
        timeout: Duration,
    ) -> Self {
        let base = base.trim_end_matches('/').to_owned();
        Self { server: AskedServer::Plain { client, base }, api_key, timeout }
    }

    /// True if queries carry a key of the configuration.
    pub(crate) const fn has_key(&self) -> bool {
        self.api_key.is_some()
    }

    /// Longest wait for each response.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// `GET path`: the body of a 200.
    pub(crate) async fn get(&self, path: &str) -> Result<String, AskError> {
        self.ask(self.server.question(path).get(), path).await
    }

    /// `POST path` with a body: the body of a 200.
    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Result<String, AskError> {
        let request = self.server.question(path).post();
        let request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        self.ask(request, path).await
    }

    async fn ask(&self, request: RequestBuilder, path: &str) -> Result<String, AskError> {
        let path = || path.to_owned();
        match self.answer(request, &path(), ANSWER_BYTES_MAX).await? {
            WorkerAnswer { status: 200, is_cut: true, .. } => {
                Err(AskError::TooLong { path: path() })
            }
            WorkerAnswer { status: 200, body, .. } => Ok(text(body)),
            WorkerAnswer { status, .. } => Err(AskError::Status { path: path(), status }),
        }
    }

    /// Any response, with its body up to the limit.
    async fn answer(
        &self,
        request: RequestBuilder,
        path: &str,
        bytes_max: usize,
    ) -> Result<WorkerAnswer, AskError> {
        let failed = |error: reqwest::Error| {
            let path = path.to_owned();
            if is_own_lack(&error) {
                return AskError::OutOfSockets { path };
            }
            let cause = match (error.is_timeout(), error.is_connect()) {
                (true, true) => NO_CONNECTION.to_owned(),
                (true, false) => format!("{NO_ANSWER} {:?}", self.timeout),
                (false, _) => in_plain_words(cause_of(&error)),
            };
            match error.is_connect() && !error.is_timeout() {
                true => AskError::Refused { path, cause },
                false => AskError::Failed { path, cause },
            }
        };
        let mut request = request.timeout(self.timeout);
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let reason = response.headers().get(REASON).map(HeaderValue::as_bytes);
        let is_loop = status == Reason::RequestLoop.status()
            && reason == Some(Reason::RequestLoop.as_str().as_bytes());
        if is_loop {
            return Err(AskError::Loop { path: path.to_owned() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            let room = bytes_max - body.len();
            body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            if chunk.len() > room {
                return Ok(WorkerAnswer { status, body, is_cut: true });
            }
        }
        Ok(WorkerAnswer { status, body, is_cut: false })
    }
}

/// Response of a worker.
struct WorkerAnswer {
    status: u16,
    body: Vec<u8>,
    /// True if `body` is truncated.
    is_cut: bool,
}

/// Converts without a copy if the body is UTF-8, the usual case.
fn text(body: Vec<u8>) -> String {
    String::from_utf8(body)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// True if the query failed for lack of a socket here.
fn is_own_lack(error: &dyn std::error::Error) -> bool {
    let mut chain = std::iter::successors(error.source(), |error| error.source());
    chain.any(|error| error.downcast_ref::<io::Error>().is_some_and(is_out_of_sockets))
}

/// Names a wrong scheme of the URL, which libraries report by the first odd bytes.
fn in_plain_words(cause: String) -> String {
    // The rest has the time of the check: each check of an outage would have a line of its own.
    if let Some((fault, _)) = cause.split_once(": verification time ") {
        return fault.to_owned();
    }
    if cause.contains("InvalidContentType") {
        return "it does not speak TLS: write `url` with http://".to_owned();
    }
    // A server that speaks first gives either message, by chance.
    if cause.contains("invalid HTTP version parsed") || cause.contains("unexpected message") {
        return "it does not speak HTTP/1.1; if it speaks TLS, write `url` with https://"
            .to_owned();
    }
    if cause.contains("connection closed before") || cause.contains("reset by peer") {
        return format!("{cause}; if it speaks TLS, write `url` with https://");
    }
    cause
}

/// The most specific error: the last of the chain.
pub fn cause_of(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::in_plain_words;

    /// A reason with the time of the check would be another reason with each check.
    #[test]
    fn a_certificate_fault_reads_the_same_at_each_moment() {
        for fault in ["certificate expired", "certificate not valid yet"] {
            let at = |now: u64| {
                in_plain_words(format!(
                    "invalid peer certificate: {fault}: verification time {now} (UNIX), but \
                     certificate is not valid after 1700000000 ({} seconds ago)",
                    now - 1_700_000_000
                ))
            };
            assert_eq!(at(1_796_000_000), at(1_796_000_005));
            assert!(at(1_796_000_000).ends_with(fault), "{}", at(1_796_000_000));
        }
    }
}
