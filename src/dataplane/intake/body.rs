//! Reads and scans the body of a request, with limits and deadlines at every wait.

use crate::exchange::phase::{AdmissionPhase, BodyPhase};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::{BodyPace, Conn, ReadEnd, Turn};
use crate::runtime::offloaded;
use crate::state::env::Env;
use crate::state::io::Io;
use crate::state::shard::Shard;
use forebay_base::NanosSinceStart;
use forebay_base::limits::{INLINE_BODY_BYTES_MAX, INLINE_SCAN_BYTES_MAX};
use forebay_board::account::Stage;
use forebay_board::admit::AdmittedRequest as InFlightPlace;
use forebay_http1::{BodyFraming, BodyLimits, CONTINUE, ChunkedDecoder, RequestHead};
use forebay_prompt::parse::{
    Endpoint, FormType, Reason, Refusal, form_type, rank_pin, scan, scan_briefly, scan_form,
};
use forebay_router::request::{self, Stop};
use std::mem::take;
use std::time::Duration;

/// Longest time for a body in multiples of `timeouts.body`, even if bytes keep arriving.
const BODY_TIMEOUTS_MAX: u32 = 10;

/// A body up to this length gets its whole buffer at once.
const ROOM_BYTES: usize = 1024 * 1024;
/// A longer body gets its whole buffer after this many bytes.
const ROOM_AT_BYTES: usize = 512 * 1024;

/// Decoding 1-byte chunks costs as much as reading a plain body this many times as long.
const CHUNKS_COST: usize = 3;

/// Why no request can be served.
#[derive(Debug)]
pub(crate) enum NoRequest {
    /// The connection is over, and no client waits for an answer.
    Silent,
    /// The client receives this answer, then the connection ends.
    Refused(Refusal),
}

/// Reads and scans the body of a request.
///
/// # Errors
/// The request stops: its client has left, is too slow, or the body is refused.
pub(crate) async fn receive<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, AdmissionPhase>,
) -> Result<Exchange<'c, BodyPhase>, RefusedExchange<'c>> {
    let AdmissionPhase { endpoint, .. } = exchange.phase;
    let Exchange { request, phase } = &mut exchange;
    let read = match body(&shard.env, conn, &request.head, endpoint, &mut phase.places.shard).await
    {
        Ok(body_bytes) => {
            request.take_message(conn, body_bytes);
            parse(&shard.env, &shard.io, conn, request, endpoint).await
        }
        Err(none) => Err(none.into()),
    };
    match read {
        Ok(read_at) => {
            let is_stream = exchange.request.api.stream;
            exchange.request.story.read(read_at, is_stream);
            let Exchange { request, phase: AdmissionPhase { new_request, places, .. } } = exchange;
            Ok(Exchange { request, phase: BodyPhase { endpoint, new_request, places, read_at } })
        }
        Err(stop) => Err(exchange.stop(stop)),
    }
}

impl From<NoRequest> for Stop {
    fn from(none: NoRequest) -> Self {
        match none {
            NoRequest::Silent => Self::ClientGone,
            NoRequest::Refused(refusal) => Self::InBody(refusal),
        }
    }
}

/// Reads the body to right after the head in `conn.input`, without its framing. Returns its length.
async fn body(
    env: &Env,
    conn: &mut Conn,
    head: &RequestHead,
    endpoint: Endpoint,
    place: &mut InFlightPlace,
) -> Result<usize, NoRequest> {
    let start = head.head_bytes;
    if let BodyFraming::Length(length) = head.body
        && wide(length) > env.config().limits.body_bytes_max
    {
        return Err(NoRequest::Refused(too_large(env)));
    }
    if head.expect_continue && conn.input.len() == start && head.body != BodyFraming::None {
        let is_taken = taken_by_head(head, &conn.input, endpoint, place);
        is_taken.map_err(NoRequest::Refused)?;
        conn.wait_at_most(env.config().timeouts.write);
        if conn.write(CONTINUE.to_vec()).await.is_err() {
            return Err(NoRequest::Silent);
        }
    }
    let now = env.turn_began_at();
    let mut reading = BodyReading {
        env,
        give_up_at: now.plus(env.config().timeouts.body * BODY_TIMEOUTS_MAX),
        pace: BodyPace::new(now, env.config().timeouts.body, env.config().limits.body_rate_min),
        received_bytes: conn.input.len().saturating_sub(start),
        place,
        turn: Turn::default(),
    };
    match head.body {
        BodyFraming::None | BodyFraming::UntilClose => Ok(0),
        BodyFraming::Length(length) => {
            let length = wide(length);
            conn.expect_body(length);
            // Count received bytes, not the announced length: an announcement costs a client
            // nothing.
            loop {
                let received = conn.input.len().saturating_sub(start).min(length);
                reading.hold(received)?;
                if received == length {
                    return Ok(length);
                }
                reading.more(conn, start.saturating_add(length)).await?;
            }
        }
        BodyFraming::Chunked => reading.chunked(conn, start).await,
    }
}

