//! The production code, run as a shard runs it: the index with its predictions, `Stages`, the
//! request state machine, the owner of the queues. `src/dataplane` puts sockets around them too.

use crate::fleet::fleet;
use crate::index_memory::{IndexMemory, TOKEN_BYTES};
use crate::plan::SimPlan;
use crate::ranks::kv_cache::CacheChange;
use crate::traces::trace::{Trace, TraceRequest};
use ahash::AHashMap;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex, ShardIndex};
use forebay_board::account::{Lease, LeaseRequest, PromptPrefixes};
use forebay_board::{
    CacheWrites, FirstTokenCounts, LearnedLimits, LoadBoard, LoadReading, LoadReport, LoadReports,
    OwnLoad, ShardBoard,
};
use forebay_config::Config;
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{FleetSnapshot, Model, Requester, RoomLimits, SessionKey, TierRanks};
use forebay_index::{IndexReader, Overlap, PrefixMarks};
use forebay_mailbox::{Caller, MeshMessage, RequestFacts, Ticket, Verdict};
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_prompt::render::RenderThread;
use forebay_replicas::{ConnectedReplica, Replica, ReplicaId};
use forebay_router::dispatch::RetryBudget;
use forebay_router::queue::Home;
use forebay_router::request::{
    Action, ChosenRanks, Loads, NewRequest, RequestEvent, RequestFlow, Scene, Split, StageRules,
    Stages, TakeOutcome, Wait, WaitEnd, wait_deadline,
};
use forebay_select::{MatchRequest, Prompt, output_tokens};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const MODEL: ModelIndex = ModelIndex(0);
/// Blocks for learning the ratio of bytes to tokens before the run.
const LEARN_STEPS: u32 = 400;
/// Changes between the prefetch of a block and its use.
const CHANGES_AHEAD: usize = 6;

/// Body that decides whether a request may be split; the prompt text comes from the trace.
const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"?"}],"stream":true}"#;

/// Result of placing a request.
pub(crate) enum PlaceOutcome {
    Sent(Lease),
    /// To a pair of ranks.
    Paired {
        prefill: Lease,
        decode: Lease,
    },
    /// The request waits for a rank, at most until this time.
    Waits(NanosSinceStart),
    Refused,
}

/// The requests that wait in queues.
#[derive(Default)]
struct QueuedRequests {
    by_ticket: AHashMap<Ticket, WaitingRequest>,
    /// Ticket of each queued request.
    tickets: AHashMap<u32, Ticket>,
}

/// A request that waits in a queue.
struct WaitingRequest {
    request: u32,
    flow: RequestFlow,
    prompt: Prompt,
    wait: Wait,
}

pub(crate) struct ProductionRouter {
    fleet: Arc<FleetSnapshot>,
    stages: Stages,
    home: Home,
    memory: IndexMemory,
    request: ApiRequest,
    waiting: QueuedRequests,
    buffer: Vec<u8>,
    control: BoardControl,
}

/// State with which the control plane updates the load board.
#[derive(Default)]
struct BoardControl {
    cache_writes: CacheWrites,
    limits: LearnedLimits,
    first_tokens: FirstTokenCounts,
}

/// A request of the trace on arrival.
#[derive(Clone, Copy)]
pub(crate) struct TraceArrival<'a> {
    pub(crate) id: u32,
    pub(crate) request: &'a TraceRequest,
    pub(crate) now: NanosSinceStart,
}

impl ProductionRouter {
    pub(crate) fn new(trace: &Trace, plan: &SimPlan, config: Config, seed: u64) -> Self {
        let config = Arc::new(config);
        let (fleet, root) = fleet(trace, plan, &config);
        let board = ShardBoard::from(LoadBoard::new());
        board.set_queues(&fleet);
        let loads = Loads { board, reports: LoadReports::new(config.load.age_max) };
        let retry = RetryBudget::new(config.retry.budget_percent);
        let rules = StageRules::of(&config);
        let random = fastrand::Rng::with_seed(seed);
        let mut stages = Stages::new(ShardIndex(0), rules, loads, retry, random);
        let bytes = LEARN_STEPS * TOKEN_BYTES;
        for _ in 0..LEARN_STEPS {
            let overlap = Overlap { blocks: LEARN_STEPS, bytes };
            stages.matching.ratios.learn(MODEL, overlap, 1);
        }
        let request =
            ApiRequest { endpoint: Some(Endpoint::ChatCompletions), ..ApiRequest::default() };
        let memory = IndexMemory::new(trace, &config, root);
        let waiting = QueuedRequests::default();
        let buffer = Vec::new();
        let home = Home::default();
        let mut control = BoardControl::default();
        control.limits.follow(&fleet, &stages.loads.board);
        let mut production =
            Self { fleet, stages, home, memory, request, waiting, buffer, control };
        production.meet();
        production
    }

