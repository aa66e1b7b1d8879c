//! The connection to NATS and the clock of [`Replica`]. Publishing never waits: a message that the
//! client has no room for is dropped and counted. Without a connection the client gets no message.

use super::bell::EdgeBell;
use super::local::LocalView;
use super::replica::{Outgoing, Replica};
use super::tally::MessageOutcome;
use super::tenants::{is_use, use_subject};
use super::wire::{ReplicaId, all_subjects};
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, Message, ServerAddr, Subscriber};
use forebay_base::Clock;
use forebay_base::limits::REPLICA_MESSAGES_MAX;
use forebay_config::NatsConfig;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard};
use futures_util::{FutureExt, Stream, StreamExt};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::unconstrained;
use tracing::{debug, error, info, warn};

const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// A server that is silent is asked so often, and given up after the third time.
const PING_PERIOD: Duration = Duration::from_secs(1);
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the last message of a router that ends.
const LEAVE_TIME_MAX: Duration = Duration::from_millis(300);
/// Notices of the client under way; what they tell is also in its state.
const EVENTS_MAX: usize = 64;

/// This router as one of several.
#[derive(Debug)]
pub struct Replicas {
    pub(crate) replica: RefCell<Replica>,
    pub(crate) local: RefCell<LocalView>,
    pub(crate) clock: Clock,
    prefix: String,
    client: OnceCell<Client>,
    connected: Cell<bool>,
    /// It was said that there is no connection.
    complained: Cell<bool>,
    changed: Notify,
}

impl Replicas {
    /// Starts what `[nats]` asks for; `None` if it asks for nothing.
    pub fn start(
        config: &NatsConfig,
        clock: Clock,
        board: &Arc<LoadBoard>,
    ) -> std::io::Result<Option<Rc<Self>>> {
        let Some(urls) = config.url.clone() else { return Ok(None) };
        let (replicas, bell) = Self::new(config, clock, board)?;
        tokio::task::spawn_local(Rc::clone(&replicas).run(urls, bell));
        Ok(Some(replicas))
    }

    fn new(
        config: &NatsConfig,
        clock: Clock,
        board: &Arc<LoadBoard>,
    ) -> std::io::Result<(Rc<Self>, EdgeBell)> {
        let id = ReplicaId(fastrand::u64(1..));
        let name = config.name.clone().unwrap_or_else(|| format!("forebay-{id}"));
        let bell = EdgeBell::new()?;
        board.windows().tell(bell.shared());
        let replicas = Rc::new(Self {
            replica: RefCell::new(Replica::new(id, name, clock.now())),
            local: RefCell::new(LocalView::new(Arc::clone(board))),
            clock,
            prefix: config.prefix.clone(),
            client: OnceCell::new(),
            connected: Cell::new(false),
            complained: Cell::new(false),
            changed: Notify::new(),
        });
        Ok((replicas, bell))
    }

    /// The fleet has changed.
    pub fn set_fleet(&self, fleet: &Arc<FleetSnapshot>) {
        let now = self.clock.now();
        self.local.borrow_mut().set_fleet(fleet, &mut self.replica.borrow_mut(), now);
        // Before any shard sees the fleet: a joiner starts small.
        self.turn();
        self.changed.notify_one();
    }

    /// No new requests; what is in flight is told on.
    pub fn drain(&self) {
        self.local.borrow_mut().drain();
    }

