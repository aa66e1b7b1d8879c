//! dispatch, relay: a single attempt to get an answer from a rank.

use super::declined_answer::decline;
use crate::exchange::Exchange;
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::phase::Delivery;
use crate::exchange::resumable::Resumable;
use crate::ingress::Conn;
use crate::intake::websocket;
use crate::overlap::prediction::PredictedHit;
use crate::pair::begin::{self, PairDispatch};
use crate::relay::{Outbound, Upstream, Watch, first_bytes, send};
use crate::reply::early_head;
use crate::resume::remainder;
use crate::send::answer_meaning::{meaning, retry_error};
use crate::send::blame;
use crate::send::outbound::{Dispatch, encode, own_body};
use crate::send::relay_answer::{AttemptAccount, UpstreamAnswer, answer, answer_began};
use crate::send::tunnel;
use crate::state::connecting::{ConnectTarget, connect};
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::leg::AttemptWatch;
use crate::state::pulse::PulseWatch;
use crate::state::shard::{SendParts, Shard};
use crate::story::event;
use forebay_base::limits::READ_AT_ONCE_BYTES_MAX;
use forebay_base::{NanosSinceStart, RankIndex, since_1970};
use forebay_board::account::{
    BlameScope, BodyStart, Count, FailedTrial, FirstTokenKind, Lease, Stage,
};
use forebay_mailbox::RequestFacts;
use forebay_net::{Timer, join_cohort};
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{EngineOrder, RelayError, SendPlan};
use forebay_router::request::{
    AnswerMeaning, ChosenRanks, FailedAttempt, Judgement, RequestFlow, WorkerReply, may_be_blamed,
};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

/// Target and history of an attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) endpoint: Endpoint,
    pub(crate) facts: &'a RequestFacts,
    pub(crate) chosen: Box<ChosenRanks>,
    /// Cache hit predicted for the rank that computes the prompt. `None` unless the rank sends KV
    /// events.
    pub(crate) predicted: Option<Box<PredictedHit>>,
    /// Outcome of earlier attempts.
    pub(crate) before: Option<Box<PriorAttempt>>,
}

/// Outcome of earlier attempts that affects the blame of the next.
#[derive(Debug)]
pub(crate) struct PriorAttempt {
    /// Rank that failed the request, and the error, unless the attempt was a pair.
    pub(crate) failed_at: Option<(RankIndex, RelayError)>,
    pub(crate) trial: Option<Box<FailedTrial>>,
}

impl PriorAttempt {
    /// `None` if the earlier attempts do not affect the blame of the next.
    pub(crate) fn of(flow: &mut RequestFlow) -> Option<Box<Self>> {
        let failed_at = flow.failed_at();
        let trial = flow.take_trial();
        (failed_at.is_some() || trial.is_some()).then(|| Box::new(Self { failed_at, trial }))
    }

    /// Rank that failed the request with the same error.
    fn failed_alike(&self, error: RelayError) -> Option<RankIndex> {
        let is_requests = error.blames_worker() && !error.is_ranks_own();
        let alike = self.failed_at.filter(|(_, before)| is_requests && *before == error);
        alike.map(|(rank, _)| rank)
    }
}

/// Lease, pair and history of a failed attempt.
struct FailedTry<'a, 'b> {
    lease: Lease,
    paired: Option<PairDispatch<'b>>,
    before: Option<&'a PriorAttempt>,
}

