//! The state machine of a request, from the matched prompt to the rank that serves it, or to the
//! refusal. [`RequestFlow::step`] takes an event and returns an action. The machine uses no socket,
//! no clock and no shard: `dataplane/request/deliver.rs` feeds it from sockets, `tests/sim` from a
//! schedule.
//!
//! | event | the machine | actions |
//! |---|---|---|
//! | `Ready` | routes, selects, lines up | `Send`, `Wait`, `End` |
//! | `Granted` | checks the rank, or looks for the prefill rank | `Send`, `Wait`, `End` |
//! | `Reroute` | routes again, with its place in the queue | `Send`, `Wait`, `End` |
//! | `WaitOver` | ends, or tries a rank that was spared | `Send`, `Wait`, `End` |
//! | `Failed` | routes again, or ends | `Send`, `Wait`, `End` |
//! | `Failed` with the rest of a stream | the same, with new time to wait | the same |
//!
//! Each action releases the queue place that the request came from; `Wait` takes a new place.

use super::event::{Action, ChosenRanks, PrefillDispatch, RequestEvent, WaitEnd};
use super::pressure::NewRequest;
use super::scene::{Scene, Seeker};
use super::stop::{self, Stop};
use crate::dispatch::RelayError;
use crate::queue::{Entry, QueuePlace, Rejection, WantedRanks};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_board::QueueDemand;
use forebay_board::account::{Count, FailedTrial, Lease};
use forebay_fleet::worker::{FleetSnapshot, Leg, Model, Worker, WorkerState};
use forebay_mailbox::{RequestFacts, Waiter};
use forebay_prompt::parse::{Endpoint, Reason, Refusal};
use forebay_select::Route;

/// Answers "no room" from engines, at most, for a request.
pub(super) const REFUSALS_MAX: u32 = 8;
/// Reroutes by queues, at most, for a request, stale or not (`queue.hops_max` is at most 100).
pub(super) const HOPS_MAX: u32 = 120;

/// Leases and queue place that a request holds while it looks for more ranks.
#[derive(Debug, Default)]
pub(super) struct HeldLeases {
    /// The lease of its decode rank.
    decode: Option<Lease>,
    /// The last lease that the request waited for: no rank is left to choose.
    granted: Option<Lease>,
    /// The place in the queue that the request comes from.
    queued: Option<QueuePlace>,
}

/// A wait in a queue, with the decode rank that is held meanwhile.
#[derive(Debug)]
pub(super) struct QueueWait {
    pub(super) leg: Leg,
    pub(super) queued: QueuePlace,
    /// The decode rank of a request that waits for a prefill rank.
    decode: Option<Lease>,
    /// The wait ends at the client's own deadline.
    client_gives_up: bool,
}

/// Attempts, refusals and reroutes of the request so far.
#[derive(Debug, Default)]
pub(super) struct AttemptCounts {
    /// Attempts that failed after the request was sent.
    pub(super) failed_count: u32,
    /// Times that engines had no room for the request.
    pub(super) refused_count: u32,
    /// Times that a queue rerouted the request.
    pub(super) hop_count: u32,
    /// The last failed rank that may not be at fault: tried again when no other rank is left.
    pub(super) spared: Option<RankIndex>,
    /// Rank and error of the last failed attempt, unless a pair served that attempt.
    pub(super) failed_at: Option<(RankIndex, RelayError)>,
    /// The failed trial of a rank, until another rank has answered.
    pub(super) trial: Option<Box<FailedTrial>>,
    /// The last attempt was sent to a pair of ranks.
    pub(super) is_pair: bool,
    /// An attempt has failed before its first byte, and the next attempt is a retry.
    pub(super) has_failed_unseen: bool,
}

/// The state machine of a request.
#[derive(Debug)]
pub struct RequestFlow {
    pub(super) facts: RequestFacts,
    endpoint: Endpoint,
    body_bytes: u64,
    new_request: NewRequest,
    pub(super) tries: AttemptCounts,
    /// The end of the request if no other worker is found.
    pub(super) failed: Option<Stop>,
    pub(super) waiting: Option<QueueWait>,
}

/// Result of a search for ranks.
enum SeekEnd {
    Act(Action),
    /// A held rank, or each prefill rank for it, was removed during the wait: route again, with the
    /// decode lease that is still valid.
    Again(Option<Lease>),
}

