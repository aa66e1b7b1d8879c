//! A small scene for single cases: one shard that is home to all queues, and time that stands still
//! unless it is moved.

use super::plan::MS;
use fastrand::Rng;
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, PoolIndex, RankIndex, ShardIndex};
use forebay_config::{FlowConfig, Policy, QueueMode};
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::{Caller, MeshMessage, RequestFacts, Ticket, Verdict, Waiter};
use forebay_fleet::worker::{
    Dialect, FleetSnapshot, KvTransfer, Leg, LoadBoard, LoadReports, QueueWanted, Rank, Role,
    RoomLimits, ShardBoard, pools, test_support,
};
use forebay_index::Overlaps;
use forebay_router::dispatch::RetryBudget;
use forebay_router::queue::{
    Applicant, Entry, Home, QueuePlace, Sought, Turned, enter, enter_by, is_closed,
};
use forebay_router::request::{Loads, StageRules, Stages, Wait};
use forebay_select::{Binder, Candidates, PickRequest};
use std::sync::Arc;
use std::time::Duration;

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
    pub(crate) prompt_bytes: u64,
    pub(crate) arrived_at: NanosSinceStart,
    pub(crate) deadline: NanosSinceStart,
    pub(crate) tried: Vec<RankIndex>,
    pub(crate) movable: bool,
    pub(crate) leg: Leg,
    pub(crate) near: Option<RankIndex>,
    pub(crate) pin: Option<DpRank>,
    /// Where it stands meanwhile.
    pub(crate) queued: Option<QueuePlace>,
}

impl Waits {
    /// Its place, when it has been sent on.
    pub(crate) fn queued(&self) -> Option<QueuePlace> {
        Some(QueuePlace { queue: self.waiter.queue, wanted: self.wanted })
    }
}

