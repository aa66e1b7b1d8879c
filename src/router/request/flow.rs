//! The state machine of one request, from the matched prompt to the rank that serves it, or to the
//! refusal. [`RequestFlow::step`] takes what has happened and returns what to do. The machine knows
//! no socket, no clock and no shard: `dataplane/request/serve.rs` feeds it from sockets,
//! `tests/sim` from a schedule.
//!
//! | event | the machine | actions |
//! |---|---|---|
//! | `Ready` | routes, selects, lines up | `Send`, `Wait`, `End` |
//! | `Granted` | checks the rank, or looks for the prefill rank | `Send`, `Wait`, `End` |
//! | `Reroute` | routes again, with its place in the queue | `Send`, `Wait`, `End` |
//! | `WaitOver` | ends, or asks a rank that was spared | `Send`, `Wait`, `End` |
//! | `Failed` | routes again, or ends | `Send`, `Wait`, `End` |
//! | `Failed` with the rest of a stream | the same, with new time to wait | the same |
//!
//! An action other than `Wait` ends the place in the queue that the request came from, and so does
//! the next `Wait`.

use super::event::{Action, Chosen, Prefilling, RequestEvent, WaitEnd};
use super::pressure::Newcomer;
use super::scene::{Scene, Seeker};
use super::stop::{self, Stop};
use crate::dispatch::RelayError;
use crate::queue::{Entry, QueuePlace, Sought, Turned};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_fleet::account::{Count, FailedTrial, Lease};
use forebay_fleet::mailbox::{RequestFacts, Waiter};
use forebay_fleet::worker::{FleetSnapshot, Leg, Model, QueueWanted, Worker, WorkerState};
use forebay_prompt::parse::{Endpoint, Reason, Refusal};
use forebay_select::Route;

/// Engines that have no room are asked so often in all for one request.
pub(super) const REFUSALS_MAX: u32 = 8;
/// Queues send a request on so often in all, stale or not (`queue.hops_max` is at most 100).
pub(super) const HOPS_MAX: u32 = 120;

/// What a request has already when it looks for what it lacks.
#[derive(Debug, Default)]
pub(super) struct InHand {
    /// The lease of its decode rank.
    decode: Option<Lease>,
    /// The last rank that it has waited for: nothing is left to choose.
    granted: Option<Lease>,
    /// Its place in the queue that it comes from.
    queued: Option<QueuePlace>,
}

/// A wait in a queue.
#[derive(Debug)]
pub(super) struct Stay {
    pub(super) leg: Leg,
    pub(super) queued: QueuePlace,
    /// Its decode rank, while it waits for a prefill rank.
    decode: Option<Lease>,
    /// Its deadline is the client's own.
    client_gives_up: bool,
}

/// How often the request has been where.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Attempts that failed after the request was sent.
    pub(super) failed_count: u32,
    /// How often engines had no room for it.
    pub(super) refused_count: u32,
    /// How often a queue sent it on.
    pub(super) hop_count: u32,
    /// The last rank that failed it, if that may not be to blame: asked again when no other is
    /// left.
    pub(super) spared: Option<RankIndex>,
    /// The rank that failed the last attempt that was sent, without the help of another, and how.
    pub(super) failed_at: Option<(RankIndex, RelayError)>,
    /// The trial of a rank that failed, until another rank has answered.
    pub(super) trial: Option<Box<FailedTrial>>,
    /// The last attempt was that of a pair of ranks.
    pub(super) is_pair: bool,
}

/// The machine of one request.
#[derive(Debug)]
pub struct RequestFlow {
    pub(super) facts: RequestFacts,
    endpoint: Endpoint,
    /// Bytes of its body.
    body_bytes: u64,
    newcomer: Newcomer,
    pub(super) tries: Tries,
    /// How it ends if no other worker is found.
    pub(super) failed: Option<Stop>,
    pub(super) waiting: Option<Stay>,
}

/// What a look for ranks came to.
enum SeekEnd {
    Act(Action),
    /// A rank that it has, or all that could compute its prompt for that, went while it waited: to
    /// be routed again, with the decode rank that it still has.
    Again(Option<Lease>),
}

impl RequestFlow {
    /// A request whose body has `body_bytes`. `newcomer`: as it came to
    /// [`Stages::window_of`](super::stages::Stages::window_of).
    #[must_use]
    pub fn new(
        facts: RequestFacts,
        endpoint: Endpoint,
        body_bytes: u64,
        newcomer: Newcomer,
    ) -> Self {
        let tries = Tries::default();
        Self { facts, endpoint, body_bytes, newcomer, tries, failed: None, waiting: None }
    }

