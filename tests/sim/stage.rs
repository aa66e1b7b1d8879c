//! A small scene for single cases: one shard that is home to all queues, and time that stands still
//! unless it is moved.

use super::plan::MS;
use super::shard::stages;
use fastrand::Rng;
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, ShardIndex};
use forebay_board::account::Lease;
use forebay_board::{LoadBoard, ShardBoard};
use forebay_config::{Config, FlowConfig, Policy, QueueMode};
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{
    Dialect, FleetSnapshot, KvTransfer, Rank, Role, RoomLimits, Serving, pools, test_support,
};
use forebay_mailbox::{Caller, MeshMessage, Pin, RequestFacts, Ticket, Verdict, Waiter};
use forebay_prompt::parse::{Endpoint, Reason};
use forebay_router::queue::{Home, is_closed};
use forebay_router::request::{
    Action, ChosenRanks, NewRequest, RequestEvent, RequestFlow, Scene, Split, Stages, Stop, Wait,
};
use forebay_select::Prompt;
use std::sync::Arc;
use std::time::Duration;

/// Of each body.
const BODY_BYTES: u64 = 10;

/// Of all models' prefill ranks.
pub(crate) const PREFILL_POOL: PoolIndex = PoolIndex(1_024);

pub(crate) struct Stage {
    pub(crate) fleet: FleetSnapshot,
    pub(crate) board: ShardBoard,
    pub(crate) home: Home,
    pub(crate) stages: Stages,
    pub(crate) now: NanosSinceStart,
}

/// What a request asks for.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) model: u16,
    pub(crate) class: u8,
    pub(crate) tenant: u64,
    pub(crate) prompt_bytes: u64,
    pub(crate) arrived_at: NanosSinceStart,
    pub(crate) client_deadline: Option<NanosSinceStart>,
    pub(crate) pin: Option<Pin>,
}

/// One that waits.
pub(crate) struct Waits {
    pub(crate) ticket: Ticket,
    pub(crate) waiter: Waiter,
    wait: Wait,
    flow: RequestFlow,
}

impl Stage {
    /// One worker per rank, with so many places each; the ranks of each model.
    pub(crate) fn new(mode: QueueMode, places: &[u32], models: &[&[u16]]) -> Self {
        let mut flow = FlowConfig::default();
        flow.queue.mode = mode;
        flow.queue.stale_after = Duration::from_millis(10);
        let rank = |(number, &places_max): (u16, &u32)| Rank {
            room: RoomLimits { places_max, ..RoomLimits::default() },
            ..test_support::rank(number)
        };
        let ranks: Vec<Rank> = (0..).zip(places).map(rank).collect();
        let board = ShardBoard::from(LoadBoard::new());
        let stage = Self {
            fleet: FleetSnapshot {
                generation: 1,
                workers: places.iter().map(|_| test_support::worker()).collect(),
                ranks,
                models: models.iter().map(|ranks| test_support::model("model", ranks)).collect(),
                pools: Vec::new(),
                config: Arc::new(Config { flow, ..Config::default() }),
                tenants: Arc::default(),
                serving: Serving::default(),
            },
            board: board.clone(),
            home: Home::default(),
            stages: stages(ShardIndex(0), Policy::Kv, board, Rng::with_seed(1)),
            now: NanosSinceStart(1_000 * MS),
        };
        stage.pooled()
    }

    /// The fleet as the control plane publishes it.
    fn pooled(mut self) -> Self {
        pools::assign(&mut self.fleet);
        self.board.set_queues(&self.fleet);
        self
    }

    pub(crate) fn flow(&mut self, change: impl FnOnce(&mut FlowConfig)) {
        let mut flow = self.fleet.config.flow.clone();
        change(&mut flow);
        self.fleet.config = Arc::new(Config { flow, ..Config::default() });
        self.stages.take_over(&mut self.home, &self.fleet, self.now);
    }

    pub(crate) fn any(&self) -> Ask {
        Ask {
            model: 0,
            class: 1,
            prompt_bytes: 400,
            tenant: 0,
            arrived_at: self.now,
            client_deadline: None,
            pin: None,
        }
    }

    /// Gives the ranks roles, one word each: `p`refill, `d`ecode or `b`oth, in upper case of
    /// SGLang; then its label, if any.
    pub(crate) fn roles(mut self, words: &str) -> Self {
        for (number, word) in words.split(' ').enumerate() {
            let (kind, label) = word.split_at(1);
            let is_sglang = kind == kind.to_uppercase();
            if is_sglang {
                self.fleet.workers[number].dialect = Dialect::Sglang;
            }
            let rank = &mut self.fleet.ranks[number];
            rank.topology = (!label.is_empty()).then(|| label.into());
            rank.role = match kind.to_lowercase().as_str() {
                "p" => Role::Prefill,
                "d" => Role::Decode,
                _ => Role::Both,
            };
            if rank.role == Role::Prefill {
                rank.kv_transfer = Some(KvTransfer::TwoPhase);
            }
        }
        self.pooled()
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = NanosSinceStart(self.now.0 + ms * MS);
    }

