//! The way in: a request that came, or that has to choose again, is bound at once, sent to wait, or
//! turned away.

use super::bounds::bounds;
use super::place::has_target;
use super::waiter::holdings;
use forebay_base::{PoolIndex, QueueIndex, RankIndex};
use forebay_config::{Policy, QueueMode};
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::{Caller, RequestFacts, Ticket, Waiter, WaitingPrompt};
use forebay_fleet::worker::{
    FleetSnapshot, Leg, Model, QueueCell, QueueFull, QueueLimits, QueueWanted, WorkerState,
};
use forebay_select::{Binder, Candidates, PickRequest, Seeking, lease_cost};
use std::time::Duration;

/// The request that asks for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    /// What is known of the request.
    pub(crate) facts: &'a RequestFacts,
    /// The model that it asks for.
    pub(crate) model: &'a Model,
    /// Its prompt, and what ranks hold of it; `ranks` is not looked at.
    pub(crate) request: PickRequest<'a>,
    /// Bytes of its body: what the queue keeps in memory for it.
    pub(crate) body_bytes: u64,
    /// The rank that its other leg has already.
    pub(crate) near: Option<RankIndex>,
    /// May it move to another queue later?
    pub(crate) movable: bool,
    /// Where it stands while it chooses again: a queue has sent it on.
    pub(crate) queued: Option<QueuePlace>,
}

/// A place in a queue that is counted until its request has another one, so that nobody takes it
/// who comes later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlace {
    /// The queue.
    pub(crate) queue: QueueIndex,
    /// What was counted into it.
    pub(crate) wanted: QueueWanted,
}

impl Applicant<'_> {
    fn seeking(&self) -> Seeking<'_> {
        let RequestFacts { pin, tried, .. } = self.facts;
        let requester = self.facts.requester();
        let leg = self.request.leg;
        Seeking { requester, leg, near: self.near, pin: *pin, tried: tried.as_slice() }
    }

    /// What it itself has counted into a queue.
    fn own(&self, queue: QueueIndex) -> Option<QueueWanted> {
        self.queued.filter(|queued| queued.queue == queue).map(|queued| queued.wanted)
    }

    /// What holds of a rank that it is given, whichever way it came by it.
    fn check_bound(&self, lease: &Lease) {
        let rank = lease.rank();
        debug_assert!(self.model.ranks.contains(&rank), "{rank:?} does not serve its model");
        debug_assert!(!self.facts.tried.contains(&rank), "{rank:?} has failed it");
        debug_assert!(self.near != Some(rank), "both legs on {rank:?}");
    }

    /// Requests and KV tokens in a queue that would be served before it.
    fn before(&self, binder: &Binder<'_>, rank: RankIndex) -> (u64, u64) {
        let queue = binder.fleet.queue_of(rank);
        let cell = queue.and_then(|queue| Some((queue, binder.board.queue(queue)?)));
        let Caller { class, tenant, weight, .. } = self.facts.caller;
        cell.map_or((0, 0), |(queue, cell)| cell.before(self.own(queue), class, tenant, weight))
    }

    /// How many others wait in a queue.
    fn others(&self, binder: &Binder<'_>, queue: QueueIndex) -> u32 {
        let waiting = binder.board.queue(queue).map_or(0, QueueCell::waiting);
        waiting.saturating_sub(u32::from(self.own(queue).is_some()))
    }
}

/// What becomes of it.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It has its rank. A decode leg may have got a rank that serves whole requests only: that is
    /// all it needs then.
    Bound(Lease),
    /// It has both its ranks.
    Pair {
        /// The rank that answers.
        decode: Lease,
        /// The rank that computes the prompt.
        prefill: Lease,
    },
    /// It has been counted into its queue and has to be posted to that queue's home. Whoever ends
    /// the wait counts it out with the same [`QueueWanted`].
    Wait {
        /// Of the rank that answers, to be kept while the request waits for a prefill rank.
        decode: Option<Lease>,
        /// To be posted.
        waiter: Box<Waiter>,
        /// What was counted.
        wanted: QueueWanted,
    },
    /// It is refused, for want of a rank for this leg. A lease of its other leg has been given
    /// back: the ranks that were there have just gone, and it may be routed again.
    Turned(Leg, Turned),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// No worker that serves its model is usable.
    NoWorker,
    /// No rank has room, and there is no queue.
    NoRoom,
    /// No rank has room, and neither has the queue.
    Full(QueueFull),
    /// Its turn would come after the client has given up.
    TooLate {
        /// When its turn would come, from now.
        projected: Duration,
    },
}

