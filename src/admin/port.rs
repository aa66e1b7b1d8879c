//! The connections of the admin API. Bounded in number and in time, so that callers of the port
//! cannot exhaust the descriptors of the data plane. At the limit, a new connection evicts an old
//! one: first a connection that has never called, then an idle connection, last a connection with a
//! running call; among equals the connection that has been silent longest.

use super::access::{Access, CallerOrigin};
use super::client_port::{ClientCaller, ClientCallers, ClientGate};
use super::form::{CALL_BYTES_MAX, too_long};
use super::socket::{AdminSocket, SocketFile};
use axum::Router;
use axum::body::to_bytes;
use forebay_base::limits::{ADMIN_CONNECTIONS_MAX, ADMIN_HANDSHAKE_MAX, ADMIN_IDLE_MAX};
use forebay_tls::Acceptor;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

/// Pause after `accept` failed: other connections may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

struct OpenConnection {
    calls: Calls,
    task: AbortHandle,
}

/// Calls of a connection. Clones share the state.
#[derive(Clone)]
struct Calls(Rc<CallCells>);

struct CallCells {
    caller: CallerOrigin,
    /// When the last call began, or a part of its response was read.
    moved_at: Cell<Instant>,
    begun: Cell<u64>,
    running: Cell<u64>,
    /// The last request body has been read, and its handler runs.
    is_working: Cell<bool>,
}

impl Calls {
    fn none(caller: CallerOrigin) -> Self {
        let moved_at = Cell::new(Instant::now());
        let begun = Cell::new(0);
        let running = Cell::new(0);
        let is_working = Cell::new(false);
        Self(Rc::new(CallCells { caller, moved_at, begun, running, is_working }))
    }

    fn begin(&self) -> RunningCall {
        self.moved();
        self.0.begun.set(self.0.begun.get().saturating_add(1));
        self.0.running.set(self.0.running.get().saturating_add(1));
        RunningCall(self.clone())
    }

    fn moved(&self) {
        self.0.moved_at.set(Instant::now());
    }

    fn moved_at(&self) -> Instant {
        self.0.moved_at.get()
    }

    fn set_working(&self, is_working: bool) {
        self.moved();
        self.0.is_working.set(is_working);
    }

    /// Eviction order: the smallest value is evicted first.
    fn rank(&self) -> (bool, bool, Instant) {
        (self.0.running.get() > 0, self.0.begun.get() > 0, self.moved_at())
    }
}

/// A call, until its response has been read.
struct RunningCall(Calls);

impl Drop for RunningCall {
    fn drop(&mut self) {
        let cells = &self.0.0;
        cells.running.set(cells.running.get().saturating_sub(1));
    }
}

/// The admin API's listening socket, on the loop of the control plane.
#[derive(Debug)]
pub enum AdminListener {
    /// A TCP port, with TLS or without.
    Tcp(TcpListener, Option<AdminAcceptor>),
    /// A Unix socket; its file is removed with it.
    Unix(UnixListener, SocketFile),
}

enum AdminCaller {
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
    Unix(UnixStream),
}

/// TLS configuration of the port. Clones share it.
#[derive(Clone, Debug)]
pub struct AdminAcceptor(Rc<RefCell<Acceptor>>);

impl AdminAcceptor {
    /// Applies to connections accepted from now on.
    #[must_use]
    pub fn new(acceptor: Acceptor) -> Self {
        Self(Rc::new(RefCell::new(acceptor)))
    }

    /// Replaces the certificate for connections accepted from now on.
    pub fn replace(&self, acceptor: Acceptor) {
        *self.0.borrow_mut() = acceptor;
    }

    fn accept(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.borrow().server_config())
    }
}

impl AdminListener {
    /// Registers a bound socket with the loop.
    ///
    /// # Errors
    /// Registration with the runtime failed.
    pub fn new(socket: AdminSocket, tls: Option<AdminAcceptor>) -> io::Result<Self> {
        Ok(match socket {
            AdminSocket::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?, tls),
            AdminSocket::Unix(listener, file) => {
                Self::Unix(UnixListener::from_std(listener)?, file)
            }
        })
    }

    /// Takes over the socket file that another process had until now.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn take_name(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(..) => Ok(()),
            Self::Unix(_, file) => file.take_name(),
        }
    }

    async fn accept(&self) -> io::Result<(AdminCaller, CallerOrigin)> {
        match self {
            Self::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                let caller = match tls {
                    Some(tls) => AdminCaller::Tls(stream, tls.accept()),
                    None => AdminCaller::Tcp(stream),
                };
                Ok((caller, CallerOrigin::here(address.to_string())))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let uid =
                    stream.peer_cred().map_or_else(|_| "?".to_owned(), |c| c.uid().to_string());
                Ok((AdminCaller::Unix(stream), CallerOrigin::here(format!("unix, user {uid}"))))
            }
        }
    }
}

/// Serves until the task is dropped.
pub(crate) async fn serve(
    listener: AdminListener,
    by_clients: Option<(ClientCallers, Arc<Access>)>,
    router: Router,
) {
    let by_clients = serve_clients(by_clients, router.clone());
    tokio::join!(serve_port(listener, router), by_clients);
}

