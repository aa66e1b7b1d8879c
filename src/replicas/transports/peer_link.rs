//! The connection to a peer: a long-lived request for its messages. A peer that is silent, or sends
//! unreadable data, is disconnected and called again.

use super::inbound::InboundMessage;
use super::message_lines::{LineTooLong, MessageLines};
use crate::wire::{MessageKind, ReplicaId, word_of};
use bytes::Bytes;
use forebay_base::{Clock, FileFault};
use forebay_config::{ReplicasConfig, WorkerUrl, read_token};
use forebay_http1::header::ADMIN;
use reqwest::{Client, Response, StatusCode};
use std::cell::{Cell, RefCell};
use std::io;
use std::mem::discriminant;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// Path of the messages in the admin API.
pub(crate) const MESSAGES_PATH: &str = "/replicas/messages";
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// A peer sends its load every second.
const SILENCE_MAX: Duration = Duration::from_secs(3);
pub(crate) const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
pub(crate) const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A URL of `replicas.peers`.
#[derive(Debug)]
pub(crate) struct PeerLink {
    url: String,
    client: Client,
    token_file: Option<PathBuf>,
    state: RefCell<LinkState>,
    /// Last logged fault since messages last arrived.
    logged: RefCell<Option<LinkFault>>,
    /// The last message of the peer was its goodbye.
    has_left: Cell<bool>,
}

/// State of the connection to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The first call is in progress.
    Untried,
    /// Messages of the peer arrive.
    Connected,
    /// The URL leads to this router.
    Own,
    /// No messages arrive, for this reason.
    Failed(LinkFault),
}

/// Reason why no messages arrive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum LinkFault {
    #[error("{0}")]
    Unreachable(String),
    #[error("no message for {} s", SILENCE_MAX.as_secs())]
    Silent,
    #[error("it answers {0}")]
    Refused(u16),
    /// The answer lacks the field of each admin API.
    #[error("it answers {0} and is no admin API")]
    Foreign(u16),
    #[error("the token: {}", .0.what)]
    Token(FileFault),
    #[error("it sends {0}")]
    Unreadable(#[from] LineTooLong),
    #[error("it ended the stream")]
    Ended,
}

impl LinkFault {
    /// Advice for the operator.
    fn help(&self) -> &str {
        match self {
            Self::Refused(401 | 403) => {
                "put a token of the peer's `admin_read_token_file` into `replicas.token_file`"
            }
            Self::Refused(404) => "set `replicas.peers` there too, and use the same version",
            Self::Refused(421) => "add the name to `admin_hosts` of the peer, or use its address",
            Self::Refused(503) => "more routers read there than may: use NATS",
            Self::Foreign(_) => {
                "write the `admin` address of the other router: `listen`, where clients connect, \
                 has no messages"
            }
            Self::Refused(_) | Self::Unreadable(_) => "is this the admin address of a router?",
            Self::Token(fault) => &fault.help,
            Self::Unreachable(_) | Self::Silent | Self::Ended => {
                "is the router up, and `admin` there reachable from here?"
            }
        }
    }

    /// The peer is reachable, but an operator must act.
    const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Foreign(_) | Self::Token(_) | Self::Unreadable(_))
    }
}

impl PeerLink {
    /// Without a connection.
    ///
    /// # Errors
    /// The URL or a TLS file is invalid, or a system error.
    pub(crate) fn new(
        url: &str,
        config: &ReplicasConfig,
        token_file: Option<PathBuf>,
    ) -> io::Result<Self> {
        let peer = WorkerUrl::parse(url).map_err(io::Error::other)?;
        let mut client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIME_MAX);
        if let Some(tls) = config.connector(&peer).map_err(io::Error::other)? {
            client = client.use_preconfigured_tls(tls.config());
        }
        let client = client.build().map_err(io::Error::other)?;
        let state = RefCell::new(LinkState::Untried);
        let logged = RefCell::new(None);
        let has_left = Cell::new(false);
        Ok(Self { url: peer.text(), client, token_file, state, logged, has_left })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn state(&self) -> LinkState {
        self.state.borrow().clone()
    }

    /// A single connection, from the call to its end. Calls `changed` when the kind of state
    /// changes.
    pub(crate) async fn run(
        &self,
        own: ReplicaId,
        messages: &Sender<InboundMessage>,
        clock: Clock,
        changed: &dyn Fn(),
    ) {
        let fault = match self.call(own).await {
            Ok(None) => {
                debug!(peer = self.url, "a peer is this router itself");
                self.logged.replace(None);
                return self.set(LinkState::Own, changed);
            }
            Ok(Some(answer)) => self.read(answer, messages, clock, changed).await,
            Err(fault) => fault,
        };
        self.log_failed(&fault);
        self.set(LinkState::Failed(fault), changed);
    }

