//! A fleet's KV events at a fixed rate: 64 ranks store and evict sessions, each on a connection of
//! its own. A thread of its own; the messages are made before, so that sending them is all it does.

use crate::kv_source::BLOCK_TOKENS;
use forebay::base::Clock;
use forebay::engine::{BlockHash, CacheEvent, Tokenizer, encode_batch};
use forebay::zmq::{Connection, Side, ZmqAddress, ZmqEndpoint, ZmqSource, encode_message};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Ranks, each with its own connection.
pub(crate) const RANKS: u32 = 64;
/// Blocks of one store; as many evictions come in one message.
const SESSION_BLOCKS: u32 = 64;
/// Sessions of a rank, of which half are held at any time.
const SESSIONS: usize = 64;
const TICK: Duration = Duration::from_millis(1);
/// What was not sent for so long is left out: the reader cannot keep up.
const DEBT_MAX_NS: u64 = 20_000_000;

/// A running stream; silent until [`KvStream::set`].
pub(crate) struct KvStream {
    pub(crate) endpoints: Vec<String>,
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Every rank's feed is connected.
    ready: AtomicBool,
    on: AtomicBool,
    end: AtomicBool,
    /// Blocks stored and removed.
    blocks: AtomicU64,
}

/// The messages of one rank.
struct Rank {
    connection: Connection,
    /// In the order in which they are sent, again and again.
    messages: Vec<Vec<u8>>,
    next: usize,
    sequence: u64,
}

impl KvStream {
    /// Listens for the feeds of all ranks; `rate` is in blocks per second, half of them stored and
    /// half removed.
    pub(crate) fn start(
        model_dir: &Path,
        rate: u64,
        core: core_affinity::CoreId,
    ) -> io::Result<Self> {
        let tokenizer = Tokenizer::from_model_dir(model_dir).map_err(io::Error::other)?;
        let words = "the router sends each request to the worker that holds its prefix, and answers come back ";
        let token_ids = tokenizer.encode(words, false).map_err(io::Error::other)?;
        let messages = (0..RANKS).map(|rank| messages(rank, &token_ids)).collect();
        let state = Arc::new(State::default());
        let (bound, endpoints) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kv-stream".into()).spawn({
            let state = Arc::clone(&state);
            move || {
                core_affinity::set_for_current(core);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                // Without endpoints `start` fails below.
                if let Ok(runtime) = runtime {
                    let _failed = runtime.block_on(publish(messages, rate, &state, bound));
                }
            }
        })?;
        let endpoints = endpoints.recv().map_err(io::Error::other)?;
        Ok(Self { endpoints, state, thread: Some(thread) })
    }

    /// True when every rank's feed is connected: before, nothing is sent.
    pub(crate) fn is_ready(&self) -> bool {
        // ordering: Relaxed; nothing else is read by it.
        self.state.ready.load(Ordering::Relaxed)
    }

    /// Sends, or is silent.
    pub(crate) fn set(&self, on: bool) {
        // ordering: Relaxed; the thread looks every tick, and nothing else depends on it.
        self.state.on.store(on, Ordering::Relaxed);
    }

    /// Blocks sent since the start.
    pub(crate) fn blocks(&self) -> u64 {
        // ordering: Relaxed; a count.
        self.state.blocks.load(Ordering::Relaxed)
    }
}

impl Drop for KvStream {
    fn drop(&mut self) {
        // ordering: Relaxed; the join below is what waits.
        self.state.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The stores and removals of one rank's sessions, each with a sequence number to be filled in.
fn messages(rank: u32, token_ids: &[u32]) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(rank.into());
    let first = |session: usize| {
        (1 << 60) + (u64::from(rank) << 32) + (session as u64) * u64::from(SESSION_BLOCKS)
    };
    let hashes = |session: usize| {
        (0..u64::from(SESSION_BLOCKS)).map(move |block| BlockHash(first(session) + block))
    };
    let stores: Vec<CacheEvent> = (0..SESSIONS)
        .map(|session| CacheEvent::Stored {
            hashes: hashes(session).collect(),
            parent: None,
            token_ids: (0..SESSION_BLOCKS * BLOCK_TOKENS)
                .map(|_| random.choice(token_ids).copied().unwrap_or(0))
                .collect(),
            salt: String::new(),
        })
        .collect();
    let mut messages = Vec::with_capacity(2 * SESSIONS);
    for (session, store) in stores.into_iter().enumerate() {
        let evicted = hashes((session + SESSIONS / 2) % SESSIONS);
        // Last block first, one event for each, as vLLM does.
        let removes: Vec<_> = evicted.rev().map(|hash| CacheEvent::Removed { hash }).collect();
        for events in [&[store][..], &removes] {
            let batch = encode_batch(0.0, events, 0, BLOCK_TOKENS);
            messages.push(encode_message(&[b"", &[0xff; 8], &batch]));
        }
    }
    messages
}

async fn publish(
    messages: Vec<Vec<Vec<u8>>>,
    rate: u64,
    state: &State,
    bound: mpsc::Sender<Vec<String>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut sources = Vec::new();
    for _ in &messages {
        let place = ZmqAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
        sources.push(ZmqSource::open(&ZmqEndpoint { side: Side::Bind, place }).await?);
    }
    let port = |source: &ZmqSource| format!("tcp://127.0.0.1:{}", source.port().unwrap_or(0));
    bound.send(sources.iter().map(port).collect())?;
    // All at once: a feed does not wait long for its peer.
    let connecting = sources.iter().zip(messages).map(|(source, messages)| async move {
        loop {
            if let Ok(connection) = source.publish().await {
                return Rank { connection, messages, next: 0, sequence: 0 };
            }
            tokio::time::sleep(TICK).await;
        }
    });
    let mut ranks = futures_util::future::join_all(connecting).await;
    // ordering: Relaxed, see where it is read.
    state.ready.store(true, Ordering::Relaxed);
    let clock = Clock::start();
    let mut sent = 0;
    let mut due = 0.0;
    let mut last = clock.now().0;
    let mut turn = 0;
    // ordering: Relaxed, see where it is set.
    while !state.end.load(Ordering::Relaxed) {
        let now = clock.now().0;
        let passed_ns = (now - last).min(DEBT_MAX_NS);
        last = now;
        // ordering: Relaxed, see where it is set.
        if state.on.load(Ordering::Relaxed) {
            due += passed_ns as f64 * rate as f64 / 1e9;
        }
        while due > 0.0 {
            let count = ranks.len();
            if let Some(rank) = ranks.get_mut(turn % count.max(1)) {
                rank.send().await?;
            }
            turn += 1;
            sent += u64::from(SESSION_BLOCKS);
            due -= f64::from(SESSION_BLOCKS);
            // ordering: Relaxed; a count.
            state.blocks.store(sent, Ordering::Relaxed);
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}

impl Rank {
    async fn send(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let count = self.messages.len();
        let Some(message) = self.messages.get_mut(self.next % count.max(1)) else { return Ok(()) };
        // The topic is an empty frame of two bytes; the number's frame has a head of two.
        if let Some(number) = message.get_mut(4..12) {
            number.copy_from_slice(&self.sequence.to_be_bytes());
        }
        self.connection.send(message).await?;
        self.next += 1;
        self.sequence += 1;
        Ok(())
    }
}
