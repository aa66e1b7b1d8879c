//! Entry to a pool: a new or rerouted request is bound at once, queued, or refused.

use super::bounds::bounds;
use super::place::has_target;
use super::waiter::holdings;
use forebay_base::{PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::Lease;
use forebay_board::{QueueCell, QueueDemand, QueueFull, QueueLimits};
use forebay_config::{Policy, QueueMode};
use forebay_fleet::worker::{FleetSnapshot, Leg, Model, WorkerState};
use forebay_mailbox::{Caller, RequestFacts, Ticket, Waiter, WaitingPrompt};
use forebay_select::{Binder, Candidates, PickRequest, RankSearch, lease_cost};
use std::time::Duration;

/// The request that needs a rank or a queue place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) facts: &'a RequestFacts,
    pub(crate) model: &'a Model,
    /// The prompt and its overlaps; `ranks` is ignored.
    pub(crate) request: PickRequest<'a>,
    /// Size of the body, which stays in memory while the request waits.
    pub(crate) body_bytes: u64,
    /// The rank that the other leg already has.
    pub(crate) near: Option<RankIndex>,
    /// May the request move to another queue later?
    pub(crate) movable: bool,
    /// Place of a rerouted request in its old queue.
    pub(crate) queued: Option<QueuePlace>,
}

/// A counted place in a queue. It stays counted until its request has a new place, so that no later
/// request can take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlace {
    pub(crate) queue: QueueIndex,
    /// Demand that was counted into the queue.
    pub(crate) wanted: QueueDemand,
}

impl Applicant<'_> {
    fn seeking(&self) -> RankSearch<'_> {
        let RequestFacts { pin, tried, .. } = self.facts;
        let requester = self.facts.requester();
        let leg = self.request.leg;
        RankSearch { requester, leg, near: self.near, pin: *pin, tried: tried.as_slice() }
    }

    /// The applicant's own demand that is counted into the queue.
    fn own(&self, queue: QueueIndex) -> Option<QueueDemand> {
        self.queued.filter(|queued| queued.queue == queue).map(|queued| queued.wanted)
    }

    /// Invariants of each granted rank.
    fn check_bound(&self, lease: &Lease) {
        let rank = lease.rank();
        debug_assert!(self.model.ranks.contains(&rank), "{rank:?} does not serve its model");
        debug_assert!(!self.facts.tried.contains(&rank), "{rank:?} has failed it");
        debug_assert!(self.near != Some(rank), "both legs on {rank:?}");
    }

    /// Requests and KV tokens in the rank's queue that would be served before the applicant.
    fn before(&self, binder: &Binder<'_>, rank: RankIndex) -> (u64, u64) {
        let queue = binder.fleet.queue_of(rank);
        let cell = queue.and_then(|queue| Some((queue, binder.board.queue(queue)?)));
        let Caller { class, tenant, weight, .. } = self.facts.caller;
        cell.map_or((0, 0), |(queue, cell)| cell.before(self.own(queue), class, tenant, weight))
    }

    /// Requests in the queue, without the applicant.
    fn waiting_beside(&self, binder: &Binder<'_>, queue: QueueIndex) -> u32 {
        let waiting = binder.board.queue(queue).map_or(0, QueueCell::waiting);
        waiting.saturating_sub(u32::from(self.own(queue).is_some()))
    }
}

/// Result of an entry.
#[derive(Debug)]
pub(crate) enum Entry {
    /// The request has its rank. A decode leg may get a rank that serves whole requests only, and
    /// then needs no prefill rank.
    Bound(Lease),
    /// The request has both ranks.
    Pair {
        /// The rank that answers.
        decode: Lease,
        /// The rank that computes the prompt.
        prefill: Lease,
    },
    /// The request has been counted into its queue and has to be posted to the queue's owner. The
    /// code that ends the wait counts the request out with the same [`QueueDemand`].
    Wait {
        /// Lease of the decode rank, held while the request waits for a prefill rank.
        decode: Option<Lease>,
        waiter: Box<Waiter>,
        /// Demand that was counted.
        wanted: QueueDemand,
    },
    /// Refused, because no rank was found for this leg. The lease of the other leg has been
    /// returned. After `NoWorker` for a prefill leg, the request may be routed again.
    Rejected(Leg, Rejection),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// No worker that serves the model is usable.
    NoWorker,
    /// No rank has room, and there is no queue.
    NoRoom,
    /// Neither a rank nor the queue has room.
    Full(QueueFull),
    /// The request would be served after the client has given up.
    TooLate {
        /// Estimated time until the request is served.
        projected: Duration,
    },
}

