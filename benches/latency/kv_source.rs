//! KV events of the worker, so that the router's index holds the prompts of the load, as it would
//! after a while in front of an engine: each prompt is rendered, tokenized and announced block by
//! block. A thread of its own; after the start it only keeps its socket open.

use crate::load::ask_once;
use forebay::engine::{BlockHash, CacheEvent, Tokenizer, encode_batch};
use forebay::text::chat::load_model_text;
use forebay_bench_rig::Rig;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use zeromq::{Endpoint, PubSocket, Socket, SocketSend, ZmqMessage};

/// Tokens per block, vLLM's default.
pub(crate) const BLOCK_TOKENS: u32 = 16;
/// A reader that comes late has missed what was sent before: it is said again until it was
/// understood.
const REPEAT: Duration = Duration::from_millis(100);
const TRIES_MAX: u32 = 100;

/// What the source does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Announce,
    Quiet,
    End,
}

/// A running source of events.
pub(crate) struct KvSource {
    pub(crate) endpoint: String,
    phase: watch::Sender<Phase>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KvSource {
    /// Announces the prompts of these chat bodies from now on.
    pub(crate) fn start(model_dir: &Path, bodies: &[Vec<u8>]) -> io::Result<Self> {
        let batch = encode_batch(unix_time_s(), &stored(model_dir, bodies)?, 0, BLOCK_TOKENS);
        let (phase, phases) = watch::channel(Phase::Announce);
        let (bound, endpoint) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kv-source".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Without an endpoint `start` fails below.
            if let Ok(runtime) = runtime {
                let _failed = runtime.block_on(publish(batch, phases, bound));
            }
        })?;
        let endpoint = endpoint.recv().map_err(io::Error::other)?;
        Ok(Self { endpoint, phase, thread: Some(thread) })
    }

    /// Waits until the router finds every one of the prompts in its index, then falls silent.
    pub(crate) fn wait_until_known(
        &self,
        rig: &mut Rig,
        router: SocketAddr,
        requests: &[Rc<[u8]>],
    ) -> io::Result<()> {
        for request in requests {
            let mut tries = 0;
            while !matches!(ask_once(rig, router, request)?, (200, Some(1..))) {
                tries += 1;
                if tries > TRIES_MAX {
                    return Err(io::Error::other("the router does not find prompts in its index"));
                }
                rig.pause(REPEAT)?;
            }
        }
        self.phase.send_replace(Phase::Quiet);
        Ok(())
    }
}

impl Drop for KvSource {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::End);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

async fn publish(
    batch: Vec<u8>,
    mut phases: watch::Receiver<Phase>,
    bound: mpsc::Sender<String>,
) -> zeromq::ZmqResult<()> {
    let mut socket = PubSocket::new();
    if let Endpoint::Tcp(_, port) = socket.bind("tcp://127.0.0.1:0").await? {
        let _gone = bound.send(format!("tcp://127.0.0.1:{port}"));
    }
    let batch = bytes::Bytes::from(batch);
    let mut sequence = 0_u64;
    loop {
        let phase = *phases.borrow_and_update();
        if phase == Phase::Announce {
            let number = bytes::Bytes::copy_from_slice(&sequence.to_be_bytes());
            let frames = vec![bytes::Bytes::new(), number, batch.clone()];
            if let Ok(message) = ZmqMessage::try_from(frames) {
                socket.send(message).await?;
            }
            sequence += 1;
        }
        let changed = match phase {
            Phase::Announce => {
                tokio::time::timeout(REPEAT, phases.changed()).await.unwrap_or(Ok(()))
            }
            Phase::Quiet => phases.changed().await,
            Phase::End => return Ok(()),
        };
        if changed.is_err() {
            return Ok(());
        }
    }
}

/// All whole blocks of all prompts.
fn stored(model_dir: &Path, bodies: &[Vec<u8>]) -> io::Result<Vec<CacheEvent>> {
    let text = load_model_text(model_dir).map_err(io::Error::other)?;
    let template = text.chat_template.ok_or_else(|| io::Error::other("no chat template"))?;
    let tokenizer = Tokenizer::from_model_dir(model_dir).map_err(io::Error::other)?;
    let mut events = Vec::new();
    let mut number = 0;
    for body in bodies {
        let mut prompt = Vec::new();
        template.render_full(body, &mut prompt).map_err(io::Error::other)?;
        let prompt = String::from_utf8(prompt).map_err(io::Error::other)?;
        let mut token_ids = tokenizer.encode(&prompt, true).map_err(io::Error::other)?;
        let block_tokens = usize::try_from(BLOCK_TOKENS).map_err(io::Error::other)?;
        let blocks = token_ids.len() / block_tokens;
        token_ids.truncate(blocks * block_tokens);
        let hashes = (0..blocks).map(|_| {
            number += 1;
            BlockHash(number)
        });
        let hashes = hashes.collect();
        events.push(CacheEvent::Stored { hashes, parent: None, token_ids, salt: String::new() });
    }
    Ok(events)
}

fn unix_time_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
