//! Remainder of a stream after its worker failed mid-stream (`retry.mid_stream`): holds the state
//! of the stream and continues the request on another rank. Runs on the shard's thread, called by
//! the request's task. Chooses no ranks: the state machine does ([`forebay_router::request`]).

use crate::exchange::Exchange;
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::phase::Delivery;
use crate::exchange::request::Request;
use crate::exchange::resumable::{Resumable, ResumableStream};
use crate::ingress::Conn;
use crate::overlap::prediction;
use crate::relay::{
    EarlyPart, OpenEventStream, StreamShape, Transcript, encode_cut, relay_resumable,
};
use crate::send::answer_meaning::BodyKind;
use crate::send::blame;
use crate::send::outbound::Dispatch;
use crate::send::relay_answer::{
    AnswerTally, AttemptAccount, ReplyFields, UpstreamAnswer, own_fields, wanted,
};
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::leg::AttemptWatch;
use crate::state::shard::{SendParts, Shard};
use crate::story::event::{self, AnswerEnd, AnswerPart, AnswerUsage};
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_board::account::{Count, NoContinuation};
use forebay_fleet::worker::{Dialect, FleetSnapshot};
use forebay_http1::{AnswerFraming, BodyFraming, ResponseHead, Span};
use forebay_json::UsageReader;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{FailedAttempt, Split, Stop};
use forebay_text::context_tokens;
use std::time::Duration;

/// Interval between checks for a rank that a stream may move to.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Checks that the answer to a remainder request continues the stream.
///
/// # Errors
/// [`RelayError::EngineFailed`], [`RelayError::RestRefused`].
pub(crate) fn check_answer(
    exchange: &Exchange<'_, Delivery>,
    plan: &SendPlan,
    is_paired: bool,
) -> Result<(), RelayError> {
    let resumable = &exchange.phase.resumable;
    let head = &exchange.request.answer_head;
    // A client that has no event yet accepts any stream.
    let is_right = !resumable.has_events() || is_readable(resumable, head, plan, is_paired);
    if !resumable.is_remainder() || is_right && OpenEventStream::goes_on_with(head) {
        return Ok(());
    }
    let is_ill = head.status >= 500;
    Err(if is_ill { RelayError::EngineFailed } else { RelayError::RestRefused })
}

/// Starts recording the stream at the head of its answer, so that another rank can continue it.
/// True if the stream is recorded.
pub(crate) fn answer_began(
    exchange: &mut Exchange<'_, Delivery>,
    plan: &SendPlan,
    is_paired: bool,
) -> bool {
    let Exchange { request, phase: Delivery { resumable, .. } } = exchange;
    let is_readable = is_readable(resumable, &request.answer_head, plan, is_paired);
    let Resumable::On(stream) = resumable else { return false };
    match &mut stream.transcript {
        Err(_) => return false,
        Ok(transcript) if is_readable => {
            transcript.sends_parts(plan.engine.dialect == Dialect::Sglang);
        }
        unread => *unread = Err(NoContinuation::Engine),
    }
    is_readable
}

/// True if the answer is a stream, and the router can read its events and token ids.
fn is_readable(
    resumable: &Resumable,
    head: &ResponseHead,
    plan: &SendPlan,
    is_paired: bool,
) -> bool {
    let is_open = matches!(head.body, BodyFraming::Chunked | BodyFraming::UntilClose);
    let is_stream = head.status == 200 && head.is_event_stream() && is_open;
    is_stream && !is_paired && resumable.shows_ids(plan)
}

/// Relays a recorded stream, as [`crate::send::relay_answer::answer`] relays other answers.
pub(crate) async fn answer(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    answering: UpstreamAnswer,
    accounted: AttemptAccount<'_>,
) -> Result<ConnectionReuse, RelayError> {
    let Resumable::On(mut stream) = std::mem::take(&mut exchange.phase.resumable) else {
        debug_assert!(false, "a stream that is not recorded");
        return Err(RelayError::BodyInvalid);
    };
    if stream.broke.take().is_some() {
        stream.continued += 1;
        exchange.request.story.facts.answer.continued = stream.continued;
        shard.env.count(Count::StreamsContinued);
    }
    let result =
        relay_on(shard, conn, &mut exchange.request, &mut stream, answering, accounted).await;
    exchange.phase.resumable = Resumable::On(stream);
    result
}

