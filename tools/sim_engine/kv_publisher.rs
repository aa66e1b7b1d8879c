//! KV events on ZeroMQ, a publisher per rank: a PUB socket with the live stream and, if configured,
//! a ROUTER socket that replays the last `REPLAY_BATCHES_MAX` batches. Runs as a task on the
//! engine's runtime. As in real engines, the PUB side never waits for a slow reader: the reader
//! sees a gap in the sequence numbers and requests a replay. The publisher always binds, also where
//! the real engine would connect, so that both sides use the same form of address.

use super::config::{EngineError, EngineWire};
use super::kv_wire::encode_batch;
use super::kv_wire_sglang::encode_sglang_batch;
use super::prefix_cache::CacheEvent;
use super::unix_time::unix_time;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use zeromq::{Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Endpoints of a rank's publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEndpoints {
    /// PUB endpoint with its real port; the host as configured.
    pub endpoint: String,
    /// ROUTER endpoint, if replay is configured.
    pub replay_endpoint: Option<String>,
}

/// Sockets of a rank, bound and ready to run.
pub(super) struct KvPublisher {
    wire: EngineWire,
    dp_rank: u32,
    block_size_tokens: u32,
    live: PubSocket,
    replay: Option<RouterSocket>,
    sent: VecDeque<(u64, Bytes)>,
    next_sequence: u64,
}

impl KvPublisher {
    /// Binds the sockets of a rank, from the endpoints of rank 0.
    pub(super) async fn bind(
        wire: EngineWire,
        dp_rank: u32,
        block_size_tokens: u32,
        endpoint: &str,
        replay: Option<&str>,
    ) -> Result<(Self, KvEndpoints), EngineError> {
        let mut live = PubSocket::new();
        let endpoint = bind_one(&mut live, "kv-events", endpoint, dp_rank).await?;
        let mut source = KvEndpoints { endpoint, replay_endpoint: None };
        let mut router = None;
        if let Some(replay) = replay {
            let mut socket = RouterSocket::new();
            source.replay_endpoint = Some(bind_one(&mut socket, "replay", replay, dp_rank).await?);
            router = Some(socket);
        }
        let publisher = Self {
            wire,
            dp_rank,
            block_size_tokens,
            live,
            replay: router,
            sent: VecDeque::new(),
            next_sequence: 0,
        };
        Ok((publisher, source))
    }

    /// Publishes batches until the sender is gone.
    pub(super) async fn run(mut self, mut batches: mpsc::Receiver<Vec<CacheEvent>>) {
        loop {
            let request = async {
                match &mut self.replay {
                    Some(socket) => socket.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => self.publish(&batch).await,
                    None => return,
                },
                request = request => match request {
                    Ok(request) => self.answer(request).await,
                    // The socket is broken, but the live stream continues.
                    Err(_) => self.replay = None,
                },
            }
        }
    }

    async fn publish(&mut self, batch: &[CacheEvent]) {
        let encode = match self.wire {
            EngineWire::Vllm => encode_batch,
            EngineWire::Sglang => encode_sglang_batch,
        };
        let payload =
            encode(unix_time().as_secs_f64(), batch, self.dp_rank, self.block_size_tokens);
        let payload = Bytes::from(payload);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if self.sent.len() >= REPLAY_BATCHES_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((sequence, payload.clone()));
        let frames = [TOPIC, Bytes::copy_from_slice(&sequence.to_be_bytes()), payload];
        if let Ok(message) = ZmqMessage::try_from(frames.to_vec()) {
            // The socket itself drops a reader that it cannot write to.
            let _reader_gone = self.live.send(message).await;
        }
    }

    /// Answers a request with the frames identity, empty, first sequence number. Ignores other
    /// requests, as the engines do.
    async fn answer(&mut self, request: ZmqMessage) {
        let frames = request.into_vec();
        let [identity, delimiter, start] = frames.as_slice() else { return };
        let Ok(start) = <[u8; 8]>::try_from(start.as_ref()).map(u64::from_be_bytes) else { return };
        let Some(socket) = &mut self.replay else { return };
        if !delimiter.is_empty() {
            return;
        }
        let wanted = self.sent.iter().filter(|(sequence, _)| *sequence >= start);
        let batches = wanted.map(|(sequence, payload)| (*sequence, payload.clone()));
        for (sequence, payload) in batches.chain([(END_OF_REPLAY, Bytes::new())]) {
            let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
            let frames = vec![identity.clone(), Bytes::new(), TOPIC, sequence, payload];
            let Ok(message) = ZmqMessage::try_from(frames) else { return };
            let sent = tokio::time::timeout(REPLAY_WRITE_MAX, socket.send(message)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    }
}

async fn bind_one(
    socket: &mut impl Socket,
    setting: &'static str,
    base: &str,
    dp_rank: u32,
) -> Result<String, EngineError> {
    let (host, port) = rank_address(setting, base, dp_rank)?;
    let any = if host == "*" { "0.0.0.0" } else { host };
    let wanted = format!("tcp://{any}:{port}");
    match socket.bind(&wanted).await {
        Ok(Endpoint::Tcp(_, port)) => Ok(format!("tcp://{host}:{port}")),
        Ok(other) => Ok(other.to_string()),
        Err(error) => Err(EngineError::Listen { address: wanted, problem: error.to_string() }),
    }
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
const TOPIC: Bytes = Bytes::from_static(b"");
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