    fn meet(&mut self) {
        for rank in (0..self.fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
            self.memory.expiring.set_rank(rank, 0, 0, NanosSinceStart(0));
        }
    }

    pub(crate) fn index_bytes(&self) -> u64 {
        self.memory.reader.memory_bytes()
    }

    /// This router among its replicas. `number`: its own, from 0.
    pub(crate) fn connected_replica(&self, number: usize) -> ConnectedReplica {
        let now = NanosSinceStart(0);
        let replica = Replica::new(ReplicaId(number as u64 + 1), format!("r{number}"), now);
        let mut connected = ConnectedReplica::new(replica, self.stages.loads.board.shared());
        connected.set_fleet(&self.fleet, now);
        connected
    }

    /// Sets the keys of a block, see [`IndexMemory::name`].
    pub(crate) fn name_block(&mut self, block: u32, parent: u32) {
        self.memory.name(block, parent);
    }

    pub(crate) fn board(&self) -> &LoadBoard {
        &self.stages.loads.board
    }

    /// Tokens of the prompt in the rank's KV events; tokens on its host count by their credit.
    pub(crate) fn reported_tokens(&self, rank: RankIndex) -> u64 {
        let tiers = self.tiers(rank);
        let reported =
            self.stages.matching.matched.by_events(rank, tiers).worth(self.fleet.config.kv);
        u64::from(reported.bytes / TOKEN_BYTES)
    }

    fn tiers(&self, rank: RankIndex) -> TierRanks {
        self.fleet.ranks.get(rank.index()).map_or_else(TierRanks::default, |rank| rank.tiers)
    }

    /// Matches a prompt for a rule that is not the router's own.
    pub(crate) fn look(&mut self, arrival: TraceArrival<'_>) {
        let prompt = self.matched(arrival);
        self.buffer = { prompt }.end();
    }

    /// A lease without limits, for a rule that is not the router's own.
    pub(crate) fn lease(
        &self,
        arrival: TraceArrival<'_>,
        rank: RankIndex,
        uncached: u64,
    ) -> Option<Lease> {
        let cost = forebay_board::account::LeaseCost {
            prefill_tokens: uncached,
            decode_tokens: u64::from(arrival.request.input_tokens) + u64::from(output_tokens(None)),
            kv_tokens: uncached,
            shared_tokens: 0,
        };
        let board = &self.stages.loads.board;
        let requester = Requester { caller: 0, model: MODEL, is_forced: false };
        let marks = &PrefixMarks::NONE;
        let prefixes = PromptPrefixes { marks, bytes_per_token: 1.0 };
        let limits = RoomLimits::default();
        let wanted = LeaseRequest { rank, requester, cost, limits, prefixes };
        Lease::try_take(board, wanted, arrival.now)
    }

    /// Runs the state machine of a new request.
    pub(crate) fn place(&mut self, arrival: TraceArrival<'_>) -> PlaceOutcome {
        let mut new_request = NewRequest::of(TenantPart::ONLY);
        let fleet = Arc::clone(&self.fleet);
        let pool = fleet.models[MODEL.index()].pool;
        if self.stages.let_in(&fleet, pool, arrival.now, &mut new_request, 0).is_err() {
            return PlaceOutcome::Refused;
        }
        self.stages.drain_rates.observe(&fleet, &self.stages.loads.board, arrival.now);
        let prompt = self.matched(arrival);
        let session = SessionKey::of(&arrival.request.session.to_le_bytes());
        let facts = RequestFacts {
            model: MODEL,
            caller: Caller { class: 1, tenant: 0, weight: 1, session, source: 0 },
            arrived_at: arrival.now,
            deadline: wait_deadline(&fleet, arrival.now, None),
            client_deadline: None,
            pin: None,
            tried: Vec::new(),
            // Clients of these traces name no limit.
            output_tokens: output_tokens(None),
        };
        let body_bytes = u64::from(arrival.request.input_tokens * TOKEN_BYTES);
        let flow = RequestFlow::new(facts, Endpoint::ChatCompletions, body_bytes, new_request);
        let going = FlowAndPrompt { request: arrival.id, flow, prompt };
        self.step(going, arrival.now, RequestEvent::Ready, None)
    }

