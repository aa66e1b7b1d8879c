//! KV events on ZeroMQ, one publisher a rank: a PUB socket with the live stream and, when asked
//! for, a ROUTER socket that replays the last `REPLAY_BATCHES_MAX` batches. Runs on the engine's
//! runtime, a task for each rank and for each connection. Like the engines', the PUB side never
//! waits for a slow reader: the reader sees a gap in the sequence numbers and asks for a replay. It
//! always binds, also where the real engine would connect, so that one address form serves both
//! sides.

use super::kv_wire::encode_batch;
use super::kv_wire_sglang::encode_sglang_batch;
use crate::batching::prefix_cache::CacheEvent;
use crate::config::{EngineError, EngineWire};
use crate::unix_time::unix_time;
use bytes::Bytes;
use forebay_zmq::{
    Connection, Side, SocketError, SocketKind, ZmqAddress, ZmqEndpoint, ZmqSource, encode_message,
};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Endpoints of a rank's publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEndpoints {
    /// PUB endpoint with its real port; the host as configured.
    pub endpoint: String,
    /// ROUTER endpoint, if replay is configured.
    pub replay_endpoint: Option<String>,
}

/// Sockets of a rank, bound and ready to run.
pub(crate) struct KvPublisher {
    wire: EngineWire,
    dp_rank: u32,
    block_size_tokens: u32,
    live: ZmqSource,
    replay: Option<ZmqSource>,
}

/// Batches from a sequence number on, for a replay.
struct ReplayRequest {
    start: u64,
    reply: oneshot::Sender<Vec<(u64, Bytes)>>,
}

impl KvPublisher {
    /// Binds the sockets of a rank, from the endpoints of rank 0.
    pub(crate) async fn bind(
        wire: EngineWire,
        dp_rank: u32,
        block_size_tokens: u32,
        endpoint: &str,
        replay: Option<&str>,
    ) -> Result<(Self, KvEndpoints), EngineError> {
        let (live, endpoint) = bind_one("kv-events", endpoint, dp_rank).await?;
        let mut source = KvEndpoints { endpoint, replay_endpoint: None };
        let mut router = None;
        if let Some(replay) = replay {
            let (socket, endpoint) = bind_one("replay", replay, dp_rank).await?;
            source.replay_endpoint = Some(endpoint);
            router = Some(socket);
        }
        Ok((Self { wire, dp_rank, block_size_tokens, live, replay: router }, source))
    }

    /// Publishes batches until the sender is gone.
    pub(crate) async fn run(self, mut batches: mpsc::Receiver<Vec<CacheEvent>>) {
        let Self { wire, dp_rank, block_size_tokens, live, replay } = self;
        let (subscribers, _) = broadcast::channel::<Bytes>(LIVE_BATCHES_MAX);
        let (replays, mut requests) = mpsc::channel(REPLAY_REQUESTS_MAX);
        // Dropped at the end, which closes all connections.
        let mut sockets = JoinSet::new();
        let stream = subscribers.clone();
        sockets.spawn(serve_all(live, SocketKind::Publisher, move |connection| {
            publish(connection, stream.subscribe())
        }));
        if let Some(replay) = replay {
            let replays = replays.clone();
            sockets.spawn(serve_all(replay, SocketKind::Router, move |connection| {
                answer(connection, replays.clone())
            }));
        }
        let encode = match wire {
            EngineWire::Vllm => encode_batch,
            EngineWire::Sglang => encode_sglang_batch,
        };
        let mut sent = SentBatches::default();
        loop {
            tokio::select! {
                batch = batches.recv() => {
                    let Some(batch) = batch else { return };
                    let now_s = unix_time().as_secs_f64();
                    let payload = encode(now_s, &batch, dp_rank, block_size_tokens);
                    let message = sent.push(payload.into());
                    // An error means that there is no subscriber.
                    let _unread = subscribers.send(message.into());
                }
                request = requests.recv() => {
                    let Some(ReplayRequest { start, reply }) = request else { return };
                    let _asker_gone = reply.send(sent.from(start));
                }
            }
        }
    }
}

/// The last batches with their sequence numbers.
#[derive(Default)]
struct SentBatches {
    batches: VecDeque<(u64, Bytes)>,
    next_sequence: u64,
}

impl SentBatches {
    /// Numbers a batch. Returns its message of the live stream.
    fn push(&mut self, payload: Bytes) -> Vec<u8> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if self.batches.len() >= REPLAY_BATCHES_MAX {
            self.batches.pop_front();
        }
        let message = encode_message(&[TOPIC, &sequence.to_be_bytes(), &payload]);
        self.batches.push_back((sequence, payload));
        message
    }

    fn from(&self, start: u64) -> Vec<(u64, Bytes)> {
        self.batches.iter().filter(|(sequence, _)| *sequence >= start).cloned().collect()
    }
}

/// Accepts peers, and serves each in a task of its own.
async fn serve_all<F>(
    source: ZmqSource,
    kind: SocketKind,
    serve: impl Fn(Connection) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Result<(), SocketError>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let Ok(peer) = source.peer().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            continue;
        }
        let serve = serve.clone();
        connections.spawn(async move {
            // A connection ends with the first error, and the peer makes another.
            if let Ok(connection) = peer.open(kind).await {
                drop(serve(connection).await);
            }
        });
    }
}