/// Binds, queues or refuses the request for a leg. `open` makes the ticket of a wait.
/// `projected` estimates the time until that many requests of the pool have ended, if known.
pub(super) fn enter(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    open: impl FnOnce() -> Ticket,
    projected: impl Fn(u64) -> Option<Duration>,
) -> Entry {
    let fleet = binder.fleet;
    let model = applicant.model;
    let seeking = applicant.seeking();
    let leg = applicant.request.leg;
    if candidates.collect(fleet, model, binder.board, seeking, binder.now).is_err() {
        return Entry::Rejected(leg, Rejection::NoWorker);
    }
    let _ = binder.keep_able(&applicant.request, applicant.facts.output_tokens, candidates);
    let mode = fleet.config.flow.queue.mode;
    let output_tokens = applicant.facts.output_tokens;
    let mut target = None;
    if mode == QueueMode::Pool && has_target(binder.policy, leg) {
        target = binder.aim(&applicant.request, candidates, None, |_| 0);
        if let Some(rank) = target {
            candidates.set_only(rank);
        }
        candidates.retain(|rank| !binder.is_awaited(rank));
    } else if mode != QueueMode::Off {
        // A new request does not overtake: it waits at each rank whose queue is not empty. `last`
        // caches the answer, since neighboring ranks mostly share a queue.
        let mut last = (None, true);
        candidates.retain(|rank| {
            let queue = fleet.queue_of(rank);
            if queue != last.0 {
                last =
                    (queue, queue.is_none_or(|queue| applicant.waiting_beside(binder, queue) == 0));
            }
            last.1
        });
    }
    if let Some(lease) = binder.bind(&applicant.request, output_tokens, candidates) {
        applicant.check_bound(&lease);
        return Entry::Bound(lease);
    }
    if mode == QueueMode::Off {
        return Entry::Rejected(leg, Rejection::NoRoom);
    }
    match line_up(binder, candidates, applicant, &projected) {
        Ok((queue, wanted)) => {
            let mut waiter = Box::new(waiter(binder, applicant, queue, open()));
            waiter.prompt.target = target;
            Entry::Wait { decode: None, waiter, wanted }
        }
        // A queue full of requests for the same rank must not refuse a request that fits another.
        Err(rejection @ Rejection::Full(_)) => bind_beside(binder, candidates, applicant)
            .map_or(Entry::Rejected(leg, rejection), Entry::Bound),
        Err(rejection) => Entry::Rejected(leg, rejection),
    }
}

/// Binds a request although the queue is full. The waiting requests may all need other ranks: a
/// rank that no request waits for is free for a new request.
fn bind_beside(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
) -> Option<Lease> {
    let fleet = binder.fleet;
    let board = binder.board;
    let now = binder.now;
    candidates.collect(fleet, applicant.model, board, applicant.seeking(), now).ok()?;
    let _ = binder.keep_able(&applicant.request, applicant.facts.output_tokens, candidates);
    candidates.retain(|rank| !binder.is_awaited(rank));
    let lease = binder.bind(&applicant.request, applicant.facts.output_tokens, candidates)?;
    applicant.check_bound(&lease);
    Some(lease)
}

/// Finds a queue with room and counts the request into it. A request that was admitted before is
/// not refused: if all queues are full, it joins its first choice. The number of waiting requests
/// does not grow, since it leaves its old queue.
fn line_up(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    projected: &impl Fn(u64) -> Option<Duration>,
) -> Result<(QueueIndex, QueueDemand), Rejection> {
    let fleet = binder.fleet;
    let model = applicant.model;
    let seeking = applicant.seeking();
    if candidates.collect(fleet, model, binder.board, seeking, binder.now).is_err() {
        return Err(Rejection::NoWorker);
    }
    let pool = model.pool_of(applicant.request.leg);
    let _ = binder.keep_able(&applicant.request, applicant.facts.output_tokens, candidates);
    binder.weigh(&applicant.request, applicant.facts.output_tokens, candidates);
    let mut full = QueueFull::Depth;
    let mut first = None;
    while let Some(rank) = shortest(binder, candidates, applicant) {
        let Some(queue) = fleet.queue_of(rank) else { return Err(Rejection::NoRoom) };
        let Some(cell) = binder.board.queue(queue) else { return Err(Rejection::NoRoom) };
        if let Some(late) = too_late(binder, applicant, cell, queue, pool, projected) {
            return Err(late);
        }
        let cost = lease_cost(&applicant.request, rank, applicant.facts.output_tokens);
        let most = fleet.room(rank).kv_tokens_max;
        let tokens = if most == 0 { cost.kv_tokens } else { cost.kv_tokens.min(most) };
        let bytes = applicant.body_bytes;
        let Caller { class, tenant, weight, .. } = applicant.facts.caller;
        // A request larger than any cache takes the rest of a cache, so its demand has that limit.
        let wanted = QueueDemand { bytes, tokens, class, tenant, weight };
        let bounds = bounds(fleet, binder.board, pool, queue);
        match cell.join(bounds.beside(applicant.own(queue)), wanted) {
            Ok(()) => return Ok((queue, wanted)),
            Err(which) => full = which,
        }
        first.get_or_insert((cell, queue, wanted));
        // The demand of a pool is the same in each of its queues; mode `pool` has a single queue.
        if full == QueueFull::Demand || fleet.config.flow.queue.mode == QueueMode::Pool {
            break;
        }
        candidates.remove(rank);
    }
    let (cell, queue, wanted) =
        first.filter(|_| applicant.queued.is_some()).ok_or(Rejection::Full(full))?;
    // A refusal would treat an admitted request worse than a new request. It leaves its old queue
    // at the same time, so the queues together hold no more than before.
    cell.join(QueueLimits::NONE, wanted).map_err(Rejection::Full)?;
    Ok((queue, wanted))
}

