//! Starts and stops an engine: opens its sockets, builds its parts, owns its thread. Called by the
//! command line, the demo and tests.

use super::aborts::Aborts;
use super::batching::prefix_cache::PrefixCache;
use super::batching::rank_stats::RankStats;
use super::batching::ranks::RanksHandle;
use super::batching::schedule::RankSchedule;
use super::chat_text::ChatText;
use super::config::{EngineConfig, EngineError, EngineRole, EngineWire};
use super::encode::EncodeHandle;
use super::events::kv_publisher::{KvEndpoints, KvPublisher};
use super::fault::Faults;
use super::listening::listen;
use super::random_id::random_id_128;
use super::routes::{registry_routes, routes};
use super::state::{EnginePlace, EngineState, RequestTracking, TransferEnds};
use super::tally::EngineTally;
use super::times::TimesLog;
use super::tokenizer::Tokenizer;
use super::transfer::{KvSeeker, RegistryState, TransferTable};
use super::unix_time::unix_time_s;
use super::wire_cut::{ConnectionCutter, CutListener};
use forebay_base::Clock;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Starts engines, each on its own thread.
#[derive(Debug)]
pub struct Engine;

/// Tokenizer and chat template. Engines can share them, because loading takes most of a start.
#[derive(Clone, Debug)]
pub struct EngineText {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<ChatText>,
}

impl EngineText {
    /// Loads the text of a model folder, or the built-in text.
    pub fn load(model_dir: Option<&Path>) -> Result<Self, EngineError> {
        let (tokenizer, chat) = match model_dir {
            Some(dir) => (Tokenizer::from_model_dir(dir), ChatText::from_model_dir(dir)),
            None => (Tokenizer::built_in(), ChatText::built_in()),
        };
        let tokenizer = tokenizer.map_err(|error| EngineError::ModelText(error.to_string()))?;
        let chat = chat.map_err(EngineError::ModelText)?;
        Ok(Self { tokenizer: Arc::new(tokenizer), chat: Arc::new(chat) })
    }

    /// The tokenizer, shared by all engines.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}

/// A running engine on its own thread. Stops when dropped.
#[derive(Debug)]
pub struct EngineHandle {
    addr: SocketAddr,
    registry_port: u16,
    kv_sources: Vec<KvEndpoints>,
    ranks: RanksHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine on a separate thread; returns once it answers.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, EngineError> {
        config.check()?;
        let text = EngineText::load(config.model_dir.as_deref())?;
        Self::start_with(config, text)
    }

    /// The same with a loaded tokenizer; ignores `model_dir`.
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
        let Bound { addr, registry_port, kv_sources, ranks } =
            answer.recv().unwrap_or_else(|_| ended())?;
        let stop = Some(stop);
        let thread = Some(thread);
        Ok(EngineHandle { addr, registry_port, kv_sources, ranks, stop, thread })
    }
}

impl EngineHandle {
    /// Address of the HTTP server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Port for KV requests of decode engines: the port of HTTP, unless the registry has its own.
    #[must_use]
    pub fn registry_port(&self) -> u16 {
        self.registry_port
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

    /// Endpoints of each rank's publisher; empty without KV events.
    #[must_use]
    pub fn kv_sources(&self) -> &[KvEndpoints] {
        &self.kv_sources
    }

    /// Figures of every rank.
    #[must_use]
    pub fn stats(&self) -> Vec<RankStats> {
        self.ranks.stats()
    }

    /// Stops at once, like a killed process: open answers end in the middle, and all sockets are
    /// closed on return.
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

/// Runs an engine on the calling thread until `shutdown` is done. `ready` gets the HTTP address
/// once it answers.
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
    registry_port: u16,
    kv_sources: Vec<KvEndpoints>,
    ranks: RanksHandle,
}

fn run_until(
    config: EngineConfig,
    text: EngineText,
    shutdown: impl Future<Output = ()>,
    ready: impl FnOnce(Bound),
) -> Result<(), EngineError> {
    config.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let listener = listen(config.listen).await?;
        let addr = listener.local_addr()?;
        let registry = registry_listener(&config).await?;
        let registry_port = match &registry {
            Some(listener) => listener.local_addr()?.port(),
            None => addr.port(),
        };
        let state = start_parts(config, text, addr.port(), registry_port).await?;
        let kv_sources = state.place.kv_sources.to_vec();
        let ranks = state.ranks.clone();
        ready(Bound { addr, registry_port, kv_sources, ranks });
        let known = RegistryState::new(
            state.config.clone(),
            state.transfer.offers.clone(),
            state.clock,
            addr.port(),
        );
        if let Some(registry) = registry {
            let serving = axum::serve(registry, registry_routes(known.clone())).into_future();
            tokio::spawn(serving);
        }
        let listener = CutListener::new(listener, state.clock, &state.faults)?;
        let routes = routes(state, known).into_make_service_with_connect_info::<ConnectionCutter>();
        tokio::select! {
            served = axum::serve(listener, routes).into_future() => served?,
            () = shutdown => {}
        }
        Ok(())
    });
    // Do not wait for connections, because the engine stops at once.
    runtime.shutdown_background();
    outcome
}

