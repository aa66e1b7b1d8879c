//! The connection to NATS. The client connects and reconnects by itself. Without a connection no
//! message is passed to the client: its queue would become stale.

use super::inbound::{InboundMessage, LEAVE_TIME_MAX, LinkEvent};
use crate::wire::{all_subjects, subject};
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, Message, ServerAddr};
use forebay_base::NameFault;
use forebay_base::limits::REPLICA_MESSAGES_MAX;
use forebay_config::Config;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::cell::{Cell, OnceCell};
use std::future::ready;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::task::{spawn_local, unconstrained};
use tokio::time::timeout;
use tracing::{debug, info, warn};

const URL_KEY: &str = "nats.url";
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Ping interval; the connection is dropped after the third unanswered ping.
const PING_PERIOD: Duration = Duration::from_secs(1);
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pending notices of the client; its state contains the same information.
const EVENTS_MAX: usize = 64;

/// This router as a client of NATS.
#[derive(Debug)]
pub(crate) struct Nats {
    urls: String,
    /// Names of the servers.
    hosts: Vec<String>,
    prefix: String,
    client: OnceCell<Client>,
    is_connected: Cell<bool>,
    /// The missing connection was logged.
    has_complained: Cell<bool>,
}

type ConnectError = Box<dyn std::error::Error + Send + Sync>;

impl Nats {
    /// `None` without a URL.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let hosts = config.server_hosts().into_iter();
        let hosts = hosts.filter(|(key, _)| *key == URL_KEY).map(|(_, host)| host);
        Some(Self {
            urls: config.nats.url.clone()?,
            hosts: hosts.collect(),
            prefix: config.nats.prefix.clone(),
            client: OnceCell::new(),
            is_connected: Cell::new(false),
            has_complained: Cell::new(false),
        })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.get()
    }

    /// Returns at once; the client connects in the background. `name`: name of this replica.
    pub(crate) async fn connect(
        &self,
        name: &str,
    ) -> Result<
        (impl Stream<Item = LinkEvent> + Unpin, impl Stream<Item = InboundMessage> + Unpin + use<>),
        ConnectError,
    > {
        let (notices, mut events) = mpsc::channel(EVENTS_MAX);
        let servers = self.urls.split(',').map(|url| url.trim().parse::<ServerAddr>());
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let options = with_credentials(ConnectOptions::new(), &servers)
            .name(format!("forebay {name}"))
            .no_echo()
            .retry_on_initial_connect()
            .connection_timeout(CONNECT_TIME_MAX)
            .ping_interval(PING_PERIOD)
            .client_capacity(REPLICA_MESSAGES_MAX)
            .subscription_capacity(REPLICA_MESSAGES_MAX)
            .reconnect_delay_callback(|attempts| {
                let doubled = u32::try_from(attempts).unwrap_or(u32::MAX).saturating_sub(1).min(10);
                RECONNECT_PAUSE_MIN.saturating_mul(1 << doubled).min(RECONNECT_PAUSE_MAX)
            })
            .event_callback(move |event| {
                let _ = notices.try_send(event);
                ready(())
            });
        let client = options.connect(servers).await?;
        let subscriber = client.subscribe(all_subjects(&self.prefix)).await?;
        let _ = self.client.set(client);
        let links = stream::poll_fn(move |context| events.poll_recv(context));
        Ok((links.filter_map(|event| ready(self.on_event(&event))), subscriber.map(received)))
    }

    fn on_event(&self, event: &Event) -> Option<LinkEvent> {
        match event {
            Event::Connected => {
                self.is_connected.set(true);
                self.has_complained.set(false);
                info!("connected to NATS: windows and load are shared with other replicas");
                return Some(LinkEvent::Connected);
            }
            Event::Disconnected if self.is_connected.replace(false) => {
                self.has_complained.set(true);
                warn!("lost the connection to NATS: going on alone until it is back");
            }
            Event::ClientError(_) | Event::ServerError(_)
                if !self.is_connected.get() && !self.has_complained.replace(true) =>
            {
                spawn_local(complain(self.hosts.clone(), event.to_string()));
                return Some(LinkEvent::Unreachable);
            }
            event => debug!(%event, "NATS"),
        }
        None
    }

    /// Sends at once, or drops the message.
    pub(crate) fn send(&self, word: &str, bytes: Vec<u8>) -> bool {
        let usable = |client: &&Client| client.connection_state() == State::Connected;
        self.client.get().filter(usable).is_some_and(|client| {
            let sending = client.publish(subject(&self.prefix, word), bytes.into());
            unconstrained(sending).now_or_never().is_some_and(|sent| sent.is_ok())
        })
    }

    /// Waits until the server has received all sent messages.
    pub(crate) async fn flush(&self) {
        if let Some(client) = self.client.get().filter(|_| self.is_connected.get()) {
            let _ = tokio::time::timeout(LEAVE_TIME_MAX, client.flush()).await;
        }
    }
}

/// Logs the missing connection. The client reports a name that does not resolve as "DNS error",
/// so each name is looked up again for its fault.
async fn complain(hosts: Vec<String>, reason: String) {
    let fault = name_fault(&hosts).await;
    let reason = fault.as_ref().map_or(reason, |fault| fault.what.clone());
    let help = fault.map(|fault| fault.help);
    let help = help.unwrap_or_else(|| format!("correct `{URL_KEY}`, or start the server"));
    let servers = hosts.join(", ");
    warn!(servers, reason, help, "no connection to NATS yet: going on alone until it is there");
}

/// Fault of the first name that does not resolve.
async fn name_fault(hosts: &[String]) -> Option<NameFault> {
    for host in hosts {
        let found = timeout(CONNECT_TIME_MAX, lookup_host((&**host, 0))).await;
        let fault = match found.map(|found| found.map(|mut found| found.next())) {
            Ok(Ok(Some(_))) => continue,
            Ok(Ok(None)) => "the name has no address".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CONNECT_TIME_MAX:?}"),
        };
        return Some(NameFault::new(host, URL_KEY, fault));
    }
    None
}

fn received(message: Message) -> InboundMessage {
    InboundMessage { subject: message.subject.to_string(), payload: message.payload }
}

/// Sets the credentials of the first URL that has any, `user:password@` or `token@`: the client
/// ignores credentials in URLs.
fn with_credentials(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let Some(server) = servers.iter().find(|server| server.has_user_pass()) else { return options };
    let user = percent_decoded(server.username().unwrap_or_default());
    match server.password() {
        Some(password) => options.user_and_password(user, percent_decoded(password)),
        None => options.token(user),
    }
}

/// Decodes `%40` to `@`; invalid encodings stay as they are.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_kv_events::test_support::block_on_local;

    /// Issue 39: the log had "DNS error", without a name. Names below `invalid` never resolve.
    #[test]
    fn a_name_that_does_not_resolve_has_its_resolver_and_key() {
        block_on_local(async {
            let hosts = ["127.0.0.1", "no-such.invalid"].map(str::to_owned);
            let fault = name_fault(&hosts).await.unwrap();
            let start = "resolver of the system, asked for no-such.invalid: ";
            assert!(fault.what.starts_with(start), "{fault}");
            assert!(fault.help.contains("correct `nats.url`"), "{fault}");
            assert_eq!(name_fault(&hosts[..1]).await, None);
        });
    }

    #[test]
    fn passwords_are_decoded() {
        assert_eq!(percent_decoded("s3%40%2f"), "s3@/");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
    }
}
