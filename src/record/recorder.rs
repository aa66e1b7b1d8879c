//! Follows publishers and writes their messages to a file. A single task; each source reconnects by
//! itself. Messages wait in a bounded queue between the sockets and the file: while the disk is
//! slow, the sockets are not read.

use super::file::FileWriter;
use super::format::{RecordingHeader, SourceKind, SourceName};
use super::message::RecordedMessage;
use super::source_link::{STEADY, SourceLink};
use forebay_base::{Clock, NanosSinceStart};
use forebay_zmq::{Connection, SocketError, ZmqEndpoint, ZmqSource};
use futures_util::future::join_all;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

/// Most messages between the sockets and the file.
const WAITING_MAX: usize = 1_024;
/// Interval of flushes, and the longest time that a crash loses.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// A KV-event stream to record.
#[derive(Clone, Debug)]
pub struct RecordSource {
    pub endpoint: ZmqEndpoint,
    /// Prefix of the topics to subscribe to.
    pub topic: String,
}

/// A router with notes of requests to record.
#[derive(Debug)]
pub struct RequestSource {
    /// Address of the router.
    pub endpoint: String,
    /// Notes as received; an empty note is the end of the connection.
    pub notes: mpsc::Receiver<Vec<u8>>,
    /// True once a connection has come up.
    pub is_reached: Rc<Cell<bool>>,
}

/// Totals of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Messages by source; notes of requests come last.
    pub messages: Vec<u64>,
    /// By source, as the messages: a connection has come up.
    pub reached: Vec<bool>,
    /// Bytes of all frames.
    pub frame_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Why recording ended before `stop`.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be written.
    #[error("{path}: {cause}")]
    File { path: String, cause: io::Error },
}

struct RecordedBatch {
    at: NanosSinceStart,
    source: u16,
    /// Empty when the connection ended.
    frames: Vec<Vec<u8>>,
}

/// Records until `stop` is done. Tries unreachable sources again until then.
///
/// # Errors
/// [`RecordError`] when the file exists already or cannot be written.
pub async fn record(
    sources: &[RecordSource],
    requests: Option<RequestSource>,
    path: &Path,
    stop: impl Future<Output = ()>,
) -> Result<RecordingTotals, RecordError> {
    let of_file =
        |cause| RecordError::File { path: path.display().to_string(), cause: explained(cause) };
    let name = |source: &RecordSource| SourceName {
        endpoint: source.endpoint.to_string(),
        topic: source.topic.clone(),
        kind: SourceKind::Events,
    };
    let of_requests = requests.as_ref().map(|requests| SourceName {
        endpoint: requests.endpoint.clone(),
        topic: String::new(),
        kind: SourceKind::Requests,
    });
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = RecordingHeader {
        started_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
        sources: sources.iter().map(name).chain(of_requests).collect(),
    };
    let clock = Clock::start();
    let mut writer = FileWriter::create(path, &header).map_err(of_file)?;
    let mut recorded =
        RecordingTotals { messages: vec![0; header.sources.len()], ..RecordingTotals::default() };
    let (sink, mut received) = mpsc::channel(WAITING_MAX);
    let follower = |(number, source): (u16, &RecordSource)| Follower {
        number,
        source: source.clone(),
        clock,
        sink: sink.clone(),
        link: SourceLink::new(source.endpoint.to_string()),
    };
    let followers: Vec<Follower> = (0_u16..).zip(sources).map(follower).collect();
    let reached = followers.iter().map(|follower| follower.link.is_reached());
    let of_requests = requests.as_ref().map(|requests| Rc::clone(&requests.is_reached));
    let reached: Vec<Rc<Cell<bool>>> = reached.chain(of_requests).collect();
    let followers = followers.into_iter().map(Follower::follow);
    let forwarding =
        forward_notes(requests, u16::try_from(sources.len()).unwrap_or(u16::MAX), clock, &sink);
    tokio::select! {
        () = stop => {}
        () = forwarding => {}
        // Followers never end, unless there are none.
        _ = join_all(followers), if !sources.is_empty() => {}
        failed = write(&mut received, &mut writer, &mut recorded) => failed.map_err(of_file)?,
    }
    while let Ok(message) = received.try_recv() {
        put(&message, &mut writer, &mut recorded).map_err(of_file)?;
    }
    recorded.file_bytes = writer.finish().map_err(of_file)?;
    recorded.reached = reached.iter().map(|is_reached| is_reached.get()).collect();
    Ok(recorded)
}