    fn set(&self, state: LinkState, changed: &dyn Fn()) {
        let kind = discriminant(&state);
        if discriminant(&self.state.replace(state)) != kind {
            changed();
        }
    }

    /// Requests messages; `None` if the peer is this router.
    async fn call(&self, own: ReplicaId) -> Result<Option<Response>, LinkFault> {
        let url = format!("{}{MESSAGES_PATH}?replica={own}", self.url);
        let mut call = self.client.get(url);
        if let Some(file) = &self.token_file {
            let token = read_token(file).map_err(LinkFault::Token)?;
            call = call.bearer_auth(token);
        }
        let answer = timeout(SILENCE_MAX, call.send()).await.map_err(|_| LinkFault::Silent)?;
        let mut answer = answer.map_err(|error| LinkFault::Unreachable(cause(&error)))?;
        match answer.status() {
            StatusCode::OK => Ok(Some(answer)),
            StatusCode::CONFLICT if names(&mut answer, own).await => Ok(None),
            status if answer.headers().contains_key(ADMIN) => {
                Err(LinkFault::Refused(status.as_u16()))
            }
            status => Err(LinkFault::Foreign(status.as_u16())),
        }
    }

    /// Passes messages on until the stream ends. The first message of a replica proves that the
    /// peer is a router.
    async fn read(
        &self,
        mut answer: Response,
        messages: &Sender<InboundMessage>,
        clock: Clock,
        changed: &dyn Fn(),
    ) -> LinkFault {
        let mut lines = MessageLines::default();
        let mut last = clock.now();
        loop {
            let left = Duration::from_nanos(last.plus(SILENCE_MAX).since(clock.now()));
            let mut chunk: Bytes = match timeout(left, answer.chunk()).await {
                Err(_) => return LinkFault::Silent,
                Ok(Err(error)) => return LinkFault::Unreachable(cause(&error)),
                Ok(Ok(None)) => return LinkFault::Ended,
                Ok(Ok(Some(chunk))) => chunk,
            };
            loop {
                match lines.take(&mut chunk) {
                    Ok(Some(message)) => {
                        if let Some(word) = word_of(&message.subject) {
                            self.has_left.set(word == MessageKind::Bye.word());
                            last = clock.now();
                            self.log_connected();
                            self.set(LinkState::Connected, changed);
                        }
                        // This router's loop has ended, and so does this task.
                        let Ok(()) = messages.send(message).await else { return LinkFault::Ended };
                    }
                    Ok(None) => break,
                    Err(fault) => return fault.into(),
                }
            }
        }
    }

    fn log_connected(&self) {
        let is_first = *self.state.borrow() == LinkState::Untried;
        if self.logged.replace(None).is_some() || is_first {
            info!(peer = self.url, "connected to a peer: windows, limits and queues are shared");
        }
    }

    /// Logs a fault once until messages arrive again. A broken stream is logged only if the next
    /// call fails too: the peer may have been replaced by its next process.
    fn log_failed(&self, fault: &LinkFault) {
        let was_connected = *self.state.borrow() == LinkState::Connected;
        let is_worth = !was_connected || fault.is_refusal();
        let mut logged = self.logged.borrow_mut();
        let is_news = match &*logged {
            None => true,
            Some(before) => fault.is_refusal() && before != fault,
        };
        if is_worth && is_news {
            let help = fault.help();
            let peer = &self.url;
            if self.has_left.get() && !fault.is_refusal() {
                info!(peer, "a peer has left: nothing is shared with it until it is back");
            } else {
                warn!(peer, %fault, help, "no messages of a peer: nothing is shared with it");
            }
            *logged = Some(fault.clone());
        }
    }
}

/// True if the response comes from this router itself.
async fn names(answer: &mut Response, own: ReplicaId) -> bool {
    let body = timeout(SILENCE_MAX, answer.chunk()).await;
    let Ok(Ok(Some(body))) = body else { return false };
    String::from_utf8_lossy(&body).contains(&own.to_string())
}

/// The innermost error: the outer errors contain the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if error.is_timeout() { "no connection in time".to_owned() } else { cause.to_string() }
}
