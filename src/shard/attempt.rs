//! dispatch, relay, account: one attempt to get an answer from one rank.

use super::down::DownWatch;
use super::env::Env;
use super::judge;
use super::leg::Waiting;
use super::pair::{self, Paired};
use super::predict::Predicted;
use super::slot::{After, PRIORITY, Slot};
use super::standing;
use super::state::{Sending, Shard};
use crate::ingress::Conn;
use crate::relay::Begun;
use crate::relay::{Answer, Outbound, StreamShape, Upstream, Watch, gather, relay, send};
use forebay_base::NanosSinceStart;
use forebay_base::limits::READ_AT_ONCE_BYTES_MAX;
use forebay_fleet::account::{Count, Lease, Stage};
use forebay_http1::{BodyFraming, FieldKind, RequestHead, UpstreamHead, encode_request, header};
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{RelayError, SendPlan, pin_in_body};
use forebay_router::dispatch::{has_no_room, retry_after_s};
use forebay_router::request::{Chosen, Failed};

/// Where the request goes.
pub(super) struct Attempt {
    pub(super) endpoint: Endpoint,
    pub(super) chosen: Box<Chosen>,
    /// What the rank that computes the prompt is expected to find in its cache; `None` unless its
    /// KV events tell.
    pub(super) predicted: Option<Predicted>,
    /// When the request had been read completely.
    pub(super) read_at: NanosSinceStart,
    /// Another rank that had been sent it has failed it before.
    pub(super) is_retry: bool,
}

/// Sends the request and relays the answer; the leases go back when this returns, whatever
/// happened.
pub(super) async fn run(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    attempt: Attempt,
) -> Result<After, Failed> {
    let Attempt { endpoint, chosen, mut predicted, read_at, is_retry } = attempt;
    let Chosen { plan, mut lease, prefill } = *chosen;
    let mut paired = match prefill {
        Some(prefill) => Some(pair::begin(shard, conn, slot, &plan, prefill).await?),
        None => None,
    };
    if let Some(paired) = &mut paired {
        paired.predicted = predicted.take();
    }
    let going = Going { plan: &plan, endpoint, read_at };
    let result = exchange(shard.sending(), conn, slot, going, paired.as_mut()).await;
    let answering = match result {
        Ok(answering) => answering,
        Err(error) => {
            shard.io.note_lack_of_sockets(&shard.env, error);
            // It may be prefill that is gone, with the KV. Who fails it again without that prefill
            // is ill.
            if is_retry || !pair::may_lack_kv(paired.as_ref(), error) {
                judge::failed(shard, &mut lease, &plan, paired.as_mut(), error);
            }
            // Back before the refusal is noted: what the rank had then is its limit for a while,
            // and this request is not part of it.
            drop(lease);
            if error == RelayError::EngineBusy {
                shard.workers.engine_refused(
                    &shard.env,
                    plan.rank,
                    slot.answer.retry_after_s.take(),
                );
            }
            return Err(pair::abandoned(shard, paired, plan.rank, error));
        }
    };
    // Nothing is sent a second time from here on.
    shard.io.recycle(std::mem::take(&mut slot.message));
    shard.io.recycle(std::mem::take(&mut slot.pair.leg_body));
    shard.io.recycle(slot.prompt.end());
    shard.env.counters.answered(endpoint as usize, slot.answer.head.status);
    slot.answer.status = Some(slot.answer.head.status);
    if slot.answer.head.status == 404 {
        // It may serve other models since a restart.
        shard.workers.suspect(plan.worker);
    }
    if matches!(slot.answer.head.status, 500 | 502 | 504..=599) {
        // A failure of the engine itself. 503 and 4xx say "busy" or "your fault", which is no
        // illness.
        judge::mark_failed(&shard.env, &mut lease);
    } else {
        lease.judge_success();
    }
    let shape = StreamShape::of(endpoint).unwrap_or(StreamShape::OpenAi);
    let accounted = Accounted { plan: &plan, lease, predicted, paired: paired.as_ref(), shape };
    match answer(shard.sending(), conn, slot, answering, accounted).await {
        Ok(after) => {
            // Its KV has arrived; its own answer follows, and nobody waits for that. A refused
            // request has no use for it.
            if let Some(paired) = &mut paired
                && !paired.is_refused
            {
                paired.leg.let_go();
            }
            Ok(after)
        }
        Err(error) => {
            judge::broke_off(shard, &plan, error);
            Err(pair::abandoned(shard, paired, plan.rank, error))
        }
    }
}

