//! Builds the rings, starts the shards and the control plane, and joins them at the end. No other
//! module names both planes.

use crate::start_error::StartError;
use forebay_admin::{Access, AdminSocket};
use forebay_base::limits::SHARDS_MAX;
use forebay_base::{Clock, RouterId, ThreadName};
use forebay_board::LoadBoard;
use forebay_config::{AdminAddress, Config, Reloader};
use forebay_control::{
    ControlError, ControlSetup, HandoverOffer, HandoverSetup, ServerTls, TlsSetup,
};
use forebay_dataplane::ingress::{self, BoundListener, InheritedListeners};
use forebay_dataplane::runtime::{Driver, wake_pair};
use forebay_dataplane::{ShardSetup, ShardThread};
use forebay_handover::{HandoverAddress, OF_UPGRADE, Program, TakenProcess};
use forebay_identity::{AddressRules, TrustedNets};
use forebay_index;
use forebay_index::KeySeed;
use forebay_keys::KeyRing;
use forebay_kv_events::FeedTimers;
use forebay_mailbox::{AdminConnector, wire};
use forebay_snapshot::SnapshotFile;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between attempts to bind an address, and their number: a second in total.
const BIND_PAUSE: Duration = Duration::from_millis(20);
const BIND_TRIES: u32 = 50;

#[derive(Debug)]
pub struct ServerHandle {
    /// Address of `listen`, with the actual port if 0 was configured.
    pub listen: SocketAddr,
    /// Addresses of further listeners, in configuration order.
    pub listeners: Vec<SocketAddr>,
    /// TCP address of the admin API; port 0 for a Unix socket.
    pub admin: SocketAddr,
    /// Address of the admin API, or its Unix socket.
    pub admin_address: AdminAddress,
    stop: tokio::sync::watch::Sender<bool>,
    control: Option<JoinHandle<Result<(), ControlError>>>,
    shards: Vec<JoinHandle<()>>,
}

/// Starts everything and returns at once. With `signals`, SIGTERM and SIGINT drain the router; else
/// only [`ServerHandle::stop`] does.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start(config: Config, signals: bool) -> Result<ServerHandle, StartError> {
    begin(config, RunOptions { signals, ..RunOptions::default() })
}

/// Like [`start`], with other timers for KV-event feeds.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_with(config: Config, feed_timers: FeedTimers) -> Result<ServerHandle, StartError> {
    begin(config, RunOptions { feed_timers, ..RunOptions::default() })
}

/// Like [`start`], for a configuration that can be reloaded: `POST /admin/reload`, with `signals`
/// also SIGHUP.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_reloadable(
    config: Config,
    signals: bool,
    reloader: Reloader,
) -> Result<ServerHandle, StartError> {
    begin(config, RunOptions { signals, reloader: Some(reloader), ..RunOptions::default() })
}

/// Like [`start_reloadable`] with signals. With `takes_over`, the router replaces the router that
/// runs on the same address; without it, such a router is an error.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start_process(
    config: Config,
    reloader: Reloader,
    takes_over: bool,
) -> Result<ServerHandle, StartError> {
    let reloader = Some(reloader);
    begin(config, RunOptions { signals: true, takes_over, reloader, ..RunOptions::default() })
}

fn begin(mut config: Config, options: RunOptions) -> Result<ServerHandle, StartError> {
    config.resolve_cores(&available_cores());
    let shard_count = config.cores.len();
    if shard_count == 0 || shard_count > SHARDS_MAX {
        return Err(StartError::NoCores);
    }
    let driver = Driver::detect();
    if let Some((what, help)) = driver.epoll_reason() {
        tracing::warn!(help, "running on epoll, which costs more CPU per request: {what}");
    }
    let server = config.accept_files().map(|files| ServerTls::read(&files)).transpose()?;
    let tls = TlsSetup { server, connectors: config.connectors()? };
    let admin_tls = config.admin_accept_files().map(|files| ServerTls::read(&files)).transpose()?;
    let place = if options.signals { place(&config)? } else { None };
    if let Some(place) = place.as_ref().filter(|_| !options.replaces()) {
        alone(place, config.listen)?;
    }
    let before = place.as_ref().filter(|_| options.replaces());
    let models = before.and_then(handed_models);
    let mut taken = before.and_then(taken_over);
    let sockets = taken.as_mut().map(|taken| std::mem::take(&mut taken.sockets));
    let mut inherited = InheritedListeners::new(sockets.unwrap_or_default());
    let listeners = bind_all(&mut config, &mut inherited);
    let listeners = listeners.map_err(|error| error.seen_beside(place.as_ref()))?;
    let admin = bind_admin(&config.admin, &mut inherited, taken.is_some());
    let admin = admin.map_err(refused("admin", config.admin.clone()))?;
    if let Some(port) = admin.port()? {
        config.admin = port.into();
    }
    TrustedNets::parse(config.client.trusted.iter().map(String::as_str))
        .map_err(StartError::Trusted)?;
    let keys = config.api_keys.as_deref().map(forebay_keys::read).transpose();
    let api_keys = keys.map_err(StartError::Keys)?;
    let router_id = RouterId::from_random(random()?);
    let access = access(&config)?.of_router(router_id);
    let credentials = Credentials { router_id, access, api_keys };
    ingress::raise_limit(&config);
    let offer = place.map(|place| offer(place, &listeners, &admin)).transpose()?;
    let handover = HandoverSetup { taken, models, offer };
    let sockets = ServerSockets { listeners, admin, tls, admin_tls, handover };
    launch(Arc::new(config), driver, sockets, credentials, options)
}

