//! Clients: kept connections over which requests go, one at a time each, and what became of every
//! request.

use crate::numbers::number_after;
use forebay::base::{Clock, NanosSinceStart};
use forebay_bench_rig::{AnswerReader, Part, decimal, field};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What became of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Status of the answer; 0 when there was none, or not all of it.
    pub(crate) status: u16,
    /// The client left before it had one.
    pub(crate) left: bool,
    /// Why there is no answer.
    pub(crate) failure: Option<String>,
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
    /// Head of the answer.
    pub(crate) head_ns: u64,
    /// First byte of its body: of a stream, its first token.
    pub(crate) first_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    /// Why the router refused.
    pub(crate) reason: String,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
}

/// What is to be sent, and what the client does meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) bytes: Vec<u8>,
    pub(crate) stream: bool,
    /// The client leaves if it has no first token by then.
    pub(crate) patience: Option<Duration>,
}

/// Kept connections to one address.
#[derive(Debug)]
pub(crate) struct Pool {
    address: SocketAddr,
    clock: Clock,
    idle: RefCell<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    reader: AnswerReader,
    /// Of the answer that is being read.
    head: Vec<u8>,
    body: Vec<u8>,
    is_done: bool,
}

/// Longest wait for a whole answer: what takes longer was never answered.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(90);
const READ_BYTES: usize = 16 * 1024;

impl Pool {
    pub(crate) fn new(address: SocketAddr, clock: Clock) -> Self {
        Self { address, clock, idle: RefCell::default() }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    /// Sends a request that was due then, and waits for its whole answer.
    pub(crate) async fn ask(&self, ask: &Ask, due: NanosSinceStart) -> Outcome {
        let mut outcome = Outcome { due_ns: due.0, ..Outcome::default() };
        let answered = match ask.patience {
            None => timeout(ANSWER_TIME_MAX, self.exchange(ask, &mut outcome)).await,
            Some(patience) => {
                let first = timeout(patience, self.begin(ask, &mut outcome)).await;
                match first {
                    Ok(Ok(begun)) => timeout(ANSWER_TIME_MAX, self.end(begun, &mut outcome)).await,
                    Ok(Err(error)) => Ok(Err(error)),
                    // The connection goes with the request.
                    Err(_) => {
                        outcome.left = true;
                        Ok(Ok(()))
                    }
                }
            }
        };
        outcome.end_ns = self.now_ns();
        match answered {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome.failure = Some(error.to_string()),
            Err(_) => outcome.failure = Some("no whole answer in time".to_owned()),
        }
        if outcome.failure.is_some() || outcome.left {
            outcome.status = 0;
        }
        outcome
    }

    async fn exchange(&self, ask: &Ask, outcome: &mut Outcome) -> io::Result<()> {
        let begun = self.begin(ask, outcome).await?;
        self.end(begun, outcome).await
    }

    /// Until the first byte of the body of a stream, or the head of another answer.
    async fn begin(&self, ask: &Ask, outcome: &mut Outcome) -> io::Result<Connection> {
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        outcome.sent_ns = self.now_ns();
        connection.stream.write_all(&ask.bytes).await?;
        while connection.reader.status == 0 {
            connection.read().await?;
        }
        outcome.head_ns = self.now_ns();
        outcome.status = connection.reader.status;
        outcome.take_head(&connection.head);
        while ask.stream && outcome.status == 200 && connection.body.is_empty() {
            connection.read().await?;
        }
        outcome.first_ns = self.now_ns();
        Ok(connection)
    }

    async fn end(&self, mut connection: Connection, outcome: &mut Outcome) -> io::Result<()> {
        while !connection.is_done {
            connection.read().await?;
        }
        if outcome.status == 200 {
            let text = String::from_utf8_lossy(&connection.body);
            outcome.prompt_tokens = number_after(&text, "\"prompt_tokens\":").unwrap_or(0);
            outcome.cached_tokens = number_after(&text, "\"cached_tokens\":").unwrap_or(0);
        }
        let closes = field(&connection.head, b"connection")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
        if !closes {
            let stream = connection.stream;
            self.idle.borrow_mut().push(Connection::new(stream));
        }
        Ok(())
    }
}

impl Outcome {
    fn take_head(&mut self, head: &[u8]) {
        let number = |name| Some(u64::try_from(field(head, name).and_then(decimal)?).unwrap_or(0));
        self.retry_after_s = number(b"retry-after");
        self.retry_after_ms = number(b"retry-after-ms");
        let reason = field(head, b"x-forebay-reason").unwrap_or_default();
        self.reason = String::from_utf8_lossy(reason).into_owned();
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        let reader = AnswerReader::default();
        Self { stream, reader, head: Vec::new(), body: Vec::new(), is_done: false }
    }

    async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut input = [0; READ_BYTES];
        let count = self.stream.read(&mut input).await?;
        if count == 0 {
            return Err(io::Error::other("the connection was closed before the answer was whole"));
        }
        let input = input.get(..count).unwrap_or_default();
        self.is_done = self.reader.feed(input, |part| match part {
            Part::Head(head) => self.head = head.to_vec(),
            Part::Body(part) => self.body.extend_from_slice(part),
        })?;
        Ok(())
    }
}
