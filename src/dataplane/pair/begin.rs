//! dispatch of a request that a pair of ranks serves: what both legs are sent, and the prefill
//! leg's departure. The decode leg then goes the way of any request, see `attempt`.

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
use forebay_fleet::mailbox::{AbortCall, LegCall, PrefillLeg, PrefillOutcome};
use forebay_fleet::worker::KvTransfer;
use forebay_http1::{ResponseHead, UpstreamHead, encode_request};
use forebay_router::dispatch::has_no_room;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{Failed, FailedPair, Fault, LegEnd, PrefillDispatch};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for more of what an engine says when it fails.
const WORDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// A pair's request on its way.
pub(crate) struct PairDispatch<'a> {
    /// Its prefill leg.
    pub(crate) leg: PostedLeg<'a>,
    /// How the decode engine is told that it is not wanted any more.
    pub(crate) abort: Option<AbortCall>,
    /// The prefill rank, as the client hears of it too.
    pub(crate) plan: Rc<SendPlan>,
    /// What the prefill rank is expected to find in its cache.
    pub(crate) predicted: Option<PredictedHit>,
    /// What both legs are made of.
    legs: Legs,
    /// The decode engine wants nothing of the request.
    pub(crate) is_refused: bool,
    /// What the decode engine said of the prefill leg when it failed, and its words.
    accused: Option<(Accusation, String)>,
}

impl PairDispatch<'_> {
    /// What is known of it, now that the decode leg has ended so.
    pub(crate) fn known(&mut self, error: RelayError) -> FailedPair<'_> {
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

    /// Has the prefill leg done its part?
    pub(crate) fn is_prefilled(&mut self) -> bool {
        matches!(self.leg.look(), Some(PrefillOutcome::Done(_)))
    }

    /// Prefill's answer comes when decode has the KV.
    pub(crate) const fn prefill_waits(&self) -> bool {
        self.legs.kv_transfer.prefill_waits_for_decode()
    }

    /// Both legs leave at once.
    pub(crate) const fn is_concurrent(&self) -> bool {
        !matches!(self.legs.kv_transfer, KvTransfer::TwoPhase)
    }

    /// The decode leg's body says which rank is meant.
    pub(crate) const fn is_pinned_in_body(&self) -> bool {
        self.legs.decode.in_body
    }
}

/// Sends the prefill leg and leaves the decode leg's body in the slot.
///
/// # Errors
/// [`Failed`], where the decode leg has to wait for the prefill leg's answer and that failed.
pub(crate) async fn begin<'a>(
    shard: &'a Shard,
    conn: &mut Conn,
    exchange: &mut Exchange<'_, Delivery>,
    decode: &SendPlan,
    prefill: PrefillDispatch,
) -> Result<PairDispatch<'a>, Failed> {
    let kv_transfer = &prefill.kv_transfer;
    let Some(wanted) = exchange.phase.split.take() else {
        // Only what can be split gets a pair.
        return Err(Failed::of(prefill.plan.rank, RelayError::NoKvTransfer));
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
    let gone = |error| Failed::of(prefill.plan.rank, error);
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
        shard.links.doors.router_id,
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
    // Also where a leg failed: the next attempt may be a pair again.
    exchange.phase.split.put_back(wanted);
    if let Some(why) = mixed {
        let failed = Failed::of(paired.leg.rank(), RelayError::NoKvTransfer);
        return Err(Failed { with: Some(decode.rank), why: Some(why), ..failed });
    }
    match made.map(|made| shard.io.recycle(std::mem::replace(&mut exchange.request.leg_body, made)))
    {
        Ok(()) => Ok(paired),
        Err(RelayError::PrefillFailed) => Err(failed_by(&paired.leg, decode.rank)),
        Err(error) => Err(Failed::of(paired.leg.rank(), error)),
    }
}

/// What is wrong with handing that over, where the decode worker is known to take KV in another
/// way: its engine would answer 500, or compute the prompt again.
fn mixed(shard: &Shard, decode: RankIndex, handed: Option<&Vec<u8>>) -> Option<String> {
    let fleet = shard.workers.fleet.borrow();
    let (rank, worker) = fleet.rank(decode)?;
    let flow = rank.kv_flow?;
    let taken = match flow {
        KvFlow::TwoPhase => "pull",
        KvFlow::Push => "push",
        KvFlow::Mooncake => return None,
    };
    // A mode that is unknown here may be one that the engine understands.
    let is_other = |mode: &String| ["pull", "push"].contains(&&**mode) && mode != taken;
    let mode = transfer_mode(handed?).filter(is_other)?;
    Some(format!(
        "The KV of the prefill worker moves by {mode:?}, and the decode worker {} takes it by \
         {taken:?} (`kv_flow` is {:?}): start both with the same connector.",
        worker.name,
        flow.word()
    ))
}

