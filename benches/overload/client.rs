//! Clients: kept connections over which requests go, one at a time each, and what became of every
//! request.

use crate::head::{AnswerHead, parse_head};
use crate::numbers::number_after;
use forebay::base::{Clock, NanosSinceStart};
use forebay::http1::{BodyLimits, ChunkedDecoder};
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
    input: Vec<u8>,
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

    /// Until the first byte of the body.
    async fn begin(
        &self,
        ask: &Ask,
        outcome: &mut Outcome,
    ) -> io::Result<(Connection, AnswerHead)> {
        let kept = self.idle.borrow_mut().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        outcome.sent_ns = self.now_ns();
        connection.stream.write_all(&ask.bytes).await?;
        let head = loop {
            if let Some(head) = parse_head(&connection.input)? {
                break head;
            }
            connection.read().await?;
        };
        connection.input.drain(..head.head_bytes);
        outcome.head_ns = self.now_ns();
        outcome.status = head.status;
        outcome.retry_after_s = head.retry_after_s;
        outcome.retry_after_ms = head.retry_after_ms;
        outcome.reason.clone_from(&head.reason);
        if ask.stream && head.status == 200 {
            while connection.input.is_empty() {
                connection.read().await?;
            }
        }
        outcome.first_ns = self.now_ns();
        Ok((connection, head))
    }

    async fn end(&self, begun: (Connection, AnswerHead), outcome: &mut Outcome) -> io::Result<()> {
        let (mut connection, head) = begun;
        let body = match head.body_bytes {
            Some(bytes) => connection.body_of_length(bytes).await?,
            None => connection.chunked_body().await?,
        };
        let text = String::from_utf8_lossy(&body);
        if head.status == 200 {
            outcome.prompt_tokens = number_after(&text, "\"prompt_tokens\":").unwrap_or(0);
            outcome.cached_tokens = number_after(&text, "\"cached_tokens\":").unwrap_or(0);
        }
        if head.keep_alive && connection.input.is_empty() {
            self.idle.borrow_mut().push(connection);
        }
        Ok(())
    }
}

impl Connection {
    async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new() })
    }

    async fn read(&mut self) -> io::Result<()> {
        self.input.reserve(READ_BYTES);
        if self.stream.read_buf(&mut self.input).await? == 0 {
            return Err(io::Error::other("the connection was closed before the answer was whole"));
        }
        Ok(())
    }

    async fn body_of_length(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.input.len() < bytes {
            self.read().await?;
        }
        Ok(self.input.drain(..bytes).collect())
    }

    async fn chunked_body(&mut self) -> io::Result<Vec<u8>> {
        let mut decoder = ChunkedDecoder::new(&BodyLimits::default());
        let mut body = Vec::new();
        loop {
            let decoded = decoder.decode(&mut self.input).map_err(io::Error::other)?;
            body.extend_from_slice(self.input.get(..decoded.data_bytes).unwrap_or_default());
            self.input.drain(..decoded.consumed_bytes);
            if decoded.done {
                return Ok(body);
            }
            self.read().await?;
        }
    }
}