async fn relay_on(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    stream: &mut ResumableStream,
    UpstreamAnswer { mut upstream, sent }: UpstreamAnswer,
    AttemptAccount { going, lease, pulse, predicted, .. }: AttemptAccount<'_>,
) -> Result<ConnectionReuse, RelayError> {
    let SendParts { env, io, workers } = shard.sending();
    let Dispatch { plan, endpoint, facts, .. } = going;
    stream.engine = Some(plan.engine.dialect);
    let ResumableStream { transcript, look_at, scan: cost, .. } = stream;
    let Ok(transcript) = transcript else { return Err(RelayError::BodyInvalid) };
    let is_rest = request.early.is_interrupted();
    let mut digits = [0; 10];
    let Request { buffers, early, cors, story, .. } = request;
    let cors = cors.as_deref();
    let own =
        own_fields(ReplyFields { buffers, cors }, plan, predicted.as_deref(), None, &mut digits);
    let wanted = wanted(env, buffers, early, endpoint, own.get());
    let mut passed = AnswerTally::new(workers, &buffers.answer_head, endpoint, pulse);
    // The cost spans all ranks that served the stream.
    if let Some(cost) = cost.take() {
        passed.usage = UsageReader::Scan(cost);
    }
    let down = DownWatch::new(env, workers, plan.worker);
    let mut client = AttemptWatch { conn, leg: None, down };
    let mut body = None;
    let status = buffers.answer_head.status;
    let observe = |events: &[u8]| {
        workers.count_receipt(plan.worker, status);
        if events.is_empty() {
            return passed.count_chunk(env);
        }
        lease.share_trial();
        body.get_or_insert_with(|| BodyKind::of(events));
        passed.take(env, io, events);
        lease.prefill_done(|| env.now());
    };
    let leaves = |transcript: &mut Transcript| {
        workers.moves_streams(plan.worker) && leaves(shard, going, transcript, look_at)
    };
    let relayed = relay_resumable(&mut client, &mut upstream, &wanted, transcript, observe, leaves);
    let relayed = relayed.await;
    let (reported, cached) = passed.reported();
    let head = &buffers.answer_head;
    story.answered(&AnswerEnd {
        sending: shard.sending(),
        facts,
        rank: plan.rank,
        head,
        times: passed.times(),
        usage: AnswerUsage { by_ids: transcript.usage(), ..passed.usage(reported) },
        relayed: relayed.as_ref().map(|relayed| relayed.body_bytes).map_err(|error| *error),
        part: if is_rest { AnswerPart::Remainder } else { AnswerPart::Whole },
    });
    *cost = passed.usage.into_scan();
    let relayed = relayed?;
    let is_answer = BodyKind::is_answer(body, endpoint);
    blame::judge_end(shard, lease, &mut story.facts.answer, head.status, is_answer);
    env.counters.add(Count::ResponseBytes, relayed.body_bytes);
    if !is_rest {
        prediction::account_answer(env, plan.rank, reported, cached, predicted.as_deref());
    }
    if relayed.upstream_reusable && sent {
        io.keep(env, upstream);
    }
    Ok(if relayed.client_reusable { ConnectionReuse::KeepAlive } else { ConnectionReuse::Linger })
}

/// True if the stream should leave its worker, which is being emptied. Without room on another rank
/// the stream stays.
fn leaves(
    shard: &Shard,
    Dispatch { plan, facts, .. }: Dispatch<'_>,
    transcript: &mut Transcript,
    look_at: &mut NanosSinceStart,
) -> bool {
    let now = shard.env.now();
    if !transcript.has_begun() || now < *look_at {
        return false;
    }
    *look_at = now.plus(LOOK_AGAIN);
    let fleet = shard.workers.fleet();
    let dialect = plan.engine.dialect;
    let count = transcript.token_count();
    // Check room first: settling the transcript costs more.
    let has_room = shard.routing.informed().has_room_elsewhere(&fleet, facts, dialect, count, now);
    has_room && {
        settle(transcript, &fleet, facts.model);
        transcript.may_move()
    }
}

/// Computes which part of the text the client has received.
fn settle(transcript: &mut Transcript, fleet: &FleetSnapshot, model: ModelIndex) {
    let model = fleet.models.get(model.index());
    let text = model.and_then(|model| model.text.as_ref());
    let context_tokens = model.and_then(|model| context_tokens(&model.card_json));
    transcript.settle(context_tokens, |ids, out| {
        text.is_some_and(|text| text.vocabulary.decode_into(ids, out))
    });
}

/// Handles a stream after its worker failed, or when the stream leaves its worker. Ends the stream
/// if nothing remains to compute, else prepares the request for another rank.
pub(crate) async fn broke_off(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    failed: FailedAttempt,
) -> Result<ConnectionReuse, FailedAttempt> {
    let env = &shard.env;
    let error = failed.error;
    if !error.leaves_rest() {
        return Err(failed);
    }
    let begun = broken(shard, exchange);
    let Resumable::On(stream) = &mut exchange.phase.resumable else { return Err(failed) };
    let transcript = match &mut stream.transcript {
        Ok(transcript) => transcript,
        Err(why) => {
            env.counters.not_continued(*why);
            return Err(failed);
        }
    };
    transcript.break_off();
    settle(transcript, &shard.workers.fleet(), stream.model);
    if let Err(why) = transcript.may_go_on() {
        env.counters.not_continued(why);
        let mut events = conn.buffer();
        let is_between_events = transcript.is_between_events();
        if transcript.end_failed(&mut events) {
            bill_end(exchange, &events);
            return Ok(finish(env, conn, &begun, events).await);
        }
        let error = cut(env, conn, &begun, error, is_between_events).await;
        return Err(FailedAttempt { error, ..failed });
    }
    let mut events = conn.buffer();
    if transcript.end(&mut events) {
        bill_end(exchange, &events);
        return Ok(finish(env, conn, &begun, events).await);
    }
    exchange.request.story.failed(&event::AttemptFailure {
        error,
        is_unprefilled: false,
        now: env.now(),
    });
    stream.broke = Some(error);
    exchange.request.early = EarlyPart::Interrupted(begun);
    // From here on only a rank of the same engine, and no pair, can continue the events.
    let only = stream.engine.filter(|_| transcript.has_begun());
    if only.is_some() {
        exchange.phase.split = Split::known(None);
    }
    match transcript.goes_on_by_ids() {
        true => ask_for_remainder(transcript, &mut exchange.request),
        false => transcript.start_over(),
    }
    Err(FailedAttempt { is_resumable: true, dialect_of_rest: only, ..failed })
}

