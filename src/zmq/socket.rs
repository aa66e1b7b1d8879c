//! A connection to an engine's publisher or replay socket, or to a subscriber of ours: ZMTP over
//! TCP or a Unix socket, opened from either side. One peer at a time; when it goes away the
//! connection ends and the feed opens the next one.
//!
//! Written by hand because the published client does not report a peer that closes in good order:
//! the feed would wait on a dead socket for ever and keep routing to blocks that are gone. For the
//! same reason a quiet publisher is asked for a sign of life (PING) where it speaks ZMTP 3.1, as
//! libzmq does since 4.3.3.

use super::endpoint::{Side, ZmqAddress, ZmqEndpoint};
use super::loss::LossReason;
use super::zmtp::{
    GREETING_BYTES, Incoming, SocketKind, ZmtpError, ZmtpInbox, answer, check_greeting,
    check_ready, greeting, message, ping, ready, subscription,
};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, timeout, timeout_at};

/// For the connection and its handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Idle time after which the kernel asks whether the peer's machine is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// A publisher that was silent for so long is asked for a sign of life; after as long again it
/// counts as gone.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 * 1024;

/// Why there is no connection, or no more.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The system's word.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer's fault.
    #[error("{0}")]
    Zmtp(#[from] ZmtpError),
    /// No answer.
    #[error("no answer in time")]
    TimedOut,
    /// Closed by the peer.
    #[error("the engine closed the connection")]
    Closed,
    /// Nothing comes although something has to.
    #[error("the connection is dead: nothing comes through, and nobody closed it")]
    Silent,
}

impl SocketError {
    /// The word for the metrics.
    #[must_use]
    pub fn reason(&self) -> LossReason {
        match self {
            Self::Io(_) => LossReason::Io,
            Self::Zmtp(_) => LossReason::Protocol,
            Self::TimedOut | Self::Silent => LossReason::Silent,
            Self::Closed => LossReason::Closed,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Where connections come from: accepts those that connect to us; nothing is open where we connect.
#[derive(Debug)]
pub enum ZmqSource {
    /// Connects to a place.
    Connect(ZmqAddress),
    /// Listens on TCP.
    Tcp(TcpListener),
    /// Listens on a Unix socket.
    Ipc(UnixListener),
}

impl ZmqSource {
    /// Prepares for an endpoint; opens the listening socket where there is one.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn open(endpoint: &ZmqEndpoint) -> Result<Self, SocketError> {
        Ok(match (&endpoint.side, &endpoint.place) {
            (Side::Connect, place) => Self::Connect(place.clone()),
            (Side::Bind, ZmqAddress::Tcp { host, port }) => {
                Self::Tcp(TcpListener::bind((host.as_str(), *port)).await?)
            }
            (Side::Bind, ZmqAddress::Ipc(path)) => Self::Ipc(listen_on(path).await?),
        })
    }

    /// The TCP port that is listened on, if one is.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Connect(_) | Self::Ipc(_) => None,
        }
    }

    /// The next connection, subscribed and ready.
    ///
    /// # Errors
    /// [`SocketError`] when there is none.
    pub async fn subscribe(&self, topic: &str) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Subscriber, &subscription(topic)).await
    }

    /// The next connection, with a request sent to the ROUTER at its other end.
    pub async fn request(&self, parts: &[&[u8]]) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Dealer, &message(parts)).await
    }

    /// The next connection of a subscriber; what it asks for comes as messages.
    ///
    /// # Errors
    /// [`SocketError`] when there is none, or the peer is no subscriber.
    pub async fn publish(&self) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Publisher, &[]).await
    }

    async fn open_with(&self, kind: SocketKind, first: &[u8]) -> Result<Connection, SocketError> {
        let stream: Box<dyn Stream> = match self {
            Self::Connect(ZmqAddress::Tcp { host, port }) => {
                let connecting = TcpStream::connect((host.as_str(), *port));
                Box::new(keep_alive(within(connecting).await?)?)
            }
            Self::Connect(ZmqAddress::Ipc(path)) => {
                Box::new(within(UnixStream::connect(path)).await?)
            }
            Self::Tcp(listener) => Box::new(keep_alive(listener.accept().await?.0)?),
            Self::Ipc(listener) => Box::new(listener.accept().await?.0),
        };
        let mut connection = Connection { stream, inbox: ZmtpInbox::default(), pulse: None };
        match timeout(CONNECT_TIME_MAX, connection.handshake(kind, first)).await {
            Ok(done) => done.map(|()| connection),
            Err(_) => Err(SocketError::TimedOut),
        }
    }
}

async fn within<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, SocketError> {
    match timeout(CONNECT_TIME_MAX, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(SocketError::TimedOut),
    }
}