/// Drawn from the system: neither number may be guessable.
pub(crate) fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::from)
}

/// Access rules of the admin API.
fn access(config: &Config) -> Result<Access, StartError> {
    let tokens = forebay_control::admin_tokens(config);
    let tokens = tokens.map_err(|(key, what)| StartError::Token { key, what })?;
    Ok(Access::new(config.admin_hosts.clone(), tokens))
}

fn refused(key: &'static str, address: AdminAddress) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Listen { key, address, source }
}

/// Handover socket of this configuration; `None` if the port is shared or chosen by the kernel.
fn place(config: &Config) -> io::Result<Option<HandoverAddress>> {
    let is_alone = !config.listen_shared && config.listen.port() != 0;
    is_alone.then(|| HandoverAddress::of(config.listen)).transpose()
}

/// Waits until no router runs on the address. A router that was just stopped may still be there.
///
/// # Errors
/// [`StartError::Runs`] when a router still runs after a second.
fn alone(place: &HandoverAddress, address: SocketAddr) -> Result<(), StartError> {
    let mut process = None;
    let found = bind_in_time(|| {
        process = place.running()?;
        process.map_or(Ok(()), |_| Err(io::ErrorKind::AddrInUse.into()))
    });
    match process.filter(|_| found.is_err()) {
        Some(process) => Err(StartError::Runs { address, process: process.as_raw_nonzero().get() }),
        None => Ok(()),
    }
}

/// Sockets and state of the running process, if any.
fn taken_over(place: &HandoverAddress) -> Option<TakenProcess> {
    forebay_handover::take(place).unwrap_or_else(|error| {
        tracing::warn!("nothing is taken over: {error}");
        None
    })
}

/// The worker models of the running process. The takeover succeeds without them too.
fn handed_models(place: &HandoverAddress) -> Option<File> {
    let models = forebay_handover::take_models(place);
    models.unwrap_or_else(|error| {
        tracing::warn!("the models of the workers are not taken over: {error}");
        None
    })
}

/// Sockets and program for the next process.
fn offer(
    place: HandoverAddress,
    listeners: &[Vec<BoundListener>],
    admin: &AdminSocket,
) -> io::Result<HandoverOffer> {
    let ports = listeners.iter().flatten().map(|listener| listener.socket.try_clone());
    let mut sockets = ports.map(|port| port.map(OwnedFd::from)).collect::<io::Result<Vec<_>>>()?;
    if let AdminSocket::Tcp(listener) = admin {
        sockets.push(listener.try_clone()?.into());
    }
    // Read now: by the time of an upgrade another file has this name.
    let path = std::env::current_exe()?;
    let program = Program { path, arguments: std::env::args_os().skip(1).collect() };
    Ok(HandoverOffer { place, sockets: sockets.into(), program })
}

fn bind_admin(
    address: &AdminAddress,
    inherited: &mut InheritedListeners,
    is_taken_over: bool,
) -> io::Result<AdminSocket> {
    let port = address.port_address().and_then(|port| inherited.take(port).pop());
    match port {
        Some(port) => Ok(AdminSocket::Tcp(port)),
        None if is_taken_over => AdminSocket::bind_beside(address),
        None => bind_in_time(|| AdminSocket::bind(address)),
    }
}