/// State of the client's stream at the break.
fn broken(shard: &Shard, exchange: &Exchange<'_, Delivery>) -> OpenEventStream {
    let framing = AnswerFraming::open(exchange.request.head.version);
    let keep_alive = exchange.request.head.keep_alive && framing == AnswerFraming::Chunked;
    let shape = StreamShape::OpenAi;
    let now = shard.env.now();
    let fresh = OpenEventStream { shape, framing, keep_alive, begun_at: now, comment_due_at: now };
    exchange.request.early.open_stream().copied().unwrap_or(fresh)
}

/// Replaces the client's request by the request for the remainder. Keeps its header fields.
fn ask_for_remainder(transcript: &mut Transcript, request: &mut Request<'_>) {
    let Buffers { head, message, .. } = &mut *request.buffers;
    const TARGET: &[u8] = b"/v1/completions";
    let wide = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
    let path = message.get_mut(wide(head.path.start)..wide(head.path.end));
    // The path of a chat is longer than `TARGET`.
    if let Some(path) = path.and_then(|path| path.get_mut(..TARGET.len())) {
        path.copy_from_slice(TARGET);
        let length = u32::try_from(TARGET.len()).unwrap_or(0);
        head.path.end = head.path.start.saturating_add(length);
    }
    head.query = Span::default();
    message.truncate(head.head_bytes);
    transcript.go_on(message);
}

/// Ends a request after the client has received the beginning of a stream. The last event carries
/// the reason: the engine's error if known.
pub(crate) async fn ended(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    stop: Stop,
) -> Result<ConnectionReuse, Stop> {
    let EarlyPart::Interrupted(begun) = exchange.request.early else { return Err(stop) };
    let Resumable::On(stream) = &mut exchange.phase.resumable else { return Err(stop) };
    let Some(error) = stream.broke else { return Err(stop) };
    if matches!(stop, Stop::ClientGone) {
        return Err(stop);
    }
    shard.env.counters.not_continued(NoContinuation::NoWorker);
    let mut events = conn.buffer();
    if stream.transcript.as_mut().is_ok_and(|transcript| transcript.end_failed(&mut events)) {
        bill_end(exchange, &events);
        return Ok(finish(&shard.env, conn, &begun, events).await);
    }
    Err(Stop::Cut(cut(&shard.env, conn, &begun, error, true).await))
}

/// Bills the events with which the router ends the stream; they may contain a usage.
fn bill_end(exchange: &mut Exchange<'_, Delivery>, events: &[u8]) {
    let prompt_estimate = exchange.request.story.bill().prompt_estimate();
    let Resumable::On(stream) = &mut exchange.phase.resumable else { return };
    if let Some(usage) = stream.usage_at_end(events, prompt_estimate) {
        exchange.request.story.ended_here(usage);
    }
}

/// Sends the reason as last event and cuts the body without a proper end. No event may follow a
/// partial event, see [`crate::relay::relay`].
async fn cut(
    env: &Env,
    conn: &mut Conn,
    begun: &OpenEventStream,
    error: RelayError,
    is_between_events: bool,
) -> RelayError {
    if !is_between_events && begun.framing == AnswerFraming::Chunked {
        return error;
    }
    let mut event = conn.buffer();
    let mut out = conn.buffer();
    encode_cut(begun.shape, error.describe(), is_between_events, &mut event);
    begun.framing.push(&event, &mut out);
    conn.recycle(event);
    conn.wait_at_most(env.config().timeouts.write);
    if conn.write(out).await.is_ok() { error } else { RelayError::ClientGone }
}

async fn finish(
    env: &Env,
    conn: &mut Conn,
    begun: &OpenEventStream,
    events: Vec<u8>,
) -> ConnectionReuse {
    let mut out = conn.buffer();
    begun.framing.push(&events, &mut out);
    begun.framing.finish(&mut out);
    conn.recycle(events);
    conn.wait_at_most(env.config().timeouts.write);
    match conn.write(out).await {
        Ok(()) if begun.keep_alive && !env.draining.is_set() => ConnectionReuse::KeepAlive,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    }
}