/// Checks whether the head already refuses the body. In that case a client that waits for `100
/// Continue` must not be asked for the body (RFC 9110 section 10.1.1). Other clients have already
/// sent it.
fn taken_by_head(
    head: &RequestHead,
    input: &[u8],
    endpoint: Endpoint,
    place: &InFlightPlace,
) -> Result<(), Refusal> {
    let announced = match head.body {
        BodyFraming::Length(length) => wide(length),
        BodyFraming::None | BodyFraming::Chunked | BodyFraming::UntilClose => 1,
    };
    if !place.has_room_for(announced) {
        return Err(request::in_flight_full());
    }
    match endpoint {
        Endpoint::Other => form_type(head, input).map(|_| ()).map_err(Into::into),
        // The body may name a stored response, which overrides the rank in the header.
        Endpoint::Responses | Endpoint::StoredResponse | Endpoint::Models => Ok(()),
        _ => rank_pin(head, input).map(|_| ()),
    }
}

fn too_large(env: &Env) -> Refusal {
    request::body_too_large(env.config().limits.body_bytes_max)
}

fn wide(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

struct BodyReading<'a> {
    env: &'a Env,
    give_up_at: NanosSinceStart,
    pace: BodyPace,
    received_bytes: usize,
    place: &'a mut InFlightPlace,
    turn: Turn,
}

impl BodyReading<'_> {
    async fn chunked(&mut self, conn: &mut Conn, start: usize) -> Result<usize, NoRequest> {
        let limits = BodyLimits {
            body_bytes_max: u64::try_from(self.env.config().limits.body_bytes_max)
                .unwrap_or(u64::MAX),
            ..BodyLimits::default()
        };
        let mut decoder = ChunkedDecoder::new(&limits);
        // input[start..decoded] is data, input[raw..] is still framed.
        let mut decoded = start;
        loop {
            let mut raw = decoded;
            if let Some(framed) = conn.input.get_mut(raw..) {
                // Yield before decoding: decoding is expensive, reading is not.
                self.turn.spend(framed.len().saturating_mul(CHUNKS_COST)).await;
                let step = decoder.decode(framed).map_err(|e| NoRequest::Refused(e.into()))?;
                decoded += step.data_bytes;
                raw += step.consumed_bytes;
                self.hold(decoded - start)?;
                // Bytes after the consumed bytes belong to the next request. Move them up to the
                // decoded data.
                conn.input.drain(decoded..raw.max(decoded));
                if step.done {
                    return Ok(decoded - start);
                }
            }
            let whole_bytes = start.saturating_add(self.env.config().limits.body_bytes_max);
            self.more(conn, whole_bytes).await?;
        }
    }

    fn hold(&mut self, body_bytes: usize) -> Result<(), NoRequest> {
        self.place.hold_body(body_bytes).map_err(|_| NoRequest::Refused(request::in_flight_full()))
    }

    /// Reads more bytes. `whole_bytes`: upper bound of head and body together.
    async fn more(&mut self, conn: &mut Conn, whole_bytes: usize) -> Result<(), NoRequest> {
        let late = self.wait(conn)?;
        let before = conn.input.len();
        // A long body must prove itself: an announcement alone gets no buffer.
        let gets_all = before > 0 && whole_bytes <= ROOM_BYTES || before >= ROOM_AT_BYTES;
        if gets_all && conn.input.capacity() < whole_bytes {
            // Reserve the whole body: reserved pages cost nothing until written. Otherwise growth
            // would copy 16 MiB at once. If the reservation fails, that copy happens.
            let _ = conn.input.try_reserve_exact(whole_bytes.saturating_sub(before));
        }
        conn.fill().await.map_err(|end| match end {
            ReadEnd::Closed => NoRequest::Silent,
            ReadEnd::TimedOut => NoRequest::Refused(Refusal::new(late)),
        })?;
        let read_bytes = conn.input.len().saturating_sub(before);
        self.received_bytes = self.received_bytes.saturating_add(read_bytes);
        // Yield: a body that arrives as fast as it is read would hold the shard until its end.
        self.turn.copied(read_bytes).await;
        Ok(())
    }

    /// Sets the deadline for the next bytes. Returns the refusal reason if they miss it.
    fn wait(&self, conn: &mut Conn) -> Result<Reason, NoRequest> {
        let now = self.env.now();
        let silence_max = self.env.config().timeouts.body;
        let due_at = self.pace.due_at(self.received_bytes);
        if now >= self.give_up_at {
            return Err(NoRequest::Refused(Refusal::new(Reason::RequestTimeout)));
        }
        // A client that has sent no byte is silent, not slow.
        if due_at >= now.plus(silence_max) || self.received_bytes == 0 {
            conn.wait_at_most(silence_max);
            return Ok(Reason::RequestTimeout);
        }
        if now >= due_at {
            return Err(NoRequest::Refused(Refusal::new(Reason::BodyTooSlow)));
        }
        conn.wait_at_most(Duration::from_nanos(due_at.since(now)));
        Ok(Reason::BodyTooSlow)
    }
}

