//! Direct connections between replicas, without a server: each router reads the messages of every
//! other router. Outgoing messages go to all readers; messages of all peers arrive in a single
//! channel.

use super::inbound::{InboundMessage, LEAVE_TIME_MAX, LinkEvent};
use super::message_lines::line;
use super::message_readers::{MessageReaders, MessageStream, SubscribeError};
use super::peer_link::{LinkState, PeerLink, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN};
use crate::wire::ReplicaId;
use forebay_base::limits::{PEER_MESSAGES_MAX, REPLICA_PEERS_MAX};
use forebay_base::{Clock, NanosSinceStart};
use forebay_config::Config;
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Pending connection changes; the link states contain the same information.
const EVENTS_MAX: usize = 64;
/// Poll interval while the last messages leave.
const LEAVE_LOOK: Duration = Duration::from_millis(2);

/// Connection changes, and messages of all peers.
pub(crate) type PeerChannels = (mpsc::Receiver<LinkEvent>, mpsc::Receiver<InboundMessage>);

/// The peers of `replicas.peers`.
#[derive(Debug)]
pub(crate) struct Mesh {
    own: ReplicaId,
    links: Rc<[PeerLink]>,
    readers: MessageReaders,
}

impl Mesh {
    /// `None` without peers.
    ///
    /// # Errors
    /// As for [`PeerLink::new`].
    pub(crate) fn new(own: ReplicaId, config: &Config) -> io::Result<Option<Self>> {
        let token_file = config.peer_token_file().map(Path::to_path_buf);
        let urls = config.replicas.peers.iter().take(REPLICA_PEERS_MAX);
        let link = |url: &String| PeerLink::new(url, &config.replicas, token_file.clone());
        let links = urls.map(link).collect::<io::Result<Rc<[PeerLink]>>>()?;
        let readers = MessageReaders::default();
        Ok((!links.is_empty()).then_some(Self { own, links, readers }))
    }

    /// Maintains a connection to each peer from now on, in tasks of this thread.
    pub(crate) fn connect(&self, clock: Clock) -> PeerChannels {
        let (notices, events) = mpsc::channel(EVENTS_MAX);
        let (sender, messages) = mpsc::channel(PEER_MESSAGES_MAX);
        for index in 0..self.links.len() {
            let links = Rc::clone(&self.links);
            let own = self.own;
            let notices = notices.clone();
            let sender = sender.clone();
            tokio::task::spawn_local(async move {
                let Some(link) = links.get(index) else { return };
                let changed = || {
                    let event = event_of(link, &links);
                    let _ = event.map(|event| notices.try_send(event));
                };
                keep(link, own, &sender, clock, &changed).await;
            });
        }
        (events, messages)
    }

    /// True if messages of every peer arrive.
    pub(crate) fn is_connected(&self) -> bool {
        self.links.iter().all(|link| matches!(link.state(), LinkState::Connected | LinkState::Own))
    }

    /// Each peer except this router itself, and whether its messages arrive.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (&str, bool)> {
        self.links.iter().filter_map(|link| match link.state() {
            LinkState::Own => None,
            state => Some((link.url(), state == LinkState::Connected)),
        })
    }

    /// The peers for `GET /replicas`.
    pub(crate) fn list(&self) -> Value {
        let shown = |link: &PeerLink| match link.state() {
            LinkState::Untried => json!({ "url": link.url(), "state": "connecting" }),
            LinkState::Connected => json!({ "url": link.url(), "state": "connected" }),
            LinkState::Own => json!({ "url": link.url(), "state": "self" }),
            LinkState::Failed(fault) => {
                json!({ "url": link.url(), "state": "down", "fault": fault.to_string() })
            }
        };
        self.links.iter().map(shown).collect()
    }

    /// Sends a message to all readers.
    pub(crate) fn send(&self, word: &str, json: &[u8]) -> bool {
        self.readers.send(&line(word, json))
    }

    /// Streams this router's messages to a reader from now on.
    pub(crate) fn subscribe(
        &self,
        replica: Option<ReplicaId>,
        is_heard: impl Fn(ReplicaId) -> bool,
        now: NanosSinceStart,
    ) -> Result<MessageStream, SubscribeError> {
        if replica == Some(self.own) {
            Err(SubscribeError::Own)
        } else {
            self.readers.add(replica, is_heard, now)
        }
    }

    /// Routers that read here without sending messages, see [`MessageReaders::unheard`].
    pub(crate) fn unheard(
        &self,
        is_heard: impl Fn(ReplicaId) -> bool,
        now: NanosSinceStart,
    ) -> Vec<ReplicaId> {
        self.readers.unheard(is_heard, now)
    }

    /// The replicas that read here; `None` for an operator.
    pub(crate) fn readers(&self) -> Vec<Option<ReplicaId>> {
        self.readers.replicas()
    }

    /// Ends the streams of all readers, after the last message.
    pub(crate) fn end(&self) {
        self.readers.end();
    }

    /// Waits until the last message has left.
    pub(crate) async fn flush(&self) {
        let left = async {
            while self.readers.have_unread() {
                sleep(LEAVE_LOOK).await;
            }
            // The message is between the stream and the socket.
            sleep(LEAVE_LOOK).await;
        };
        let _ = timeout(LEAVE_TIME_MAX, left).await;
    }
}

/// Event of a link's change, once each link was tried.
fn event_of(changed: &PeerLink, links: &[PeerLink]) -> Option<LinkEvent> {
    let is = |wanted: LinkState| links.iter().any(|link| link.state() == wanted);
    match () {
        () if is(LinkState::Untried) => None,
        () if changed.state() == LinkState::Connected => Some(LinkEvent::Connected),
        () if is(LinkState::Connected) => None,
        () => Some(LinkEvent::Unreachable),
    }
}

/// Reconnects forever. A peer that ends each stream at once is not called more often than a peer
/// that is down.
async fn keep(
    link: &PeerLink,
    own: ReplicaId,
    messages: &mpsc::Sender<InboundMessage>,
    clock: Clock,
    changed: &dyn Fn(),
) {
    let mut pause = RECONNECT_PAUSE_MIN;
    while !messages.is_closed() {
        let began = clock.now();
        link.run(own, messages, clock, changed).await;
        if clock.now() > began.plus(RECONNECT_PAUSE_MAX) {
            pause = RECONNECT_PAUSE_MIN;
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(RECONNECT_PAUSE_MAX);
    }
}