/// Starts all parts of the engine behind its HTTP sockets.
async fn start_parts(
    mut config: EngineConfig,
    text: EngineText,
    http_port: u16,
    registry_port: u16,
) -> Result<EngineState, EngineError> {
    let EngineText { tokenizer, chat } = text;
    if config.transfer.vllm.engine_id.is_none() {
        config.transfer.vllm.engine_id = Some(random_id_128());
    }
    let (ranks, kv_sources) = start_ranks(&config).await?;
    let encode = EncodeHandle::start(tokenizer, chat)?;
    let times = config.log_times.as_deref().map(log_times).transpose()?;
    let clock = Clock::start();
    let seeker = KvSeeker::new(clock).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(EngineState {
        config: Arc::new(config),
        place: EnginePlace {
            http_port,
            registry_port,
            kv_sources: kv_sources.into(),
            started_s: unix_time_s(),
        },
        clock,
        encode,
        ranks,
        transfer: TransferEnds { offers: TransferTable::start(), seeker },
        requests: RequestTracking { tally: EngineTally::default(), times, aborts: Aborts::new() },
        faults: Faults::none(),
    })
}

/// Listener of the registry. Only engines with a KV transfer have a registry, so that other engines
/// do not occupy its port on the same machine.
async fn registry_listener(config: &EngineConfig) -> Result<Option<TcpListener>, EngineError> {
    match config.transfer.bootstrap_port {
        Some(port) if config.role == EngineRole::Prefill => {
            listen(SocketAddr::new(config.listen.ip(), port)).await.map(Some)
        }
        _ => Ok(None),
    }
}

fn log_times(path: &Path) -> Result<TimesLog, EngineError> {
    TimesLog::create(path).map_err(|error| EngineError::File {
        path: path.display().to_string(),
        problem: error.to_string(),
    })
}

async fn start_ranks(
    config: &EngineConfig,
) -> Result<(RanksHandle, Vec<KvEndpoints>), EngineError> {
    // An SGLang decode engine has its radix cache turned off, and no events to publish.
    let has_none = config.wire == EngineWire::Sglang && config.role == EngineRole::Decode;
    let is_silent = has_none || !config.prefix_caching;
    let mut publishers = Vec::new();
    let mut sources = Vec::new();
    if !is_silent {
        for (publisher, source) in bind_publishers(config).await? {
            let (sink, batches) = mpsc::channel(BATCHES_MAX);
            tokio::spawn(publisher.run(batches));
            sources.push(source);
            publishers.push(sink);
        }
    }
    let new_rank = |_| {
        let mut cache = PrefixCache::new(config.kv_blocks, config.block_size);
        if !config.prefix_caching {
            cache = cache.forgetful();
        }
        if config.wire == EngineWire::Sglang {
            // The first event reports the empty cache.
            cache.clear();
        }
        RankSchedule::new(config.pace(), cache)
    };
    let ranks = (0..config.ranks).map(new_rank).collect();
    Ok((RanksHandle::start(Clock::start(), ranks, publishers), sources))
}

/// Binds a publisher for each rank, if events are configured. SGLang only reports the first rank's
/// port, so the other ports must follow it, also where the system chose the first port.
async fn bind_publishers(
    config: &EngineConfig,
) -> Result<Vec<(KvPublisher, KvEndpoints)>, EngineError> {
    let Some(endpoint) = &config.kv_events else { return Ok(Vec::new()) };
    let replay = config.replay.as_deref();
    let bind = |rank, endpoint: String, replay: Option<String>| async move {
        KvPublisher::bind(config.wire, rank, config.block_size, &endpoint, replay.as_deref()).await
    };
    let is_chosen = |endpoint: &str| endpoint.ends_with(":0");
    let in_row = config.wire == EngineWire::Sglang && config.ranks > 1;
    let mut tries = if in_row { IN_ROW_TRIES } else { 1 };
    loop {
        tries -= 1;
        let mut bound = Vec::new();
        let mut live = endpoint.clone();
        let mut old = replay.map(str::to_owned);
        let mut failed = None;
        for rank in 0..config.ranks {
            match bind(rank, live.clone(), old.clone()).await {
                Ok((publisher, source)) => {
                    if in_row && is_chosen(&live) {
                        live.clone_from(&source.endpoint);
                    }
                    if in_row && old.as_deref().is_some_and(is_chosen) {
                        old.clone_from(&source.replay_endpoint);
                    }
                    bound.push((publisher, source));
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            None => return Ok(bound),
            Some(error) if tries == 0 || !is_chosen(endpoint) => return Err(error),
            Some(_) => {}
        }
    }
}

/// Attempts to find consecutive free ports.
const IN_ROW_TRIES: u32 = 16;
/// Batches between a rank and its publisher. When full, the rank stalls.
const BATCHES_MAX: usize = 10_000;
