//! A request from its arrival to its answer: the machine that ships, and what the simulator keeps
//! in place of sockets.

use super::check::TENANT_WEIGHTS;
use super::plan::{MS, Plan};
use fastrand::Rng;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, RankIndex};
use forebay_board::account::Lease;
use forebay_disagg::inspect;
use forebay_fleet::worker::SessionKey;
use forebay_index::Overlap;
use forebay_mailbox::{Caller, Pin, PrefillOutcome, RequestFacts};
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::RelayError;
use forebay_router::request::{RequestFlow, Split, Wait};
use forebay_select::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

pub(crate) struct Request {
    pub(crate) shard: usize,
    /// Its facts, until it arrives.
    pub(crate) facts: RequestFacts,
    /// The machine, from its arrival on.
    pub(crate) flow: Option<RequestFlow>,
    pub(crate) prompt: Prompt,
    pub(crate) split: Split,
    pub(crate) body_bytes: u64,
    pub(crate) leaves_at: NanosSinceStart,
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
    pub(crate) ended: PrefillOutcome,
    /// When it hears that nobody wants it any more.
    pub(crate) cancelled_at: Option<NanosSinceStart>,
    /// The request's shard knows how it ended.
    pub(crate) is_told: bool,
}

pub(crate) struct Running {
    pub(crate) lease: Lease,
    pub(crate) prefill_at: NanosSinceStart,
    pub(crate) end_at: NanosSinceStart,
    pub(crate) fate: Fate,
}

/// What will come of an attempt: an answer, or this.
pub(crate) type Fate = Option<RelayError>;

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

impl Answer {
    /// How many there are: `Draining` is the last.
    pub(crate) const COUNT: usize = Self::Draining as usize + 1;
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
        let holds: Vec<_> = (0..random.usize(..3))
            .map(|_| {
                let rank = RankIndex::try_from_index(random.usize(..ranks)).unwrap();
                let bytes = u32::try_from(random.u64(1..=prompt_bytes)).unwrap();
                (rank, Overlap { blocks: 0, bytes })
            })
            .collect();
        let tenant = random.u64(..3);
        let weight = TENANT_WEIGHTS[usize::try_from(tenant).unwrap()];
        let body = br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
        let wanted = inspect(body, Endpoint::ChatCompletions).ok();
        assert!(wanted.is_some(), "a plain chat can be split");
        let session = SessionKey::of(&[random.u8(..8)]).filter(|_| random.bool());
        let client_deadline = later(random, 15, 200 * MS);
        Self {
            shard: random.usize(..plan.shards),
            facts: RequestFacts {
                model: ModelIndex::try_from_index(random.usize(..models)).unwrap(),
                caller: Caller {
                    class: random.u8(..4),
                    tenant,
                    weight,
                    session,
                    source: random.u32(..3),
                },
                arrived_at: NanosSinceStart(at),
                deadline: NanosSinceStart(u64::MAX),
                client_deadline,
                pin: (random.u32(..12) == 0).then(|| Pin::Number(DpRank(random.u32(..2)))),
                tried: Vec::new(),
                output_tokens: random.u32(..300),
            },
            flow: None,
            prompt: Prompt::known(prompt_bytes, holds.into_iter()),
            split: Split::known(wanted.filter(|_| random.u32(..8) > 0)),
            body_bytes: if large { random.u64(1..600_000) } else { random.u64(1..2_000) },
            leaves_at: later(random, plan.leavers, 150 * MS).unwrap_or(NanosSinceStart(u64::MAX)),
            state: State::Coming,
            answers: Vec::new(),
            woken: Arc::default(),
        }
    }
}