fn timeout(env: &Env, workers: &Workers) -> Duration {
    let flow = &workers.fleet.borrow().config.flow;
    flow.disaggregation.prefill_timeout.unwrap_or(env.config().timeouts.first_byte)
}

/// Looks at the beginning of the decode leg's answer while nothing of it has reached the client:
/// once it has begun there is no other pair for the request, and nobody looks at its prefill leg
/// any more.
///
/// # Errors
/// [`RelayError`], all `before_head`.
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
    let is_enough = |body: &[u8]| !response.event_stream || has_begun(body);
    let mut watch = AttemptWatch { conn, leg: Some(&mut paired.leg), down };
    let body = first_bytes(&mut watch, upstream, response, is_enough).await?;
    if !response.event_stream {
        return Ok(());
    }
    // SGLang says in the stream that the KV did not come.
    match PrefillAnswer::new(&paired.legs.kv_transfer, AnswerForm::Events).feed(&body) {
        Err(KvTransferError::Engine { status, message }) => match status {
            // SGLang's `/generate` gives no status for what is wrong with a request.
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

/// The decode leg ended with an error: both engines hear that they need not go on, and whoever asks
/// hears which of them is to blame. `decode`: the decode rank, or the only one.
pub(crate) fn abandoned(
    shard: &Shard,
    paired: Option<PairDispatch<'_>>,
    decode: RankIndex,
    error: RelayError,
) -> Failed {
    let Some(mut paired) = paired else { return Failed::of(decode, error) };
    let may_run_on = !error.is_unsent() && error != RelayError::OutOfSockets;
    if let Some(call) = paired.abort.take().filter(|_| may_run_on) {
        abort::start(shard, call);
    }
    if error == RelayError::PrefillFailed {
        return failed_by(&paired.leg, decode);
    }
    let by_prefill = paired.known(error).fault() == Fault::Prefill;
    if let Some((_, words)) = paired.accused.take() {
        let prefill = paired.leg.rank();
        let (rank, with) = if by_prefill { (prefill, decode) } else { (decode, prefill) };
        let why = if by_prefill {
            format!("the decode worker that should use its KV has waited in vain: {words}")
        } else {
            words
        };
        return Failed { with: Some(with), why: Some(why), ..Failed::of(rank, error) };
    }
    if error == RelayError::EngineFailed && !paired.prefill_waits() {
        // vLLM's decode rank says nothing but "Internal server error" when the prefill rank whose
        // KV it was promised is gone, at once and for each such request. It computes prompts
        // itself as before: where no other is left, it is asked again, with the KV of another or
        // without.
        let why = "the decode worker that should use its KV answered that it failed";
        let failed = Failed::of(paired.leg.rank(), error);
        return Failed { with: Some(decode), why: Some(why.into()), ..failed };
    }
    Failed::of(decode, error)
}

/// The prefill leg ended the request.
fn failed_by(leg: &PostedLeg<'_>, decode: RankIndex) -> Failed {
    Failed::by_leg(leg.ended(), leg.rank(), decode)
}

/// How a leg says which of its worker's ranks is meant: SGLang's in the body, because its
/// `/generate` reads no header.
fn pin(plan: &SendPlan, kv_transfer: &KvTransfer) -> RankPin {
    RankPin {
        dp_rank: plan.dp.rank,
        dp_size: plan.dp.size,
        in_body: plan.dp.pin.is_some() && matches!(kv_transfer, KvTransfer::Bootstrap(_)),
    }
}

/// Only SGLang has to be told.
fn abort_call(
    kv_transfer: &KvTransfer,
    wanted: &SplitRequest,
    body: &[u8],
    id: &KvTransferId,
    plan: &SendPlan,
) -> Option<AbortCall> {
    let mut call = Vec::new();
    let is_told =
        matches!(kv_transfer, KvTransfer::Bootstrap(_)) && wanted.push_abort(body, id, &mut call);
    is_told.then(|| AbortCall {
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
    let told_priority = request.priority_for(plan);
    let priority = told_priority.as_ref().map(|told| (PRIORITY, told.as_bytes()));
    let [for_client, forwarded] = request.forwarded();
    let [bearer, key] = request.withheld();
    let [parent, state] = request.story.trace_fields();
    let head = UpstreamHead {
        authority: &plan.authority,
        via: router_id.as_bytes(),
        content_length: Some(u64::try_from(body_bytes).unwrap_or(u64::MAX)),
        request_id: legs_request_id(&legs.kv_transfer, &legs.id, request.request_id()),
        authorization: plan.authorization.as_deref(),
        // Its answer is read here, and has to be readable.
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