/// The rank whose queue the request joins. Mode `pool`: any rank, since all share the queue. Mode
/// `endpoint`: the rank with the least wait and prompt computation, including the requests that
/// wait there.
fn shortest(
    binder: &mut Binder<'_>,
    candidates: &Candidates,
    applicant: &Applicant<'_>,
) -> Option<RankIndex> {
    let ranks = candidates.ranks();
    let fleet = binder.fleet;
    if fleet.config.flow.queue.mode == QueueMode::Pool {
        return ranks.first().copied();
    }
    let anchor = applicant.request.anchor_among(binder.policy, ranks);
    let request = PickRequest { anchor, ..applicant.request };
    let least_before =
        || ranks.iter().copied().min_by_key(|&rank| applicant.before(binder, rank).0);
    match binder.policy {
        Policy::Session if anchor.is_none() => least_before(),
        Policy::Kv | Policy::Session => ranks.iter().copied().min_by_key(|&rank| {
            let (_, tokens) = applicant.before(binder, rank);
            binder.weight(&request, candidates, rank).0.saturating_add(tokens)
        }),
        Policy::LeastLoaded | Policy::PowerOfTwo => least_before(),
        Policy::RoundRobin | Policy::Random => binder.choose(&request, candidates),
    }
}

/// Early rejection of a request that would be served after its client's deadline.
fn too_late(
    binder: &Binder<'_>,
    applicant: &Applicant<'_>,
    cell: &QueueCell,
    queue: QueueIndex,
    pool: PoolIndex,
    projected: &impl Fn(u64) -> Option<Duration>,
) -> Option<Rejection> {
    // Only against the client's own deadline: without a deadline no answer is too late.
    let deadline = applicant.facts.client_deadline?;
    let Caller { class, tenant, weight, .. } = applicant.facts.caller;
    let ahead = cell.ahead(class, tenant, weight);
    let ahead = ahead.saturating_sub(u64::from(applicant.own(queue).is_some()));
    let projected = projected((ahead + 1).saturating_mul(lines(binder.fleet, pool)))?;
    (binder.now.plus(projected) > deadline).then_some(Rejection::TooLate { projected })
}

/// Queues that share the pool's drain rate: the rate counts the ended requests of the whole pool.
fn lines(fleet: &FleetSnapshot, pool: PoolIndex) -> u64 {
    if fleet.config.flow.queue.mode != QueueMode::Endpoint {
        return 1;
    }
    let is_up = |rank: &&RankIndex| {
        fleet.rank(**rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    let up = fleet.pool(pool).map_or(0, |pool| pool.ranks.iter().filter(is_up).count());
    // At least 1 although no rank is up: with 0, the estimate would be no wait at all.
    u64::try_from(up).unwrap_or(u64::MAX).max(1)
}

fn waiter(
    binder: &Binder<'_>,
    applicant: &Applicant<'_>,
    queue: QueueIndex,
    ticket: Ticket,
) -> Waiter {
    let PickRequest { prompt, overlaps, .. } = applicant.request;
    let bytes = prompt.bytes();
    let bytes_per_token = prompt.bytes_per_token();
    Waiter {
        ticket,
        queue,
        leg: applicant.request.leg,
        near: applicant.near,
        joined_at: binder.now,
        facts: applicant.facts.clone(),
        prompt: WaitingPrompt {
            bytes,
            bytes_per_token,
            holdings: holdings(overlaps),
            marks: applicant.request.marks.clone(),
            target: None,
        },
        movable: applicant.movable,
    }
}
