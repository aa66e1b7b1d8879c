//! The task that drives [`ConnectedReplica`], between the load board and a transport.

use super::bell::EdgeBell;
use super::connected_replica::{ConnectedReplica, ReplicaTurn};
use super::replica::{Outgoing, Replica};
use super::tally::MessageOutcome;
use super::tenants::USE;
use super::transports::inbound::{InboundMessage, LinkEvent};
use super::transports::message_readers::{MessageStream, SubscribeError};
use super::transports::transport::Transport;
use super::wire::ReplicaId;
use forebay_base::{Clock, NanosSinceStart};
use forebay_board::LoadBoard;
use forebay_config::Config;
use forebay_fleet::worker::FleetSnapshot;
use futures_util::{Stream, StreamExt, stream};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{debug, error, info, warn};

/// Shortest time between two log lines about the number of replicas.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// This router among its replicas.
#[derive(Debug)]
pub struct Replicas {
    pub(crate) connected: RefCell<ConnectedReplica>,
    pub(crate) clock: Clock,
    pub(crate) transport: Transport,
    changed: Notify,
    logged: Cell<LoggedMembers>,
}

/// Last log line about the number of replicas.
#[derive(Clone, Copy, Debug)]
struct LoggedMembers {
    replicas: usize,
    at: NanosSinceStart,
}

impl Replicas {
    /// Starts the transport of `[replicas]` or `[nats]`; `None` if neither is configured.
    ///
    /// # Errors
    /// A peer's URL or a TLS file is invalid, or a system error.
    pub fn start(
        config: &Config,
        clock: Clock,
        board: &Arc<LoadBoard>,
    ) -> io::Result<Option<Rc<Self>>> {
        let id = ReplicaId(fastrand::u64(1..));
        let Some(transport) = Transport::new(id, config)? else { return Ok(None) };
        let name = config.replicas.name.clone().unwrap_or_else(|| format!("forebay-{id}"));
        let replica = Replica::new(id, name, clock.now());
        let (replicas, bell) = Self::new(replica, transport, clock, board)?;
        tokio::task::spawn_local(Rc::clone(&replicas).run(bell));
        Ok(Some(replicas))
    }

    fn new(
        replica: Replica,
        transport: Transport,
        clock: Clock,
        board: &Arc<LoadBoard>,
    ) -> io::Result<(Rc<Self>, EdgeBell)> {
        let bell = EdgeBell::new()?;
        board.windows().set_bell(bell.shared());
        let replicas = Rc::new(Self {
            connected: RefCell::new(ConnectedReplica::new(replica, Arc::clone(board))),
            clock,
            transport,
            changed: Notify::new(),
            logged: Cell::new(LoggedMembers { replicas: 1, at: NanosSinceStart(0) }),
        });
        Ok((replicas, bell))
    }

    /// Messages of this router from now on, for a reader; the first message has the full load.
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub fn subscribe(&self, reader: Option<ReplicaId>) -> Result<MessageStream, SubscribeError> {
        let mesh = self.transport.mesh().ok_or(SubscribeError::NoPeers)?;
        let mut connected = self.connected.borrow_mut();
        let now = self.clock.now();
        let stream = mesh.subscribe(reader, |id| connected.replica.peers().knows(id), now)?;
        connected.replica.repeat_all(now);
        drop(connected);
        self.changed.notify_one();
        Ok(stream)
    }

    /// Called when another process takes over this router's address. Peers must reconnect there.
    pub fn hand_over(&self) {
        let Some(mesh) = self.transport.mesh() else { return };
        let bye = self.connected.borrow_mut().replica.leave();
        self.publish(bye);
        mesh.end();
    }

    /// Sets a new fleet.
    pub fn set_fleet(&self, fleet: &Arc<FleetSnapshot>) {
        let now = self.clock.now();
        self.connected.borrow_mut().set_fleet(fleet, now);
        // Before any shard receives the fleet: a joining replica starts with a small part.
        self.turn();
        self.changed.notify_one();
    }

    /// Ends the demand for new requests; load reports continue.
    pub fn drain(&self) {
        self.connected.borrow_mut().local.drain();
    }

    /// Announces that no requests are in flight: other replicas need not wait for the silence
    /// timeout.
    pub async fn leave(&self) {
        let bye = self.connected.borrow_mut().replica.leave();
        self.publish(bye);
        self.transport.flush().await;
    }

    async fn run(self: Rc<Self>, bell: EdgeBell) {
        let name = self.connected.borrow().replica.name().to_owned();
        match &self.transport {
            Transport::Nats(nats) => match nats.connect(&name).await {
                Ok((links, messages)) => self.follow(bell, links, messages).await,
                Err(reason) => {
                    error!(%reason, "no connection to NATS will be tried: this router is alone");
                }
            },
            Transport::Peers(mesh) => {
                let (mut links, mut messages) = mesh.connect(self.clock);
                let links = stream::poll_fn(move |context| links.poll_recv(context));
                let messages = stream::poll_fn(move |context| messages.poll_recv(context));
                self.follow(bell, links, messages).await;
            }
        }
    }

