//! A request from its arrival to its answer, as the shell carries it: `shard/request.rs` and
//! `shard/wait.rs` without sockets.

use super::plan::{MS, Plan};
use fastrand::Rng;
use forebay::account::Lease;
use forebay::base::{DpRank, ModelIndex, NanosSinceStart, QueueIndex, RankIndex};
use forebay::index::{Overlap, Overlaps};
use forebay::mailbox::Ticket;
use forebay::queue::{Applicant, Seated};
use forebay::select::PickRequest;
use forebay::worker::{FleetSnapshot, Leg, QueueWanted};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

pub(crate) struct Request {
    pub(crate) shard: usize,
    pub(crate) model: ModelIndex,
    pub(crate) class: u8,
    pub(crate) tenant: u64,
    pub(crate) weight: u32,
    pub(crate) prompt_bytes: u64,
    pub(crate) output_tokens: u32,
    pub(crate) body_bytes: u64,
    pub(crate) holds: Vec<(RankIndex, u32)>,
    /// May be served in two.
    pub(crate) splits: bool,
    /// The number of the rank that it asks for.
    pub(crate) pin: Option<DpRank>,
    pub(crate) arrives: NanosSinceStart,
    /// From its arrival on.
    pub(crate) wait_until: NanosSinceStart,
    pub(crate) client_deadline: Option<NanosSinceStart>,
    pub(crate) leaves_at: NanosSinceStart,
    pub(crate) tried: Vec<RankIndex>,
    pub(crate) hops: u32,
    /// Its place in the queue that has sent it on.
    pub(crate) seat: Option<Wait>,
    pub(crate) refusals: u32,
    pub(crate) state: State,
    pub(crate) answers: Vec<Answer>,
    pub(crate) woken: Arc<Flag>,
}

pub(crate) enum State {
    Coming,
    Waiting(Wait),
    Running(Running),
    Paired(Paired),
    Done,
}

pub(crate) struct Wait {
    pub(crate) ticket: Ticket,
    pub(crate) queue: QueueIndex,
    pub(crate) wanted: QueueWanted,
    pub(crate) deadline: NanosSinceStart,
    pub(crate) leg: Leg,
    /// Of the decode rank, while it waits for a prefill rank.
    pub(crate) held: Option<Lease>,
}

/// What the shard that has the request knows of a pair; the prefill leg has a life of its own.
pub(crate) struct Paired {
    pub(crate) decode: Lease,
    /// Number of the prefill leg.
    pub(crate) leg: usize,
    pub(crate) begins_at: NanosSinceStart,
    pub(crate) end_at: NanosSinceStart,
    pub(crate) fate: Fate,
    /// Does the answer begin before the prefill leg has ended?
    pub(crate) is_eager: bool,
    /// The client has seen the first byte.
    pub(crate) has_begun: bool,
}

/// A prefill leg, on the shard that runs it.
pub(crate) struct PrefillLeg {
    pub(crate) request: usize,
    pub(crate) rank: RankIndex,
    /// `None`: given back.
    pub(crate) lease: Option<Lease>,
    pub(crate) end_at: NanosSinceStart,
    pub(crate) fate: Fate,
    /// When it hears that nobody wants it any more.
    pub(crate) cancelled_at: Option<NanosSinceStart>,
    /// What the request's shard has been told.
    pub(crate) told: Option<Fate>,
}

pub(crate) struct Running {
    pub(crate) lease: Lease,
    pub(crate) prefill_at: NanosSinceStart,
    pub(crate) end_at: NanosSinceStart,
    pub(crate) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Serves,
    Refuses,
    Fails,
    /// Only its time ends it.
    Hangs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Served,
    Failed,
    Gone,
    Window,
    NoRoom,
    Full,
    TooLate,
    NoWorker,
    Late,
    Draining,
}

/// Set by the waker of a request's task.
#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Request {
    /// What ranks hold of its prompt.
    pub(crate) fn record(&self, overlaps: &mut Overlaps) {
        overlaps.clear();
        for &(rank, bytes) in &self.holds {
            overlaps.record(rank, Overlap { blocks: 0, bytes });
        }
    }

    pub(crate) fn applicant<'a>(
        &'a self,
        fleet: &'a FleetSnapshot,
        asks: PickRequest<'a>,
    ) -> Applicant<'a> {
        let own = self.client_deadline.unwrap_or(NanosSinceStart(u64::MAX));
        Applicant {
            model_index: self.model,
            model: &fleet.models[self.model.index()],
            request: asks,
            output_tokens: self.output_tokens,
            body_bytes: self.body_bytes,
            class: self.class,
            tenant: self.tenant,
            weight: self.weight,
            arrived_at: self.arrives,
            deadline: self.wait_until.min(own),
            client_deadline: self.client_deadline,
            near: None,
            pin: self.pin,
            tried: &self.tried,
            movable: self.hops < fleet.flow.queue.hops_max,
            seated: self.seat.as_ref().map(|at| Seated { queue: at.queue, wanted: at.wanted }),
        }
    }

    pub(crate) fn draw(random: &mut Rng, plan: &Plan, models: usize, ranks: usize) -> Self {
        let at = if plan.bursty {
            // Few moments, many requests in each: equal times are the rule.
            random.u64(0..4) * plan.span_ns / 4
        } else {
            random.u64(0..plan.span_ns)
        };
        let at = at + MS;
        let later = |random: &mut Rng, share: u32, most: u64| {
            (random.u32(..100) < share).then(|| NanosSinceStart(at + random.u64(1..most)))
        };
        let large = random.u32(..6) == 0;
        let prompt_bytes = random.u64(1..if large { plan.prompt_bytes } else { 40 });
        let holds = (0..random.usize(..3)).map(|_| {
            let rank = RankIndex::try_from_index(random.usize(..ranks)).unwrap();
            (rank, u32::try_from(random.u64(1..=prompt_bytes)).unwrap())
        });
        let holds = holds.collect();
        let tenant = random.u64(..3);
        Self {
            shard: random.usize(..plan.shards),
            model: ModelIndex::try_from_index(random.usize(..models)).unwrap(),
            class: random.u8(..5),
            tenant,
            weight: [1, 3, 0][usize::try_from(tenant).unwrap()],
            prompt_bytes,
            output_tokens: random.u32(..300),
            body_bytes: if large { random.u64(1..600_000) } else { random.u64(1..2_000) },
            holds,
            pin: (random.u32(..12) == 0).then(|| DpRank(random.u32(..2))),
            splits: random.u32(..8) > 0,
            arrives: NanosSinceStart(at),
            wait_until: NanosSinceStart(0),
            client_deadline: later(random, 15, 200 * MS),
            leaves_at: later(random, plan.leavers, 150 * MS).unwrap_or(NanosSinceStart(u64::MAX)),
            tried: Vec::new(),
            hops: 0,
            seat: None,
            refusals: 0,
            state: State::Coming,
            answers: Vec::new(),
            woken: Arc::default(),
        }
    }
}
