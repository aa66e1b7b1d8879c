//! dispatch of a request to a pair of ranks: builds both legs and posts the prefill leg. The decode
//! leg then takes the path of any request, see `attempt`.

use super::abort;
use super::leg_bodies::{LegKind, LegOrder, Legs};
use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::exchange::request::PRIORITY;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::overlap::prediction::PredictedHit;
use crate::relay::{Upstream, first_bytes, gather};
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::leg::{AttemptWatch, PostedLeg};
use crate::state::shard::Shard;
use crate::state::workers::Workers;
use forebay_base::{RankIndex, RouterId};
use forebay_config::{KvFlow, Word};
use forebay_disagg::{
    Accusation, AnswerForm, KvTransferError, KvTransferId, PrefillAnswer, RankPin, SplitRequest,
    has_begun, legs_request_id, message_of, transfer_mode,
};
use forebay_fleet::worker::KvTransfer;
use forebay_http1::{ResponseHead, UpstreamHead, encode_request};
use forebay_mailbox::{AbortCall, LegCall, PrefillLeg, PrefillOutcome};
use forebay_router::dispatch::has_no_room;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{FailedAttempt, FailedPair, Fault, LegEnd, PrefillDispatch};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the rest of an engine's error body.
const WORDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// State of a request that was dispatched to a pair.
pub(crate) struct PairDispatch<'a> {
    pub(crate) leg: PostedLeg<'a>,
    /// Abort call for the decode engine.
    pub(crate) abort: Option<AbortCall>,
    /// Plan of the prefill rank, which is named to the client.
    pub(crate) plan: Rc<SendPlan>,
    /// Cache hit predicted for the prefill rank.
    pub(crate) predicted: Option<Box<PredictedHit>>,
    /// Parameters of both leg bodies.
    legs: Legs,
    /// The decode engine rejected the request as invalid.
    pub(crate) is_refused: bool,
    /// Accusation against the prefill leg in the decode engine's error, with its message.
    accused: Option<(Accusation, String)>,
}

impl PairDispatch<'_> {
    /// Facts for the blame after the decode leg has ended with `error`.
    pub(crate) fn failed_pair(&mut self, error: RelayError) -> FailedPair<'_> {
        let is_concurrent = self.is_concurrent();
        let prefill_waits = self.prefill_waits();
        FailedPair {
            error,
            accusation: self.accused.as_ref().map(|(accusation, _)| *accusation),
            leg: LegEnd::from(self.leg.look()),
            is_concurrent,
            prefill_waits,
        }
    }

    /// `X-Request-Id` of both legs.
    pub(crate) fn request_id<'a>(&'a self, of_client: &'a [u8]) -> &'a [u8] {
        legs_request_id(&self.legs.kv_transfer, &self.legs.id, of_client)
    }

    /// Polls the prefill leg. True once the leg has succeeded.
    pub(crate) fn look_prefilled(&mut self) -> bool {
        matches!(self.leg.look(), Some(PrefillOutcome::Done(_)))
    }

    /// True if the prefill engine answers only once decode has the KV.
    pub(crate) const fn prefill_waits(&self) -> bool {
        self.legs.kv_transfer.prefill_waits_for_decode()
    }

    /// True if both legs are sent at the same time.
    pub(crate) const fn is_concurrent(&self) -> bool {
        !matches!(self.legs.kv_transfer, KvTransfer::TwoPhase)
    }

    /// True if the decode leg's body selects the rank.
    pub(crate) const fn is_pinned_in_body(&self) -> bool {
        self.legs.decode.in_body
    }
}