impl RequestFlow {
    /// `new_request`: the value that [`Stages::window_of`](super::stages::Stages::window_of) has
    /// already tested.
    #[must_use]
    pub fn new(
        facts: RequestFacts,
        endpoint: Endpoint,
        body_bytes: u64,
        new_request: NewRequest,
    ) -> Self {
        let tries = AttemptCounts::default();
        Self { facts, endpoint, body_bytes, new_request, tries, failed: None, waiting: None }
    }

    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The decode rank of a request that waits for a prefill rank.
    #[must_use]
    pub fn decode_rank(&self) -> Option<RankIndex> {
        self.waiting.as_ref()?.decode.as_ref().map(Lease::rank)
    }

    /// Times that the request was rerouted, by a queue or because a granted rank was gone.
    #[must_use]
    pub const fn hop_count(&self) -> u32 {
        self.tries.hop_count
    }

    /// True after a failed attempt that had been sent.
    #[must_use]
    pub const fn is_retry(&self) -> bool {
        self.tries.failed_count > 0
    }

    /// Rank and error of the last failed attempt, unless a pair served that attempt.
    #[must_use]
    pub const fn failed_at(&self) -> Option<(RankIndex, RelayError)> {
        self.tries.failed_at
    }

    /// Takes the failed trial of a rank: the next attempt shows the scope of that failure.
    pub const fn take_trial(&mut self) -> Option<Box<FailedTrial>> {
        self.tries.trial.take()
    }

    /// Takes an event and returns the next action.
    pub fn step(
        &mut self,
        now: NanosSinceStart,
        event: RequestEvent,
        scene: &mut Scene<'_>,
    ) -> Action {
        self.check_event(&event);
        let action = match event {
            RequestEvent::Ready => self.place(now, HeldLeases::default(), scene),
            RequestEvent::Granted(lease) => self.granted(now, lease, scene),
            RequestEvent::Reroute => {
                let held =
                    self.waiting.take().map_or_else(HeldLeases::default, |waiting| HeldLeases {
                        decode: waiting.decode,
                        granted: None,
                        queued: Some(waiting.queued),
                    });
                self.hop(now, held, scene)
            }
            RequestEvent::WaitOver(end) => self.wait_over(now, end, scene),
            RequestEvent::Failed(failed) => self.attempt_failed(now, failed, scene),
        };
        if let Action::Send(chosen) = &action {
            self.tries.is_pair = chosen.prefill.is_some();
            self.count_send(scene);
        }
        self.check_invariants(&action);
        action
    }

    /// Counts here and not where a rank is looked for: a look may end in a queue or in a refusal.
    fn count_send(&mut self, scene: &Scene<'_>) {
        if std::mem::take(&mut self.tries.has_failed_unseen) {
            (scene.count)(Count::Retries);
        }
    }

    fn window(
        &mut self,
        now: NanosSinceStart,
        pool: PoolIndex,
        scene: &mut Scene<'_>,
    ) -> Result<(), Refusal> {
        scene.stages.window_of(scene.fleet, pool, now, &mut self.new_request)
    }

    fn granted(&mut self, now: NanosSinceStart, lease: Lease, scene: &mut Scene<'_>) -> Action {
        let Some(QueueWait { leg, queued, decode, .. }) = self.waiting.take() else {
            debug_assert!(false, "granted, and waits for nothing");
            return self.place(now, HeldLeases::default(), scene);
        };
        debug_assert!(decode.is_none() || leg == Leg::Prefill, "two ranks for one leg");
        let held = if leg == Leg::Decode {
            // The prefill leg waits in another queue.
            HeldLeases { decode: Some(lease), ..HeldLeases::default() }
        } else {
            HeldLeases { decode, granted: Some(lease), queued: Some(queued) }
        };
        self.place(now, held, scene)
    }

    fn wait_over(&mut self, now: NanosSinceStart, end: WaitEnd, scene: &mut Scene<'_>) -> Action {
        let waiting = self.waiting.take();
        let client_gives_up = waiting.as_ref().is_some_and(|waiting| waiting.client_gives_up);
        let stop = match end {
            WaitEnd::Gone => return Action::End(Stop::ClientGone),
            WaitEnd::Late => Stop::Refused(stop::waited_too_long(client_gives_up)),
            WaitEnd::Draining => Stop::Refused(Refusal::new(Reason::Draining)),
        };
        let Some(model) = model(&self.facts, scene.fleet) else { return Action::End(stop) };
        let pool = model.pool_of(waiting.as_ref().map_or(Leg::Whole, |waiting| waiting.leg));
        // A decode rank in hand goes back first: the request may get it again.
        drop(waiting);
        // A retry at a rank that failed as part of a pair is better than no answer.
        if self.spare() {
            return self.place(now, HeldLeases::default(), scene);
        }
        let stop = scene.stages.ended(scene.fleet, pool, now, stop);
        Action::End(stop::end_without_worker(self.failed.take(), stop))
    }

