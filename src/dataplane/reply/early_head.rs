//! Writes the head and queue comments that a streaming client receives while its request waits, see
//! [`EarlyPart`].

use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::{Conn, WriteEnd};
use crate::relay::{
    EarlyPart, OpenEventStream, QueueStanding, StreamShape, encode_engine_error, encode_refused,
};
use crate::state::env::Env;
use forebay_base::NanosSinceStart;
use forebay_base::limits::QUEUE_COMMENT_PERIOD;
use forebay_http1::{AnswerFraming, OwnStream, encode_own_stream};
use forebay_prompt::parse::Refusal;

/// Ends the stream with the router's refusal.
pub(crate) async fn refuse(
    begun: &OpenEventStream,
    env: &Env,
    conn: &mut Conn,
    refusal: &Refusal,
) -> ConnectionReuse {
    let mut events = conn.buffer();
    encode_refused(begun.shape, refusal, &mut events);
    end(begun, env, conn, events).await
}

/// Ends the stream with the engine's error.
pub(crate) async fn fail(
    begun: &OpenEventStream,
    env: &Env,
    conn: &mut Conn,
    status: u16,
    body: &[u8],
) -> ConnectionReuse {
    let mut events = conn.buffer();
    encode_engine_error(begun.shape, status, body, &mut events);
    end(begun, env, conn, events).await
}

async fn end(
    begun: &OpenEventStream,
    env: &Env,
    conn: &mut Conn,
    events: Vec<u8>,
) -> ConnectionReuse {
    let mut out = conn.buffer();
    begun.framing.push(&events, &mut out);
    begun.framing.finish(&mut out);
    conn.recycle(events);
    match write(env, conn, out).await {
        Ok(()) if begun.keep_alive && !env.draining.is_set() => ConnectionReuse::KeepAlive,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    }
}

/// Sends a queue comment with the position to the client, after the head if that is not sent yet.
pub(crate) async fn queued(
    env: &Env,
    conn: &mut Conn,
    request: &mut Request<'_>,
    position: u32,
) -> Result<(), WriteEnd> {
    let now = env.now();
    let mut out = conn.buffer();
    let mut begun = match request.early {
        EarlyPart::Nothing | EarlyPart::Interrupted(_) => return Ok(()),
        EarlyPart::Ready(shape) => begin(env, request, shape, now, &mut out),
        EarlyPart::Begun(begun) => begun,
    };
    begun.comment_due_at = now.plus(QUEUE_COMMENT_PERIOD);
    begun.encode_standing(QueueStanding::Queued { position }, &mut out);
    request.early = EarlyPart::Begun(begun);
    write(env, conn, out).await
}

/// Sends a comment with the waiting time, if a comment is due.
pub(crate) async fn still_queued(
    env: &Env,
    conn: &mut Conn,
    request: &mut Request<'_>,
) -> Result<(), WriteEnd> {
    let now = env.now();
    let EarlyPart::Begun(begun) = &mut request.early else { return Ok(()) };
    if now < begun.comment_due_at {
        return Ok(());
    }
    begun.comment_due_at = now.plus(QUEUE_COMMENT_PERIOD);
    let mut out = conn.buffer();
    begun.encode_standing(
        QueueStanding::Waited { seconds: now.since(begun.begun_at) / 1_000_000_000 },
        &mut out,
    );
    write(env, conn, out).await
}

/// Sends a comment with the worker's name on dispatch.
pub(crate) async fn dispatched(
    env: &Env,
    conn: &mut Conn,
    request: &Request<'_>,
    worker: &str,
) -> Result<(), WriteEnd> {
    let EarlyPart::Begun(begun) = &request.early else { return Ok(()) };
    let mut out = conn.buffer();
    begun.encode_standing(QueueStanding::Prefill { worker }, &mut out);
    write(env, conn, out).await
}

fn begin(
    env: &Env,
    request: &Request<'_>,
    shape: StreamShape,
    at: NanosSinceStart,
    out: &mut Vec<u8>,
) -> OpenEventStream {
    let client_version = request.head.version;
    let framing = AnswerFraming::open(client_version);
    let keep_alive =
        request.head.keep_alive && framing == AnswerFraming::Chunked && !env.draining.is_set();
    let extra = &request.own_fields();
    encode_own_stream(&OwnStream { client_version, keep_alive, extra }, out);
    OpenEventStream { shape, framing, keep_alive, begun_at: at, comment_due_at: at }
}

async fn write(env: &Env, conn: &mut Conn, out: Vec<u8>) -> Result<(), WriteEnd> {
    conn.wait_at_most(env.config().timeouts.write);
    conn.write(out).await
}