/// A request on its way to one rank.
#[derive(Clone, Copy)]
struct Going<'a> {
    plan: &'a SendPlan,
    endpoint: Endpoint,
    read_at: NanosSinceStart,
}

/// A worker whose answer's head has come.
pub(super) struct Answering {
    pub(super) upstream: Upstream,
    /// It has read the whole request.
    pub(super) sent: bool,
}

/// Sends the request and waits for the head of the answer. A pooled connection that had died is
/// replaced once.
async fn exchange(
    sending: Sending<'_>,
    conn: &mut Conn,
    slot: &mut Slot,
    going: Going<'_>,
    mut paired: Option<&mut Paired<'_>>,
) -> Result<Answering, RelayError> {
    let (Sending { env, io, workers }, Going { plan, read_at, .. }) = (sending, going);
    standing::dispatched(env, conn, slot, &plan.shown_as).await?;
    let is_long = slot.message.len().max(slot.pair.leg_body.len()) > READ_AT_ONCE_BYTES_MAX;
    let mut pooled = io.upstreams.borrow_mut().take(plan.address, env.now(), is_long);
    let mut is_resent = false;
    loop {
        let reused = pooled.is_some();
        let mut upstream = match pooled.take() {
            Some(upstream) => upstream,
            None => {
                env.count(Count::UpstreamConnects);
                let timeout = env.config.timeouts.connect;
                let mut watch = waiting(sending, plan, conn, &mut paired);
                let buffers = &io.buffers;
                let connecting =
                    Upstream::connect_while(&mut watch, plan.address, timeout, buffers, is_long);
                let sent = |error: RelayError| if is_resent { error.once_sent() } else { error };
                connecting.await.map_err(sent)?
            }
        };
        let mut head = io.buffers.take();
        let begun_bytes = encode(slot, going, paired.as_deref(), &mut head);
        let body = match paired {
            Some(_) => &slot.pair.leg_body,
            None => own_body(&slot.head, &slot.message),
        };
        let outbound = Outbound {
            head,
            body: body.get(begun_bytes..).unwrap_or_default(),
            method: &slot.head.method,
            limits: &env.head_limits,
        };
        let dispatched = match &paired {
            Some(paired) if paired.is_concurrent() => {
                env.time(Stage::DecodeLag, paired.leg.posted_at())
            }
            _ => env.time(Stage::Dispatch, read_at),
        };
        conn.expect_little(slot.request.stream);
        let mut watch = waiting(sending, plan, conn, &mut paired);
        watch.wait_at_most(env.config.timeouts.first_byte);
        let answered = send(&mut watch, &mut upstream, outbound, &mut slot.answer.head).await;
        let wait_left = watch.down.left();
        match answered {
            Ok(sent) => {
                workers.hear(plan.worker);
                env.time(Stage::FirstByte, dispatched);
                env.counters.add(Count::UpstreamReused, u64::from(reused));
                if has_no_room(slot.answer.head.status) {
                    let after = slot.answer.head.value_of(FieldKind::RetryAfter, &upstream.input);
                    slot.answer.retry_after_s = after.and_then(retry_after_s);
                    keep_if_whole(sending, slot, plan, Answering { upstream, sent });
                    return Err(RelayError::EngineBusy);
                }
                if let Some(paired) = paired {
                    let down = DownWatch::new(env, workers, plan.worker).resumed(wait_left);
                    pair::first(conn, down, &slot.answer.head, &mut upstream, paired).await?;
                }
                return Ok(Answering { upstream, sent });
            }
            Err(error) if reused && env.was_stale(error, dispatched) => {
                env.count(Count::Resends);
                // From here on a refused connection counts as sent: the worker may have read it.
                is_resent = true;
            }
            Err(error) => return Err(error),
        }
    }
}