/// Posts the prefill leg and leaves the decode leg's body in `leg_body`.
///
/// # Errors
/// [`FailedAttempt`], if a body cannot be built, or the decode leg needs the answer of a prefill
/// leg that failed.
pub(crate) async fn begin<'a>(
    shard: &'a Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    decode: &SendPlan,
    prefill: PrefillDispatch,
) -> Result<PairDispatch<'a>, FailedAttempt> {
    let kv_transfer = &prefill.kv_transfer;
    let Some(wanted) = exchange.phase.split.take() else {
        // Only a request that can be split is assigned to a pair.
        return Err(FailedAttempt::of(prefill.plan.rank, RelayError::NoKvTransfer));
    };
    let id = KvTransferId::new(shard.routing.stages.borrow_mut().random.u64(..));
    let prefill_pin = pin(&prefill.plan, kv_transfer);
    let decode_pin = pin(decode, kv_transfer);
    let rooms = {
        let RankPin { dp_rank, .. } = prefill_pin;
        let dp_size = match kv_transfer {
            KvTransfer::Bootstrap(bootstrap) => bootstrap.dp_size,
            _ => 1,
        };
        shard.queues.rooms.borrow_mut().draw(dp_size, dp_rank, wanted.rooms())
    };
    let legs = Legs {
        kv_transfer: kv_transfer.clone(),
        prefill: prefill_pin,
        decode: decode_pin,
        rooms,
        id,
    };
    let gone = |error| FailedAttempt::of(prefill.plan.rank, error);
    let making = LegOrder { made: LegKind::Prefill, out: Vec::new() };
    let leg_body =
        legs.body(&shard.io, conn, &mut exchange.request, &wanted, making).await.map_err(gone)?;
    let body = exchange.request.message.get(exchange.request.head.head_bytes..).unwrap_or_default();
    let abort = |plan: &SendPlan| abort_call(kv_transfer, &wanted, body, &id, plan);
    let abort_prefill = abort(&prefill.plan);
    let abort_decode = abort(decode);
    let trace = exchange.request.story.leg(prefill.plan.rank);
    let head = prefill_head(
        &exchange.request,
        &prefill.plan,
        &legs,
        leg_body.len(),
        shard.links.control.router_id,
    );
    let plan = Rc::clone(&prefill.plan);
    let leg = PostedLeg::post(shard, |ticket| {
        Box::new(PrefillLeg {
            ticket,
            lease: prefill.lease,
            worker: plan.worker,
            call: LegCall { address: prefill.plan.address, head, body: leg_body, trace },
            kv_transfer: kv_transfer.clone(),
            abort: abort_prefill,
            posted_at: shard.env.now(),
            timeout: timeout(&shard.env, &shard.workers),
        })
    });
    exchange.request.story.bill_mut().leg_sent(shard.env.now());
    let abort = abort_decode;
    let accused = None;
    let mut paired =
        PairDispatch { leg, abort, plan, predicted: None, legs, is_refused: false, accused };
    let handed = if paired.is_concurrent() { Ok(None) } else { paired.leg.done(conn).await };
    let mixed = handed.as_ref().ok().and_then(|handed| mixed(shard, decode.rank, handed.as_ref()));
    let made = match handed {
        Ok(handed) => {
            let made = LegKind::Decode(handed);
            let out = shard.io.buffers.take();
            let making = LegOrder { made, out };
            paired.legs.body(&shard.io, conn, &mut exchange.request, &wanted, making).await
        }
        Err(error) => Err(error),
    };
    // Also after a failure: the next attempt may be a pair again.
    exchange.phase.split.put_back(wanted);
    if let Some(why) = mixed {
        let failed = FailedAttempt::of(paired.leg.rank(), RelayError::NoKvTransfer);
        return Err(FailedAttempt { partner: Some(decode.rank), why: Some(why), ..failed });
    }
    match made.map(|made| shard.io.recycle(std::mem::replace(&mut exchange.request.leg_body, made)))
    {
        Ok(()) => Ok(paired),
        Err(RelayError::PrefillFailed) => Err(failed_by(&paired.leg, decode.rank)),
        Err(error) => Err(FailedAttempt::of(paired.leg.rank(), error)),
    }
}