async fn serve_port(listener: AdminListener, router: Router) {
    let mut open: Vec<OpenConnection> = Vec::new();
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((caller, name)) => {
                if std::mem::take(&mut has_failed) {
                    info!("the admin API accepts connections again");
                }
                make_room(&mut open);
                let open_calls = Calls::none(name);
                let router = router.clone();
                let calls = open_calls.clone();
                let task = match caller {
                    AdminCaller::Tcp(stream) => {
                        spawn_local(connection(stream, router, calls, None))
                    }
                    AdminCaller::Tls(stream, acceptor) => {
                        spawn_local(secured(stream, acceptor, router, calls))
                    }
                    AdminCaller::Unix(stream) => {
                        spawn_local(connection(stream, router, calls, None))
                    }
                };
                open.push(OpenConnection { calls: open_calls, task: task.abort_handle() });
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    warn!(%error, "the admin API cannot accept a connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves calls by the client port. The connector bounds their number.
async fn serve_clients(by_clients: Option<(ClientCallers, Arc<Access>)>, router: Router) {
    let Some((mut callers, access)) = by_clients else { return };
    let gate = Rc::new(ClientGate::new(access));
    while let Some(ClientCaller { stream, peer, permit }) = callers.next().await {
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        let name = format!("{peer} by the port of clients").into();
        let calls = Calls::none(CallerOrigin { name, is_by_clients: true });
        let router = router.clone();
        let gate = Rc::clone(&gate);
        spawn_local(async move {
            connection(stream, router, calls, Some(gate)).await;
            drop(permit);
        });
    }
}

/// Removes ended connections, and evicts connections at the limit.
fn make_room(open: &mut Vec<OpenConnection>) {
    open.retain(|connection| !connection.task.is_finished());
    while open.len() >= ADMIN_CONNECTIONS_MAX {
        let first = open.iter().enumerate().min_by_key(|(_, connection)| connection.calls.rank());
        let Some((position, _)) = first else { return };
        open.swap_remove(position).task.abort();
    }
}

/// Handshakes first. A caller without a required client certificate is disconnected.
async fn secured(stream: TcpStream, acceptor: TlsAcceptor, router: Router, calls: Calls) {
    match timeout(ADMIN_HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, router, calls, None).await,
        Ok(Err(error)) => debug!(%error, "no handshake with a caller of the admin API"),
        Err(_) => debug!("a caller of the admin API did not shake hands in time"),
    }
}

/// Body of a response. Each part that the reader accepts counts as activity, so a stream lasts as
/// long as its viewer reads.
struct ReadAnswer {
    body: axum::body::Body,
    call: RunningCall,
}

impl Body for ReadAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.call.0.moved();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection. A slow head, a slow body, an unread response and silence all end at the
/// same time after the last call began, or after the last part of a stream was read. `gate`
/// authorizes a call by the client port before its body is read.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    calls: Calls,
    gate: Option<Rc<ClientGate>>,
) {
    let service = TowerToHyperService::new(router);
    let of_connection = calls.clone();
    let service = service_fn(move |mut asked: hyper::Request<Incoming>| {
        let call = of_connection.begin();
        asked.extensions_mut().insert(of_connection.0.caller.clone());
        let calls = of_connection.clone();
        let service = service.clone();
        let gate = gate.clone();
        async move {
            // The body has its own limits; the response may take long.
            let (head, body) = asked.into_parts();
            let caller = &calls.0.caller.name;
            if let Some(refused) =
                gate.and_then(|gate| gate.refuse(caller, &head, calls.moved_at()))
            {
                return Ok(refused.map(|body| ReadAnswer { body, call }));
            }
            // A body that is announced too long may never come.
            if body.size_hint().lower() > CALL_BYTES_MAX as u64 {
                return Ok(too_long().map(|body| ReadAnswer { body, call }));
            }
            let answer = match to_bytes(axum::body::Body::new(body), CALL_BYTES_MAX).await {
                Err(_) => Ok(too_long()),
                Ok(body) => {
                    calls.set_working(true);
                    let asked = hyper::Request::from_parts(head, axum::body::Body::from(body));
                    let answer = service.call(asked).await;
                    calls.set_working(false);
                    answer
                }
            };
            answer.map(|answer| answer.map(|body| ReadAnswer { body, call }))
        }
    });
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    loop {
        let end = calls.moved_at() + ADMIN_IDLE_MAX;
        if timeout_at(end, served.as_mut()).await.is_ok() {
            return;
        }
        // A running handler has a deadline of its own: it may wait for engines and workers.
        if calls.0.is_working.get() {
            calls.moved();
        }
        if calls.moved_at() + ADMIN_IDLE_MAX <= end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_goes_last_and_what_never_called_goes_first() {
        let [silent, new_request, idle, stalled, viewer] =
            ["a", "b", "c", "d", "e"].map(|name| Calls::none(CallerOrigin::here(name.into())));
        drop(idle.begin());
        let _running = (viewer.begin(), stalled.begin());
        let start = silent.moved_at();
        for (calls, seconds) in [(&new_request, 9), (&idle, 1), (&stalled, 2), (&viewer, 8)] {
            calls.0.moved_at.set(start + Duration::from_secs(seconds));
        }
        let ranks = [&silent, &new_request, &idle, &stalled, &viewer].map(Calls::rank);
        assert!(ranks.is_sorted(), "{ranks:?}");
    }
}
