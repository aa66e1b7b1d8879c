//! Publishes recorded messages on sockets: a port per source, upwards from the first port, as
//! data-parallel ranks do. Any subscriber may connect. Unlike an engine, the publisher waits for
//! slow subscribers, so no message is lost at any speed.
//!
//! Where the recorder lost its connection, the publisher closes its connections and waits for the
//! subscribers to return. A router then removes blocks as it did after the recorded loss.

use super::message::RecordedMessage;
use forebay_base::{Clock, NanosSinceStart};
use forebay_zmq::{Connection, EndpointError, SocketError, ZmqEndpoint, ZmqSource, encode_message};
use std::cell::RefCell;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Messages queued for a subscriber. When the queue is full, the replay waits.
const QUEUED_MAX: usize = 64;
/// Longest wait for subscribers to come back after a recorded loss.
const RETURN_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest wait for subscribers to read the rest before their connections are closed.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// A multiple of the recorded speed.
    Times(f64),
    /// No pauses between messages.
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.parse::<f64>() {
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Self::Times(times)),
            _ => Err(format!("{text:?} is neither a number above 0 nor `max`")),
        }
    }
}

impl Speed {
    /// Time from the start of the replay at which a message is due; `None` is now.
    #[must_use]
    pub fn due(self, at_ns: u64) -> Option<Duration> {
        match self {
            Self::Max => None,
            Self::Times(times) => {
                let seconds = Duration::from_nanos(at_ns).as_secs_f64() / times;
                Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
            }
        }
    }

    /// Sleeps until a message is due; `start` is the start of the replay.
    pub async fn wait_until_due(self, at_ns: u64, clock: Clock, start: NanosSinceStart) {
        let passed = Duration::from_nanos(clock.now().since(start));
        if let Some(left) = self.due(at_ns).and_then(|due| due.checked_sub(passed)) {
            sleep(left).await;
        }
    }
}

/// Why a recording cannot be published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// A port cannot be listened on.
    #[error("cannot publish on {endpoint}: {cause}")]
    Listen { endpoint: String, cause: SocketError },
    /// There are not enough ports for all sources.
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
}

/// Totals of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishTotals {
    /// Messages sent to at least 1 subscriber.
    pub sent: u64,
    /// Messages with a topic that had no subscriber.
    pub unheard: u64,
}

/// Sockets with their subscribers. Needs a `LocalSet`.
#[derive(Debug)]
pub struct Publisher {
    outlets: Vec<Outlet>,
    published: PublishTotals,
}

#[derive(Debug)]
struct Outlet {
    endpoint: ZmqEndpoint,
    subscribers: Rc<Subscribers>,
    accept: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Subscribers {
    all: RefCell<Vec<Subscriber>>,
    changed: Notify,
}

#[derive(Debug)]
struct Subscriber {
    topics: Rc<RefCell<Vec<Vec<u8>>>>,
    queue: mpsc::Sender<Rc<[u8]>>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Listens on a port per source; with a base port of 0, the system chooses the ports.
    ///
    /// # Errors
    /// [`PublishError`] when a port cannot be listened on.
    pub async fn bind(base: &ZmqEndpoint, source_count: usize) -> Result<Self, PublishError> {
        let mut outlets = Vec::new();
        for number in 0..source_count {
            let mut endpoint = base.listening(u32::try_from(number).unwrap_or(u32::MAX))?;
            let source = ZmqSource::open(&endpoint)
                .await
                .map_err(|cause| PublishError::Listen { endpoint: endpoint.to_string(), cause })?;
            if let Some(port) = source.port() {
                endpoint = endpoint.with_port(port);
            }
            let subscribers = Rc::new(Subscribers::default());
            let accept = spawn_local(accept(source, Rc::clone(&subscribers)));
            outlets.push(Outlet { endpoint, subscribers, accept });
        }
        Ok(Self { outlets, published: PublishTotals::default() })
    }

    /// Endpoints of the sources, for subscribers to connect to.
    pub fn endpoints(&self) -> impl Iterator<Item = &ZmqEndpoint> {
        self.outlets.iter().map(|outlet| &outlet.endpoint)
    }

    /// Waits until every port has so many subscribers.
    pub async fn wait_for_subscribers(&self, count: usize) {
        for outlet in &self.outlets {
            outlet.subscribers.wait_for(count).await;
        }
    }