    /// The deadline of a wait has passed. `None`: the request no longer waits.
    pub(crate) fn late(&mut self, request: u32, now: NanosSinceStart) -> Option<PlaceOutcome> {
        let ticket = *self.waiting.tickets.get(&request)?;
        Some(self.over(ticket, now, Err(WaitEnd::Late))?.1)
    }

    /// Are all queues empty?
    pub(crate) fn has_empty_queues(&self) -> bool {
        self.home.is_empty()
    }

    /// Serves the queues if a rank or queue changed, or `is_due`. Appends the requests that got a
    /// rank or a refusal.
    pub(crate) fn serve(
        &mut self,
        now: NanosSinceStart,
        is_due: bool,
        placed: &mut Vec<(u32, PlaceOutcome)>,
    ) {
        if self.home.is_empty() {
            return;
        }
        let fleet = Arc::clone(&self.fleet);
        let mut looks = is_due;
        while !self.home.is_empty() && (looks || self.home.has_news(&self.stages.loads.board)) {
            looks = false;
            for (ticket, verdict) in self.stages.serve(&mut self.home, &fleet, now) {
                let message = MeshMessage::Verdict { ticket, verdict: Box::new(verdict) };
                let taken = self.stages.take(&mut self.home, &fleet, message);
                if !matches!(taken, TakeOutcome::Delivered(_)) {
                    continue;
                }
                let context = Context::from_waker(Waker::noop());
                if let Poll::Ready(verdict) = self.stages.waits.poll(ticket, &context) {
                    placed.extend(self.over(ticket, now, Ok(verdict)));
                }
            }
        }
    }

    /// Time of the next scan of the queues.
    pub(crate) fn next_scan_at(&self) -> Option<NanosSinceStart> {
        self.home.look_again_at()
    }

    fn over(
        &mut self,
        ticket: Ticket,
        now: NanosSinceStart,
        ended: Result<Verdict, WaitEnd>,
    ) -> Option<(u32, PlaceOutcome)> {
        let waits = self.waiting.by_ticket.remove(&ticket)?;
        let WaitingRequest { request, flow, prompt, mut wait } = waits;
        self.waiting.tickets.remove(&request);
        let (event, is_kept) = wait.event(ended);
        if !is_kept {
            self.end_wait(&wait, now);
        }
        let going = FlowAndPrompt { request, flow, prompt };
        Some((request, self.step(going, now, event, is_kept.then_some(wait))))
    }

    fn end_wait(&mut self, wait: &Wait, now: NanosSinceStart) {
        let fleet = Arc::clone(&self.fleet);
        if let Some(leave) = self.stages.end_wait(wait, &fleet, now) {
            self.stages.take(&mut self.home, &fleet, leave);
        }
    }

    fn step(
        &mut self,
        mut going: FlowAndPrompt,
        now: NanosSinceStart,
        event: RequestEvent,
        wait: Option<Wait>,
    ) -> PlaceOutcome {
        let fleet = Arc::clone(&self.fleet);
        let mut split = Split::default();
        let mut scene = Scene {
            fleet: &fleet,
            stages: &mut self.stages,
            prompt: &going.prompt,
            text_bytes: going.prompt.prompt_bytes(),
            body: BODY,
            split: &mut split,
            count: &|_| {},
        };
        let action = going.flow.step(now, event, &mut scene);
        if let Some(wait) = wait {
            self.end_wait(&wait, now);
        }
        match action {
            Action::Send(chosen) => {
                self.remember(&going.prompt, chosen.prefill_rank(), now);
                self.buffer = { going.prompt }.end();
                let ChosenRanks { lease, prefill, .. } = *chosen;
                match prefill {
                    None => PlaceOutcome::Sent(lease),
                    Some(prefill) => PlaceOutcome::Paired { prefill: prefill.lease, decode: lease },
                }
            }
            Action::Wait(waiter, wanted) => {
                let wait = Wait::new(&waiter, wanted);
                let ticket = waiter.ticket;
                let deadline = wait.deadline;
                self.stages.take(&mut self.home, &fleet, MeshMessage::Join(waiter));
                let FlowAndPrompt { request, flow, prompt } = going;
                let waits = WaitingRequest { request, flow, prompt, wait };
                self.waiting.by_ticket.insert(ticket, waits);
                self.waiting.tickets.insert(request, ticket);
                PlaceOutcome::Waits(deadline)
            }
            Action::End(_) => {
                self.buffer = { going.prompt }.end();
                PlaceOutcome::Refused
            }
        }
    }