/// Binds, and retries for a second if the address is in use. Sockets of a killed process stay for
/// some milliseconds: its rings are closed after its end.
#[expect(clippy::disallowed_methods, reason = "nothing runs yet")]
fn bind_in_time<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BIND_TRIES {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(BIND_PAUSE);
            }
            bound => return bound,
        }
    }
    bind()
}

/// Binds every address for each shard, and stores the ports that the kernel has chosen.
fn bind_all(
    config: &mut Config,
    inherited: &mut InheritedListeners,
) -> Result<Vec<Vec<BoundListener>>, StartError> {
    let mut of_shards: Vec<_> = config.cores.iter().map(|_| Vec::new()).collect();
    let is_tls = config.speaks_tls();
    let is_shared = config.listen_shared;
    let mut shares = Shares { inherited, of_shards: &mut of_shards };
    config.listen = bind(config.listen, "listen", is_shared, is_tls, &mut shares)?;
    for position in 0..config.listeners.len() {
        let Some(listener) = config.listeners.get(position).copied() else { break };
        let is_tls = config.listener_speaks_tls(&listener);
        let key = "listener.address";
        let address = listener.address;
        let bound = bind(address, key, is_shared, is_tls, &mut shares)?;
        if let Some(listener) = config.listeners.get_mut(position) {
            listener.address = bound;
        }
    }
    Ok(of_shards)
}

/// InheritedListeners listeners, and the listeners of each shard.
struct Shares<'a> {
    inherited: &'a mut InheritedListeners,
    of_shards: &'a mut [Vec<BoundListener>],
}

/// Binds an address for each shard, unless there is an inherited socket; returns it with its actual
/// port. Every inherited socket must be served: the kernel gives each a share of the connections.
fn bind(
    address: SocketAddr,
    key: &'static str,
    is_shared: bool,
    is_tls: bool,
    shares: &mut Shares<'_>,
) -> Result<SocketAddr, StartError> {
    let mut sockets = shares.inherited.take(address);
    if sockets.is_empty() {
        let first = bind_in_time(|| ingress::bind_first(address, is_shared));
        sockets.push(first.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse if key == "listen" => StartError::Taken { address },
            _ => refused(key, address.into())(source),
        })?);
    }
    let address = sockets.first().map_or(Ok(address), TcpListener::local_addr)?;
    while sockets.len() < shares.of_shards.len() {
        sockets.push(ingress::bind_next(address).map_err(refused(key, address.into()))?);
    }
    let shard_count = shares.of_shards.len().max(1);
    for (number, socket) in sockets.into_iter().enumerate() {
        if let Some(of_shard) = shares.of_shards.get_mut(number % shard_count) {
            of_shard.push(BoundListener { socket, is_tls });
        }
    }
    Ok(address)
}

/// Listening sockets of this process.
struct ServerSockets {
    /// For each shard, all on the same ports.
    listeners: Vec<Vec<BoundListener>>,
    admin: AdminSocket,
    tls: TlsSetup,
    admin_tls: Option<ServerTls>,
    handover: HandoverSetup,
}

/// Id of this router, and credentials that callers and clients need.
struct Credentials {
    /// Router id in `Via` fields to workers.
    router_id: RouterId,
    access: Access,
    api_keys: Option<KeyRing>,
}

/// Options for the run: signals, reload, timers.
#[derive(Default)]
struct RunOptions {
    /// The control plane handles signals of the process.
    signals: bool,
    /// A router on the same address is replaced, and is no error.
    takes_over: bool,
    reloader: Option<Reloader>,
    feed_timers: FeedTimers,
}

impl RunOptions {
    /// The operator asked for a successor: `--take-over`, or `forebay upgrade` in the old process.
    fn replaces(&self) -> bool {
        self.takes_over || std::env::var_os(OF_UPGRADE).is_some()
    }
}