    /// What is known of the request.
    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    /// What it asks for.
    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The decode rank that it holds while it waits for a prefill rank.
    #[must_use]
    pub fn decode_rank(&self) -> Option<RankIndex> {
        self.waiting.as_ref()?.decode.as_ref().map(Lease::rank)
    }

    /// How often it was sent on, by a queue or because what it was granted had gone.
    #[must_use]
    pub const fn hop_count(&self) -> u32 {
        self.tries.hop_count
    }

    /// True after an attempt of it failed that had been sent.
    #[must_use]
    pub const fn is_retry(&self) -> bool {
        self.tries.failed_count > 0
    }

    /// The rank that failed the last attempt that was sent, if it was alone with the request, and
    /// how.
    #[must_use]
    pub const fn failed_at(&self) -> Option<(RankIndex, RelayError)> {
        self.tries.failed_at
    }

    /// The trial of a rank that failed: the attempt that begins shows what the failure speaks of.
    pub const fn take_trial(&mut self) -> Option<Box<FailedTrial>> {
        self.tries.trial.take()
    }

    /// Takes what has happened, and says what to do.
    pub fn step(
        &mut self,
        now: NanosSinceStart,
        event: RequestEvent,
        scene: &mut Scene<'_>,
    ) -> Action {
        self.check_event(&event);
        let action = match event {
            RequestEvent::Ready => self.place(now, InHand::default(), scene),
            RequestEvent::Granted(lease) => self.granted(now, lease, scene),
            RequestEvent::Reroute => {
                let held = self.waiting.take().map_or_else(InHand::default, |waiting| InHand {
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
        }
        self.check_invariants(&action);
        action
    }

    fn window(
        &mut self,
        now: NanosSinceStart,
        pool: PoolIndex,
        scene: &mut Scene<'_>,
    ) -> Result<(), Refusal> {
        scene.stages.window_of(scene.fleet, pool, now, &mut self.newcomer)
    }

    fn granted(&mut self, now: NanosSinceStart, lease: Lease, scene: &mut Scene<'_>) -> Action {
        let Some(Stay { leg, queued, decode, .. }) = self.waiting.take() else {
            debug_assert!(false, "granted, and waits for nothing");
            return self.place(now, InHand::default(), scene);
        };
        debug_assert!(decode.is_none() || leg == Leg::Prefill, "two ranks for one leg");
        let held = if leg == Leg::Decode {
            // The rest of the pair stands in another queue.
            InHand { decode: Some(lease), ..InHand::default() }
        } else {
            InHand { decode, granted: Some(lease), queued: Some(queued) }
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
        // A rank that failed together with another one is better than an end without an answer.
        if self.spare() {
            return self.place(now, InHand::default(), scene);
        }
        let stop = scene.stages.ended(scene.fleet, pool, now, stop);
        Action::End(stop::after(self.failed.take(), stop))
    }

    /// A queue sent it on, or what it was granted has gone: it chooses again.
    pub(super) fn hop(
        &mut self,
        now: NanosSinceStart,
        held: InHand,
        scene: &mut Scene<'_>,
    ) -> Action {
        if self.tries.hop_count >= HOPS_MAX {
            let why = "its workers come and go, and no queue leads to one of them";
            let stop = Stop::Refused(stop::no_worker(why));
            return Action::End(stop::after(self.failed.take(), stop));
        }
        // In every mode: a fleet that changes with each look would keep the request for ever.
        self.tries.hop_count += 1;
        self.place(now, held, scene)
    }

    /// A rank with room and its lease, or two of them, or a place in a queue.
    pub(super) fn place(
        &mut self,
        now: NanosSinceStart,
        held: InHand,
        scene: &mut Scene<'_>,
    ) -> Action {
        // The fleet of this moment: what waited may find that its worker has gone.
        let Some(model) = model(&self.facts, scene.fleet) else { return gone() };
        let InHand { decode, granted, queued } = held;
        let found = match (granted, decode) {
            (Some(lease), decode) => Ok(self.arrived(model, lease, decode, scene)),
            // The rank went while the request waited. A prefill rank would be sought in vain, and a
            // rank that serves whole requests would be sent what it cannot answer.
            (None, Some(decode)) if !is_there(scene.fleet, model, decode.rank()) => {
                Ok(SeekEnd::Again(None))
            }
            (None, Some(decode)) => {
                self.seek(now, model, Sought::PrefillFor(decode), queued, scene)
            }
            (None, None) => self.look(now, model, queued, scene),
        };
        match found {
            Ok(SeekEnd::Act(action)) => action,
            Ok(SeekEnd::Again(decode)) => {
                self.hop(now, InHand { decode, granted: None, queued }, scene)
            }
            // Its place, if it comes from a queue, is counted until this step ends.
            Err(_) if self.spare() => {
                self.place(now, InHand { queued, ..InHand::default() }, scene)
            }
            // When no other worker is left, the client hears what the last one did.
            Err(refusal) => Action::End(stop::after(self.failed.take(), Stop::Refused(refusal))),
        }
    }

    /// select, from the beginning: whole or pair, then the ranks.
    fn look(
        &mut self,
        now: NanosSinceStart,
        model: &Model,
        queued: Option<QueuePlace>,
        scene: &mut Scene<'_>,
    ) -> Result<SeekEnd, Refusal> {
        let sought = match scene.route(now, &self.facts, self.endpoint, model)? {
            Route::Pair => {
                self.pair_window(now, model, scene)?;
                Sought::Pair
            }
            Route::Whole(_) => {
                if model.prefill_pool.is_some() {
                    (scene.count)(Count::SentWhole);
                }
                Sought::Whole
            }
        };
        self.seek(now, model, sought, queued, scene)
    }

    /// The window of the ranks that would compute its prompt, for a request that only a pair can
    /// serve. Before its decode rank is taken: it would be given back at once. Who was let in
    /// before is not asked again.
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

    /// Runs a way in, and takes what it leads to.
    fn seek(
        &mut self,
        now: NanosSinceStart,
        model: &Model,
        sought: Sought,
        queued: Option<QueuePlace>,
        scene: &mut Scene<'_>,
    ) -> Result<SeekEnd, Refusal> {
        // After `queue.hops_max` moves it stays in its queue, until a rank or its deadline comes.
        let is_movable = self.tries.hop_count < scene.fleet.config.flow.queue.hops_max;
        let seeker =
            Seeker { facts: &self.facts, model, body_bytes: self.body_bytes, queued, is_movable };
        match scene.enter(now, sought, &seeker) {
            Entry::Bound(lease) => Ok(self.whole(scene, lease)),
            Entry::Pair { decode, prefill } => Ok(self.pair(scene, decode, prefill)),
            Entry::Wait { decode, waiter, wanted } => {
                Ok(SeekEnd::Act(self.line_up(decode, waiter, wanted)))
            }
            // Its decode rank, or all that could have computed its prompt for it, went while it
            // waited: the lease is back, and the request is routed again.
            Entry::Turned(Leg::Prefill, Turned::NoWorker) => Ok(SeekEnd::Again(None)),
            Entry::Turned(leg, turned) => {
                Err(scene.stages.turned(scene.fleet, model.pool_of(leg), now, turned))
            }
        }
    }

    fn line_up(
        &mut self,
        decode: Option<Lease>,
        waiter: Box<Waiter>,
        wanted: QueueWanted,
    ) -> Action {
        self.waiting = Some(Stay {
            leg: waiter.leg,
            queued: QueuePlace { queue: waiter.queue, wanted },
            decode,
            client_gives_up: self.facts.client_deadline == Some(waiter.facts.deadline),
        });
        Action::Wait(waiter, wanted)
    }

    /// A request that waited has its lease now, beside the one of its decode rank if it waited for
    /// a prefill rank. The home that granted it may know another fleet than this shard, and either
    /// may be the newer: a rank that is not there, or not for this, is given back.
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

    /// One rank does it all.
    fn whole(&self, scene: &mut Scene<'_>, lease: Lease) -> SeekEnd {
        let Some(plan) = scene.plan(lease.rank(), self.endpoint) else {
            return SeekEnd::Again(None);
        };
        SeekEnd::Act(Action::Send(Box::new(Chosen { plan, lease, prefill: None })))
    }

    /// One computes the prompt, the other answers.
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
        // Routed as a pair while there was no prefill rank to ask what it can transfer. Now there
        // is, and it cannot hand this over.
        if !scene.split.can_split(&kv_transfer) {
            return SeekEnd::Again(None);
        }
        let prefill = Prefilling { plan: prefill_plan, lease: prefill, kv_transfer };
        SeekEnd::Act(Action::Send(Box::new(Chosen { plan, lease: decode, prefill: Some(prefill) })))
    }

    /// It has not been anywhere.
    pub(super) fn is_new(&self) -> bool {
        let Tries { refused_count, hop_count, .. } = self.tries;
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