    fn matched(&mut self, arrival: TraceArrival<'_>) -> Prompt {
        let mut text = std::mem::take(&mut self.buffer);
        self.memory.write_text(arrival.request, &mut text);
        let mut prompt = Prompt::default();
        prompt.take_text(text);
        let Self { memory, fleet, request, stages, .. } = self;
        let model = &fleet.models[MODEL.index()];
        memory.sweep(arrival.now);
        let ask = search(&memory.reader, fleet, model, request);
        let matching = &mut stages.matching;
        let ratio = matching.ratios.of(MODEL);
        matching.matched.walk(&ask, &mut prompt, &model.ranks, ratio);
        prompt
    }

    fn remember(&mut self, prompt: &Prompt, rank: RankIndex, now: NanosSinceStart) {
        let Self { memory, fleet, request, stages, .. } = self;
        let matched = &mut stages.matching.matched;
        matched.recall(prompt);
        let model = &fleet.models[MODEL.index()];
        let IndexMemory { reader, writer, expiring, reported, .. } = memory;
        let ask = search(reader, fleet, model, request);
        let routed = matched.to_remember(&ask, prompt, rank, reported, || now);
        if let Some((_, routed)) = routed {
            expiring.remember(&routed, now, |rank, op| writer.apply(rank, op));
        }
    }

    /// Applies the KV events of a rank.
    pub(crate) fn apply_events(
        &mut self,
        rank: RankIndex,
        changes: &[CacheChange],
        now: NanosSinceStart,
    ) {
        let TierRanks { host, kv_pool, .. } = self.tiers(rank);
        let expect = |memory: &IndexMemory, soon: &CacheChange| {
            memory.writer.expect(memory.keys[soon.block() as usize].1);
        };
        changes.iter().take(CHANGES_AHEAD).for_each(|soon| expect(&self.memory, soon));
        for (at, &change) in changes.iter().enumerate() {
            if let Some(soon) = changes.get(at + CHANGES_AHEAD) {
                expect(&self.memory, soon);
            }
            let (number, op) = match change {
                CacheChange::Stored(block) => (Some(rank), self.memory.store(block)),
                CacheChange::Reached(block) => (host, self.memory.store(block)),
                CacheChange::Evicted(block) => (Some(rank), self.memory.remove(block)),
                CacheChange::Lost(block) => (host, self.memory.remove(block)),
                CacheChange::Pooled(block) => {
                    self.memory.pool.store(block, now);
                    (kv_pool, self.memory.store(block))
                }
            };
            if let Some(number) = number {
                self.memory.writer.apply(number, op);
            }
        }
    }

    /// Applies a load report of a rank.
    pub(crate) fn report(&mut self, rank: RankIndex, now: NanosSinceStart, reading: LoadReading) {
        let Loads { board, reports } = &mut self.stages.loads;
        let own = board.rank(rank).map_or_else(OwnLoad::default, OwnLoad::of);
        self.control.limits.observe(rank, &reading, own, board, now);
        self.control.first_tokens.observe(rank, &reading, own, board, now);
        board.report_kv(rank, &reading.completed(self.fleet.kv_capacity_tokens(rank)), now);
        reports.take(LoadReport::new(rank, now, &reading, own));
    }

    /// Decays the cache writes over time, and expires old blocks of the pool.
    pub(crate) fn fade(&mut self, now: NanosSinceStart) {
        self.control.cache_writes.fade(&self.fleet, &self.stages.loads.board, now);
        let Some(kv_pool) = self.tiers(RankIndex(0)).kv_pool else { return };
        while let Some(block) = self.memory.pool.expire(now) {
            let remove = self.memory.remove(block);
            self.memory.writer.apply(kv_pool, remove);
        }
    }

    /// Returns the lease of an ended request.
    pub(crate) fn end(&mut self, mut lease: Lease, now: NanosSinceStart) {
        lease.observe_answer();
        lease.judge_success();
        drop(lease);
        self.stages.relieve_model(&self.fleet, MODEL, now);
    }
}

/// A request between two steps of its state machine.
struct FlowAndPrompt {
    request: u32,
    flow: RequestFlow,
    prompt: Prompt,
}

/// Index query for a prompt.
fn search<'a>(
    index: &'a IndexReader,
    fleet: &'a FleetSnapshot,
    model: &'a Model,
    request: &'a ApiRequest,
) -> MatchRequest<'a> {
    let thread = RenderThread::Offload;
    MatchRequest { index, fleet, model, request, body: &[], thread }
}