    /// Nothing is in flight any more: the others need not wait until this router's silence tells
    /// them.
    pub async fn leave(&self) {
        let bye = self.replica.borrow_mut().leave();
        self.publish(bye);
        if let Some(client) = self.client.get().filter(|_| self.connected.get()) {
            let _ = tokio::time::timeout(LEAVE_TIME_MAX, client.flush()).await;
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.get()
    }

    async fn run(self: Rc<Self>, urls: String, bell: EdgeBell) {
        let (notices, events) = mpsc::channel(EVENTS_MAX);
        match self.connect(&urls, notices).await {
            Ok(heard) => self.follow(events, bell, heard).await,
            Err(reason) => {
                error!(%reason, "no connection to NATS will be tried: this router is alone");
            }
        }
    }

    /// Does whatever is to be done, for ever. A turn that is due comes first: it must not wait
    /// until the others are silent.
    async fn follow(
        &self,
        mut events: mpsc::Receiver<Event>,
        mut bell: EdgeBell,
        mut heard: impl Stream<Item = Message> + Unpin,
    ) {
        loop {
            let now = self.clock.now();
            if self.replica.borrow().turn_at() <= now {
                self.turn();
            }
            let pause = self.replica.borrow().turn_at().since(now);
            tokio::select! {
                biased;
                Some(event) = events.recv() => self.on_event(&event),
                () = bell.rung(|| self.local.borrow().edges()) => self.tell_windows(),
                Some(message) = heard.next() => self.hear(&message),
                () = self.changed.notified() => {}
                () = tokio::time::sleep(Duration::from_nanos(pause)) => {}
            }
        }
    }

    /// Returns at once; the client connects, and connects again, by itself.
    async fn connect(
        &self,
        urls: &str,
        notices: mpsc::Sender<Event>,
    ) -> Result<Subscriber, Box<dyn std::error::Error + Send + Sync>> {
        let servers = urls.split(',').map(|url| url.trim().parse::<ServerAddr>());
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let options = with_credentials(ConnectOptions::new(), &servers)
            .name(format!("forebay {}", self.replica.borrow().name()))
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
                std::future::ready(())
            });
        let client = options.connect(servers).await?;
        let heard = client.subscribe(all_subjects(&self.prefix)).await?;
        let _ = self.client.set(client);
        Ok(heard)
    }

    fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.connected.set(true);
                self.complained.set(false);
                info!("connected to NATS: windows and load are shared with other replicas");
                let hello = self.replica.borrow_mut().connected(self.clock.now());
                self.publish(hello);
                self.turn();
            }
            Event::Disconnected if self.connected.replace(false) => {
                self.complained.set(true);
                warn!("lost the connection to NATS: going on alone until it is back");
            }
            Event::ClientError(_) | Event::ServerError(_)
                if !self.connected.get() && !self.complained.replace(true) =>
            {
                self.replica.borrow_mut().unreachable(self.clock.now());
                let reason = event;
                warn!(%reason, "no connection to NATS yet: going on alone until it is there");
            }
            event => debug!(%event, "NATS"),
        }
    }

    fn hear(&self, message: &Message) {
        let now = self.clock.now();
        if is_use(&message.subject) {
            let is_taken = self.local.borrow_mut().hear_use(&message.payload, now);
            if !is_taken {
                debug!("a word of another replica about its tenants was not taken");
            }
            return;
        }
        let mut replica = self.replica.borrow_mut();
        let before = replica.peers().len();
        if replica.hear(&message.subject, &message.payload, now) {
            self.local.borrow_mut().write_windows(&replica, now);
        }
        let after = replica.peers().len();
        if before != after {
            info!(replicas = after + 1, "a replica came or left");
        }
    }

    fn tell_windows(&self) {
        let now = self.clock.now();
        let open = self.local.borrow().open_windows(now);
        let edge = self.replica.borrow_mut().windows(&open, now);
        self.publish(edge);
    }

    fn turn(&self) {
        self.tell_windows();
        let now = self.clock.now();
        let mut local = self.local.borrow_mut();
        let mut replica = self.replica.borrow_mut();
        let (ranks, open) = (local.ranks(), local.open_windows(now));
        let (gone, load) = replica.turn(&ranks, &open, now);
        local.write_elsewhere(&replica, &ranks);
        if !gone.is_empty() {
            local.write_windows(&replica, now);
        }
        for name in gone {
            warn!(name, "a replica is silent: its load and windows are forgotten");
        }
        let used = local.say_use(replica.id(), now);
        drop((replica, local));
        self.publish(load);
        if let Some(used) = used {
            // What is not sent now is in the next word: it tells sums.
            self.send(use_subject(&self.prefix), used);
        }
    }

    /// Sends at once, or not at all.
    fn send(&self, subject: String, bytes: Vec<u8>) -> bool {
        let usable = |client: &&Client| client.connection_state() == State::Connected;
        self.client.get().filter(usable).is_some_and(|client| {
            let sending = client.publish(subject, bytes.into());
            unconstrained(sending).now_or_never().is_some_and(|sent| sent.is_ok())
        })
    }

    fn publish(&self, outgoing: Option<Outgoing>) {
        let Some((kind, bytes)) = outgoing else { return };
        let sent = self.send(kind.subject(&self.prefix), bytes);
        let outcome = if sent { MessageOutcome::Sent } else { MessageOutcome::Dropped };
        self.replica.borrow_mut().tally_mut().count(Some(kind), outcome);
    }
}

/// The client takes none from URLs. Those of the first that has some: `user:password@`, or
/// `token@`.
fn with_credentials(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let Some(server) = servers.iter().find(|server| server.has_user_pass()) else { return options };
    let user = percent_decoded(server.username().unwrap_or_default());
    match server.password() {
        Some(password) => options.user_and_password(user, percent_decoded(password)),
        None => options.token(user),
    }
}

/// `%40` is `@`; what is not encoded well stands for itself.
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
    use futures_util::stream;
    use std::task::Poll;

    #[test]
    fn a_flood_of_messages_keeps_no_turn_waiting() {
        block_on_local(async {
            let clock = Clock::start();
            let (config, board) = (NatsConfig::default(), Arc::new(LoadBoard::new()));
            let (replicas, bell) = Replicas::new(&config, clock, &board).unwrap();
            let (_notices, events) = mpsc::channel(EVENTS_MAX);
            let mut polls = 0;
            let flood = stream::poll_fn(move |cx| {
                polls += 1;
                if polls % 64 == 0 {
                    // Others of the thread have their turn; then there is more.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Some(Message {
                    subject: "forebay.v1.load".into(),
                    reply: None,
                    payload: Vec::new().into(),
                    headers: None,
                    status: None,
                    description: None,
                    length: 0,
                }))
            });
            let following = Rc::clone(&replicas);
            let flooded =
                tokio::task::spawn_local(
                    async move { following.follow(events, bell, flood).await },
                );
            let turned = async {
                for _ in 0..3 {
                    let before = replicas.replica.borrow().turn_at();
                    while replicas.replica.borrow().turn_at() == before {
                        tokio::task::yield_now().await;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(20), turned).await.expect("turns go on");
            flooded.abort();
        });
    }

    #[test]
    fn passwords_are_decoded() {
        assert_eq!(percent_decoded("s3%40%2f"), "s3@/");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
    }
}
