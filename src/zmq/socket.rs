//! A connection to an engine's publisher or replay socket, or to a subscriber of this process: ZMTP
//! over TCP or a Unix socket, opened from either side. A connection has a single peer. When the
//! peer goes away, the connection ends and the feed opens the next.
//!
//! Written by hand because the published client does not report an orderly close by the peer: the
//! feed would wait on a dead socket for ever, and the router would match blocks that are gone. For
//! the same reason a silent publisher gets a PING if it supports ZMTP 3.1, as libzmq does since
//! 4.3.3.

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

/// Timeout of the connection, and of its handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Idle time after which the kernel sends TCP keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// A publisher that was silent for this long gets a PING; after as long again the connection ends.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 * 1024;

/// Why a connection could not be opened, or ended.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The operating system reported an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer broke the protocol.
    #[error("{0}")]
    Zmtp(#[from] ZmtpError),
    /// The peer takes connections and sends no ZMTP greeting: an HTTP server waits for a request,
    /// or refuses the greeting of this side.
    #[error(
        "the peer takes connections and sends no ZMTP greeting: is it a ZeroMQ socket, and no HTTP \
         port?"
    )]
    NoGreeting,
    /// The peer did not answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The peer closed the connection.
    #[error("the engine closed the connection")]
    Closed,
    /// No data arrives on an open connection, although the peer must send some.
    #[error("the connection is dead: nothing comes through, and nobody closed it")]
    Silent,
}

impl SocketError {
    /// The reason for the metrics.
    #[must_use]
    pub fn reason(&self) -> LossReason {
        match self {
            Self::Io(_) => LossReason::Io,
            Self::Zmtp(_) => LossReason::Protocol,
            Self::NoGreeting | Self::TimedOut | Self::Silent => LossReason::Silent,
            Self::Closed => LossReason::Closed,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Source of connections: a listening socket, or the address that this side connects to.
#[derive(Debug)]
pub enum ZmqSource {
    /// This side connects to the address.
    Connect(ZmqAddress),
    /// The peer connects over TCP.
    Tcp(TcpListener),
    /// The peer connects over a Unix socket.
    Ipc(UnixListener),
}

impl ZmqSource {
    /// Opens the listening socket of an endpoint, if this side listens.
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

    /// The TCP port of the listening socket.
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
    /// [`SocketError`] when the connection or its handshake fails.
    pub async fn subscribe(&self, topic: &str) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Subscriber, &subscription(topic)).await
    }

    /// The next connection, with a request sent to the ROUTER at its other end.
    pub async fn request(&self, parts: &[&[u8]]) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Dealer, &message(parts)).await
    }

    /// The next connection of a subscriber, which sends its subscriptions as messages.
    ///
    /// # Errors
    /// [`SocketError`] when the connection fails, or the peer is no subscriber.
    pub async fn publish(&self) -> Result<Connection, SocketError> {
        self.open_with(SocketKind::Publisher, &[]).await
    }

    /// The next peer, before its handshake: a peer that is silent holds up no other.
    ///
    /// # Errors
    /// [`SocketError`] when there is none.
    pub async fn peer(&self) -> Result<ZmqPeer, SocketError> {
        let stream: Box<dyn Stream> = match self {
            Self::Connect(ZmqAddress::Tcp { host, port }) => {
                let connecting = TcpStream::connect((host.as_str(), *port));
                Box::new(prepared(within(connecting).await?)?)
            }
            Self::Connect(ZmqAddress::Ipc(path)) => {
                Box::new(within(UnixStream::connect(path)).await?)
            }
            Self::Tcp(listener) => Box::new(prepared(listener.accept().await?.0)?),
            Self::Ipc(listener) => Box::new(listener.accept().await?.0),
        };
        Ok(ZmqPeer { stream })
    }

    async fn open_with(&self, kind: SocketKind, first: &[u8]) -> Result<Connection, SocketError> {
        self.peer().await?.open_with(kind, first).await
    }
}

/// A connection before its handshake.
pub struct ZmqPeer {
    stream: Box<dyn Stream>,
}

impl ZmqPeer {
    /// The handshake of this side; within 5 s.
    ///
    /// # Errors
    /// [`SocketError`] when the peer is of another kind, or silent.
    pub async fn open(self, kind: SocketKind) -> Result<Connection, SocketError> {
        self.open_with(kind, &[]).await
    }