    /// Sends a message to the subscribers of its topic; waits for the slowest.
    pub async fn publish(&mut self, message: &RecordedMessage<'_>) {
        let Some(outlet) = self.outlets.get(usize::from(message.source)) else { return };
        if message.is_end_of_connection() {
            outlet.subscribers.reconnect().await;
            return;
        }
        let topic = message.frames().first().copied().unwrap_or_default();
        let queues = outlet.subscribers.queues_of(topic);
        let encoded: Rc<[u8]> = encode_message(message.frames()).into();
        let mut is_sent = false;
        for queue in queues {
            is_sent |= queue.send(Rc::clone(&encoded)).await.is_ok();
        }
        if is_sent {
            self.published.sent += 1;
        } else {
            self.published.unheard += 1;
        }
    }

    /// Waits until subscribers have read all messages, for [`CLOSE_TIME_MAX`] at most, and closes
    /// all connections.
    pub async fn close(self) -> PublishTotals {
        let hang_up = async {
            for outlet in &self.outlets {
                outlet.accept.abort();
                outlet.subscribers.hang_up().await;
            }
        };
        if timeout(CLOSE_TIME_MAX, hang_up).await.is_err() {
            warn!("a subscriber did not read to the end; closing all the same");
        }
        self.published
    }
}

impl Subscribers {
    fn count(&self) -> usize {
        let mut all = self.all.borrow_mut();
        all.retain(|subscriber| !subscriber.queue.is_closed());
        all.iter().filter(|subscriber| !subscriber.topics.borrow().is_empty()).count()
    }

    async fn wait_for(&self, count: usize) {
        loop {
            // Registered before the check, so that a change between the two is not missed.
            let changed = self.changed.notified();
            if self.count() >= count {
                return;
            }
            changed.await;
        }
    }

    /// Queues of the subscribers of a topic.
    fn queues_of(&self, topic: &[u8]) -> Vec<mpsc::Sender<Rc<[u8]>>> {
        let mut all = self.all.borrow_mut();
        all.retain(|subscriber| !subscriber.queue.is_closed());
        let subscribes = |subscriber: &&Subscriber| {
            subscriber.topics.borrow().iter().any(|prefix| topic.starts_with(prefix))
        };
        all.iter().filter(subscribes).map(|subscriber| subscriber.queue.clone()).collect()
    }

    /// Ends all connections and waits until as many are back.
    async fn reconnect(&self) {
        let count = self.count();
        self.hang_up().await;
        if timeout(RETURN_TIME_MAX, self.wait_for(count)).await.is_err() {
            warn!("subscribers did not come back after a recorded loss; going on without them");
        }
    }

    /// Ends all connections once their queues are empty.
    async fn hang_up(&self) {
        let all = self.all.take();
        for Subscriber { queue, task, .. } in all {
            drop(queue);
            // The result is the end of the connection, as intended.
            drop(task.await);
        }
    }
}

async fn accept(source: ZmqSource, subscribers: Rc<Subscribers>) {
    loop {
        let connection = match source.publish().await {
            Ok(connection) => connection,
            Err(error) => {
                debug!(%error, "a peer that is no subscriber");
                continue;
            }
        };
        let topics = Rc::new(RefCell::new(Vec::new()));
        let (queue, queued) = mpsc::channel(QUEUED_MAX);
        let serving = serve(connection, queued, Rc::clone(&topics), Rc::clone(&subscribers));
        let task = spawn_local(async move {
            if let Err(error) = serving.await {
                debug!(%error, "a subscriber left");
            }
        });
        subscribers.all.borrow_mut().push(Subscriber { topics, queue, task });
    }
}

/// Serves a subscriber until the subscriber leaves, or its queue is closed and empty.
async fn serve(
    mut connection: Connection,
    mut queued: mpsc::Receiver<Rc<[u8]>>,
    topics: Rc<RefCell<Vec<Vec<u8>>>>,
    subscribers: Rc<Subscribers>,
) -> Result<(), SocketError> {
    loop {
        tokio::select! {
            message = queued.recv() => match message {
                Some(message) => connection.send(&message).await?,
                None => return Ok(()),
            },
            received = connection.message() => {
                let (parts, end) = received?;
                if let [part] = parts.as_slice() {
                    update_topics(connection.part(part), &mut topics.borrow_mut());
                }
                connection.done(end);
                subscribers.changed.notify_waiters();
            }
        }
    }
}

/// Applies a subscription (`01` and a prefix) or its cancellation (`00` and the same prefix).
fn update_topics(message: &[u8], topics: &mut Vec<Vec<u8>>) {
    match message.split_first() {
        Some((1, prefix)) => topics.push(prefix.to_vec()),
        Some((0, prefix)) => {
            if let Some(at) = topics.iter().position(|topic| topic == prefix) {
                topics.swap_remove(at);
            }
        }
        _ => {}
    }
}