/// Sends the request and relays the answer. Returns the leases in any case before this function
/// returns.
pub(crate) async fn run(
    shard: &Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    attempt: Attempt<'_>,
) -> Result<ConnectionReuse, FailedAttempt> {
    let Attempt { endpoint, facts, chosen, mut predicted, before } = attempt;
    exchange.request.caller.priority.number = engine_number(shard, exchange, &chosen, facts);
    let ChosenRanks { plan, mut lease, prefill } = *chosen;
    let mut paired = match prefill {
        Some(prefill) => Some(begin::begin(shard, conn, exchange, &plan, prefill).await?),
        None => None,
    };
    if let Some(paired) = &mut paired {
        paired.predicted = predicted.take();
    }
    let router_id = &shard.links.control.router_id;
    if before.as_ref().is_some_and(|before| before.trial.is_some()) {
        lease.end_trial();
    }
    let is_trial = lease.is_trial();
    let is_paired = paired.is_some();
    let going = Dispatch { plan: &plan, endpoint, facts, is_trial, is_paired, router_id };
    let pulse = pulse(shard, exchange, going, paired.is_some());
    let passes_at = passes_at(shard, exchange, going, &mut lease, paired.is_some());
    let ended = {
        let answer = pin!(exchange_with(shard.sending(), conn, exchange, going, paired.as_mut()));
        beside(answer, passes_at, &mut lease).await
    };
    let answering = match ended {
        Ok(answering) => answering,
        Err(error) => {
            let tried = FailedTry { lease, paired, before: before.as_deref() };
            return Err(failed(shard, exchange, going, tried, error));
        }
    };
    let meaning = meaning(&exchange.request, &plan, endpoint);
    let is_served = meaning == AnswerMeaning::Served;
    settle_trial(shard, before.and_then(|before| before.trial), is_served);
    if let Some(paired) = paired.as_ref().filter(|_| is_served) {
        blame::pair_works(shard, paired, plan.rank, facts.requester());
    }
    let is_resumable = remainder::answer_began(exchange, &plan, paired.is_some());
    answer_began(shard, &mut exchange.request, going, &mut lease, meaning, is_resumable);
    let paired_with = paired.as_ref();
    let pulse = pulse.as_ref();
    let accounted =
        AttemptAccount { going, lease: &mut lease, pulse, predicted, paired: paired_with };
    let relayed = match exchange.request.answer_head.status {
        // Boxed, because few connections become a tunnel: inline, every connection's future would
        // be as large.
        101 => {
            Box::pin(tunnel::run(shard.sending(), conn, &exchange.request, answering, accounted))
                .await
        }
        _ if is_resumable => {
            Box::pin(remainder::answer(shard, conn, exchange, answering, accounted)).await
        }
        _ => answer(shard, conn, &mut exchange.request, &mut Some(answering), accounted).await,
    };
    // Before the rank is blamed: its load must not include this request.
    drop(lease);
    match relayed {
        Ok(after) => {
            // The KV has arrived. The prefill answer still follows, but no task needs it. After a
            // refusal the leg is useless, so its drop cancels it.
            if let Some(paired) = &mut paired
                && !paired.is_refused
            {
                paired.leg.let_go();
            }
            Ok(after)
        }
        Err(error) => {
            if may_be_blamed(endpoint, error) {
                blame::broke_off(shard, going, error);
            }
            let failed = begin::abandoned(shard, paired, plan.rank, error);
            if matches!(exchange.phase.resumable, Resumable::Off) {
                return Err(failed);
            }
            Box::pin(remainder::broke_off(shard, conn, exchange, failed)).await
        }
    }
}

/// Position of the request in vLLM's own queue, if the router sets priorities. Computed per rank,
/// because the prefill time differs.
fn engine_number(
    shard: &Shard,
    exchange: &Exchange<'_, Delivery>,
    chosen: &ChosenRanks,
    facts: &RequestFacts,
) -> Option<i64> {
    let fleet = shard.workers.fleet.borrow();
    let queue = &fleet.config.flow.queue;
    if !queue.engine_priority {
        return None;
    }
    let waited = Duration::from_nanos(shard.env.now().since(facts.arrived_at));
    let order = EngineOrder {
        arrived_at: since_1970().saturating_sub(waited),
        prefill_time: chosen.prefill_time().unwrap_or_default(),
        overtaken_max: queue.overtaken_max,
    };
    Some(order.number(exchange.request.granted_priority()))
}

/// Handles an attempt that ended before a byte of its answer was relayed: assigns the blame and
/// returns the lease and the failure.
fn failed(
    shard: &Shard,
    exchange: &mut Exchange<'_, Delivery>,
    Dispatch { plan, endpoint, facts, .. }: Dispatch<'_>,
    FailedTry { mut lease, mut paired, before }: FailedTry<'_, '_>,
    error: RelayError,
) -> FailedAttempt {
    shard.io.note_lack_of_sockets(&shard.env, error);
    let is_unprefilled = paired.as_mut().is_some_and(|paired| !paired.look_prefilled());
    let now = shard.env.now();
    exchange.request.story.failed(&event::AttemptFailure { error, is_unprefilled, now });
    if may_be_blamed(endpoint, error) {
        let first = before.and_then(|before| before.failed_alike(error));
        match first.filter(|_| paired.is_none()) {
            Some(first) => blame::forgive(shard, first),
            None => blame::failed(shard, &mut lease, plan, paired.as_mut(), error),
        }
    }
    let trial = match (error, meaning(&exchange.request, plan, endpoint)) {
        (RelayError::TrialFailed, AnswerMeaning::Failed(scope, weight)) => {
            let failed =
                Judgement::Failure { scope, weight, status: exchange.request.answer_head.status };
            let failure = failed.against(plan.rank, facts.requester(), false);
            failure.map(|failure| Box::new(lease.judge_open(failure)))
        }
        _ => None,
    };
    // Return the lease before recording the refusal: the rank's load then becomes its limit for a
    // while, and must not include this request.
    drop(lease);
    if error == RelayError::EngineBusy {
        shard.workers.engine_refused(&shard.env, plan.rank, facts.model);
    }
    if error == RelayError::CallerLimited {
        shard.env.counters.held(BlameScope::Caller);
    }
    let abandoned = begin::abandoned(shard, paired, plan.rank, error);
    let WorkerReply { answer, retry_after_s, .. } = std::mem::take(&mut exchange.phase.reply);
    let answer = answer.or(abandoned.reply.answer);
    let reply = WorkerReply { answer, trial, retry_after_s };
    FailedAttempt { is_resumable: exchange.phase.resumable.is_remainder(), reply, ..abandoned }
}

