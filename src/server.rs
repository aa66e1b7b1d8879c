//! Builds the rings, starts the shards and the control plane, and joins them at the end: the only
//! place that names both planes.

use crate::control::{self, ControlError, ControlSetup};
use crate::ingress;
use crate::runtime::{Driver, wake_pair};
use crate::shard::{self, ShardSetup, ShardThread};
use forebay_base::limits::SHARDS_MAX;
use forebay_base::{Clock, ShardIndex};
use forebay_config::{Config, Reloader, read_token};
use forebay_fleet::mailbox::wire;
use forebay_fleet::worker::LoadBoard;
use forebay_index;
use forebay_index::KeySeed;
use forebay_kv_events::FeedTimers;
use forebay_snapshot::SnapshotFile;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A running router.
#[derive(Debug)]
pub struct ServerHandle {
    /// Where it listens; the port is real even if 0 was asked for.
    pub listen: SocketAddr,
    /// Where the admin API listens.
    pub admin: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    control: Option<JoinHandle<Result<(), ControlError>>>,
    shards: Vec<JoinHandle<()>>,
}

/// Why the router does not start. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No core is configured.
    #[error("no core is left to run on: set `cores` to 1 to {SHARDS_MAX} core numbers")]
    NoCores,
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; is another process listening there? (key `{key}`)"
    )]
    Listen {
        /// The key of the config file.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody listens where clients connect.
    #[error(
        "cannot listen on {address}: another process listens there. Stop it, or give this router another port (key \
         `listen`). To share the port with another router on purpose, set `listen_shared = true` (--listen-shared)"
    )]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// The token of the admin API cannot be read.
    #[error("`admin_token_file` {0}")]
    Token(String),
    /// A thread or descriptor cannot be had.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Starts everything and returns at once. With `signals` SIGTERM and SIGINT drain the router, else
/// only [`ServerHandle::stop`] does.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start(config: Config, signals: bool) -> Result<ServerHandle, StartError> {
    begin(config, signals, None, FeedTimers::default())
}

/// The same, with feeds of KV events that wait for other times than the default.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_with(config: Config, feed_timers: FeedTimers) -> Result<ServerHandle, StartError> {
    begin(config, false, None, feed_timers)
}

/// The same, for a configuration that can be read again: `POST /admin/reload`, with `signals` also
/// SIGHUP.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_reloadable(
    config: Config,
    signals: bool,
    reloader: Reloader,
) -> Result<ServerHandle, StartError> {
    begin(config, signals, Some(reloader), FeedTimers::default())
}

fn begin(
    mut config: Config,
    signals: bool,
    reloader: Option<Reloader>,
    feed_timers: FeedTimers,
) -> Result<ServerHandle, StartError> {
    config.resolve_cores(&available_cores());
    let shard_count = config.cores.len();
    if shard_count == 0 || shard_count > SHARDS_MAX {
        return Err(StartError::NoCores);
    }
    let driver = Driver::detect();
    if driver == Driver::Epoll {
        tracing::warn!(
            "running on epoll, which costs more CPU per request: io_uring is not available; use \
             Linux 6.1 or later, and permit io_uring (seccomp profile, kernel.io_uring_disabled)"
        );
    }
    let refused = |key, address| move |source| StartError::Listen { key, address, source };
    let first = ingress::bind_first(config.listen, config.listen_shared);
    let first = first.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => StartError::Taken { address: config.listen },
        _ => refused("listen", config.listen)(source),
    })?;
    config.listen = first.local_addr()?;
    let mut listeners = vec![first];
    for _ in 1..shard_count {
        let next = ingress::bind_next(config.listen);
        listeners.push(next.map_err(refused("listen", config.listen))?);
    }
    let admin = TcpListener::bind(config.admin)
        .and_then(|admin| admin.set_nonblocking(true).map(|()| admin))
        .map_err(refused("admin", config.admin))?;
    config.admin = admin.local_addr()?;
    let token = config.admin_token_file.as_deref().map(read_token).transpose();
    let token = token.map_err(StartError::Token)?;
    ingress::raise_limit(&config);
    let sockets = ServerSockets { listeners, admin };
    let options = RunOptions { signals, reloader, feed_timers };
    launch(Arc::new(config), driver, sockets, token, options)
}

