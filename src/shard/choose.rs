//! select for one request: the rank, its lease, and what the engine should find in its cache; or
//! the queue that it joins. No await in here, so the shard's working memory serves all requests.

use super::matching;
use super::pair;
use super::pressure;
use super::route::route;
use super::slot::Slot;
use super::state::{Scratch, Shard};
use super::target::{Chosen, Predicted, Prefilling, Target, body_bytes, pick_request};
use crate::account::{Count, Lease, Stage};
use crate::base::{ModelIndex, NanosSinceStart, PoolIndex, RankIndex};
use crate::dispatch::SendPlan;
use crate::index::Overlap;
use crate::mailbox::{Ticket, Waiter};
use crate::parse::{ApiRequest, Endpoint, Refusal};
use crate::queue::{
    Applicant, Entry, PairEntry, Seated, Turned, enter, enter_pair, enter_prefill, is_closed,
};
use crate::request;
use crate::select::{
    self, BYTES_PER_TOKEN_DEFAULT, Binder, Candidates, NoModel, Route, output_tokens, reaches,
};
use crate::worker::{FleetSnapshot, Leg, Model, QueueFull, QueueWanted, Worker, WorkerState};
use std::time::Duration;

/// Weight of a new observation of bytes per token.
const BYTES_PER_TOKEN_STEP: f32 = 0.05;

/// What becomes of a request that is not refused.
pub(super) enum Found {
    /// Its rank, or its pair of ranks.
    Rank(Box<Chosen>),
    /// It is counted into a queue.
    Queue(Box<Queued>),
    /// A rank that it has, or all that could compute its prompt for that, went while it waited: to
    /// be routed again, with the decode rank that it still has.
    Again(Option<Lease>),
}

/// A request on its way into a queue.
pub(super) struct Queued {
    pub(super) waiter: Box<Waiter>,
    pub(super) wanted: QueueWanted,
    /// Of the decode rank that it has already; it waits for a prefill rank.
    pub(super) decode: Option<Lease>,
}

/// The model a request asks for. Endpoints that engines serve without a model name get the first
/// one.
pub(super) fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    request: &ApiRequest,
) -> Result<(ModelIndex, &'a Model), Refusal> {
    select::model(fleet, endpoint, request).map_err(|none| match none {
        NoModel::NoneYet => request::no_worker("none has answered yet"),
        NoModel::Unknown => Refusal::unknown_model(&request.model),
        NoModel::Missing => Refusal::missing_model(),
    })
}

/// Chooses a rank, or a pair of ranks, that has room and takes the leases; else finds a queue for
/// the request. `seated`: where it stands meanwhile.
pub(super) fn rank(
    shard: &Shard,
    slot: &mut Slot,
    target: &Target<'_>,
    seated: Option<Seated>,
) -> Result<Found, Refusal> {
    let route = {
        let mut scratch = shard.scratch.borrow_mut();
        let scratch = &mut *scratch;
        scratch.matched.recall(&slot.prompt);
        route(shard, slot, target, scratch)?
    };
    let is_pair = route == Route::Pair;
    if is_pair {
        pressure::of_pair(shard, target)?;
    }
    if !is_pair && target.model.prefill_pool.is_some() {
        shard.counters.add(Count::SentWhole, 1);
    }
    seek(shard, slot, target, seated, |binder, candidates, applicant, seat, projected| {
        if is_pair {
            return enter_pair(binder, candidates, applicant, seat, projected);
        }
        match enter(binder, candidates, applicant, seat, |ahead| projected(Leg::Whole, ahead)) {
            Entry::Bound(lease) => PairEntry::Whole(lease),
            Entry::Wait(waiter, wanted) => PairEntry::WaitDecode(waiter, wanted),
            Entry::Turned(turned) => PairEntry::Turned(Leg::Whole, turned),
        }
    })
}

/// Goes on with a decode rank that has been waited for.
pub(super) fn with_decode(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    seated: Option<Seated>,
    decode: Lease,
) -> Result<Found, Refusal> {
    shard.scratch.borrow_mut().matched.recall(&slot.prompt);
    seek(shard, slot, target, seated, |binder, candidates, applicant, seat, projected| {
        enter_prefill(binder, candidates, applicant, decode, seat, projected)
    })
}

