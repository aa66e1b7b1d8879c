//! Prefill legs that this shard sends as home shard of their ranks, for requests of any shard. Each
//! leg is sent, read to its end and judged. The outcome goes back to the shard of the request.

use crate::ingress::Deadline;
use crate::pair::abort;
use crate::relay::{Outbound, Watch, WatchEnd, drain, gather, send};
use crate::runtime::Signal;
use crate::send::blame;
use crate::send::relay_answer::UpstreamAnswer;
use crate::state::connecting::{ConnectTarget, connect};
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::shard::{SendParts, Shard};
use crate::story::trace;
use forebay_base::limits::READ_AT_ONCE_BYTES_MAX;
use forebay_board::account::{Count, Stage};
use forebay_disagg::{
    Accusation, AnswerForm, KvTransferError, PrefillAnswer, PrefillHandover, message_of,
};
use forebay_fleet::worker::KvTransfer;
use forebay_http1::{HeadLimits, Method, ResponseHead};
use forebay_mailbox::{
    EngineAnswer, MeshMessage, PrefillFault, PrefillLeg, PrefillOutcome, Ticket,
};
use forebay_router::dispatch::RelayError;
use forebay_router::dispatch::has_no_room;
use forebay_router::request::Judgement;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Watch of a leg. Ends when the request cancels the leg, or at the leg's deadline, which counts
/// from when the leg was posted.
struct LegWatch<'a> {
    cancelled: &'a Signal,
    seat: crate::runtime::Seat<'a>,
    deadline: Deadline,
    /// End of the current step of `down`.
    step: Deadline,
    down: DownWatch<'a>,
}

impl Watch for LegWatch<'_> {
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        self.seat.poll(cx).map(|()| RelayError::Cancelled)
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<WatchEnd> {
        if self.deadline.poll(cx).is_ready() {
            return Poll::Ready(WatchEnd::Late);
        }
        loop {
            ready!(self.step.poll(cx));
            match self.down.next() {
                Ok(step) => self.step.set(step),
                Err(over) => return Poll::Ready(over),
            }
        }
    }

    /// The deadline covers the whole leg, so an engine that keeps sending without finishing is late
    /// as well.
    fn wait_at_most(&mut self, _: Duration) {}
}

/// Starts a leg that was posted to this shard.
pub(crate) fn start(shard: &Rc<Shard>, mut leg: Box<PrefillLeg>) {
    let is_own = leg.ticket.shard == shard.env.number;
    shard
        .env
        .counters
        .add(if is_own { Count::PrefillLegsLocal } else { Count::PrefillLegsMesh }, 1);
    if !is_own {
        shard.env.time(Stage::PrefillHop, leg.posted_at);
    }
    let cancelled = Rc::new(Signal::default());
    let ticket = leg.ticket;
    let trace = leg.call.trace.take().map(|mut trace| {
        trace.from = leg.posted_at;
        trace
    });
    shard.queues.prefills.borrow_mut().insert(ticket, Rc::clone(&cancelled));
    let shard = Rc::clone(shard);
    forebay_net::spawn(async move {
        // Fail the request if the leg panics. Otherwise the request would wait until its deadline.
        let ran = AssertUnwindSafe(run(&shard, *leg, &cancelled)).catch_unwind().await;
        let ended = ran.unwrap_or_else(|_| {
            shard.env.panicked("a prefill leg's task panicked; its request fails");
            PrefillOutcome::Failed(PrefillFault::Broken("the router failed".into()))
        });
        shard.queues.prefills.borrow_mut().remove(&ticket);
        count(&shard.env, &ended);
        if let Some(trace) = trace {
            trace::end_leg(&shard.env, trace, &ended);
        }
        give_back(&shard, ticket, ended);
    });
}

/// Returns the outcome to the shard of the request.
fn give_back(shard: &Shard, ticket: Ticket, ended: PrefillOutcome) {
    // Do not call `Shard::post` here: it may start legs, and a leg that calls it would make a
    // cycle.
    if ticket.shard == shard.env.number {
        return take_back(shard, ticket, ended);
    }
    let message = MeshMessage::PrefillOutcome { ticket, ended: Box::new(ended) };
    shard.links.post(&shard.env, ticket.shard, message);
}

/// Delivers the outcome to the request. A request that let its leg go has closed its seat, and the
/// outcome is dropped.
pub(crate) fn take_back(shard: &Shard, ticket: Ticket, ended: PrefillOutcome) {
    let _ = shard.queues.legs.borrow_mut().deliver(ticket, ended);
}

/// Cancels a leg that its request no longer wants.
pub(crate) fn cancel(shard: &Shard, ticket: Ticket) {
    let cancelled = shard.queues.prefills.borrow().get(&ticket).map(Rc::clone);
    if let Some(cancelled) = cancelled {
        cancelled.set();
    }
}

fn count(env: &Env, ended: &PrefillOutcome) {
    match ended {
        PrefillOutcome::Done(_) | PrefillOutcome::Refused(_) => {}
        PrefillOutcome::Failed(PrefillFault::Cancelled) => {
            env.count(Count::PrefillLegsCancelled);
        }
        PrefillOutcome::Failed(_) => env.count(Count::PrefillLegsFailed),
    }
}

