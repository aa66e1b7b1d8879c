//! Starts and stops an engine: opens its sockets, builds its parts, keeps its thread. Called by the command line, the
//! demo and tests.

use super::chat_text::ChatText;
use super::config::{EngineConfig, EngineError};
use super::encode::EncodeHandle;
use super::http::{EngineState, routes};
use super::kv_publisher::{KvPublisher, KvSource};
use super::prefix_cache::PrefixCache;
use super::ranks::RanksHandle;
use super::schedule::{RankSchedule, RankStats};
use super::tokenizer::Tokenizer;
use crate::base::Clock;
use axum::serve::ListenerExt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

/// Tokenizer and chat template, which engines can share: loading them takes longer than all the rest.
#[derive(Clone, Debug)]
pub struct EngineText {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<ChatText>,
}

impl EngineText {
    /// Of a model folder, or the built-in ones.
    pub fn load(model_dir: Option<&Path>) -> Result<Self, EngineError> {
        let (tokenizer, chat) = match model_dir {
            Some(dir) => (Tokenizer::from_model_dir(dir), ChatText::from_model_dir(dir)),
            None => (Tokenizer::built_in(), ChatText::built_in()),
        };
        let tokenizer = tokenizer.map_err(|error| EngineError::ModelText(error.to_string()))?;
        let chat = chat.map_err(EngineError::ModelText)?;
        Ok(Self { tokenizer: Arc::new(tokenizer), chat: Arc::new(chat) })
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}

/// A running engine on its own thread. Stops when dropped.
#[derive(Debug)]
pub struct EngineHandle {
    addr: SocketAddr,
    kv_sources: Vec<KvSource>,
    ranks: RanksHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine on a thread of its own; returns once it answers.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, EngineError> {
        config.check()?;
        let text = EngineText::load(config.model_dir.as_deref())?;
        Self::start_with(config, text)
    }

    /// The same with a tokenizer that is loaded already, whatever `model_dir` says.
    pub fn start_with(config: EngineConfig, text: EngineText) -> Result<EngineHandle, EngineError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, answer) = sync_channel(1);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
            let outcome = run_until(config, text, async { drop(stopped.await) }, |bound| {
                let _starter_gone = ready.send(Ok(bound));
            });
            if let Err(error) = outcome {
                let _starter_gone = ready.send(Err(error));
            }
        })?;
        let ended = || Err(EngineError::Start(std::io::Error::other("its thread ended")));
        let Bound { addr, kv_sources, ranks } = answer.recv().unwrap_or_else(|_| ended())?;
        Ok(EngineHandle { addr, kv_sources, ranks, stop: Some(stop), thread: Some(thread) })
    }
}

impl EngineHandle {
    /// HTTP address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://` and the address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Endpoint for KV events of rank 0, to connect to from this machine.
    #[must_use]
    pub fn kv_endpoint(&self) -> Option<String> {
        self.kv_sources.first().map(|source| source.endpoint.replace("//*:", "//127.0.0.1:"))
    }

    /// Where each rank publishes; empty without KV events.
    #[must_use]
    pub fn kv_sources(&self) -> &[KvSource] {
        &self.kv_sources
    }

    /// Figures of every rank.
    #[must_use]
    pub fn stats(&self) -> Vec<RankStats> {
        self.ranks.stats()
    }

    /// Stops at once, as a process that is killed: open answers end in the middle, sockets are closed on return.
    pub fn stop(mut self) {
        self.stop_and_join();
    }

    fn stop_and_join(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// Runs an engine on the calling thread until `shutdown` is done. `ready` gets the HTTP address once it answers.
pub fn run(
    config: EngineConfig,
    shutdown: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), EngineError> {
    config.check()?;
    let text = EngineText::load(config.model_dir.as_deref())?;
    run_until(config, text, shutdown, |bound| ready(bound.addr))
}

#[derive(Debug)]
struct Bound {
    addr: SocketAddr,
    kv_sources: Vec<KvSource>,
    ranks: RanksHandle,
}

fn run_until(
    config: EngineConfig,
    text: EngineText,
    shutdown: impl Future<Output = ()>,
    ready: impl FnOnce(Bound),
) -> Result<(), EngineError> {
    config.check()?;
    let EngineText { tokenizer, chat } = text;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let listener = listen(config.listen).await?;
        let addr = listener.local_addr()?;
        let (ranks, kv_sources) = start_ranks(&config).await?;
        let encode = EncodeHandle::start(tokenizer.clone(), chat)?;
        ready(Bound { addr, kv_sources: kv_sources.clone(), ranks: ranks.clone() });
        let state = EngineState::new(config, kv_sources, tokenizer, encode, ranks);
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        tokio::select! {
            served = axum::serve(listener, routes(state)).into_future() => served?,
            () = shutdown => {}
        }
        Ok(())
    });
    // Do not wait for connections: stopping means now.
    runtime.shutdown_background();
    outcome
}

async fn listen(address: SocketAddr) -> Result<TcpListener, EngineError> {
    let open = || {
        let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|error| EngineError::Listen {
        address: address.to_string(),
        problem: error.to_string(),
    })
}

async fn start_ranks(config: &EngineConfig) -> Result<(RanksHandle, Vec<KvSource>), EngineError> {
    let mut sources = Vec::new();
    let mut publishers = Vec::new();
    if let Some(endpoint) = &config.kv_events {
        for dp_rank in 0..config.ranks {
            let replay = config.replay.as_deref();
            let (publisher, source) =
                KvPublisher::bind(dp_rank, config.block_size, endpoint, replay).await?;
            let (sink, batches) = mpsc::channel(BATCHES_MAX);
            tokio::spawn(publisher.run(batches));
            sources.push(source);
            publishers.push(sink);
        }
    }
    let new_rank =
        |_| RankSchedule::new(config.pace(), PrefixCache::new(config.kv_blocks, config.block_size));
    let ranks = (0..config.ranks).map(new_rank).collect();
    Ok((RanksHandle::start(Clock::start(), ranks, publishers), sources))
}

const BACKLOG: u32 = 4_096;
/// Batches between a rank and its publisher. Full: the rank stands still.
const BATCHES_MAX: usize = 10_000;