    /// Chooses again, after a reroute by a queue or the loss of a granted rank.
    pub(super) fn hop(
        &mut self,
        now: NanosSinceStart,
        held: HeldLeases,
        scene: &mut Scene<'_>,
    ) -> Action {
        if self.tries.hop_count >= HOPS_MAX {
            let why = "its workers come and go, and no queue leads to one of them";
            let stop = Stop::Refused(stop::no_worker(why));
            return Action::End(stop::end_without_worker(self.failed.take(), stop));
        }
        // In every mode: a fleet that changes at each step would keep the request for ever.
        self.tries.hop_count += 1;
        self.place(now, held, scene)
    }

    /// Finds a rank with room, a pair of ranks, or a place in a queue.
    pub(super) fn place(
        &mut self,
        now: NanosSinceStart,
        held: HeldLeases,
        scene: &mut Scene<'_>,
    ) -> Action {
        // The current fleet: the worker may have been removed while the request waited.
        let Some(model) = model(&self.facts, scene.fleet) else { return gone() };
        let HeldLeases { decode, granted, queued } = held;
        let found = match (granted, decode) {
            (Some(lease), decode) => Ok(self.arrived(model, lease, decode, scene)),
            // The decode rank was removed during the wait. A search for its prefill rank would be
            // in vain, and a rank that serves whole requests could not answer half a pair.
            (None, Some(decode)) if !is_there(scene.fleet, model, decode.rank()) => {
                Ok(SeekEnd::Again(None))
            }
            (None, Some(decode)) => {
                self.seek(now, model, WantedRanks::PrefillFor(decode), queued, scene)
            }
            (None, None) => self.look(now, model, queued, scene),
        };
        match found {
            Ok(SeekEnd::Act(action)) => action,
            Ok(SeekEnd::Again(decode)) => {
                self.hop(now, HeldLeases { decode, granted: None, queued }, scene)
            }
            // The place in the old queue stays counted until this step ends.
            Err(_) if self.spare() => {
                self.place(now, HeldLeases { queued, ..HeldLeases::default() }, scene)
            }
            // When no other worker is left, the client gets the error of the last attempt.
            Err(refusal) => {
                Action::End(stop::end_without_worker(self.failed.take(), Stop::Refused(refusal)))
            }
        }
    }

    /// Selects from the beginning: whole or pair, then the ranks.
    fn look(
        &mut self,
        now: NanosSinceStart,
        model: &Model,
        queued: Option<QueuePlace>,
        scene: &mut Scene<'_>,
    ) -> Result<SeekEnd, Refusal> {
        let wanted_ranks = match scene.route(now, &self.facts, self.endpoint, model)? {
            Route::Pair => {
                self.pair_window(now, model, scene)?;
                WantedRanks::Pair
            }
            Route::Whole(_) => {
                if model.prefill_pool.is_some() {
                    (scene.count)(Count::SentWhole);
                }
                WantedRanks::Whole
            }
        };
        self.seek(now, model, wanted_ranks, queued, scene)
    }

    /// Tests the window of the prefill ranks, for a request that only a pair can serve. Runs before
    /// the decode rank is leased: a refusal would return that lease at once. A request that was
    /// admitted before is not tested again.
    fn pair_window(
        &mut self,
        now: NanosSinceStart,
        model: &Model,
        scene: &mut Scene<'_>,
    ) -> Result<(), Refusal> {
        let Some(pool) = model.prefill_pool.filter(|_| self.is_new()) else { return Ok(()) };
        let fleet = scene.fleet;
        let serves_whole = |&rank: &RankIndex| fleet.is_whole_only(rank) && is_up(fleet, rank);
        if model.ranks.iter().any(serves_whole) {
            return Ok(());
        }
        self.window(now, pool, scene)
    }

    /// Looks for ranks or a queue place, and converts the result into an action.
    fn seek(
        &mut self,
        now: NanosSinceStart,
        model: &Model,
        wanted_ranks: WantedRanks,
        queued: Option<QueuePlace>,
        scene: &mut Scene<'_>,
    ) -> Result<SeekEnd, Refusal> {
        // After `queue.hops_max` moves, the request stays in its queue until a rank has room or the
        // deadline passes.
        let is_movable = self.tries.hop_count < scene.fleet.config.flow.queue.hops_max;
        let seeker =
            Seeker { facts: &self.facts, model, body_bytes: self.body_bytes, queued, is_movable };
        match scene.enter(now, wanted_ranks, &seeker) {
            Entry::Bound(lease) => Ok(self.whole(scene, lease)),
            Entry::Pair { decode, prefill } => Ok(self.pair(scene, decode, prefill)),
            Entry::Wait { decode, waiter, wanted } => {
                Ok(SeekEnd::Act(self.line_up(decode, waiter, wanted)))
            }
            // The decode rank, or each prefill rank for it, was removed during the wait: the lease
            // has been returned, and the request is routed again.
            Entry::Rejected(Leg::Prefill, Rejection::NoWorker) => Ok(SeekEnd::Again(None)),
            Entry::Rejected(leg, rejection) => {
                Err(scene.stages.rejected(scene.fleet, model.pool_of(leg), now, rejection))
            }
        }
    }