fn explained(cause: io::Error) -> io::Error {
    if cause.kind() == io::ErrorKind::AlreadyExists {
        return io::Error::other(
            "exists already: recordings do not overwrite; choose another name",
        );
    }
    cause
}

/// Forwards notes of requests to the queue; never ends.
async fn forward_notes(
    requests: Option<RequestSource>,
    source: u16,
    clock: Clock,
    sink: &mpsc::Sender<RecordedBatch>,
) {
    if let Some(mut requests) = requests {
        while let Some(note) = requests.notes.recv().await {
            let frames = if note.is_empty() { Vec::new() } else { vec![note] };
            // The receiver is dropped only at the end of the recording.
            drop(sink.send(RecordedBatch { at: clock.now(), source, frames }).await);
        }
    }
    pending::<()>().await;
}

/// Writes queued messages; ends only with an error.
async fn write(
    received: &mut mpsc::Receiver<RecordedBatch>,
    writer: &mut FileWriter,
    recorded: &mut RecordingTotals,
) -> io::Result<()> {
    let mut flush = interval(FLUSH_PERIOD);
    loop {
        tokio::select! {
            Some(message) = received.recv() => put(&message, writer, recorded)?,
            _ = flush.tick() => writer.flush()?,
        }
    }
}

fn put(
    received: &RecordedBatch,
    writer: &mut FileWriter,
    recorded: &mut RecordingTotals,
) -> io::Result<()> {
    let frames: Vec<&[u8]> = received.frames.iter().map(Vec::as_slice).collect();
    let message =
        RecordedMessage::new(received.at.0, received.source, &frames).map_err(io::Error::other)?;
    writer.push(&message)?;
    if !message.is_end_of_connection()
        && let Some(count) = recorded.messages.get_mut(usize::from(received.source))
    {
        *count += 1;
    }
    let bytes: usize = frames.iter().map(|frame| frame.len()).sum();
    recorded.frame_bytes += bytes as u64;
    Ok(())
}

struct Follower {
    number: u16,
    source: RecordSource,
    clock: Clock,
    sink: mpsc::Sender<RecordedBatch>,
    link: SourceLink,
}

impl Follower {
    async fn follow(mut self) -> Infallible {
        loop {
            let error = match self.session().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            sleep(self.link.mark_lost(error)).await;
        }
    }

    async fn session(&mut self) -> Result<Infallible, SocketError> {
        let source = ZmqSource::open(&self.source.endpoint).await?;
        let mut connection = source.subscribe(&self.source.topic).await?;
        self.link.mark_reached();
        let error = self.receive(&mut connection).await;
        // Without a message since the last end, there is nothing to separate.
        if self.link.is_up() {
            self.enqueue(Vec::new()).await;
        }
        Err(error)
    }

    /// Receives messages until the connection ends.
    async fn receive(&mut self, connection: &mut Connection) -> SocketError {
        loop {
            let received = match timeout(STEADY, connection.message()).await {
                Ok(received) => received,
                Err(_) => {
                    self.link.mark_up();
                    continue;
                }
            };
            let (parts, end) = match received {
                Ok(message) => message,
                Err(error) => return error,
            };
            self.link.mark_up();
            let frames = parts.iter().map(|part| connection.part(part).to_vec()).collect();
            connection.done(end);
            self.enqueue(frames).await;
        }
    }

    async fn enqueue(&self, frames: Vec<Vec<u8>>) {
        let received = RecordedBatch { at: self.clock.now(), source: self.number, frames };
        // The receiver is dropped only at the end of the recording.
        drop(self.sink.send(received).await);
    }
}