/// Runs the leg. Returns its lease before this function returns.
async fn run(shard: &Rc<Shard>, mut leg: PrefillLeg, cancelled: &Signal) -> PrefillOutcome {
    let seat = cancelled.seat();
    let mut deadline = Deadline::new(shard.env.clock);
    deadline.set_at(leg.posted_at.plus(leg.timeout));
    let mut down = DownWatch::new(&shard.env, &shard.workers, leg.worker);
    let mut step = Deadline::new(shard.env.clock);
    step.set(down.begin(leg.timeout));
    let mut watch = LegWatch { cancelled, seat, deadline, step, down };
    let ended = match exchange(shard.sending(), &leg, &mut watch).await {
        Ok(ended) => ended,
        Err(error) => {
            shard.io.note_lack_of_sockets(&shard.env, error);
            PrefillOutcome::Failed(fault(error))
        }
    };
    judge_leg(shard, &mut leg, &ended);
    if matches!(ended, PrefillOutcome::Done(_)) {
        leg.lease.prefill_done(|| shard.env.now());
    }
    // SGLang's Python server notices a closed connection only after seconds, so abort explicitly.
    let is_given_up = matches!(ended, PrefillOutcome::Failed(PrefillFault::TimedOut));
    if (is_given_up || watch.cancelled.is_set())
        && !matches!(ended, PrefillOutcome::Done(_))
        && let Some(call) = leg.abort.take()
    {
        abort::start(shard, call);
    }
    let rank = leg.lease.rank();
    let requester = leg.lease.requester();
    shard.io.recycle(std::mem::take(&mut leg.call.body));
    drop(leg);
    if matches!(ended, PrefillOutcome::Failed(PrefillFault::Busy)) {
        shard.workers.engine_refused(&shard.env, rank, requester.model);
    }
    ended
}

fn judge_leg(shard: &Shard, leg: &mut PrefillLeg, ended: &PrefillOutcome) {
    if let Some(judgement) = Judgement::of_leg(ended, leg.kv_transfer.prefill_waits_for_decode()) {
        blame::judge(shard, &mut leg.lease, leg.worker, judgement);
    }
}

