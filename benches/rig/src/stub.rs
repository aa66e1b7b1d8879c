//! The workers behind the router: each answers every chat at once, or streams events on a schedule.
//! They count the bodies that come and those of another size, and look at nothing else.

use crate::event::Event;
use crate::poll::{Poller, Token};
use crate::request::{Request, RequestReader};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Bytes of a unary answer's body.
const ANSWER_BYTES: usize = 300;
const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const STREAM_END: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
/// What a connection may leave unread.
const PENDING_BYTES_MAX: usize = 1024 * 1024;
/// What routers ask an engine about itself, by a part of the path.
const ABOUT: [(&str, &str); 4] = [
    (
        "/v1/models",
        r#"{"object":"list","data":[{"id":"bench","object":"model","max_model_len":1000000}]}"#,
    ),
    ("server_info", r#"{"model_path":"bench","served_model_name":"bench","dp_size":1}"#),
    ("model_info", r#"{"model_path":"bench","is_generation":true,"model_type":"llama"}"#),
    ("/version", r#"{"version":"0.11.0"}"#),
];

/// How answers are streamed.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    /// Time between two events of a stream.
    pub interval_ns: u64,
    /// Events of a stream.
    pub events: u32,
}

/// What came since the counts were taken last.
#[derive(Clone, Copy, Debug, Default)]
pub struct StubCounts {
    pub bodies: u64,
    /// Of another size than was expected.
    pub bodies_wrong: u64,
}

/// The workers.
pub struct Stub {
    listeners: Vec<TcpListener>,
    conns: Vec<Option<Conn>>,
    /// All streams have one interval: pushing to the back keeps them in the order of their events.
    streams: VecDeque<Stream>,
    plan: Option<StreamPlan>,
    body_bytes: usize,
    counts: StubCounts,
    emitted: u64,
    answer: Vec<u8>,
    event: Event,
}

struct Conn {
    stream: TcpStream,
    reader: RequestReader,
    pending: Vec<u8>,
    token: Token,
}

struct Stream {
    conn: usize,
    due_ns: u64,
    events_left: u32,
}

impl Stub {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Vec::new(),
            conns: Vec::new(),
            streams: VecDeque::new(),
            plan: None,
            body_bytes: 0,
            counts: StubCounts::default(),
            emitted: 0,
            answer: with_head("application/json", &unary_body()),
            event: Event::new(),
        }
    }

    /// Port 0 is a free port.
    pub fn listen(&mut self, poller: &Poller, ports: &[u16]) -> io::Result<()> {
        for port in ports {
            let listener = TcpListener::bind(("127.0.0.1", *port))?;
            listener.set_nonblocking(true)?;
            poller.add(&listener, Token::Listener)?;
            self.listeners.push(listener);
        }
        Ok(())
    }

    /// For the requests from now on; counts begin anew.
    pub fn expect(&mut self, body_bytes: usize, plan: Option<StreamPlan>) {
        self.plan = plan;
        self.body_bytes = body_bytes;
        self.counts = StubCounts::default();
    }

    pub fn counts(&self) -> StubCounts {
        self.counts
    }

    /// Address of the first worker.
    ///
    /// # Errors
    /// No worker listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let first = self.listeners.first().ok_or_else(|| io::Error::other("no worker"))?;
        first.local_addr()
    }

    /// Events sent since the start.
    #[must_use]
    pub fn emitted(&self) -> u64 {
        self.emitted
    }

    /// When the next event is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.streams.front().map(|stream| stream.due_ns)
    }

    /// Takes all waiting connections.
    pub fn accept(&mut self, poller: &Poller) -> io::Result<()> {
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(true)?;
                        stream.set_nodelay(true)?;
                        let number = u32::try_from(self.conns.len()).map_err(io::Error::other)?;
                        let token = Token::Worker(number);
                        poller.add(&stream, token)?;
                        let reader = RequestReader::default();
                        let pending = Vec::new();
                        self.conns.push(Some(Conn { stream, reader, pending, token }));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Reads a connection and answers what is complete. A connection with a fault is closed.
    pub fn serve(&mut self, poller: &Poller, number: u32, now_ns: u64, scratch: &mut [u8]) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if let Err(_closed) = self.try_serve(poller, at, now_ns, scratch)
            && let Some(conn) = self.conns.get_mut(at)
        {
            *conn = None;
        }
    }

    fn try_serve(
        &mut self,
        poller: &Poller,
        at: usize,
        now_ns: u64,
        scratch: &mut [u8],
    ) -> io::Result<()> {
        let Some(Some(conn)) = self.conns.get_mut(at) else { return Ok(()) };
        conn.flush(poller)?;
        let count = match conn.stream.read(scratch) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut rest = &scratch[..count];
        while let Some((request, after)) = conn.reader.next(rest)? {
            rest = after;
            match (request, self.plan) {
                (Request::Get { path }, _) => conn.send(poller, &about(&path))?,
                (Request::Post { body_bytes }, plan) => {
                    self.counts.bodies += 1;
                    self.counts.bodies_wrong += u64::from(body_bytes != self.body_bytes);
                    let Some(plan) = plan else {
                        conn.send(poller, &self.answer)?;
                        continue;
                    };
                    conn.send(poller, STREAM_HEAD)?;
                    let due_ns = now_ns + plan.interval_ns;
                    self.streams.push_back(Stream { conn: at, due_ns, events_left: plan.events });
                }
            }
        }
        Ok(())
    }

    /// Sends the events that are due. Each carries the time at which it was due, not that at which
    /// it was sent. True if there was one.
    pub fn emit_due(&mut self, poller: &Poller, now_ns: u64) -> io::Result<bool> {
        let mut has_sent = false;
        while let Some(stream) = self.streams.pop_front_if(|stream| stream.due_ns <= now_ns) {
            has_sent = true;
            let Some(slot) = self.conns.get_mut(stream.conn) else { continue };
            let Some(conn) = slot else { continue };
            let is_last = stream.events_left <= 1;
            let mut sent = conn.send(poller, self.event.chunk(stream.due_ns)?);
            self.emitted += 1;
            if is_last {
                sent = sent.and_then(|()| conn.send(poller, STREAM_END));
            }
            match (sent, self.plan) {
                (Err(_closed), _) => *slot = None,
                (Ok(()), Some(plan)) if !is_last => self.streams.push_back(Stream {
                    due_ns: stream.due_ns + plan.interval_ns,
                    events_left: stream.events_left - 1,
                    ..stream
                }),
                _ => {}
            }
        }
        Ok(has_sent)
    }
}