/// Settles the blame of a failed trial once another rank has answered its request.
fn settle_trial(shard: &Shard, trial: Option<Box<FailedTrial>>, is_served: bool) {
    if let Some(trial) = trial.filter(|_| is_served) {
        blame::served_elsewhere(shard, &trial);
    }
}

/// Estimated end of the prompt computation, if no first token will show it. For a pair, the end of
/// the prefill leg shows it.
fn passes_at(
    shard: &Shard,
    exchange: &Exchange<'_, Delivery>,
    going: Dispatch<'_>,
    lease: &mut Lease,
    is_paired: bool,
) -> Option<NanosSinceStart> {
    if going.endpoint == Endpoint::WebSocket {
        lease.set_unseen();
        return None;
    }
    if is_paired || !going.endpoint.is_inference() {
        return None;
    }
    let now = shard.env.turn_began_at();
    let shows = going.body_start(&exchange.request.api) == BodyStart::Token;
    let kind = FirstTokenKind { shows, is_stream: shows && exchange.request.api.stream };
    let first_tokens = shard.workers.first_tokens(going.facts.model)?;
    Some(now.plus(first_tokens.time_unseen(kind, lease, now)?))
}

/// Waits for the beginning of an answer. From `passes_at` on, the prompt counts as computed.
fn beside<'a, T>(
    mut answer: Pin<&'a mut impl Future<Output = T>>,
    passes_at: Option<NanosSinceStart>,
    lease: &'a mut Lease,
) -> impl Future<Output = T> {
    let mut passes = passes_at.map(|at| (at, Timer::new()));
    poll_fn(move |cx| {
        if let Some((at, timer)) = &mut passes
            && timer.poll_until(*at, cx).is_ready()
        {
            lease.prefill_due(*at);
            passes = None;
        }
        answer.as_mut().poll(cx)
    })
}

/// Pulse watch of the attempt. A pair has none: each leg also waits for the other, so its timing is
/// no sign of its rank.
fn pulse<'a>(
    shard: &'a Shard,
    exchange: &Exchange<'_, Delivery>,
    going: Dispatch<'_>,
    is_paired: bool,
) -> Option<PulseWatch<'a>> {
    if is_paired || !going.endpoint.is_inference() {
        return None;
    }
    let workers = &shard.workers;
    let rank = going.plan.rank;
    let is_stream = exchange.request.api.stream;
    let tokens = workers.board.rank(rank)?.prefill_tokens();
    let sent_at = if is_stream { shard.env.now() } else { NanosSinceStart(0) };
    Some(PulseWatch::new(workers.pulse(rank)?, is_stream, sent_at, tokens))
}