fn waiting<'a, 'b>(
    sending: Sending<'a>,
    plan: &SendPlan,
    conn: &'a mut Conn,
    paired: &'a mut Option<&mut Paired<'b>>,
) -> Waiting<'a, 'b> {
    let leg = paired.as_mut().map(|paired| &mut paired.leg);
    Waiting { conn, leg, down: DownWatch::new(sending.env, sending.workers, plan.worker) }
}

/// A refusal that has come whole leaves its connection as good as new.
fn keep_if_whole(sending: Sending<'_>, slot: &Slot, plan: &SendPlan, answering: Answering) {
    let BodyFraming::Length(bytes) = slot.answer.head.body else { return };
    let Answering { mut upstream, sent } = answering;
    let whole = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| slot.answer.head.head_bytes.checked_add(bytes));
    if sent && slot.answer.head.keep_alive && whole == Some(upstream.input.len()) {
        upstream.input.clear();
        sending.io.keep(sending.env, plan.address, upstream);
    }
}

fn own_body<'a>(head: &RequestHead, message: &'a [u8]) -> &'a [u8] {
    message.get(head.head_bytes..).unwrap_or_default()
}

/// Appends the head, and the beginning of the body where that is not the client's; returns how much
/// of the body stands in it.
fn encode(slot: &Slot, going: Going<'_>, paired: Option<&Paired<'_>>, out: &mut Vec<u8>) -> usize {
    let Going { plan, endpoint, .. } = going;
    let (mut in_header, mut start) = (plan.dp.pin, Vec::new());
    let (whole, rest) = match paired {
        Some(paired) => {
            in_header = in_header.filter(|_| !paired.is_pinned_in_body());
            (&slot.pair.leg_body[..], &slot.pair.leg_body[..])
        }
        None => {
            let body = own_body(&slot.head, &slot.message);
            match in_header.take_if(|_| plan.pins_in_body(endpoint)) {
                Some(rank) => (body, pin_in_body(body, rank, &mut start)),
                None => (body, body),
            }
        }
    };
    let mut digits = [0; 10];
    let pin = in_header.map(|rank| (header::DP_RANK, decimal(rank, &mut digits)));
    // The head that the client has promises a body as it is. A pair's answer is read before the
    // client has any of it.
    let is_plain = paired.is_some() || slot.answer.early.begun().is_some();
    let plain = is_plain.then_some(("accept-encoding", &b"identity"[..]));
    let told_priority = slot.priority_for(plan);
    let priority = told_priority.as_ref().map(|told| (PRIORITY, told.as_bytes()));
    // Each is compared with every field of the client's.
    let (mut extra, mut extra_count) = ([("", &b""[..]); 3], 0);
    for (place, field) in extra.iter_mut().zip([pin, plain, priority].into_iter().flatten()) {
        *place = field;
        extra_count += 1;
    }
    let head = UpstreamHead {
        authority: &plan.authority,
        content_length: match slot.head.body {
            BodyFraming::None => None,
            _ => u64::try_from(start.len().saturating_add(rest.len())).ok(),
        },
        request_id: match paired {
            Some(paired) => paired.request_id(&slot.request_id),
            None => &slot.request_id,
        },
        authorization: plan.authorization.as_deref(),
        extra: extra.get(..extra_count).unwrap_or_default(),
    };
    encode_request(&slot.head, &slot.message, &head, out);
    out.extend_from_slice(&start);
    whole.len().saturating_sub(rest.len())
}

/// What is accounted while the answer passes.
struct Accounted<'a> {
    plan: &'a SendPlan,
    lease: Lease,
    predicted: Option<Predicted>,
    paired: Option<&'a Paired<'a>>,
    /// How a stream of this endpoint tells of an error.
    shape: StreamShape,
}

