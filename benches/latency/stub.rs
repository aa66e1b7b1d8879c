//! The worker behind the router: answers every request at once, or streams events on a schedule.
//! Costs a few microseconds per request and decides nothing. Runs on the load's own thread, so that
//! "direct" has no thread switch in it.

use crate::poll::{Poller, Token, prepare, read_into};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Comes before the time in an event.
pub(crate) const DUE_MARK: &[u8] = b"\"due_ns\":\"";
/// Digits of a time in an event.
pub(crate) const DUE_DIGITS: usize = 20;
/// Bytes of a unary answer's body.
const ANSWER_BYTES: usize = 300;
/// Bytes of one event, its empty line included.
const EVENT_BYTES: usize = 200;
const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const STREAM_END: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
/// Ends the body of a request that wants a stream.
const STREAM_TRUE: &[u8] = b"\"stream\":true}";
const HEADERS_MAX: usize = 32;

/// How answers are streamed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPlan {
    /// Time between two events of a stream.
    pub(crate) interval_ns: u64,
    /// Events of a stream.
    pub(crate) event_count: u32,
}

/// The worker.
pub(crate) struct Stub {
    listener: TcpListener,
    conns: Vec<Option<Conn>>,
    /// All streams have one interval, so pushing to the back keeps them in the order of their next
    /// event.
    streams: VecDeque<Stream>,
    plan: StreamPlan,
    answer: Vec<u8>,
    event: Event,
    emitted: u64,
}

struct Conn {
    stream: TcpStream,
    input: Vec<u8>,
}

struct Stream {
    conn: u32,
    due_ns: u64,
    events_left: u32,
}

/// One event as a chunk, with the place of its time.
struct Event {
    bytes: Vec<u8>,
    digits_at: usize,
}

impl Stub {
    /// Listens on a free port.
    pub(crate) fn start(poller: &Poller) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        poller.add(&listener, Token::Listener)?;
        Ok(Self {
            listener,
            conns: Vec::new(),
            streams: VecDeque::new(),
            plan: StreamPlan { interval_ns: 0, event_count: 0 },
            answer: unary_answer(),
            event: Event::new(),
            emitted: 0,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// For the streams that begin from now on; streams of an earlier plan have ended.
    pub(crate) fn set_stream_plan(&mut self, plan: StreamPlan) {
        self.streams.clear();
        self.plan = plan;
    }

    /// When the next event is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.streams.front().map(|stream| stream.due_ns)
    }

    /// Events sent since the start.
    pub(crate) fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Takes all waiting connections.
    pub(crate) fn accept(&mut self, poller: &Poller) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    prepare(&stream)?;
                    let number = u32::try_from(self.conns.len()).map_err(io::Error::other)?;
                    poller.add(&stream, Token::Worker(number))?;
                    self.conns.push(Some(Conn { stream, input: Vec::new() }));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a connection and answers what is complete.
    pub(crate) fn serve(&mut self, number: u32, now_ns: u64, scratch: &mut [u8]) -> io::Result<()> {
        let Some(slot) = usize::try_from(number).ok().and_then(|at| self.conns.get_mut(at)) else {
            return Ok(());
        };
        let Some(conn) = slot else { return Ok(()) };
        if !read_into(&mut conn.stream, scratch, &mut conn.input)? {
            *slot = None;
            return Ok(());
        }
        while let Some((bytes, streams)) = next_request(&conn.input)? {
            conn.input.drain(..bytes);
            if streams {
                conn.stream.write_all(STREAM_HEAD)?;
                self.streams.push_back(Stream {
                    conn: number,
                    due_ns: now_ns + self.plan.interval_ns,
                    events_left: self.plan.event_count,
                });
            } else {
                conn.stream.write_all(&self.answer)?;
            }
        }
        Ok(())
    }

    /// Sends the events that are due. Each carries the time at which it was due, not the one at
    /// which it was sent.
    pub(crate) fn emit_due(&mut self, now_ns: u64) -> io::Result<()> {
        while let Some(stream) = self.streams.pop_front() {
            if stream.due_ns > now_ns {
                self.streams.push_front(stream);
                break;
            }
            let slot = usize::try_from(stream.conn).ok().and_then(|at| self.conns.get_mut(at));
            let Some(Some(conn)) = slot else { continue };
            if stream.events_left == 0 {
                conn.stream.write_all(STREAM_END)?;
                continue;
            }
            conn.stream.write_all(self.event.at(stream.due_ns)?)?;
            self.emitted += 1;
            self.streams.push_back(Stream {
                due_ns: stream.due_ns + self.plan.interval_ns,
                events_left: stream.events_left - 1,
                ..stream
            });
        }
        Ok(())
    }
}

impl Event {
    fn new() -> Self {
        let text = |padding: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"due_ns\":\"{:020}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{padding}\"}},\"finish_reason\":null}}]}}\n\n",
                0
            )
        };
        let padding = "a ".repeat(EVENT_BYTES.saturating_sub(text("").len()) / 2);
        let event = text(&padding);
        let bytes = format!("{:x}\r\n{event}\r\n", event.len()).into_bytes();
        let digits_at = memchr::memmem::find(&bytes, DUE_MARK).unwrap_or(0) + DUE_MARK.len();
        Self { bytes, digits_at }
    }

    fn at(&mut self, due_ns: u64) -> io::Result<&[u8]> {
        let place = self.bytes.get_mut(self.digits_at..).unwrap_or_default();
        write!(&mut *place, "{due_ns:020}")?;
        Ok(&self.bytes)
    }
}

/// Length of the first request, if it is complete, and whether it wants a stream.
fn next_request(input: &[u8]) -> io::Result<Option<(usize, bool)>> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = head.parse(input).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    let length = content_length(head.headers).unwrap_or(0);
    let whole = input.get(..head_bytes + length);
    Ok(whole.map(|request| (request.len(), request.ends_with(STREAM_TRUE))))
}

/// Value of `Content-Length`, if there is one.
pub(crate) fn content_length(headers: &[httparse::Header<'_>]) -> Option<usize> {
    let field = headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"))?;
    std::str::from_utf8(field.value).ok()?.trim().parse().ok()
}

fn unary_answer() -> Vec<u8> {
    let text = |padding: &str| {
        format!(
            "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"model\":\"bench\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{padding}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":250,\"completion_tokens\":16,\"total_tokens\":266}}}}"
        )
    };
    let padding = "a".repeat(ANSWER_BYTES.saturating_sub(text("").len()));
    let body = text(&padding);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
}