    /// The first step of a request.
    pub(crate) fn ask(&mut self, ask: &Ask) -> (RequestFlow, Action) {
        let facts = RequestFacts {
            model: ModelIndex(ask.model),
            caller: Caller {
                class: ask.class,
                tenant: ask.tenant,
                weight: 1,
                session: None,
                source: 0,
            },
            arrived_at: ask.arrived_at,
            deadline: NanosSinceStart(u64::MAX),
            client_deadline: ask.client_deadline,
            pin: ask.pin,
            tried: Vec::new(),
            output_tokens: 0,
        };
        let new_request =
            NewRequest::of(TenantPart { tenant: ask.tenant, weight: 1, is_only: false });
        let mut flow = RequestFlow::new(facts, Endpoint::ChatCompletions, BODY_BYTES, new_request);
        let action = self.step(&mut flow, ask.prompt_bytes, RequestEvent::Ready);
        (flow, action)
    }

    pub(crate) fn step(
        &mut self,
        flow: &mut RequestFlow,
        prompt_bytes: u64,
        event: RequestEvent,
    ) -> Action {
        let mut scene = Scene {
            fleet: &self.fleet,
            stages: &mut self.stages,
            prompt: &Prompt::known(prompt_bytes, std::iter::empty()),
            text_bytes: prompt_bytes,
            body: br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#,
            split: &mut Split::default(),
            count: &|_| (),
        };
        flow.step(self.now, event, &mut scene)
    }

    /// Binds it at once.
    pub(crate) fn bind(&mut self, ask: &Ask) -> Lease {
        match self.ask(ask).1 {
            Action::Send(chosen) if chosen.prefill.is_none() => chosen.lease,
            other => panic!("{other:?}"),
        }
    }

    /// Binds it to a pair of ranks.
    pub(crate) fn bind_pair(&mut self, ask: &Ask) -> (Lease, Lease) {
        pair(self.ask(ask).1)
    }

    /// Sends it to wait, and its home hears of it.
    pub(crate) fn wait(&mut self, ask: &Ask) -> Waits {
        let asked = self.ask(ask);
        self.join(asked)
    }

    pub(crate) fn join(&mut self, (flow, action): (RequestFlow, Action)) -> Waits {
        let Action::Wait(waiter, wanted) = action else { panic!("{action:?}") };
        let wait = Wait::new(&waiter, wanted);
        let waits = Waits { ticket: waiter.ticket, waiter: (*waiter).clone(), wait, flow };
        self.stages.take(&mut self.home, &self.fleet, MeshMessage::Join(waiter));
        waits
    }

    /// It hears of its verdict.
    pub(crate) fn tell(&mut self, waits: Waits, verdict: Verdict) -> (RequestFlow, Action) {
        let Waits { waiter, mut wait, mut flow, .. } = waits;
        let (event, is_kept) = wait.event(Ok(verdict));
        if !is_kept {
            self.end(&wait);
        }
        let action = self.step(&mut flow, waiter.prompt.bytes, event);
        if is_kept {
            self.end(&wait);
        }
        (flow, action)
    }

    /// It has been sent on, and waits again.
    pub(crate) fn wait_on(&mut self, waits: Waits) -> Waits {
        let told = self.tell(waits, Verdict::Reroute);
        self.join(told)
    }

    /// Why it is refused.
    pub(crate) fn refused(&mut self, ask: &Ask) -> Option<Reason> {
        match self.ask(ask).1 {
            Action::End(Stop::Refused(refusal)) => Some(refusal.reason()),
            _ => None,
        }
    }

    /// May a request of the tenant pass the window of the first pool?
    pub(crate) fn lets_in(&mut self, tenant: u64, is_only: bool) -> bool {
        let mut new_request = NewRequest::of(TenantPart { tenant, weight: 1, is_only });
        let Self { stages, fleet, now, .. } = self;
        stages.let_in(fleet, PoolIndex(0), *now, &mut new_request, 0).is_ok()
    }

    /// Is the only pool closed to whoever comes?
    pub(crate) fn is_closed(&mut self) -> bool {
        is_closed(&self.stages.binder(&self.fleet, self.now), PoolIndex(0))
    }

    /// Its wait is over, whatever came of it.
    pub(crate) fn settle(&mut self, waits: &Waits) {
        self.end(&waits.wait);
    }

    fn end(&mut self, wait: &Wait) {
        if let Some(leave) = self.stages.end_wait(wait, &self.fleet, self.now) {
            self.stages.take(&mut self.home, &self.fleet, leave);
        }
    }

    /// The home looks once.
    pub(crate) fn look(&mut self) -> Vec<(Ticket, Verdict)> {
        self.stages.serve(&mut self.home, &self.fleet, self.now)
    }
}

/// The rank that each ticket was given; `None` for those that are sent on.
pub(crate) fn ranks(verdicts: &[(Ticket, Verdict)]) -> Vec<(Ticket, Option<u16>)> {
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Granted(lease) => Some(lease.rank().0),
        Verdict::Reroute => None,
    };
    verdicts.iter().map(|(ticket, verdict)| (*ticket, rank(verdict))).collect()
}

/// Both ranks, the one that decodes first.
pub(crate) fn pair(action: Action) -> (Lease, Lease) {
    let Action::Send(chosen) = action else { panic!("{action:?}") };
    let ChosenRanks { lease, prefill, .. } = *chosen;
    (lease, prefill.unwrap().lease)
}