impl Conn {
    fn send(&mut self, poller: &Poller, bytes: &[u8]) -> io::Result<()> {
        if self.pending.is_empty() {
            let sent = written(&self.stream, bytes)?;
            if sent < bytes.len() {
                self.pending.extend_from_slice(&bytes[sent..]);
                poller.await_room(&self.stream, self.token, true)?;
            }
            return Ok(());
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() > PENDING_BYTES_MAX {
            return Err(io::Error::other("the router does not read"));
        }
        Ok(())
    }

    fn flush(&mut self, poller: &Poller) -> io::Result<()> {
        if !self.pending.is_empty() {
            let sent = written(&self.stream, &self.pending)?;
            self.pending.drain(..sent);
            if self.pending.is_empty() {
                poller.await_room(&self.stream, self.token, false)?;
            }
        }
        Ok(())
    }
}

/// Bytes that the socket took.
pub(crate) fn written(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// The body of every answer that is no stream.
pub fn unary_body() -> Vec<u8> {
    let text = |padding: &str| {
        format!(
            "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\
             \"model\":\"bench\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
             \"content\":\"{padding}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\
             \"prompt_tokens\":250,\"completion_tokens\":16,\"total_tokens\":266}}}}"
        )
    };
    text(&"a".repeat(ANSWER_BYTES.saturating_sub(text("").len()))).into_bytes()
}

fn with_head(kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn about(path: &str) -> Vec<u8> {
    let known = ABOUT.iter().find(|(part, _)| path.contains(part));
    with_head("application/json", known.map_or(r#"{"status":"ok"}"#, |(_, body)| body).as_bytes())
}