fn launch(
    config: Arc<Config>,
    driver: Driver,
    sockets: ServerSockets,
    credentials: Credentials,
    options: RunOptions,
) -> Result<ServerHandle, StartError> {
    let ServerSockets { listeners, admin, tls, admin_tls, mut handover } = sockets;
    let RunOptions { signals, reloader, feed_timers, .. } = options;
    let router_id = credentials.router_id;
    let clock = Clock::start();
    let index = handover.taken.as_mut().and_then(|taken| taken.index.take());
    let snapshot = index.and_then(handed_index);
    let snapshot = snapshot.or_else(|| config.index.snapshot.as_deref().and_then(last_snapshot));
    let seed = match &snapshot {
        Some(snapshot) => snapshot.header().seed,
        None => KeySeed(random()?),
    };
    let per_address = config.limits.connections_per_address_max;
    let addresses = Arc::new(AddressRules::new(per_address, seed.0));
    let (reader, slices) =
        forebay_index::index(listeners.len(), seed, config.limits.index_bytes_max);
    let pairs = listeners.iter().map(|_| wake_pair()).collect::<io::Result<Vec<_>>>()?;
    let (wakes, sources): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let (end, ends) = wire(wakes);
    let bells = end.shards.iter().map(|port| Arc::clone(&port.bell)).collect();
    let board = Arc::new(LoadBoard::with_bells(bells));
    let (connector, callers) = config.admin_on_client_port.then(forebay_admin::client_port).unzip();
    let connector = connector.map(|connector| Arc::new(connector) as Arc<dyn AdminConnector>);
    let mut shards = Vec::new();
    let parts = ends.into_iter().zip(listeners).zip(sources).zip(slices).zip(config.cores.clone());
    for ((((end, listeners), wake), slice), core) in parts {
        let setup = ShardSetup {
            config: Arc::clone(&config),
            clock,
            thread: ShardThread {
                core,
                driver,
                listeners,
                addresses: Arc::clone(&addresses),
                connector: connector.clone(),
                wake,
            },
            board: Arc::clone(&board),
            index: reader.clone(),
            slice,
            end,
            router_id,
        };
        shards.push(spawn_shard(setup)?);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let listen = config.listen;
    let admin_address = config.admin.clone();
    let further = config.listeners.iter().map(|listener| listener.address).collect();
    let setup = ControlSetup {
        config,
        clock,
        router_id,
        seed,
        snapshot,
        end,
        board,
        index: reader,
        handover,
        admin,
        tls,
        admin_tls,
        callers,
        access: credentials.access,
        api_keys: credentials.api_keys,
        stopped,
        signals,
        reloader,
        feed_timers,
        log_dropped: crate::log::dropped_lines_count,
    };
    let control = std::thread::Builder::new().name(ThreadName::Control.to_string());
    let control = Some(control.spawn(move || forebay_control::run(setup))?);
    let admin = admin_address.port_address().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
    Ok(ServerHandle { listen, listeners: further, admin, admin_address, stop, control, shards })
}

/// The snapshot of the last process. Only its header is read here, for the seed; the rest is read
/// while requests are served.
fn last_snapshot(path: &Path) -> Option<SnapshotFile> {
    let opened = SnapshotFile::open(path);
    match &opened {
        Ok(Some(_)) => {}
        Ok(None) => tracing::info!("no snapshot at {} yet", path.display()),
        Err(reason) => forebay_control::refuse_snapshot(path, reason),
    }
    opened.ok().flatten()
}

/// The index handed over by the running process.
fn handed_index(file: File) -> Option<SnapshotFile> {
    let read = SnapshotFile::read(file);
    read.inspect_err(|reason| tracing::warn!("the index that was handed over: {reason}")).ok()
}

fn spawn_shard(setup: ShardSetup) -> io::Result<JoinHandle<()>> {
    let shard = setup.end.index;
    std::thread::Builder::new().name(ThreadName::Shard(shard).to_string()).spawn(move || {
        if let Err(error) = forebay_dataplane::run(setup) {
            tracing::error!(shard = shard.0, %error, "a shard ended: its runtime failed");
        }
    })
}

impl ServerHandle {
    /// Begins a drain: no new connections, streams finish up to `timeouts.drain`.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end of a drain.
    ///
    /// # Errors
    /// The error that ended the router. Its threads may still run then: end the process.
    pub fn join(mut self) -> Result<(), ControlError> {
        self.join_threads()
    }

    fn join_threads(&mut self) -> Result<(), ControlError> {
        let Some(control) = self.control.take() else { return Ok(()) };
        // After a panic of the control thread the shards are uncontrolled, and a hanging shard
        // could not be joined.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_given_back_in_time_is_bound() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = held.local_addr().unwrap();
        let mut held = Some(held);
        let mut try_count = 0;
        let bound = bind_in_time(|| {
            try_count += 1;
            if try_count == 3 {
                held = None;
            }
            ingress::bind_first(address, false)
        });
        assert_eq!((bound.unwrap().local_addr().unwrap(), try_count), (address, 3));
        let mut try_count = 0;
        let refused = bind_in_time(|| {
            try_count += 1;
            Err::<(), _>(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!((refused.unwrap_err().kind(), try_count), (io::ErrorKind::PermissionDenied, 1));
    }
}