    fn line_up(
        &mut self,
        decode: Option<Lease>,
        waiter: Box<Waiter>,
        wanted: QueueDemand,
    ) -> Action {
        self.waiting = Some(QueueWait {
            leg: waiter.leg,
            queued: QueuePlace { queue: waiter.queue, wanted },
            decode,
            client_gives_up: self.facts.client_deadline == Some(waiter.facts.deadline),
        });
        Action::Wait(waiter, wanted)
    }

    /// Uses the lease that a queue granted, with the decode lease if the request waited for a
    /// prefill rank. The queue's owner may have an older or newer fleet than this shard: the lease
    /// of a rank that is gone, or that does not serve this leg, is returned.
    fn arrived(
        &self,
        model: &Model,
        lease: Lease,
        decode: Option<Lease>,
        scene: &mut Scene<'_>,
    ) -> SeekEnd {
        let fleet = scene.fleet;
        let is_right =
            |rank: RankIndex, leg| fleet.serves(rank, leg) && is_there(fleet, model, rank);
        let decode = decode.filter(|decode| is_right(decode.rank(), Leg::Decode));
        let leg = if decode.is_some() { Leg::Prefill } else { Leg::Whole };
        if !is_right(lease.rank(), leg) {
            return SeekEnd::Again(decode);
        }
        match decode {
            None => self.whole(scene, lease),
            Some(decode) => self.pair(scene, decode, lease),
        }
    }

    fn whole(&self, scene: &mut Scene<'_>, lease: Lease) -> SeekEnd {
        let Some(plan) = scene.plan(lease.rank(), self.endpoint) else {
            return SeekEnd::Again(None);
        };
        SeekEnd::Act(Action::Send(Box::new(ChosenRanks { plan, lease, prefill: None })))
    }

    fn pair(&self, scene: &mut Scene<'_>, decode: Lease, prefill: Lease) -> SeekEnd {
        let rank = prefill.rank();
        let Some(plan) = scene.plan(decode.rank(), self.endpoint) else {
            return SeekEnd::Again(None);
        };
        let prefill_plan = scene.plan(rank, self.endpoint);
        let kv_transfer = prefill_plan.as_ref().and_then(|plan| plan.engine.kv_transfer.clone());
        let (Some(prefill_plan), Some(kv_transfer)) = (prefill_plan, kv_transfer) else {
            return SeekEnd::Again(Some(decode));
        };
        // The request was routed as a pair while no prefill rank was up to show its KV transfer.
        // This prefill rank cannot transfer the request's KV.
        if !scene.split.can_split(&kv_transfer) {
            return SeekEnd::Again(None);
        }
        let prefill = PrefillDispatch { plan: prefill_plan, lease: prefill, kv_transfer };
        SeekEnd::Act(Action::Send(Box::new(ChosenRanks {
            plan,
            lease: decode,
            prefill: Some(prefill),
        })))
    }

    /// No attempt, refusal or reroute so far.
    pub(super) fn is_new(&self) -> bool {
        let AttemptCounts { refused_count, hop_count, .. } = self.tries;
        self.facts.tried.is_empty() && refused_count == 0 && hop_count == 0
    }
}

pub(super) fn model<'a>(facts: &RequestFacts, fleet: &'a FleetSnapshot) -> Option<&'a Model> {
    fleet.models.get(facts.model.index())
}

fn is_there(fleet: &FleetSnapshot, model: &Model, rank: RankIndex) -> bool {
    model.ranks.contains(&rank) && is_up(fleet, rank)
}

fn is_up(fleet: &FleetSnapshot, rank: RankIndex) -> bool {
    let is_up = |worker: &Worker| worker.state == WorkerState::Up;
    fleet.rank(rank).is_some_and(|(_, worker)| is_up(worker))
}

pub(super) fn gone() -> Action {
    Action::End(Stop::Refused(stop::no_worker("its model has just gone")))
}