/// Decides. `open` makes the ticket of one that waits; `projected` says how long it takes until so
/// many requests of the pool have ended, if that is known.
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
        return Entry::Turned(leg, Turned::NoWorker);
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
        // Nobody overtakes: where others wait, newcomers line up. Most ranks share a queue with the
        // one before.
        let mut last = (None, true);
        candidates.retain(|rank| {
            let queue = fleet.queue_of(rank);
            if queue != last.0 {
                last = (queue, queue.is_none_or(|queue| applicant.others(binder, queue) == 0));
            }
            last.1
        });
    }
    if let Some(lease) = binder.bind(&applicant.request, output_tokens, candidates) {
        applicant.check_bound(&lease);
        return Entry::Bound(lease);
    }
    if mode == QueueMode::Off {
        return Entry::Turned(leg, Turned::NoRoom);
    }
    match line_up(binder, candidates, applicant, &projected) {
        Ok((queue, wanted)) => {
            let mut waiter = Box::new(waiter(binder, applicant, queue, open()));
            waiter.prompt.target = target;
            Entry::Wait { decode: None, waiter, wanted }
        }
        // Full of requests for one rank, the queue must not refuse those that could go to another.
        Err(turned @ Turned::Full(_)) => bind_beside(binder, candidates, applicant)
            .map_or(Entry::Turned(leg, turned), Entry::Bound),
        Err(turned) => Entry::Turned(leg, turned),
    }
}

/// No place to wait is left. That may be for those who can only go elsewhere: a rank for which none
/// of them waits is free for who comes.
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

/// Finds a queue with room and counts the request into it. One that has been let in before is not
/// refused: if all queues are full it joins the one that it would have chosen, and those who wait
/// are no more than they were.
fn line_up(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    projected: &impl Fn(u64) -> Option<Duration>,
) -> Result<(QueueIndex, QueueWanted), Turned> {
    let fleet = binder.fleet;
    let model = applicant.model;
    let seeking = applicant.seeking();
    if candidates.collect(fleet, model, binder.board, seeking, binder.now).is_err() {
        return Err(Turned::NoWorker);
    }
    let pool = model.pool_of(applicant.request.leg);
    let _ = binder.keep_able(&applicant.request, applicant.facts.output_tokens, candidates);
    binder.weigh(&applicant.request, applicant.facts.output_tokens, candidates);
    let mut full = QueueFull::Depth;
    let mut first = None;
    while let Some(rank) = shortest(binder, candidates, applicant) {
        let Some(queue) = fleet.queue_of(rank) else { return Err(Turned::NoRoom) };
        let Some(cell) = binder.board.queue(queue) else { return Err(Turned::NoRoom) };
        if let Some(late) = too_late(binder, applicant, cell, queue, pool, projected) {
            return Err(late);
        }
        let cost = lease_cost(&applicant.request, rank, applicant.facts.output_tokens);
        let most = fleet.room(rank).kv_tokens_max;
        let tokens = if most == 0 { cost.kv_tokens } else { cost.kv_tokens.min(most) };
        let bytes = applicant.body_bytes;
        let Caller { class, tenant, weight, .. } = applicant.facts.caller;
        // What no cache could hold takes what is left of one, so it wants no more than that here.
        let wanted = QueueWanted { bytes, tokens, class, tenant, weight };
        let bounds = bounds(fleet, binder.board, pool, queue);
        match cell.join(bounds.beside(applicant.own(queue)), wanted) {
            Ok(()) => return Ok((queue, wanted)),
            Err(which) => full = which,
        }
        first.get_or_insert((cell, queue, wanted));
        // The demand of a pool is the same in each of its queues, and mode `pool` has one queue.
        if full == QueueFull::Demand || fleet.config.flow.queue.mode == QueueMode::Pool {
            break;
        }
        candidates.remove(rank);
    }
    let (cell, queue, wanted) =
        first.filter(|_| applicant.queued.is_some()).ok_or(Turned::Full(full))?;
    // Refused now, a request that was let in would be worse off than a newcomer. It leaves its old
    // queue at the same time, so all together hold no more than before.
    cell.join(QueueLimits::NONE, wanted).map_err(Turned::Full)?;
    Ok((queue, wanted))
}

/// The rank whose queue is joined. One queue for all: any rank leads to it. One per rank: the one
/// where the request will have waited and computed least, counting those who wait there.
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

/// Early rejection: the answer is certain enough now.
fn too_late(
    binder: &Binder<'_>,
    applicant: &Applicant<'_>,
    cell: &QueueCell,
    queue: QueueIndex,
    pool: PoolIndex,
    projected: &impl Fn(u64) -> Option<Duration>,
) -> Option<Turned> {
    // Only by the client's own deadline. Without it nothing says that the answer would be too late.
    let deadline = applicant.facts.client_deadline?;
    let Caller { class, tenant, weight, .. } = applicant.facts.caller;
    let ahead = cell.ahead(class, tenant, weight);
    let ahead = ahead.saturating_sub(u64::from(applicant.own(queue).is_some()));
    let projected = projected((ahead + 1).saturating_mul(lines(binder.fleet, pool)))?;
    (binder.now.plus(projected) > deadline).then_some(Turned::TooLate { projected })
}

/// Lines that the ends of a pool are divided among: what is known is how many requests of all of it
/// end.
fn lines(fleet: &FleetSnapshot, pool: PoolIndex) -> u64 {
    if fleet.config.flow.queue.mode != QueueMode::Endpoint {
        return 1;
    }
    let is_up = |rank: &&RankIndex| {
        fleet.rank(**rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    let up = fleet.pool(pool).map_or(0, |pool| pool.ranks.iter().filter(is_up).count());
    // Without any that is up one line is counted: 0 would promise that nobody has to wait.
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
