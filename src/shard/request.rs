//! The path of one request, stage by stage. Each stage's module has the details.

use super::attempt::{self, Attempt};
use super::choose;
use super::early::Early;
use super::journey::{Drawn, Journey};
use super::labels::Labels;
use super::place::{Held, Placed, place};
use super::read::{self, NoRequest};
use super::refuse;
use super::slot::{After, Slot};
use super::state::Shard;
use super::target::Target;
use super::{matching, models, offload, own_page, pressure, record};
use crate::account::{Count, Stage};
use crate::admit::Admitted;
use crate::base::limits::{HANDOFF_ITEMS_MAX, INLINE_BODY_BYTES_MAX};
use crate::base::{NanosSinceStart, RankIndex};
use crate::handoff::ADDED_BYTES_PER_ROOM;
use crate::http1::{BodyFraming, HeadError, RequestHead};
use crate::ingress::Conn;
use crate::parse::{ApiRequest, Endpoint, PromptSource, Refusal, route, scan};
use crate::relay::RelayError;
use crate::request::{self, Failed, Stop};
use crate::worker::Model;
use std::mem::take;

/// Engines that have no room are asked so often in all for one request.
const REFUSALS_MAX: u32 = 8;
/// Queues send a request on so often in all, stale or not (`queue.hops_max` is at most 100).
const HOPS_MAX: u32 = 120;

/// Serves the request whose head stands parsed in the slot.
pub(super) async fn serve(shard: &Shard, conn: &mut Conn, slot: &mut Slot) -> After {
    let started = shard.now();
    let mut labels = Labels::default();
    slot.begin(&conn.input, shard.random.borrow_mut().u64(..));
    // parse: the route.
    let served = match route(&slot.head.method, slot.head.path(&conn.input)) {
        Ok(endpoint) => {
            labels.endpoint = Some(endpoint);
            match own_page::of(endpoint) {
                Some(page) => own_page::answer(shard, conn, slot, page, &mut labels).await,
                None => stages(shard, conn, slot, &mut labels, (endpoint, started)).await,
            }
        }
        Err(refusal) => Err(Stop::BeforeBody(refusal)),
    };
    let served = served.map_err(|stop| pressure::with_time(shard, stop));
    shard.time(Stage::Total, started);
    if shard.config.log.requests {
        record::write(shard, slot, &labels, &served, started);
    }
    match served {
        Ok(after) => after,
        Err(Stop::BeforeBody(refusal)) => {
            refuse::before_body(shard, conn, slot, &refusal, &labels).await
        }
        Err(Stop::InBody(refusal)) => refuse::and_close(shard, conn, slot, &refusal, &labels).await,
        Err(Stop::Refused(refusal)) => refuse::request(shard, conn, slot, &refusal, &labels).await,
        Err(Stop::Engine(answer)) => refuse::by_engine(shard, conn, slot, &answer, &labels).await,
        Err(Stop::ClientGone | Stop::Cut(RelayError::ClientGone | RelayError::ClientStalled)) => {
            shard.counters.add(Count::ClientGone, 1);
            if slot.answered.is_none() {
                refuse::count_gone(shard, &labels);
            }
            After::Drop
        }
        Err(Stop::Cut(_)) => {
            shard.counters.add(Count::CutMidStream, 1);
            After::Drop
        }
    }
}