/// Error message if the decode worker is configured for another KV transfer mode than the handed
/// parameters. Its engine would answer 500, or compute the prompt again.
fn mixed(shard: &Shard, decode: RankIndex, handed: Option<&Vec<u8>>) -> Option<String> {
    let fleet = shard.workers.fleet.borrow();
    let (rank, worker) = fleet.rank(decode)?;
    let flow = rank.kv_flow?;
    let taken = match flow {
        KvFlow::TwoPhase => "pull",
        KvFlow::Push => "push",
        KvFlow::Mooncake => return None,
    };
    // The engine may understand a mode that the router does not know.
    let is_other = |mode: &String| ["pull", "push"].contains(&&**mode) && mode != taken;
    let mode = transfer_mode(handed?).filter(is_other)?;
    Some(format!(
        "The KV of the prefill worker moves by {mode:?}, and the decode worker {} takes it by \
         {taken:?} (`kv_flow` is {:?}): start both with the same connector",
        worker.name,
        flow.word()
    ))
}

fn timeout(env: &Env, workers: &Workers) -> Duration {
    let flow = &workers.fleet.borrow().config.flow;
    flow.disaggregation.prefill_timeout.unwrap_or(env.config().timeouts.first_byte)
}

/// Checks the beginning of the decode leg's answer before any of it reaches the client. Once the
/// client has bytes, the request can no longer move to another pair, and the prefill leg no longer
/// matters.
///
/// # Errors
/// [`RelayError`] before the head of an answer.
pub(crate) async fn first(
    conn: &mut Conn,
    down: DownWatch<'_>,
    response: &ResponseHead,
    upstream: &mut Upstream,
    paired: &mut PairDispatch<'_>,
) -> Result<(), RelayError> {
    if response.status >= 500 {
        if matches!(paired.legs.kv_transfer, KvTransfer::Bootstrap(_)) {
            let mut watch = AttemptWatch { conn, leg: Some(&mut paired.leg), down };
            let body = gather(&mut watch, upstream, response, WORDS_WAIT_MAX).await?.body;
            let accusation = Accusation::in_words(&paired.legs.kv_transfer, &body);
            paired.accused = accusation.map(|accusation| (accusation, message_of(&body)));
        }
        return Err(RelayError::EngineFailed);
    }
    if !(200..300).contains(&response.status) {
        paired.is_refused = true;
        return Ok(());
    }
    let is_enough = |body: &[u8]| !response.is_event_stream() || has_begun(body);
    let mut watch = AttemptWatch { conn, leg: Some(&mut paired.leg), down };
    let body = first_bytes(&mut watch, upstream, response, is_enough).await?;
    if !response.is_event_stream() {
        return Ok(());
    }
    // SGLang reports a failed KV transfer inside the stream.
    match PrefillAnswer::new(&paired.legs.kv_transfer, AnswerForm::Events).feed(&body) {
        Err(KvTransferError::Engine { status, message }) => match status {
            // SGLang's `/generate` sends no status with a request error.
            None | Some(400..=428 | 430..=499) => {
                paired.is_refused = true;
                Ok(())
            }
            Some(status) if has_no_room(status) => Err(RelayError::EngineBusy),
            Some(_) => {
                let accusation = Accusation::in_words(&paired.legs.kv_transfer, message.as_bytes());
                paired.accused = accusation.map(|accusation| (accusation, message));
                Err(RelayError::EngineFailed)
            }
        },
        _ => Ok(()),
    }
}