/// Sends the request and waits for the head of the answer. Replaces a stale pooled connection once.
async fn exchange_with(
    sending: SendParts<'_>,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    going: Dispatch<'_>,
    mut paired: Option<&mut PairDispatch<'_>>,
) -> Result<UpstreamAnswer, RelayError> {
    let SendParts { env, io, workers } = sending;
    let Dispatch { plan, facts, .. } = going;
    early_head::dispatched(env, conn, &exchange.request, &plan.shown_as).await?;
    let is_long = may_be_unread(exchange, going.endpoint);
    let may_leave = may_leave(env, exchange, paired.is_some());
    let key = workers.key(plan.worker, plan.address);
    let mut is_resent = false;
    let mut pooled = io.upstreams.borrow_mut().take(key, env.turn_began_at(), is_long);
    loop {
        let reused = pooled.is_some();
        let mut upstream = match pooled.take() {
            Some(upstream) => upstream,
            None => {
                let mut watch = waiting(sending, plan, conn, may_leave, &mut paired);
                let timeout = env.config().timeouts.connect;
                let to = ConnectTarget { worker: plan.worker, key, timeout, is_for_long: is_long };
                // Boxed, because most requests find a pooled connection: inline, every connection's
                // future would be as large.
                let connecting = Box::pin(connect(sending, &mut watch, to));
                connecting.await.map_err(|error| error.resent(is_resent))?
            }
        };
        let is_prefilled = paired.as_ref().is_some_and(|paired| !paired.is_concurrent());
        let sent = event::AttemptStart { env, rank: plan.rank, is_prefilled };
        exchange.request.story.sent(&sent);
        let mut head = io.buffers.take();
        let limits = env.head_limits();
        let begun_bytes = encode(exchange, going, paired.as_deref(), &mut head);
        let Buffers { head: sent_head, message, leg_body, answer_head, .. } =
            &mut *exchange.request.buffers;
        let body = match paired {
            Some(_) => &leg_body[..],
            None => own_body(sent_head, message),
        };
        let outbound = Outbound {
            head,
            body: body.get(begun_bytes..).unwrap_or_default(),
            method: &sent_head.method,
            may_switch: going.endpoint == Endpoint::WebSocket,
            limits: &limits,
        };
        let dispatched = match &paired {
            Some(pair) if pair.is_concurrent() => env.time(Stage::DecodeLag, pair.leg.posted_at()),
            _ => env.time(Stage::Dispatch, facts.arrived_at),
        };
        let mut watch = waiting(sending, plan, conn, may_leave, &mut paired);
        watch.wait_at_most(env.config().timeouts.first_byte);
        let answered = send(&mut watch, &mut upstream, outbound, answer_head).await;
        let wait_left = watch.down.left();
        match answered {
            Ok(sent) => {
                join_cohort().await;
                workers.count_receipt(plan.worker, answer_head.status);
                let head_at = env.time(Stage::FirstByte, dispatched);
                env.counters.add(Count::UpstreamReused, u64::from(reused));
                if let Some(error) = retry_error(exchange, going, &upstream.input) {
                    let answering = UpstreamAnswer { upstream, sent };
                    return Err(decline(sending, conn, exchange, plan, answering, error).await);
                }
                websocket::check_answer(&exchange.request, &upstream.input)?;
                remainder::check_answer(exchange, plan, paired.is_some())?;
                if paired.is_some() || may_leave {
                    let down = down(sending, plan, may_leave).resumed(wait_left);
                    let first = first(conn, exchange, down, &mut upstream, paired);
                    first.await?;
                }
                exchange.request.story.facts.times.head_at.get_or_insert(head_at);
                return Ok(UpstreamAnswer { upstream, sent });
            }
            Err(error) if reused && env.was_stale(error, dispatched) => {
                env.count(Count::Resends);
                // From here on a refused connection counts as sent: the worker may have read the
                // request.
                is_resent = true;
            }
            Err(error) => return Err(error),
        }
    }
}

/// True if the worker may still read the request when a host's TCP timeout would expire.
fn may_be_unread(exchange: &Exchange<'_, Delivery>, endpoint: Endpoint) -> bool {
    let bytes = exchange.request.message.len().max(exchange.request.leg_body.len());
    bytes > READ_AT_ONCE_BYTES_MAX || endpoint == Endpoint::WebSocket
}

/// Waits for the first body bytes of a stream: the head alone is no answer.
async fn first(
    conn: &mut Conn,
    exchange: &Exchange<'_, Delivery>,
    mut down: DownWatch<'_>,
    upstream: &mut Upstream,
    paired: Option<&mut PairDispatch<'_>>,
) -> Result<(), RelayError> {
    let head = &exchange.request.answer_head;
    if exchange.phase.resumable.is_remainder() {
        // The same timeout as between events of the stream.
        conn.wait_at_most(down.begin_idle());
    }
    match paired {
        Some(paired) => begin::first(conn, down, head, upstream, paired).await,
        None if head.is_event_stream() => {
            let mut watch = AttemptWatch { conn, leg: None, down };
            first_bytes(&mut watch, upstream, head, |_| true).await.map(drop)
        }
        None => Ok(()),
    }
}

fn waiting<'a, 'b>(
    sending: SendParts<'a>,
    plan: &SendPlan,
    conn: &'a mut Conn,
    may_leave: bool,
    paired: &'a mut Option<&mut PairDispatch<'b>>,
) -> AttemptWatch<'a, 'b> {
    let down = down(sending, plan, may_leave);
    let leg = paired.as_mut().map(|paired| &mut paired.leg);
    AttemptWatch { conn, leg, down }
}

/// True if the request may move to another rank before the first byte of its answer. The remainder
/// of a stream always may.
fn may_leave(env: &Env, exchange: &Exchange<'_, Delivery>, is_paired: bool) -> bool {
    !is_paired && (exchange.phase.resumable.is_remainder() || env.config().retry.after_send)
}

/// Health watch of a request before the first byte of its answer. If it `may_leave`, it leaves a
/// stalled rank.
fn down<'a>(sending: SendParts<'a>, plan: &SendPlan, may_leave: bool) -> DownWatch<'a> {
    let down = DownWatch::new(sending.env, sending.workers, plan.worker);
    if may_leave { down.leaving(plan.rank) } else { down }
}