async fn stages(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    labels: &mut Labels,
    (endpoint, started): (Endpoint, NanosSinceStart),
) -> Result<After, Stop> {
    // admit: the rejection window and the exact limits, before any of the body is read.
    readable(&slot.head).map_err(|error| Stop::BeforeBody(error.into()))?;
    let drawn = Drawn::default();
    let entered = pressure::before_body(shard, endpoint, started, &drawn);
    let _entered = entered.map_err(Stop::BeforeBody)?;
    let full = |_| Stop::BeforeBody(request::in_flight_full());
    let mut admitted = shard.in_flight.admit().map_err(full)?;

    // ingress: the whole body. parse: one scan of it.
    let body_bytes = read::body(shard, conn, slot, &mut admitted).await?;
    slot.take_message(conn, body_bytes);
    let read_at = scan_body(shard, conn, slot, (endpoint, body_bytes)).await?;
    labels.stream = Some(slot.request.stream);
    let fleet = shard.fleet();
    if endpoint == Endpoint::Models && !models::is_forwarded(&fleet) {
        labels.status = 200;
        return Ok(models::answer(shard, conn, slot, &fleet).await);
    }
    let (model_index, model) =
        choose::model(&fleet, endpoint, &slot.request).map_err(Stop::Refused)?;
    labels.model = Some(model_index.index());
    pressure::of_pool(shard, &fleet, model.pool, &drawn).map_err(Stop::Refused)?;
    hold_legs(&mut admitted, model, (&slot.request, body_bytes)).map_err(Stop::Refused)?;

    // render, index, select, queue, dispatch, relay: again with another worker while no byte has
    // reached the client.
    slot.early = Early::of(&fleet.flow.queue, endpoint, &slot.request);
    let mut journey = Journey::start(shard, slot, &fleet, model, (started, read_at, drawn))
        .map_err(Stop::Refused)?;
    let asked = matching::Asked { fleet: &fleet, model_index, model, endpoint };
    matching::match_prompt(shard, conn, slot, asked).await?;
    let (mut failed, mut held) = (None, Held::default());
    loop {
        // The fleet of this moment: what waited may find that its worker has gone.
        let fleet = shard.fleet();
        let Some(model) = fleet.models.get(model_index.index()) else {
            return Err(Stop::Refused(request::no_worker("its model has just gone")));
        };
        let target = Target { fleet: &fleet, model_index, model, endpoint, journey: &journey };
        let chosen = match place(shard, conn, slot, &target, take(&mut held)).await {
            Ok(Placed::Chosen(chosen)) => chosen,
            Ok(Placed::Waited(has)) => {
                held = has;
                continue;
            }
            Ok(Placed::Moved(keeps)) if journey.hop_count < HOPS_MAX => {
                journey.hop_count += 1;
                held = keeps;
                continue;
            }
            Ok(Placed::Moved(_)) => {
                let why = "its workers come and go, and no queue leads to one of them";
                return Err(request::after(failed.take(), Stop::Refused(request::no_worker(why))));
            }
            Err(Stop::Refused(_)) if journey.spare() => continue,
            // When no other worker is left, the client hears what the last one did.
            Err(stop) => return Err(request::after(failed.take(), stop)),
        };
        labels.rank = Some(chosen.lease.rank());
        let is_pair = chosen.prefill.is_some();
        let attempt = Attempt { endpoint, chosen, read_at, is_retry: journey.failed_count > 0 };
        let ran = attempt::run(shard, conn, slot, attempt).await;
        pressure::relieve(shard, model);
        match ran {
            Ok(after) => {
                labels.status = slot.response.status;
                return Ok(after);
            }
            Err(failure) => {
                let next = goes_on(shard, &target, failure, is_pair)?;
                next.note(&mut journey, &mut failed);
            }
        }
    }
}

/// What a request that goes on after a failed attempt remembers of it.
enum Next {
    /// The engine had no room: no failure; the rank is left alone for a moment.
    Refused,
    /// These ranks cannot be connected to. Another one is asked, and this is no attempt. If there
    /// is none, this is how the request ends.
    Unsent { ranks: Vec<RankIndex>, stop: Stop },
    /// Another worker is asked. If there is none, this is how the request ends.
    Retry { rank: RankIndex, with: Option<RankIndex>, stop: Stop },
}

impl Next {
    fn note(self, journey: &mut Journey, failed: &mut Option<Stop>) {
        match self {
            Self::Refused => journey.refused_count += 1,
            Self::Unsent { ranks, stop } => {
                *failed = Some(stop);
                journey.tried.extend(ranks);
            }
            Self::Retry { rank, with, stop } => {
                *failed = Some(stop);
                journey.failed_with(rank, with);
            }
        }
    }
}