/// The live stream of a subscriber. Batches that it cannot read in time are lost to it.
async fn publish(
    mut connection: Connection,
    mut stream: broadcast::Receiver<Bytes>,
) -> Result<(), SocketError> {
    let mut subscriptions = 0_u32;
    loop {
        tokio::select! {
            message = stream.recv() => match message {
                Ok(message) if subscriptions > 0 => connection.send(&message).await?,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
            asked = connection.message() => {
                let (parts, end) = asked?;
                match parts.first().map(|part| connection.part(part)) {
                    // The topic is empty, and so are the prefixes that fit.
                    Some([1]) => subscriptions = subscriptions.saturating_add(1),
                    Some([0]) => subscriptions = subscriptions.saturating_sub(1),
                    _ => {}
                }
                connection.done(end);
            }
        }
    }
}

/// Answers the replay requests of a peer: an empty frame and the first sequence wanted. Anything
/// else is ignored, as the engines do.
async fn answer(
    mut connection: Connection,
    replays: mpsc::Sender<ReplayRequest>,
) -> Result<(), SocketError> {
    loop {
        let (parts, end) = connection.message().await?;
        let start = match parts.as_slice() {
            [delimiter, start] if delimiter.is_empty() => {
                <[u8; 8]>::try_from(connection.part(start)).map(u64::from_be_bytes).ok()
            }
            _ => None,
        };
        connection.done(end);
        let Some(start) = start else { continue };
        let (reply, batches) = oneshot::channel();
        if replays.send(ReplayRequest { start, reply }).await.is_err() {
            return Ok(());
        }
        let Ok(batches) = batches.await else { return Ok(()) };
        for (sequence, payload) in batches.into_iter().chain([(END_OF_REPLAY, Bytes::new())]) {
            let message = encode_message(&[b"", TOPIC, &sequence.to_be_bytes(), &payload]);
            let sent = timeout(REPLAY_WRITE_MAX, connection.send(&message)).await;
            sent.unwrap_or(Err(SocketError::TimedOut))?;
        }
    }
}

async fn bind_one(
    setting: &'static str,
    base: &str,
    dp_rank: u32,
) -> Result<(ZmqSource, String), EngineError> {
    let (host, port) = rank_address(setting, base, dp_rank)?;
    let bare = match host {
        "*" => "0.0.0.0",
        host => host.trim_matches(['[', ']']),
    };
    let place = ZmqAddress::Tcp { host: bare.to_owned(), port };
    let opened = ZmqSource::open(&ZmqEndpoint { side: Side::Bind, place }).await;
    let source = opened.map_err(|error| EngineError::Listen {
        address: format!("tcp://{host}:{port}"),
        problem: error.to_string(),
    })?;
    let port = source.port().unwrap_or(port);
    Ok((source, format!("tcp://{host}:{port}")))
}

/// Host as configured, and port of a rank: the base port plus the rank, but 0 stays 0.
fn rank_address<'a>(
    setting: &'static str,
    base: &'a str,
    dp_rank: u32,
) -> Result<(&'a str, u16), EngineError> {
    let problem = || EngineError::Setting {
        setting,
        problem: format!("`{base}` is not tcp://HOST:PORT with room for every rank"),
    };
    let address = base.strip_prefix("tcp://").ok_or_else(problem)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(problem)?;
    let port: u16 = port.parse().map_err(|_| problem())?;
    let offset = if port == 0 { 0 } else { u16::try_from(dp_rank).map_err(|_| problem())? };
    let port = port.checked_add(offset).ok_or_else(problem)?;
    if host.is_empty() { Err(problem()) } else { Ok((host, port)) }
}

/// Batches kept for replay, as the engines' default.
pub const REPLAY_BATCHES_MAX: usize = 10_000;
/// Batches that wait for a slow subscriber; the oldest is lost first.
const LIVE_BATCHES_MAX: usize = 1_024;
/// Replay requests that wait; further ones wait in their sockets.
const REPLAY_REQUESTS_MAX: usize = 16;
/// Connections to a socket; further ones are closed.
const CONNECTIONS_MAX: usize = 1_024;
/// After a peer that could not be accepted, as without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TOPIC: &[u8] = b"";
const END_OF_REPLAY: u64 = u64::MAX;
const REPLAY_WRITE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_port() {
        let address = |base, rank| rank_address("kv-events", base, rank).ok();
        assert_eq!(address("tcp://127.0.0.1:5557", 0), Some(("127.0.0.1", 5557)));
        assert_eq!(address("tcp://*:5557", 3), Some(("*", 5560)));
        assert_eq!(address("tcp://[::1]:0", 3), Some(("[::1]", 0)));
        for bad in ["tcp://*:65535", "ipc:///tmp/x", "tcp://host", "tcp://:1", "tcp://h:x"] {
            assert_eq!(address(bad, 1), None, "{bad}");
        }
    }
}