/// The ports that this process listens on.
struct ServerSockets {
    /// One for each shard, all on the same port.
    listeners: Vec<TcpListener>,
    admin: TcpListener,
}

/// What decides how long the router runs, and with which configuration.
struct RunOptions {
    /// The control plane listens to signals of the process.
    signals: bool,
    reloader: Option<Reloader>,
    feed_timers: FeedTimers,
}

fn launch(
    config: Arc<Config>,
    driver: Driver,
    sockets: ServerSockets,
    admin_token: Option<String>,
    options: RunOptions,
) -> Result<ServerHandle, StartError> {
    let ServerSockets { listeners, admin } = sockets;
    let RunOptions { signals, reloader, feed_timers } = options;
    let clock = Clock::start();
    let snapshot = config.index.snapshot.as_deref().and_then(last_snapshot);
    let seed = match &snapshot {
        Some(snapshot) => snapshot.header().seed,
        None => KeySeed(getrandom::u64().map_err(io::Error::from)?),
    };
    let (reader, slices) =
        forebay_index::index(listeners.len(), seed, config.limits.index_bytes_max);
    let mut wakes = Vec::new();
    let mut sources = Vec::new();
    for _ in &listeners {
        let (wake, source) = wake_pair()?;
        wakes.push(wake);
        sources.push(source);
    }
    let (end, ends) = wire(wakes);
    let bells = end.shards.iter().map(|port| Arc::clone(&port.bell)).collect();
    let board = Arc::new(LoadBoard::with_bells(bells));
    let mut shards = Vec::new();
    let parts = ends.into_iter().zip(listeners).zip(sources).zip(slices).zip(config.cores.clone());
    for ((((end, listener), wake), slice), core) in parts {
        let setup = ShardSetup {
            config: Arc::clone(&config),
            clock,
            thread: ShardThread { core, driver, listener, wake },
            board: Arc::clone(&board),
            index: reader.clone(),
            tenant_seed: seed.0,
            slice,
            end,
        };
        shards.push(spawn_shard(setup)?);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (listen, admin_address) = (config.listen, config.admin);
    let setup = ControlSetup {
        config,
        clock,
        seed,
        snapshot,
        end,
        board,
        index: reader,
        admin,
        admin_token,
        stopped,
        signals,
        reloader,
        feed_timers,
    };
    let control = std::thread::Builder::new().name("control".into());
    let control = control.spawn(move || control::run(setup))?;
    Ok(ServerHandle { listen, admin: admin_address, stop, control: Some(control), shards })
}

/// What the last process has left. Only its header is read here, for the seed; the rest is read
/// while requests are served.
fn last_snapshot(path: &Path) -> Option<SnapshotFile> {
    let opened = SnapshotFile::open(path);
    match &opened {
        Ok(Some(_)) => {}
        Ok(None) => tracing::info!("no snapshot at {} yet", path.display()),
        Err(reason) => control::refuse_snapshot(path, reason),
    }
    opened.ok().flatten()
}

fn spawn_shard(setup: ShardSetup) -> io::Result<JoinHandle<()>> {
    let ShardIndex(number) = setup.end.index;
    std::thread::Builder::new().name(format!("shard-{number}")).spawn(move || {
        if let Err(error) = shard::run(setup) {
            tracing::error!(shard = number, %error, "a shard ended: its runtime failed");
        }
    })
}

impl ServerHandle {
    /// Asks for a drain: no new connections, streams finish up to `timeouts.drain`.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end of a drain.
    ///
    /// # Errors
    /// What ended the router otherwise. Its threads may still run then: end the process.
    pub fn join(mut self) -> Result<(), ControlError> {
        self.join_threads()
    }

    fn join_threads(&mut self) -> Result<(), ControlError> {
        let Some(control) = self.control.take() else { return Ok(()) };
        // Nobody controls the shards any more; one that hangs would never be joined.
        control.join().unwrap_or(Err(ControlError::Panicked))?;
        for thread in self.shards.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a shard panicked at its end (this is a bug)");
            }
        }
        Ok(())
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = self.join_threads() {
            tracing::error!(%error, "the router ended");
        }
    }
}

fn available_cores() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}