/// `is_pair`: the attempt was that of a pair of ranks.
fn goes_on(
    shard: &Shard,
    target: &Target<'_>,
    failed: Failed,
    is_pair: bool,
) -> Result<Next, Stop> {
    let Target { fleet, model, journey, .. } = *target;
    let (rank, error) = (failed.rank, failed.error);
    if failed.answer.is_some() {
        return Err(request::stop(fleet, failed));
    }
    if error == RelayError::EngineBusy && journey.refused_count < REFUSALS_MAX {
        return Ok(Next::Refused);
    }
    if error.is_unsent() && shard.now() < journey.gives_up_at(shard.config.timeouts.first_byte) {
        shard.counters.add(Count::Retries, 1);
        let ranks = fleet.ranks_beside(rank).collect();
        return Ok(Next::Unsent {
            ranks,
            stop: pressure::failed(shard, fleet, model.pool, failed),
        });
    }
    if may_retry(shard, error, is_pair, journey.failed_count) {
        let with = failed.with;
        return Ok(Next::Retry {
            rank,
            with,
            stop: pressure::failed(shard, fleet, model.pool, failed),
        });
    }
    Err(pressure::failed(shard, fleet, model.pool, failed))
}

/// Only a body without a content coding can be scanned.
fn readable(head: &RequestHead) -> Result<(), HeadError> {
    let is_coded = head.is_coded && head.body != BodyFraming::None;
    if is_coded { Err(HeadError::ContentCoding) } else { Ok(()) }
}

/// A request that may be split is in memory three times: as it came, and once for each leg, there
/// with a room for each prompt.
fn hold_legs(
    admitted: &mut Admitted,
    model: &Model,
    (request, body_bytes): (&ApiRequest, usize),
) -> Result<(), Refusal> {
    let held = match request.prompt {
        _ if model.prefill_pool.is_none() => body_bytes,
        PromptSource::Batch(_) => {
            // None is shorter than `"",`.
            let prompts_max = (body_bytes / 3).min(HANDOFF_ITEMS_MAX as usize);
            let rooms_bytes = prompts_max.saturating_mul(ADDED_BYTES_PER_ROOM);
            body_bytes.saturating_mul(3).saturating_add(rooms_bytes.saturating_mul(2))
        }
        _ => body_bytes.saturating_mul(3),
    };
    admitted.hold_body(held).map_err(|_| request::in_flight_full())
}

/// Returns when the request had been read: before it was scanned.
async fn scan_body(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    (endpoint, body_bytes): (Endpoint, usize),
) -> Result<NanosSinceStart, Stop> {
    let read_at = shard.now();
    if endpoint == Endpoint::Models {
        return Ok(read_at);
    }
    let head_bytes = slot.head.head_bytes;
    let scanned = if body_bytes <= INLINE_BODY_BYTES_MAX {
        let body = slot.message.get(head_bytes..).unwrap_or_default();
        scan(body, endpoint, &mut slot.request)
    } else {
        let (message, mut request) = (take(&mut slot.message), take(&mut slot.request));
        let scanned = offload::run(&shard.offload, conn, body_bytes, move |_| {
            let body = message.get(head_bytes..).unwrap_or_default();
            let scanned = scan(body, endpoint, &mut request);
            (message, request, scanned)
        });
        let scanned = scanned.await?;
        (slot.message, slot.request) = (scanned.0, scanned.1);
        scanned.2
    };
    scanned.map_err(|error| Stop::Refused(error.into()))?;
    shard.time(Stage::Parse, read_at);
    Ok(read_at)
}

/// Another worker may be asked if nothing reached the client, attempts are left, and the retry
/// budget allows it. An engine that is full has not failed: that is not what the budget is for.
/// What a worker may have read goes to another one only if that is configured; the legs of a pair
/// make no answer of their own.
fn may_retry(shard: &Shard, error: RelayError, is_pair: bool, retries: u32) -> bool {
    let attempts = retries.saturating_add(1);
    let may_send = error == RelayError::EngineBusy || is_pair || shard.config.retry.after_send;
    let may = error.may_retry()
        && may_send
        && attempts < shard.config.retry.attempts_max
        && (error == RelayError::EngineBusy || shard.retry.borrow_mut().withdraw());
    if may {
        shard.counters.add(Count::Retries, 1);
    }
    may
}

impl From<NoRequest> for Stop {
    fn from(none: NoRequest) -> Self {
        match none {
            NoRequest::Silent => Self::ClientGone,
            NoRequest::Refused(refusal) => Self::InBody(refusal),
        }
    }
}