/// Sends the leg and reads its answer. Replaces a stale pooled connection once.
async fn exchange(
    sending: SendParts<'_>,
    leg: &PrefillLeg,
    watch: &mut LegWatch<'_>,
) -> Result<PrefillOutcome, RelayError> {
    let SendParts { env, io, workers } = sending;
    let is_long = leg.call.body.len() > READ_AT_ONCE_BYTES_MAX;
    let key = workers.key(leg.worker, leg.call.address);
    let mut pooled = io.upstreams.borrow_mut().take(key, env.now(), is_long);
    let mut response = ResponseHead::default();
    let mut is_resent = false;
    loop {
        let reused = pooled.is_some();
        let mut upstream = match pooled.take() {
            Some(upstream) => upstream,
            None => {
                let left = leg.posted_at.plus(leg.timeout).since(env.now());
                let timeout = env.config().timeouts.connect.min(Duration::from_nanos(left));
                let to = ConnectTarget { worker: leg.worker, key, timeout, is_for_long: is_long };
                connect(sending, watch, to)
                    .await
                    .map_err(|error| if is_resent { error.once_sent() } else { error })?
            }
        };
        let sent_at = env.now();
        match send(watch, &mut upstream, outbound(leg, &env.head_limits()), &mut response).await {
            Ok(sent) => {
                workers.count_receipt(leg.worker, response.status);
                env.counters.add(Count::UpstreamReused, u64::from(reused));
                return answered(sending, leg, watch, UpstreamAnswer { upstream, sent }, &response)
                    .await;
            }
            Err(error) if reused && env.was_stale(error, sent_at) => {
                env.count(Count::Resends);
                is_resent = true;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Message to send. A resend needs it again, so the body, which may be long, is borrowed.
fn outbound<'a>(leg: &'a PrefillLeg, limits: &'a HeadLimits) -> Outbound<'a> {
    let head = leg.call.head.clone();
    let body = &leg.call.body;
    Outbound { head, body, method: &Method::Post, may_switch: false, limits }
}

/// Reads the rest of the answer after its head.
async fn answered(
    sending: SendParts<'_>,
    leg: &PrefillLeg,
    watch: &mut LegWatch<'_>,
    answering: UpstreamAnswer,
    response: &ResponseHead,
) -> Result<PrefillOutcome, RelayError> {
    let SendParts { env, io, workers } = sending;
    let UpstreamAnswer { mut upstream, sent } = answering;
    let status = response.status;
    if !(200..300).contains(&status) {
        let gathered = gather(watch, &mut upstream, response, leg.timeout).await?;
        if gathered.upstream_reusable && sent {
            io.keep(env, upstream);
        }
        return Ok(match status {
            status if has_no_room(status) => PrefillOutcome::Failed(PrefillFault::Busy),
            400..=499 => PrefillOutcome::Refused(EngineAnswer::json(status, gathered.body)),
            _ => {
                let words = Accusation::in_words(&leg.kv_transfer, &gathered.body);
                PrefillOutcome::Failed(match words {
                    Some(accusation) => accused(accusation, message_of(&gathered.body)),
                    None => PrefillFault::Broken(format!("it answered {status}")),
                })
            }
        });
    }
    let form = if response.is_event_stream() { AnswerForm::Events } else { AnswerForm::Json };
    let mut answer = PrefillAnswer::new(&leg.kv_transfer, form);
    let mut wrong = None;
    let drained = drain(watch, &mut upstream, response, leg.timeout, |data| {
        workers.count_receipt(leg.worker, status);
        answer.feed(data).map_err(|error| {
            wrong = Some(error);
            RelayError::EngineFailed
        })
    });
    let drained = drained.await;
    if let Some(wrong) = wrong {
        return Ok(wrong_answer(&leg.kv_transfer, &wrong));
    }
    if drained? && sent {
        io.keep(env, upstream);
    }
    Ok(match answer.finish() {
        Ok(PrefillHandover::Nothing) => PrefillOutcome::Done(None),
        Ok(PrefillHandover::Params(params)) => PrefillOutcome::Done(Some(params)),
        Err(wrong) => wrong_answer(&leg.kv_transfer, &wrong),
    })
}

/// Outcome for an answer that reports an error or lacks the KV transfer data. A streaming engine
/// sends status 200 before it validates the request, so a client's error arrives in the stream as
/// well.
fn wrong_answer(kv_transfer: &KvTransfer, wrong: &KvTransferError) -> PrefillOutcome {
    if let Some((status, body)) = wrong.refusal() {
        return PrefillOutcome::Refused(EngineAnswer::json(status, body));
    }
    PrefillOutcome::Failed(match wrong {
        KvTransferError::Engine { status: Some(status), .. } if has_no_room(*status) => {
            PrefillFault::Busy
        }
        KvTransferError::Engine { status: Some(_), message } => {
            match Accusation::in_words(kv_transfer, message.as_bytes()) {
                Some(accusation) => accused(accusation, message.clone()),
                None => PrefillFault::Broken(message.clone()),
            }
        }
        // SGLang's `/generate` sends no status with a request error.
        KvTransferError::Engine { status: None, .. } => PrefillFault::Unclear(wrong.to_string()),
        wrong => PrefillFault::NoKvTransfer(wrong.to_string()),
    })
}

/// Fault of a prefill leg whose engine blames the decode leg or the transfer.
fn accused(accusation: Accusation, words: String) -> PrefillFault {
    match accusation {
        Accusation::Missing => PrefillFault::NoDecode(words),
        Accusation::Transfer => PrefillFault::Transfer(words),
    }
}

fn fault(error: RelayError) -> PrefillFault {
    match error {
        RelayError::Cancelled => PrefillFault::Cancelled,
        RelayError::ConnectFailed => PrefillFault::ConnectFailed,
        RelayError::HandshakeFailed | RelayError::CertificateRefused(_) => {
            PrefillFault::HandshakeFailed(error.describe().into())
        }
        RelayError::OutOfSockets => PrefillFault::OutOfSockets,
        RelayError::ConnectTimedOut => PrefillFault::ConnectTimedOut,
        RelayError::FirstByteTimedOut | RelayError::StreamIdle => PrefillFault::TimedOut,
        error => PrefillFault::Broken(error.describe().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{ModelIndex, NanosSinceStart, RankIndex, ShardIndex, WorkerIndex};
    use forebay_board::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
    use forebay_board::{LoadBoard, ShardBoard};
    use forebay_fleet::worker::{Requester, RoomLimits};
    use forebay_mailbox::LegCall;

    /// `limits.buffered_bytes_max` counts it three times: the request, and one body for each leg.
    #[test]
    fn the_body_of_a_leg_is_sent_from_where_it_is() {
        let board = ShardBoard::from(LoadBoard::new());
        let now = NanosSinceStart(0);
        let cost = LeaseCost::default();
        let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
        let limits = RoomLimits::default();
        let marks = &forebay_index::PrefixMarks::NONE;
        let prefixes = PromptPrefixes { marks, bytes_per_token: 4.0 };
        let wanted = LeaseRequest { rank: RankIndex(0), requester, cost, limits, prefixes };
        let lease = Lease::try_take(&board, wanted, now);
        let leg = PrefillLeg {
            ticket: Ticket { shard: ShardIndex::try_from_index(0).unwrap(), slot: 0, life: 0 },
            lease: lease.unwrap(),
            worker: WorkerIndex(0),
            call: LegCall {
                address: "127.0.0.1:1".parse().unwrap(),
                head: b"POST / HTTP/1.1\r\n\r\n".to_vec(),
                body: vec![b' '; 1 << 20],
                trace: None,
            },
            kv_transfer: KvTransfer::TwoPhase,
            abort: None,
            posted_at: now,
            timeout: Duration::ZERO,
        };
        let limits = HeadLimits::default();
        let sent = outbound(&leg, &limits);
        assert_eq!(sent.head, leg.call.head);
        assert!(std::ptr::eq(sent.body, leg.call.body.as_slice()));
    }
}