/// One that waits.
pub(crate) struct Waits {
    pub(crate) ticket: Ticket,
    pub(crate) waiter: Waiter,
    pub(crate) wanted: QueueWanted,
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
        let rules = StageRules {
            policy: Policy::Kv,
            first_byte_max: Duration::MAX,
            retries_after_send: false,
            attempts_max: 1,
        };
        let (reports, retry) = (LoadReports::new(Duration::from_secs(5)), RetryBudget::new(0));
        let random = Rng::with_seed(1);
        let stage = Self {
            fleet: FleetSnapshot {
                generation: 1,
                workers: places.iter().map(|_| test_support::worker()).collect(),
                ranks,
                models: models.iter().map(|ranks| test_support::model("model", ranks)).collect(),
                pools: Vec::new(),
                flow: Arc::new(flow),
            },
            board: board.clone(),
            home: Home::default(),
            stages: Stages::new(ShardIndex(0), rules, Loads { board, reports }, retry, random),
            now: NanosSinceStart(1_000 * MS),
        };
        stage.pooled()
    }

    /// The fleet as the control plane publishes it.
    fn pooled(mut self) -> Self {
        pools::assign(&mut self.fleet);
        for rank in (0..self.fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
            self.board.rank(rank).unwrap().set_queue(self.fleet.queue_of(rank));
        }
        self
    }

    pub(crate) fn flow(&mut self, change: impl FnOnce(&mut FlowConfig)) {
        let mut flow = (*self.fleet.flow).clone();
        change(&mut flow);
        self.fleet.flow = Arc::new(flow);
        self.stages.take_over(&mut self.home, &self.fleet, self.now);
    }

    pub(crate) fn any(&self) -> Ask {
        Ask {
            model: 0,
            class: 1,
            prompt_bytes: 400,
            arrived_at: self.now,
            deadline: NanosSinceStart(u64::MAX),
            tried: Vec::new(),
            movable: true,
            leg: Leg::Whole,
            near: None,
            pin: None,
            queued: None,
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

    /// Sends it the way of a pair; with a lease that it got for its decode leg it goes on.
    pub(crate) fn pair(&mut self, ask: &Ask, held: Option<Lease>) -> Entry {
        self.with_applicant(ask, |binder, applicant, open| {
            let candidates = &mut Candidates::default();
            let sought = held.map_or(Sought::Pair, Sought::PrefillFor);
            enter_by(binder, candidates, applicant, sought, open, |_, _| None)
        })
    }

    /// A pair's request waits for its first rank.
    pub(crate) fn wait_for_decode(&mut self, ask: &Ask) -> Waits {
        match self.pair(ask, None) {
            Entry::Wait { decode: None, waiter, wanted } => self.join(waiter, wanted),
            other => panic!("{other:?}"),
        }
    }

    /// A pair's request waits for its second rank.
    pub(crate) fn wait_for_prefill(&mut self, ask: &Ask, held: Option<Lease>) -> (Lease, Waits) {
        match self.pair(ask, held) {
            Entry::Wait { decode: Some(decode), waiter, wanted } => {
                (decode, self.join(waiter, wanted))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Both ranks, the one that decodes first.
    pub(crate) fn bind_pair(&mut self, ask: &Ask) -> (Lease, Lease) {
        match self.pair(ask, None) {
            Entry::Pair { decode, prefill } => (decode, prefill),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = NanosSinceStart(self.now.0 + ms * MS);
    }

    pub(crate) fn ask(&mut self, ask: &Ask) -> Entry {
        self.with_applicant(ask, |binder, applicant, open| {
            enter(binder, &mut Candidates::default(), applicant, open, |_| None)
        })
    }

    /// Asks for a tenant whose client gives up after so long, where all of the pool ends one
    /// request in each `end_ms`.
    pub(crate) fn ask_in_time(
        &mut self,
        ask: &Ask,
        tenant: u64,
        (left_ms, end_ms): (u64, u64),
    ) -> Entry {
        let client_deadline = Some(NanosSinceStart(self.now.0 + left_ms * MS));
        self.with_applicant(ask, |binder, applicant, open| {
            let mut facts = applicant.facts.clone();
            (facts.caller.tenant, facts.client_deadline) = (tenant, client_deadline);
            let applicant = Applicant { facts: &facts, ..*applicant };
            let projected = |ahead| Some(Duration::from_millis(end_ms * ahead));
            enter(binder, &mut Candidates::default(), &applicant, open, projected)
        })
    }

    fn with_applicant<T>(
        &mut self,
        ask: &Ask,
        then: impl FnOnce(&mut Binder<'_>, &Applicant<'_>, &mut dyn FnMut() -> Ticket) -> T,
    ) -> T {
        let none = Overlaps::new(8);
        let facts = RequestFacts {
            model: ModelIndex(ask.model),
            caller: Caller { class: ask.class, tenant: 0, weight: 1 },
            arrived_at: ask.arrived_at,
            deadline: ask.deadline,
            client_deadline: None,
            pin: ask.pin,
            tried: ask.tried.clone(),
            output_tokens: 0,
        };
        let Stages { rules, loads, turn, random, waits, .. } = &mut self.stages;
        let Loads { board, reports } = loads;
        let now = self.now;
        let applicant = Applicant {
            facts: &facts,
            model: &self.fleet.models[usize::from(ask.model)],
            request: PickRequest {
                leg: ask.leg,
                ranks: &[],
                board,
                reports,
                now,
                overlaps: &none,
                on_the_way: &none,
                prompt_bytes: ask.prompt_bytes,
                bytes_per_token: 4.0,
            },
            body_bytes: 10,
            near: ask.near,
            movable: ask.movable,
            queued: ask.queued,
        };
        let mut binder =
            Binder { fleet: &self.fleet, board, reports, policy: rules.policy, now, turn, random };
        then(&mut binder, &applicant, &mut || waits.open())
    }

    /// Binds it at once.
    pub(crate) fn bind(&mut self, ask: &Ask) -> Lease {
        match self.ask(ask) {
            Entry::Bound(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Sends it to wait, and its home hears of it.
    pub(crate) fn wait(&mut self, ask: &Ask) -> Waits {
        match self.ask(ask) {
            Entry::Wait { waiter, wanted, .. } => self.join(waiter, wanted),
            other => panic!("{other:?}"),
        }
    }

    fn join(&mut self, waiter: Box<Waiter>, wanted: QueueWanted) -> Waits {
        let waits = Waits { ticket: waiter.ticket, waiter: (*waiter).clone(), wanted };
        self.stages.take(&mut self.home, &self.fleet, MeshMessage::Join(waiter));
        waits
    }

    pub(crate) fn turned(&mut self, ask: &Ask) -> Turned {
        match self.ask(ask) {
            Entry::Turned(_, turned) => turned,
            other => panic!("{other:?}"),
        }
    }

    /// Is the only pool closed to whoever comes?
    pub(crate) fn is_closed(&mut self) -> bool {
        is_closed(&self.stages.binder(&self.fleet, self.now), PoolIndex(0))
    }

    /// Its wait is over, whatever came of it.
    pub(crate) fn settle(&mut self, waits: &Waits) {
        let wait = Wait::new(&waits.waiter, waits.wanted);
        if let Some(leave) = self.stages.end_wait(&wait, &self.fleet, self.now) {
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