    /// The loop of this task. A due turn comes first: it must not wait until other replicas are
    /// silent.
    async fn follow(
        &self,
        mut bell: EdgeBell,
        mut links: impl Stream<Item = LinkEvent> + Unpin,
        mut messages: impl Stream<Item = InboundMessage> + Unpin,
    ) {
        loop {
            let now = self.clock.now();
            if self.connected.borrow().turn_at() <= now {
                self.turn();
            }
            let pause = self.connected.borrow().turn_at().since(now);
            tokio::select! {
                biased;
                Some(event) = links.next() => self.on_link(event),
                () = bell.rung(|| self.connected.borrow().local.edges()) => self.tell_windows(),
                Some(message) = messages.next() => self.hear(&message),
                () = self.changed.notified() => {}
                () = tokio::time::sleep(Duration::from_nanos(pause)) => {}
            }
        }
    }

    fn on_link(&self, event: LinkEvent) {
        let now = self.clock.now();
        match event {
            LinkEvent::Connected => {
                let hello = self.connected.borrow_mut().connected(now);
                self.publish(hello);
                self.turn();
            }
            LinkEvent::Unreachable => self.connected.borrow_mut().replica.unreachable(now),
        }
    }

    fn hear(&self, message: &InboundMessage) {
        let mut connected = self.connected.borrow_mut();
        if !connected.read(&message.subject, &message.payload, self.clock.now()) {
            debug!("a message of another replica about its tenants was not taken");
        }
    }

    fn tell_windows(&self) {
        let edge = self.connected.borrow_mut().windows(self.clock.now());
        self.publish(edge);
    }

    fn turn(&self) {
        self.tell_windows();
        let now = self.clock.now();
        let mut connected = self.connected.borrow_mut();
        let ReplicaTurn { load, silent } = connected.turn(now);
        for name in silent {
            warn!(name, "a replica is silent: its load and windows are forgotten");
        }
        self.log_members(&connected.replica, now);
        let id = connected.replica.id();
        let used = connected.local.say_use(id, now);
        drop(connected);
        self.publish(load);
        if let Some(used) = used {
            // A dropped message is harmless: the next message has the sums.
            self.transport.send(USE, used);
        }
    }

    /// Logs the number of replicas at most once a second, and each router that reads here without
    /// sending messages.
    fn log_members(&self, replica: &Replica, now: NanosSinceStart) {
        let replicas = replica.others_count() + 1;
        let logged = self.logged.get();
        if replicas != logged.replicas && now >= logged.at.plus(LOG_PAUSE) {
            info!(replicas, "replicas came or left");
            self.logged.set(LoggedMembers { replicas, at: now });
        }
        let Some(mesh) = self.transport.mesh() else { return };
        for id in mesh.unheard(|id| replica.peers().knows(id), now) {
            let help = "list its admin address in `replicas.peers` here, or mend the entry";
            warn!(replica = %id, help, "a router reads here and is not heard: limits add up");
        }
    }

    fn publish(&self, outgoing: Option<Outgoing>) {
        let Some((kind, bytes)) = outgoing else { return };
        let sent = self.transport.send(kind.word(), bytes);
        let outcome = if sent { MessageOutcome::Sent } else { MessageOutcome::Dropped };
        self.connected.borrow_mut().replica.tally_mut().count(Some(kind), outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use forebay_kv_events::test_support::block_on_local;
    use std::task::Poll;

    #[test]
    fn a_flood_of_messages_keeps_no_turn_waiting() {
        block_on_local(async {
            let clock = Clock::start();
            let mut config = Config::default();
            config.nats.url = Some("nats://h".to_owned());
            let transport = Transport::new(ReplicaId(1), &config).unwrap().unwrap();
            let replica = Replica::new(ReplicaId(1), String::new(), clock.now());
            let board = Arc::new(LoadBoard::new());
            let (replicas, bell) = Replicas::new(replica, transport, clock, &board).unwrap();
            let mut polls = 0;
            let flood = stream::poll_fn(move |cx| {
                polls += 1;
                if polls % 64 == 0 {
                    // Others of the thread have their turn; then there is more.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let subject = "forebay.v1.load".to_owned();
                Poll::Ready(Some(InboundMessage { subject, payload: Bytes::new() }))
            });
            let following = Rc::clone(&replicas);
            let links = stream::pending();
            let flooded =
                tokio::task::spawn_local(async move { following.follow(bell, links, flood).await });
            let turned = async {
                for _ in 0..3 {
                    let before = replicas.connected.borrow().turn_at();
                    while replicas.connected.borrow().turn_at() == before {
                        tokio::task::yield_now().await;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(20), turned).await.expect("turns go on");
            flooded.abort();
        });
    }
}