/// A socket file that nobody listens on any more was left by a process that was killed: it must not
/// be in the way.
async fn listen_on(path: &Path) -> io::Result<UnixListener> {
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        done => return done,
    };
    // Connecting to a plain file is refused as well.
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    match UnixStream::connect(path).await {
        Err(refused) if is_socket && refused.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => Err(in_use),
    }
}

/// A machine that vanished sends no FIN; the kernel's probes notice.
fn keep_alive(stream: TcpStream) -> io::Result<TcpStream> {
    let probes = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_IDLE / 3)
        .with_retries(3);
    socket2::SockRef::from(&stream).set_tcp_keepalive(&probes)?;
    Ok(stream)
}

/// A connection after its handshake.
pub struct Connection {
    stream: Box<dyn Stream>,
    inbox: ZmtpInbox,
    /// Where the peer is asked for signs of life.
    pulse: Option<Pulse>,
}

struct Pulse {
    /// When the silence is long enough to do something.
    due: Instant,
    /// A PING is under way.
    asked: bool,
    /// The silence that is long enough.
    after: Duration,
}

impl Pulse {
    fn heard(after: Duration) -> Self {
        Self { due: Instant::now() + after, asked: false, after }
    }
}

/// A message as it goes over the wire.
#[must_use]
pub fn encode_message(parts: &[&[u8]]) -> Vec<u8> {
    message(parts)
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Connection").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}

impl Connection {
    async fn handshake(&mut self, kind: SocketKind, first: &[u8]) -> Result<(), SocketError> {
        self.stream.write_all(&greeting()).await?;
        let peer = loop {
            if let Some(bytes) = self.inbox.take::<GREETING_BYTES>() {
                break bytes;
            }
            self.fill().await?;
        };
        let answers_ping = check_greeting(&peer)?;
        self.stream.write_all(&ready(kind)).await?;
        loop {
            match self.inbox.next()? {
                Some((Incoming::Command(range), end)) => {
                    check_ready(self.inbox.slice(&range), kind)?;
                    self.inbox.consume(end);
                    break;
                }
                Some(_) => return Err(ZmtpError::Framing.into()),
                None => self.fill().await?,
            }
        }
        self.stream.write_all(first).await?;
        if answers_ping && kind == SocketKind::Subscriber {
            self.pulse = Some(Pulse::heard(HEARTBEAT));
        }
        Ok(())
    }

    /// Waits for the next message. Its parts stay readable until [`Connection::done`]. Cancel-safe.
    ///
    /// # Errors
    /// [`SocketError`] at the end of the connection.
    pub async fn message(&mut self) -> Result<(Vec<Range<usize>>, usize), SocketError> {
        loop {
            match self.inbox.next()? {
                Some((Incoming::Message(parts), end)) => return Ok((parts, end)),
                Some((Incoming::Command(range), end)) => {
                    let answer = answer(self.inbox.slice(&range));
                    self.inbox.consume(end);
                    if let Some(answer) = answer {
                        self.stream.write_all(&answer).await?;
                    }
                }
                None => self.fill().await?,
            }
        }
    }

    /// Sends a message as [`encode_message`] makes it.
    ///
    /// # Errors
    /// [`SocketError`] when the connection has ended.
    pub async fn send(&mut self, encoded: &[u8]) -> Result<(), SocketError> {
        Ok(self.stream.write_all(encoded).await?)
    }

    /// Bytes of a part.
    #[must_use]
    pub fn part(&self, range: &Range<usize>) -> &[u8] {
        self.inbox.slice(range)
    }

    /// Asks a silent publisher after this time instead of [`HEARTBEAT`].
    pub fn set_heartbeat(&mut self, after: Duration) {
        self.pulse = self.pulse.take().map(|_| Pulse::heard(after));
    }

    /// Lets go of a message.
    pub fn done(&mut self, end: usize) {
        self.inbox.consume(end);
    }

    /// Waits for more bytes; meanwhile asks a silent peer whether it is still there.
    async fn fill(&mut self) -> Result<(), SocketError> {
        loop {
            let Some(pulse) = &mut self.pulse else { return self.read().await };
            let Pulse { due, asked, after } = *pulse;
            match timeout_at(due, self.read()).await {
                Ok(read) => {
                    self.pulse = Some(Pulse::heard(after));
                    return read;
                }
                Err(_) if asked => return Err(SocketError::Silent),
                Err(_) => {
                    self.pulse = Some(Pulse { asked: true, ..Pulse::heard(after) });
                    self.stream.write_all(&ping()).await?;
                }
            }
        }
    }

    async fn read(&mut self) -> Result<(), SocketError> {
        let tail = self.inbox.tail();
        tail.reserve(READ_BYTES);
        if self.stream.read_buf(tail).await? == 0 {
            return Err(SocketError::Closed);
        }
        Ok(())
    }
}
