//! Follows publishers and writes their messages to a file. A single task; each source reconnects by
//! itself. Messages wait in a bounded queue between the sockets and the file: while the disk is
//! slow, the sockets are not read.

use super::file::FileWriter;
use super::format::{RecordingHeader, SourceKind, SourceName};
use super::message::RecordedMessage;
use forebay_base::{Clock, NanosSinceStart};
use forebay_zmq::{Connection, SocketError, ZmqEndpoint, ZmqSource};
use futures_util::future::join_all;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};
use tracing::{info, warn};

/// Most messages between the sockets and the file.
const WAITING_MAX: usize = 1_024;
/// Interval of flushes, and the longest time that a crash loses.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);
/// Pause before the first reconnection; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

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
}

/// Totals of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Messages by source; notes of requests come last.
    pub messages: Vec<u64>,
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
    let followers = (0_u16..).zip(sources).map(|(number, source)| {
        let follower = Follower { number, source: source.clone(), clock, sink: sink.clone() };
        follower.follow()
    });
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
}

impl Follower {
    async fn follow(self) -> Infallible {
        let mut pause = PAUSE_MIN;
        let mut is_reported = false;
        loop {
            let error = match self.session(&mut pause, &mut is_reported).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if !std::mem::replace(&mut is_reported, true) {
                warn!(endpoint = %self.source.endpoint, %error, "not connected; trying again");
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn session(
        &self,
        pause: &mut Duration,
        is_reported: &mut bool,
    ) -> Result<Infallible, SocketError> {
        let source = ZmqSource::open(&self.source.endpoint).await?;
        let mut connection = source.subscribe(&self.source.topic).await?;
        info!(endpoint = %self.source.endpoint, "recording");
        *pause = PAUSE_MIN;
        *is_reported = false;
        let error = self.receive(&mut connection).await;
        self.enqueue(Vec::new()).await;
        Err(error)
    }

    /// Receives messages until the connection ends.
    async fn receive(&self, connection: &mut Connection) -> SocketError {
        loop {
            let (parts, end) = match connection.message().await {
                Ok(message) => message,
                Err(error) => return error,
            };
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