/// Scans the body in `message`. Returns when the request was received: before the scan.
async fn parse(
    env: &Env,
    io: &Io,
    conn: &mut Conn,
    request: &mut Request<'_>,
    endpoint: Endpoint,
) -> Result<NanosSinceStart, Stop> {
    // Queue waits count from here, so that a slow upload is no wait.
    let read_at = env.now();
    // Calls for a stored response need no body, but a body is scanned if present.
    let is_bare = endpoint == Endpoint::StoredResponse && request.body().is_empty();
    if endpoint == Endpoint::WebSocket {
        request.read_query_model().map_err(Stop::Refused)?;
        return Ok(read_at);
    }
    if endpoint == Endpoint::Models || is_bare {
        return Ok(read_at);
    }
    let head_bytes = request.head.head_bytes;
    let body_bytes = request.body().len();
    let body = request.buffers.message.get(head_bytes..).unwrap_or_default();
    let form = match endpoint {
        Endpoint::Other => form_type(&request.buffers.head, &request.buffers.message),
        _ => Ok(None),
    };
    let form = form.map_err(|error| Stop::Refused(error.into()))?;
    let api = &mut request.buffers.api;
    let scanned_here = match form {
        _ if body_bytes > INLINE_SCAN_BYTES_MAX => None,
        Some(form) => Some(scan_form(body, form, endpoint, api)),
        None if body_bytes > INLINE_BODY_BYTES_MAX => scan_briefly(body, endpoint, api),
        None => Some(scan(body, endpoint, api)),
    };
    api.scanned_on_shard = scanned_here.is_some();
    let scanned = if let Some(scanned) = scanned_here {
        scanned
    } else {
        let form = form.map(|form| (form.boundary.to_vec(), form.is_utf8));
        let message = take(&mut request.message);
        let mut api = take(&mut request.api);
        let scanned = offloaded(&io.offload, conn, body_bytes, move |_| {
            let body = message.get(head_bytes..).unwrap_or_default();
            let scanned = match &form {
                Some((boundary, is_utf8)) => {
                    let form = FormType { boundary, is_utf8: *is_utf8 };
                    scan_form(body, form, endpoint, &mut api)
                }
                None => scan(body, endpoint, &mut api),
            };
            (message, api, scanned)
        });
        let scanned = scanned.await?;
        request.message = scanned.0;
        request.api = scanned.1;
        scanned.2
    };
    scanned.map_err(|error| Stop::Refused(error.into()))?;
    env.time(Stage::Parse, read_at);
    Ok(read_at)
}
