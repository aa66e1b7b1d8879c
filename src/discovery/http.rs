//! Small questions to workers over HTTP, each bounded in time and bytes.

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

/// Longest answer that is read; `/metrics` of a large server is some hundred kilobytes.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Asks workers about themselves. Follows no redirects: a worker could make the router ask any
/// server.
pub(crate) fn builder(timeouts: &TimeoutsConfig) -> ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(timeouts.upstream_idle)
        .connect_timeout(timeouts.connect)
}

/// Clients of HTTP for all workers: one for all in plain text, one for each over TLS. A handle:
/// copies share everything.
#[derive(Clone, Debug)]
pub struct WorkerClients {
    pub(crate) plain: reqwest::Client,
    /// By the `host:port` of their workers.
    secured: Rc<RefCell<HashMap<String, SecuredClient>>>,
    /// What the router calls itself towards workers.
    router_id: Option<RouterId>,
    /// Where workers are asked, by their `host:port`. Others are asked where their name leads.
    addresses: Rc<RefCell<HashMap<String, SocketAddr>>>,
}

/// Asks one worker over TLS.
#[derive(Debug)]
struct SecuredClient {
    client: reqwest::Client,
    /// `https://name:port`, with the name that the certificate is for.
    base: String,
    /// The host of the URL.
    host: String,
    timeouts: TimeoutsConfig,
    connector: Connector,
}

impl SecuredClient {
    /// The name of `base` is asked for and checked; the address is the URL's all the same.
    fn connect(&mut self, at: Option<SocketAddr>) -> reqwest::Result<()> {
        let client = builder(&self.timeouts).use_preconfigured_tls(self.connector.config());
        let host = HostOf { host: self.host.clone(), at };
        self.client = client.dns_resolver(Arc::new(host)).build()?;
        Ok(())
    }
}

impl WorkerClients {
    /// `connectors`: how TLS to each worker begins.
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

    /// Names the router in each question: a worker that leads back to it says so.
    #[must_use]
    pub fn of_router(self, router_id: RouterId) -> Self {
        Self { router_id: Some(router_id), ..self }
    }

    /// Askers of these workers that begin from now on ask over TLS like this.
    ///
    /// # Errors
    /// As [`Self::new`]; nothing changes then.
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

    /// Where the worker is asked, if that was said.
    pub(crate) fn address(&self, authority: &str) -> Option<SocketAddr> {
        self.addresses.borrow().get(authority).copied()
    }

    /// Has the worker asked at that address from now on, or where its name leads. No connection
    /// to an address of before is used again.
    pub(crate) fn aim(&self, authority: &str, at: Option<SocketAddr>) {
        // A zone has no place in a URL: the resolver gives it with the name.
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

    /// Forgets how TLS began to workers that are not known any more, and where these are.
    pub fn forget(&self, is_known: impl Fn(&str) -> bool) {
        self.secured.borrow_mut().retain(|authority, _| is_known(authority));
        self.addresses.borrow_mut().retain(|authority, _| is_known(authority));
    }

    /// Tells a worker to do something, by a POST without a body.
    ///
    /// # Errors
    /// What came instead of a 200.
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

    /// Hands a call to a worker's engine. A `body` makes it a POST of JSON. The answer's status and
    /// body, cut at `bytes_max`; true if it was.
    ///
    /// # Errors
    /// Why there is no answer.
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

    /// Asks a worker that names itself `authority`, wherever that is at the time of a question.
    pub(crate) fn asker(
        &self,
        authority: &str,
        api_key: Option<String>,
        timeout: Duration,
    ) -> Asker {
        let server = AskedServer::Worker { clients: self.clone(), authority: authority.to_owned() };
        Asker { server, api_key, timeout }
    }
}

/// Every name is this host.
struct HostOf {
    host: String,
    /// The host is there.
    at: Option<SocketAddr>,
}

impl Resolve for HostOf {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.host.clone();
        let at = self.at;
        Box::pin(async move {
            let found: Vec<_> = match at {
                Some(at) => vec![at],
                None => tokio::net::lookup_host((host, 0)).await?.collect(),
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    /// No answer in time, or a broken one.
    #[error("{path}: {cause}")]
    Failed { path: String, cause: String },
    /// No connection: nobody listens there.
    #[error("{path}: {cause}")]
    Refused { path: String, cause: String },
    /// This host had no descriptor or port for the question.
    #[error("{path}: out of file descriptors or ports")]
    OutOfSockets { path: String },
    /// The question came back to this router.
    #[error(
        "{path}: this address leads to the router itself, or to a router that has this one as a \
         worker: remove the worker"
    )]
    Loop { path: String },
    /// An answer past the limit.
    #[error("{path}: the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong { path: String },
    /// Any status that is not 200.
    #[error("{path}: status {status}")]
    Status { path: String, status: u16 },
}

impl AskError {
    /// The status, if there was an answer.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Another address of the name may answer.
    pub(crate) const fn is_unreached(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Failed { .. })
    }
}

/// Asks one worker.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    server: AskedServer,
    api_key: Option<String>,
    timeout: Duration,
}

/// What is asked.
#[derive(Clone, Debug)]
enum AskedServer {
    /// A server at `http://host:port`.
    Plain { client: reqwest::Client, base: String },
    /// A worker, which may move.
    Worker { clients: WorkerClients, authority: String },
}

/// One question on its way.
struct WorkerQuestion<'a> {
    client: reqwest::Client,
    url: String,
    /// Value of `Host`, where it is not what `url` says.
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

impl Asker {
    /// For the worker at `base`, `http://host:port` without a slash at the end.
    pub(crate) fn new(
        client: reqwest::Client,
        base: &str,
        api_key: Option<String>,
        timeout: Duration,
    ) -> Self {
        let base = base.trim_end_matches('/').to_owned();
        Self { server: AskedServer::Plain { client, base }, api_key, timeout }
    }

    /// How long it waits for each answer.
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

    /// Any answer, with so much of its body at most.
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
            let cause = innermost(&error);
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

/// What a worker answered.
struct WorkerAnswer {
    status: u16,
    body: Vec<u8>,
    /// There is more of it.
    is_cut: bool,
}

/// Without a copy where it is text, which is nearly always.
fn text(body: Vec<u8>) -> String {
    String::from_utf8(body)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// True if the question never left for lack of a socket.
fn is_own_lack(error: &dyn std::error::Error) -> bool {
    let mut chain = std::iter::successors(error.source(), |error| error.source());
    chain.any(|error| error.downcast_ref::<io::Error>().is_some_and(is_out_of_sockets))
}

/// The error that says most: the last one of the chain.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