/// Relays the answer whose head is parsed in the slot.
async fn answer(
    sending: Sending<'_>,
    conn: &mut Conn,
    slot: &Slot,
    answering: Answering,
    accounted: Accounted<'_>,
) -> Result<After, RelayError> {
    let Sending { env, io, workers } = sending;
    if let Some(begun) =
        slot.answer.early.begun().filter(|_| !Begun::goes_on_with(&slot.answer.head))
    {
        return end_early(sending, conn, slot, begun, answering, accounted.plan).await;
    }
    let Answering { mut upstream, sent } = answering;
    let Accounted { plan, mut lease, predicted, paired, shape } = accounted;
    let mut digits = [0; 10];
    let found = predicted.or_else(|| paired?.predicted);
    let overlap = found.map(|found| {
        let tokens = found.blocks.saturating_mul(found.block_size_tokens);
        (header::OVERLAP_TOKENS, decimal(tokens, &mut digits))
    });
    let prefill = paired.map(|paired| (header::PREFILL_WORKER, paired.plan.shown_as.as_bytes()));
    let extra = [
        Some((header::WORKER, plan.shown_as.as_bytes())),
        Some((header::REQUEST_ID, &slot.request_id[..])),
        overlap.or(prefill),
        overlap.and(prefill),
    ];
    let extra_count = extra.iter().flatten().count();
    let extra = extra.map(Option::unwrap_or_default);
    let wanted = Answer {
        head: &slot.answer.head,
        client_version: slot.head.version,
        keep_alive: slot.head.keep_alive && !env.draining.is_set(),
        shape,
        head_sent: slot.answer.early.begun().is_some(),
        extra: extra.get(..extra_count).unwrap_or_default(),
        idle_max: env.config.timeouts.stream_idle,
        write_max: env.config.timeouts.write,
    };
    let mut reported = None;
    let down = DownWatch::new(env, workers, plan.worker);
    let mut client = Waiting { conn, leg: None, down };
    let relayed = relay(&mut client, &mut upstream, &wanted, |data| {
        if !data.is_empty() {
            workers.hear(plan.worker);
            lease.prefill_done();
            if predicted.is_some() {
                reported = io.cached_tokens.find(data).or(reported);
            }
        }
    });
    let relayed = relayed.await?;
    env.counters.add(Count::ResponseBytes, relayed.body_bytes);
    if let (Some(predicted), Some(reported)) = (predicted, reported) {
        account_error(env, predicted, reported);
    }
    if relayed.upstream_reusable && sent {
        io.keep(env, plan.address, upstream);
    }
    Ok(if relayed.client_reusable { After::KeepAlive } else { After::Linger })
}

/// The engine's answer is not the stream that the client was promised: it becomes the last event of
/// one.
async fn end_early(
    sending: Sending<'_>,
    conn: &mut Conn,
    slot: &Slot,
    begun: &Begun,
    answering: Answering,
    plan: &SendPlan,
) -> Result<After, RelayError> {
    let (Sending { env, io, .. }, Answering { mut upstream, sent }) = (sending, answering);
    let idle_max = env.config.timeouts.stream_idle;
    let gathered = gather(conn, &mut upstream, &slot.answer.head, idle_max).await?;
    if gathered.upstream_reusable && sent {
        io.keep(env, plan.address, upstream);
    }
    Ok(standing::fail(begun, env, conn, slot.answer.head.status, &gathered.body).await)
}

fn account_error(env: &Env, predicted: Predicted, reported_tokens: u64) {
    let reported = reported_tokens / u64::from(predicted.block_size_tokens.max(1));
    let reported = i64::try_from(reported).unwrap_or(i64::MAX);
    // What lies between is in a lower tier: whether it counts as cached differs between engines and
    // connectors.
    let within = i64::from(predicted.blocks)..=i64::from(predicted.blocks_most);
    let expected = reported.clamp(*within.start(), *within.end());
    env.counters.overlap_error(expected.saturating_sub(reported));
}

/// Decimal digits of `value`.
fn decimal(mut value: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut start = digits.len();
    for (position, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        start = position;
        if value == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn decimals() {
        for value in [0, 7, 10, 4_294_967_295] {
            assert_eq!(decimal(value, &mut [0; 10]), value.to_string().as_bytes());
        }
    }
}
