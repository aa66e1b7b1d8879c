//! The connections of the admin API. Bounded in number and in time, so that whoever reaches the
//! port cannot take the descriptors of the data plane: when all are taken, the one that has been
//! silent longest makes room.

use super::socket::{AdminSocket, SocketFile};
use axum::Router;
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
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// After the kernel refused to hand out a connection: others will end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// One open connection.
struct Open {
    /// When its last call began.
    called_at: LastCall,
    task: AbortHandle,
}

/// When the last call of a connection began. Copies share it.
#[derive(Clone)]
struct LastCall(Rc<Cell<Instant>>);

impl LastCall {
    fn new() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }

    fn renew(&self) {
        self.0.set(Instant::now());
    }

    fn at(&self) -> Instant {
        self.0.get()
    }
}

/// Where callers come in, on the loop of the control plane.
#[derive(Debug)]
pub enum AdminListener {
    /// A port, for callers of the network; with TLS or without.
    Tcp(TcpListener, Option<AdminAcceptor>),
    /// A socket in the file system, whose name goes with it.
    Unix(UnixListener, SocketFile),
}

/// The connection of one caller.
enum AdminCaller {
    Tcp(TcpStream),
    Tls(TcpStream, TlsAcceptor),
    Unix(UnixStream),
}

/// What callers are shown over TLS. Copies share it.
#[derive(Clone, Debug)]
pub struct AdminAcceptor(Rc<RefCell<Acceptor>>);

impl AdminAcceptor {
    /// For callers from now on.
    #[must_use]
    pub fn new(acceptor: Acceptor) -> Self {
        Self(Rc::new(RefCell::new(acceptor)))
    }

    /// Shows callers another certificate from now on.
    pub fn replace(&self, acceptor: Acceptor) {
        *self.0.borrow_mut() = acceptor;
    }

    fn accept(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.borrow().server_config())
    }
}

impl AdminListener {
    /// Takes a bound socket into the loop.
    ///
    /// # Errors
    /// What the loop says.
    pub fn new(socket: AdminSocket, tls: Option<AdminAcceptor>) -> io::Result<Self> {
        Ok(match socket {
            AdminSocket::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?, tls),
            AdminSocket::Unix(listener, file) => {
                Self::Unix(UnixListener::from_std(listener)?, file)
            }
        })
    }

    /// Takes over the name that another process had until now.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take_name(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(..) => Ok(()),
            Self::Unix(_, file) => file.take_name(),
        }
    }

    async fn accept(&self) -> io::Result<AdminCaller> {
        match self {
            Self::Tcp(listener, tls) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok(match tls {
                    Some(tls) => AdminCaller::Tls(stream, tls.accept()),
                    None => AdminCaller::Tcp(stream),
                })
            }
            Self::Unix(listener, _) => Ok(AdminCaller::Unix(listener.accept().await?.0)),
        }
    }
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: AdminListener, router: Router) {
    let mut open: Vec<Open> = Vec::new();
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok(caller) => {
                has_failed = false;
                make_room(&mut open);
                let called_at = LastCall::new();
                let (router, calls) = (router.clone(), called_at.clone());
                let task = match caller {
                    AdminCaller::Tcp(stream) => spawn_local(connection(stream, router, calls)),
                    AdminCaller::Tls(stream, acceptor) => {
                        spawn_local(secured(stream, acceptor, router, calls))
                    }
                    AdminCaller::Unix(stream) => spawn_local(connection(stream, router, calls)),
                };
                open.push(Open { called_at, task: task.abort_handle() });
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

/// Forgets connections that have ended, and ends the one that has been silent longest where there
/// are too many.
fn make_room(open: &mut Vec<Open>) {
    open.retain(|one| !one.task.is_finished());
    while open.len() >= ADMIN_CONNECTIONS_MAX {
        let longest = open.iter().enumerate().min_by_key(|(_, one)| one.called_at.at());
        let Some((position, _)) = longest else { return };
        open.swap_remove(position).task.abort();
    }
}

/// Shakes hands first. Who shows no certificate that is asked for ends here.
async fn secured(stream: TcpStream, acceptor: TlsAcceptor, router: Router, called_at: LastCall) {
    match timeout(ADMIN_HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, router, called_at).await,
        Ok(Err(error)) => debug!(%error, "no handshake with a caller of the admin API"),
        Err(_) => debug!("a caller of the admin API did not shake hands in time"),
    }
}

/// The body of an answer. A part that its reader makes room for counts as a call, so that a stream
/// goes on as long as somebody reads.
struct ReadAnswer {
    body: axum::body::Body,
    called_at: LastCall,
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
            self.called_at.renew();
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

/// A slow head, a slow body, an answer that is not read, silence: all end at the same time after
/// the last call began, or after the last part of a stream that was read.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    called_at: LastCall,
) {
    let service = TowerToHyperService::new(router);
    let calls = called_at.clone();
    let service = service_fn(move |call: hyper::Request<Incoming>| {
        calls.renew();
        let (answer, called_at) = (service.call(call), calls.clone());
        async move { answer.await.map(|answer| answer.map(|body| ReadAnswer { body, called_at })) }
    });
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    loop {
        let end = called_at.at() + ADMIN_IDLE_MAX;
        if timeout_at(end, served.as_mut()).await.is_ok() || called_at.at() + ADMIN_IDLE_MAX <= end
        {
            return;
        }
    }
}