/// A request that waited has its lease now, beside the one of its decode rank if it waited for a
/// prefill rank. The home that granted it may know another fleet than this shard, and either may be
/// the newer: a rank that is not there, or not for this, is given back.
pub(super) fn granted(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    lease: Lease,
    decode: Option<Lease>,
) -> Found {
    let mut scratch = shard.scratch.borrow_mut();
    let scratch = &mut *scratch;
    let decode = decode.filter(|decode| is_there(target, decode.rank(), Leg::Decode));
    let leg = if decode.is_some() { Leg::Prefill } else { Leg::Whole };
    if !is_there(target, lease.rank(), leg) {
        return Found::Again(decode);
    }
    scratch.matched.recall(&slot.prompt);
    match decode {
        None => whole(shard, slot, target, scratch, lease),
        Some(decode) => pair(shard, slot, target, scratch, decode, lease),
    }
}

fn is_there(target: &Target<'_>, rank: RankIndex, leg: Leg) -> bool {
    let Target { fleet, model, .. } = *target;
    let is_up = |worker: &Worker| worker.state == WorkerState::Up;
    model.ranks.contains(&rank)
        && fleet.serves(rank, leg)
        && fleet.rank(rank).is_some_and(|(_, worker)| is_up(worker))
}

/// Runs a way in, with all that it looks at.
fn seek(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    seated: Option<Seated>,
    way: impl FnOnce(
        &mut Binder<'_>,
        &mut Candidates,
        &Applicant<'_>,
        &dyn Fn() -> Ticket,
        &dyn Fn(Leg, u64) -> Option<Duration>,
    ) -> PairEntry,
) -> Result<Found, Refusal> {
    let mut scratch = shard.scratch.borrow_mut();
    let scratch = &mut *scratch;
    let start = shard.now();
    let (entry, closed) = {
        let mut reported = shard.reported.borrow_mut();
        reported.receive();
        let ratio = scratch.bytes_per_token(target.model_index);
        let Scratch { matched, candidates, .. } = scratch;
        let journey = target.journey;
        let applicant = Applicant {
            model_index: target.model_index,
            model: target.model,
            request: pick_request(shard, slot, matched, &reported.reports, (start, ratio)),
            output_tokens: output_tokens(slot.request.max_tokens),
            body_bytes: body_bytes(slot),
            class: journey.class,
            tenant: journey.tenant,
            weight: journey.weight,
            arrived_at: journey.arrived_at,
            deadline: journey.wait_until,
            client_deadline: journey.client_deadline,
            near: None,
            pin: journey.pin,
            tried: &journey.tried,
            movable: journey.hop_count < target.fleet.flow.queue.hops_max,
            seated,
        };
        let mut binder = Binder {
            fleet: target.fleet,
            board: &shard.board,
            reports: &reported.reports,
            policy: shard.config.policy,
            now: start,
            turn: &mut shard.turn.borrow_mut(),
            random: &mut shard.random.borrow_mut(),
        };
        let seat = || shard.desk.borrow_mut().open();
        let projected = |leg, ahead| shard.projected_wait(target.pool(leg), start, ahead);
        let entry = way(&mut binder, candidates, &applicant, &seat, &projected);
        let closed = closed(&binder, target, &entry);
        (entry, closed)
    };
    if let Some(pool) = closed {
        pressure::close(shard, target.fleet, pool, start);
    }
    found(shard, slot, target, scratch, (entry, start))
}

/// The pool in which nobody finds room now, as the request did not.
fn closed(binder: &Binder<'_>, target: &Target<'_>, entry: &PairEntry) -> Option<PoolIndex> {
    let PairEntry::Turned(leg, turned) = *entry else { return None };
    // Want of KV is of the request, not of the pool: smaller ones, and those whose prompts are
    // cached, go on.
    if !matches!(turned, Turned::NoRoom | Turned::Full(QueueFull::Depth | QueueFull::Bytes)) {
        return None;
    }
    // Without a queue a decode rank is not taken for want of a prefill rank.
    let beside = target.model.prefill_pool.filter(|_| leg == Leg::Decode);
    [Some(target.pool(leg)), beside].into_iter().flatten().find(|&pool| is_closed(binder, pool))
}

fn found(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    scratch: &mut Scratch,
    (entry, start): (PairEntry, NanosSinceStart),
) -> Result<Found, Refusal> {
    let queued = |waiter, wanted, decode| Found::Queue(Box::new(Queued { waiter, wanted, decode }));
    match entry {
        PairEntry::Whole(lease) => {
            shard.time(Stage::Select, start);
            Ok(whole(shard, slot, target, scratch, lease))
        }
        PairEntry::Pair { decode, prefill } => {
            shard.time(Stage::Select, start);
            Ok(pair(shard, slot, target, scratch, decode, prefill))
        }
        PairEntry::WaitDecode(waiter, wanted) => Ok(queued(waiter, wanted, None)),
        PairEntry::WaitPrefill { decode, waiter, wanted } => {
            Ok(queued(waiter, wanted, Some(decode)))
        }
        // Its decode rank, or all that could have computed its prompt for it, went while it waited:
        // the lease is back, and the request is routed again.
        PairEntry::Turned(Leg::Prefill, Turned::NoWorker) => Ok(Found::Again(None)),
        PairEntry::Turned(leg, turned) => {
            Err(pressure::turned(shard, target.fleet, target.pool(leg), turned))
        }
    }
}