    async fn open_with(self, kind: SocketKind, first: &[u8]) -> Result<Connection, SocketError> {
        let Self { stream } = self;
        let mut connection = Connection { stream, inbox: ZmtpInbox::default(), pulse: None };
        let mut is_greeted = false;
        let opening = async {
            let answers_ping = connection.greet().await?;
            is_greeted = true;
            connection.handshake(kind, first).await.map(|()| answers_ping)
        };
        let answers_ping = match timeout(CONNECT_TIME_MAX, opening).await {
            Ok(opened) => opened?,
            Err(_) if is_greeted => return Err(SocketError::TimedOut),
            Err(_) => return Err(SocketError::NoGreeting),
        };
        if answers_ping && kind == SocketKind::Subscriber {
            connection.pulse = Some(Pulse::restart(HEARTBEAT));
        }
        Ok(connection)
    }
}

async fn within<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, SocketError> {
    match timeout(CONNECT_TIME_MAX, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(SocketError::TimedOut),
    }
}

/// Listens on a Unix socket. Replaces a socket file without a listener, which a killed process has
/// left.
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

/// A machine that vanished sends no FIN; the kernel's probes notice. A small batch of events leaves
/// at once.
fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
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
    /// PING timer, for peers that answer PING.
    pulse: Option<Pulse>,
}

struct Pulse {
    /// Time for a PING, or for the end of the connection after a PING.
    due: Instant,
    /// A PING is on its way.
    is_ping_sent: bool,
    /// Silence before a PING.
    after: Duration,
}

impl Pulse {
    fn restart(after: Duration) -> Self {
        Self { due: Instant::now() + after, is_ping_sent: false, after }
    }
}

/// The bytes of a message on the wire.
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
    /// Exchanges greetings. True if the peer answers PING.
    async fn greet(&mut self) -> Result<bool, SocketError> {
        self.stream.write_all(&greeting()).await?;
        loop {
            if let Some(bytes) = self.inbox.take::<GREETING_BYTES>() {
                return Ok(check_greeting(&bytes)?);
            }
            self.fill().await.map_err(|error| match error {
                SocketError::Closed => SocketError::NoGreeting,
                error => error,
            })?;
        }
    }

    async fn handshake(&mut self, kind: SocketKind, first: &[u8]) -> Result<(), SocketError> {
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
        Ok(())
    }

    /// Waits for the next message, with parts that stay readable until [`Connection::done`].
    /// Cancel-safe.
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

    /// Sends a message that [`encode_message`] has encoded.
    ///
    /// # Errors
    /// [`SocketError`] when the connection has ended.
    pub async fn send(&mut self, encoded: &[u8]) -> Result<(), SocketError> {
        Ok(self.stream.write_all(encoded).await?)
    }

    /// The bytes of a part.
    #[must_use]
    pub fn part(&self, range: &Range<usize>) -> &[u8] {
        self.inbox.slice(range)
    }

    /// Sends a PING after this silence instead of [`HEARTBEAT`].
    pub fn set_heartbeat(&mut self, after: Duration) {
        self.pulse = self.pulse.take().map(|_| Pulse::restart(after));
    }

    /// Frees the bytes of a message.
    pub fn done(&mut self, end: usize) {
        self.inbox.consume(end);
    }

    /// Waits for more bytes, and sends a PING to a silent peer.
    async fn fill(&mut self) -> Result<(), SocketError> {
        loop {
            let Some(pulse) = &mut self.pulse else { return self.read().await };
            let Pulse { due, is_ping_sent, after } = *pulse;
            match timeout_at(due, self.read()).await {
                Ok(read) => {
                    self.pulse = Some(Pulse::restart(after));
                    return read;
                }
                Err(_) if is_ping_sent => return Err(SocketError::Silent),
                Err(_) => {
                    self.pulse = Some(Pulse { is_ping_sent: true, ..Pulse::restart(after) });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The error towards a server that reads the greeting, answers with these bytes, and closes.
    async fn error_towards(answer: &'static [u8]) -> SocketError {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            let mut stream = listener.accept().await.unwrap().0;
            let mut seen = [0; GREETING_BYTES];
            stream.read_exact(&mut seen).await.unwrap();
            stream.write_all(answer).await.unwrap();
        };
        let place = ZmqAddress::Tcp { host: "127.0.0.1".to_owned(), port };
        let source = ZmqSource::Connect(place);
        tokio::join!(server, source.subscribe("")).1.unwrap_err()
    }

    #[test]
    fn a_server_of_another_protocol_has_an_error_that_names_http() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        const LONG: &[u8] =
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 12\r\n\r\nbad request\n-----";
        for answer in [b"".as_slice(), b"HTTP/1.1 400 Bad Request\r\n\r\n", LONG] {
            let error = runtime.block_on(error_towards(answer));
            assert!(error.to_string().contains("HTTP"), "{error}");
        }
    }
}