/// Ends a failed decode leg: aborts it on its engine, and returns which rank to blame. `decode`:
/// the decode rank, or the only rank.
pub(crate) fn abandoned(
    shard: &Shard,
    paired: Option<PairDispatch<'_>>,
    decode: RankIndex,
    error: RelayError,
) -> FailedAttempt {
    let Some(mut paired) = paired else { return FailedAttempt::of(decode, error) };
    let may_run_on = !error.is_unsent() && error != RelayError::OutOfSockets;
    if let Some(call) = paired.abort.take().filter(|_| may_run_on) {
        abort::start(shard, call);
    }
    if error == RelayError::PrefillFailed {
        return failed_by(&paired.leg, decode);
    }
    let by_prefill = paired.failed_pair(error).fault() == Fault::Prefill;
    if let Some((_, words)) = paired.accused.take() {
        let prefill = paired.leg.rank();
        let (rank, with) = if by_prefill { (prefill, decode) } else { (decode, prefill) };
        let why = if by_prefill {
            format!("the decode worker that should use its KV has waited in vain: {words}")
        } else {
            words
        };
        return FailedAttempt {
            partner: Some(with),
            why: Some(why),
            ..FailedAttempt::of(rank, error)
        };
    }
    if error == RelayError::EngineFailed && !paired.prefill_waits() {
        // When the prefill rank is gone, vLLM's decode rank fails each request that needs its KV
        // with only "Internal server error". The decode rank still computes prompts. If no other
        // decode rank is left, the next attempt uses it again, with KV of another prefill rank or
        // without.
        let why = "the decode worker that should use its KV answered that it failed";
        let failed = FailedAttempt::of(paired.leg.rank(), error);
        return FailedAttempt { partner: Some(decode), why: Some(why.into()), ..failed };
    }
    FailedAttempt::of(decode, error)
}

/// Failure for a request that its prefill leg ended.
fn failed_by(leg: &PostedLeg<'_>, decode: RankIndex) -> FailedAttempt {
    FailedAttempt::by_leg(leg.ended(), leg.rank(), decode)
}

/// How a leg selects a rank of its worker. For SGLang in the body, because its `/generate` reads no
/// header.
fn pin(plan: &SendPlan, kv_transfer: &KvTransfer) -> RankPin {
    RankPin {
        dp_rank: plan.dp.rank,
        dp_size: plan.dp.size,
        in_body: plan.dp.pin.is_some() && matches!(kv_transfer, KvTransfer::Bootstrap(_)),
    }
}

/// Only SGLang needs abort calls.
fn abort_call(
    kv_transfer: &KvTransfer,
    wanted: &SplitRequest,
    body: &[u8],
    id: &KvTransferId,
    plan: &SendPlan,
) -> Option<AbortCall> {
    let mut call = Vec::new();
    let is_needed =
        matches!(kv_transfer, KvTransfer::Bootstrap(_)) && wanted.push_abort(body, id, &mut call);
    is_needed.then(|| AbortCall {
        worker: plan.worker,
        address: plan.address,
        authority: Arc::clone(&plan.authority),
        authorization: plan.authorization.clone(),
        body: call.into(),
    })
}

/// Head of the prefill leg.
fn prefill_head(
    request: &Request<'_>,
    plan: &SendPlan,
    legs: &Legs,
    body_bytes: usize,
    router_id: RouterId,
) -> Vec<u8> {
    let digits = plan.dp.pin.filter(|_| !legs.prefill.in_body).map(|rank| rank.to_string());
    let pinned = digits.as_ref().map(|rank| ("x-data-parallel-rank", rank.as_bytes()));
    let number = request.priority_for(plan);
    let priority = number.as_ref().map(|number| (PRIORITY, number.as_bytes()));
    let [for_client, forwarded] = request.forwarded();
    let [bearer, key] = request.withheld();
    let [parent, state] = request.story.trace_fields();
    let head = UpstreamHead {
        authority: &plan.authority,
        via: router_id.as_bytes(),
        content_length: Some(u64::try_from(body_bytes).unwrap_or(u64::MAX)),
        request_id: legs_request_id(&legs.kv_transfer, &legs.id, request.request_id()),
        authorization: plan.authorization.as_deref(),
        // The router reads the answer, so it must not be compressed.
        extra: &[
            pinned.unwrap_or_default(),
            priority.unwrap_or_default(),
            ("accept-encoding", b"identity"),
            for_client.unwrap_or_default(),
            forwarded.unwrap_or_default(),
            bearer.unwrap_or_default(),
            key.unwrap_or_default(),
            request.claim().unwrap_or_default(),
            parent.unwrap_or_default(),
            state.unwrap_or_default(),
        ],
    };
    let mut out = Vec::with_capacity(request.head.head_bytes + 256);
    encode_request(&request.head, &request.message, &head, &mut out);
    out
}