/// One rank does it all.
fn whole(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    scratch: &mut Scratch,
    lease: Lease,
) -> Found {
    let Some(plan) = SendPlan::new(target.fleet, lease.rank(), target.endpoint) else {
        return Found::Again(None);
    };
    let predicted = account(shard, slot, target, scratch, lease.rank());
    Found::Rank(Box::new(Chosen { plan, lease, predicted, prefill: None }))
}

/// One computes the prompt, the other answers.
fn pair(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    scratch: &mut Scratch,
    decode: Lease,
    prefill: Lease,
) -> Found {
    let rank = prefill.rank();
    let Some(plan) = SendPlan::new(target.fleet, decode.rank(), target.endpoint) else {
        return Found::Again(None);
    };
    let (Some(prefill_plan), Some(handoff)) =
        (SendPlan::new(target.fleet, rank, target.endpoint), pair::handoff_of(target.fleet, rank))
    else {
        return Found::Again(Some(decode));
    };
    // Routed as a pair while there was no prefill rank to ask what it can hand over. Now there is,
    // and it cannot hand this over.
    if !slot.handoff.as_ref().is_some_and(|wanted| wanted.can_hand_off(&handoff)) {
        return Found::Again(None);
    }
    let predicted = account(shard, slot, target, scratch, rank);
    let prefill = Prefilling { plan: prefill_plan, lease: prefill, handoff, predicted };
    Found::Rank(Box::new(Chosen { plan, lease: decode, predicted: None, prefill: Some(prefill) }))
}

/// What is counted and remembered of a request of which it is known who computes its prompt.
fn account(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    scratch: &mut Scratch,
    rank: RankIndex,
) -> Option<Predicted> {
    let predicted = account_overlap(shard, scratch, target, rank);
    matching::remember(shard, slot, target, scratch, rank);
    predicted
}

/// Counts what was found, learns bytes per token from it, and says what the engine should report.
fn account_overlap(
    shard: &Shard,
    scratch: &mut Scratch,
    target: &Target<'_>,
    rank: RankIndex,
) -> Option<Predicted> {
    let prompt_bytes = scratch.matched.prompt_bytes();
    if prompt_bytes == 0 {
        return None;
    }
    shard.counters.add(Count::PromptBytes, prompt_bytes);
    let told = scratch.matched.exact(target.fleet, rank);
    let told = told.filter(|_| reaches(target.fleet, rank, target.endpoint));
    let Some(held) = told else {
        let guessed = scratch.matched.overlaps().get(rank).bytes;
        shard.counters.add(Count::GuessedBytes, u64::from(guessed));
        return None;
    };
    let overlap = held.device;
    shard.counters.add(Count::OverlapBytes, u64::from(overlap.bytes));
    let block_size_tokens = target.fleet.ranks.get(rank.index())?.block_size_tokens;
    if let Some(ratio) = learn_ratio(scratch, target.model_index, overlap, block_size_tokens) {
        shard.counters.set_bytes_per_token(target.model_index, ratio);
    }
    let prompt_bytes = usize::try_from(prompt_bytes).unwrap_or(usize::MAX);
    let blocks = overlap.servable_blocks(prompt_bytes);
    let blocks_most = held.disk.servable_blocks(prompt_bytes).max(blocks);
    (block_size_tokens > 0).then_some(Predicted { blocks, blocks_most, block_size_tokens })
}

/// Takes a matched prompt's ratio in; returns what is believed now.
fn learn_ratio(
    scratch: &mut Scratch,
    model: ModelIndex,
    overlap: Overlap,
    block_size_tokens: u32,
) -> Option<f32> {
    let tokens = u64::from(overlap.blocks) * u64::from(block_size_tokens);
    if tokens == 0 {
        return None;
    }
    if scratch.bytes_per_token.len() <= model.index() {
        scratch.bytes_per_token.resize(model.index() + 1, BYTES_PER_TOKEN_DEFAULT);
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio of counts far below 2^24 blocks")]
    let seen = f64::from(overlap.bytes) / (tokens as f64);
    let ratio = scratch.bytes_per_token.get_mut(model.index())?;
    #[expect(clippy::cast_possible_truncation, reason = "a ratio between 1 and 100")]
    let seen = seen as f32;
    *ratio += (seen - *ratio) * BYTES_PER_TOKEN_STEP;
    Some(*ratio)
}
