//! The head of an answer that goes out while its request still waits (`queue.sse_comments`): a
//! streaming client is told where it stands, and whatever becomes of the request then follows as
//! events. Once begun, no status can be told any more.

use super::connection::{After, Slot};
use super::state::Shard;
use crate::base::NanosSinceStart;
use crate::base::limits::QUEUE_COMMENT_PERIOD;
use crate::config::QueueConfig;
use crate::http1::{OwnStream, ResponseHead, encode_own_stream};
use crate::ingress::{Conn, WriteEnd};
use crate::parse::{ApiRequest, Endpoint, Refusal};
use crate::relay::{
    AnswerFraming, Standing, StreamShape, encode_engine_error, encode_refused, encode_standing,
};

/// What the client of one request has before there is an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Early {
    /// Nothing, however long it waits.
    #[default]
    Nothing,
    /// Nothing yet: it has not had to wait.
    Ready(StreamShape),
    /// The head.
    Begun(Begun),
}

/// A stream of events whose head is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    shape: StreamShape,
    framing: AnswerFraming,
    keep_alive: bool,
    at: NanosSinceStart,
    /// The next comment is due.
    next_at: NanosSinceStart,
}

impl Early {
    pub(super) const fn of(config: &QueueConfig, endpoint: Endpoint, request: &ApiRequest) -> Self {
        match StreamShape::of(endpoint) {
            Some(shape) if config.sse_comments && request.stream => Self::Ready(shape),
            _ => Self::Nothing,
        }
    }

    pub(super) const fn begun(&self) -> Option<&Begun> {
        match self {
            Self::Begun(begun) => Some(begun),
            _ => None,
        }
    }
}

impl Begun {
    /// When the client should hear again that its request waits.
    pub(super) const fn next_at(&self) -> NanosSinceStart {
        self.next_at
    }

    /// Can this answer be the rest of the stream?
    pub(super) fn goes_on_with(response: &ResponseHead) -> bool {
        response.status == 200 && response.event_stream && response.content_length != Some(0)
    }

    /// Ends the stream with why the router has no answer.
    pub(super) async fn refuse(&self, shard: &Shard, conn: &mut Conn, refusal: &Refusal) -> After {
        let mut events = conn.buffer();
        encode_refused(self.shape, refusal, &mut events);
        self.end(shard, conn, events).await
    }

    /// Ends the stream with what the engine answered instead of one.
    pub(super) async fn fail(
        &self,
        shard: &Shard,
        conn: &mut Conn,
        status: u16,
        body: &[u8],
    ) -> After {
        let mut events = conn.buffer();
        encode_engine_error(self.shape, status, body, &mut events);
        self.end(shard, conn, events).await
    }

    async fn end(&self, shard: &Shard, conn: &mut Conn, events: Vec<u8>) -> After {
        let mut out = conn.buffer();
        self.framing.push(&events, &mut out);
        self.framing.finish(&mut out);
        conn.recycle(events);
        match write(shard, conn, out).await {
            Ok(()) if self.keep_alive && !shard.draining.is_set() => After::KeepAlive,
            Ok(()) => After::Linger,
            Err(_) => After::Drop,
        }
    }

    fn encode(&self, standing: Standing<'_>, out: &mut Vec<u8>) {
        let mut line = Vec::new();
        encode_standing(standing, &mut line);
        self.framing.push(&line, out);
    }
}

/// The request has joined a queue in which so many wait. The first time, the client gets the head
/// too.
pub(super) async fn queued(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    position: u32,
) -> Result<(), WriteEnd> {
    let now = shard.now();
    let mut out = conn.buffer();
    let mut begun = match slot.early {
        Early::Nothing => return Ok(()),
        Early::Ready(shape) => begin(shard, slot, shape, now, &mut out),
        Early::Begun(begun) => begun,
    };
    begun.next_at = now.plus(QUEUE_COMMENT_PERIOD);
    begun.encode(Standing::Queued { position }, &mut out);
    slot.early = Early::Begun(begun);
    write(shard, conn, out).await
}

/// It still waits. Tells the client if that is due.
pub(super) async fn still_queued(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
) -> Result<(), WriteEnd> {
    let now = shard.now();
    let Early::Begun(begun) = &mut slot.early else { return Ok(()) };
    if now < begun.next_at {
        return Ok(());
    }
    begun.next_at = now.plus(QUEUE_COMMENT_PERIOD);
    let mut out = conn.buffer();
    begun.encode(Standing::Waited { seconds: now.since(begun.at) / 1_000_000_000 }, &mut out);
    write(shard, conn, out).await
}

/// It is being sent to a worker.
pub(super) async fn dispatched(
    shard: &Shard,
    conn: &mut Conn,
    slot: &Slot,
    worker: &str,
) -> Result<(), WriteEnd> {
    let Some(begun) = slot.early.begun() else { return Ok(()) };
    let mut out = conn.buffer();
    begun.encode(Standing::Prefill { worker }, &mut out);
    write(shard, conn, out).await
}

fn begin(
    shard: &Shard,
    slot: &Slot,
    shape: StreamShape,
    at: NanosSinceStart,
    out: &mut Vec<u8>,
) -> Begun {
    let client_version = slot.head.version;
    let framing = AnswerFraming::open(client_version);
    let keep_alive =
        slot.head.keep_alive && framing == AnswerFraming::Chunked && !shard.draining.is_set();
    let extra: [(&str, &[u8]); 1] = [("x-request-id", &slot.request_id)];
    encode_own_stream(&OwnStream { client_version, keep_alive, extra: &extra }, out);
    Begun { shape, framing, keep_alive, at, next_at: at }
}

async fn write(shard: &Shard, conn: &mut Conn, out: Vec<u8>) -> Result<(), WriteEnd> {
    conn.wait_at_most(shard.config.timeouts.write);
    conn.write(out).await
}
