//! A run: its events in virtual time. Requests arrive, are placed by the router's code or by a
//! rival rule, and run on their rank. The router sees the effects with a delay.

mod arrivals;
mod live;
mod report;
mod summarize;

use crate::live_figures::LiveFigures;
use crate::plan::{BlockRoom, SimPlan};
use crate::production_router::{PlaceOutcome, TraceArrival};
use crate::ranks::engine::{EngineJob, EngineNews, EngineRequest, ModelEngine};
use crate::ranks::host_tier::HostTier;
use crate::ranks::kv_cache::{CacheChange, KvCache};
use crate::rivals::Rule;
use crate::routers::{LentClock, RouterUse, Routers};
use crate::series::{RunSeries, TokenSample};
use crate::summary::{PolicySummary, RequestOutcome};
use crate::traces::trace::{Trace, TurnStart};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::{FirstTokens, Lease};
use forebay_router::dispatch::EngineOrder;
use std::borrow::Cow;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// From a change in a cache until the index has it.
const EVENT_DELAY_NS: u64 = 3_000_000;
/// Between two load reports of a rank.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;
/// Start of a run since 1970, in the range that engine priorities can encode.
const START: Duration = Duration::from_secs(1_800_000_000);

/// An event in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(u32),
    StepsEnd(u32),
    /// The deadline of a wait in a queue.
    Late(u32),
    LooksAgain,
    /// Estimated end of a prefill without a visible first token.
    Passes(u32),
    Reports,
    /// Replicas exchange messages with each other.
    Messages,
}

/// Result of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRun {
    /// The figures of the whole run.
    pub summary: PolicySummary,
    /// Time series of the run.
    pub series: RunSeries,
    /// Load reports of the engines.
    pub loads: Vec<EngineLoad>,
    /// When the last request ended.
    pub ended_ns: u64,
    /// Cost of the routers; its times differ from run to run.
    pub used: RouterUse,
}

/// Load report of a rank's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLoad {
    /// Time of the report, in virtual time.
    pub at_ns: u64,
    /// Index of the rank.
    pub rank: usize,
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait for the batch.
    pub waiting: u32,
}

/// Progress callback of a run, and the clock that measures the routers.
pub struct RunObserver<'a> {
    /// Called regularly with the count of ended requests.
    pub ended: &'a mut dyn FnMut(usize),
    /// Nanoseconds since an arbitrary start.
    pub clock: LentClock<'a>,
}

/// Replays the trace under a policy.
#[must_use]
pub fn simulate(trace: &Trace, plan: &SimPlan, rule: Rule) -> PolicySummary {
    run(trace, plan, rule, RunObserver { ended: &mut |_| (), clock: &|| 0 }).summary
}

/// As [`simulate`], with time series and load reports.
#[must_use]
pub fn run(trace: &Trace, plan: &SimPlan, rule: Rule, onlooker: RunObserver<'_>) -> PolicyRun {
    let RunObserver { ended, clock } = onlooker;
    let mut world = World::of(trace, plan, rule, clock);
    world.replay(ended);
    let Requests { started_ns, outcomes, .. } = &world.requests;
    let computed = world.ranks.engines.iter().map(|engine| engine.totals().computed_tokens);
    let series = RunSeries::of(started_ns, outcomes, &world.ranks.samples, computed.collect());
    PolicyRun {
        summary: world.summary(),
        series,
        loads: std::mem::take(&mut world.ranks.loads),
        ended_ns: world.requests.past.end_ns,
        used: world.routers.used(),
    }
}

/// A request of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) started_ns: u64,
    /// The rank, and when the router sent the request there; `None`: refused.
    pub(crate) sent: Option<(usize, u64)>,
    pub(crate) outcome: RequestOutcome,
}

/// All requests of a run under a policy. Without pairs of ranks.
pub(crate) fn records(trace: &Trace, plan: &SimPlan, rule: Rule) -> Vec<RequestRecord> {
    let mut world = World::of(trace, plan, rule, &|| 0);
    world.replay(&mut |_| ());
    let Requests { started_ns, sent, outcomes, .. } = world.requests;
    let places = started_ns.into_iter().zip(sent).zip(outcomes);
    places
        .map(|((started_ns, sent), outcome)| RequestRecord { started_ns, sent, outcome })
        .collect()
}

/// Outcome and start of each request.
#[cfg(test)]
pub(crate) fn outcomes(trace: &Trace, plan: &SimPlan, rule: Rule) -> Vec<(u64, RequestOutcome)> {
    let mut world = World::of(trace, plan, rule, &|| 0);
    world.plan_arrivals();
    while let Some((now, event)) = world.next() {
        world.happen(now, event);
    }
    let Requests { started_ns, outcomes, .. } = world.requests;
    started_ns.into_iter().zip(outcomes).collect()
}

pub(crate) struct World<'a> {
    trace: Cow<'a, Trace>,
    plan: Cow<'a, SimPlan>,
    routers: Routers<'a>,
    ranks: SimRanks,
    requests: Requests,
    events: SimEvents,
    first_tokens: FirstTokens,
    /// Priority of each request in an engine with `priority_scheduling`.
    priorities: Vec<i64>,
}

/// Future events. At equal times, the event that was planned first comes first.
#[derive(Default)]
struct SimEvents {
    /// Requests with a time in the trace, the last first. All are planned before any other event.
    arrivals: Vec<(u64, u32)>,
    /// All other events, few at a time.
    planned: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned_count: u64,
}

struct SimRanks {
    engines: Vec<ModelEngine>,
    /// Requests of each rank without a first token.
    waiting: Vec<u32>,
    /// Cache changes still on their way to the router, oldest first.
    pending_events: VecDeque<(u64, RankIndex, Vec<CacheChange>)>,
    /// Time of the next planned scan of the queues.
    next_scan_at: u64,
    waited_ns: Vec<u64>,
    samples: Vec<TokenSample>,
    loads: Vec<EngineLoad>,
}

/// Last arrival and last end of a run, and figures of requests that left the lists.
#[derive(Clone, Copy, Debug, Default)]
struct PastRequests {
    arrival_ns: u64,
    end_ns: u64,
    figures: LiveFigures,
}

struct Requests {
    leases: Vec<Option<Lease>>,
    /// Leases on prefill ranks.
    prefills: Vec<Option<Lease>>,
    started_ns: Vec<u64>,
    /// By request: see [`RequestRecord::sent`].
    sent: Vec<Option<(usize, u64)>>,
    outcomes: Vec<RequestOutcome>,
    /// Requests that wait for the end of each request.
    followers: Vec<Vec<u32>>,
    /// Requests that have not ended.
    left: usize,
    past: PastRequests,
}

/// The ranks of a plan, with empty caches.
fn engines(trace: &Trace, plan: &SimPlan) -> Vec<ModelEngine> {
    let blocks = plan.device_blocks(trace);
    let BlockRoom { host, pool, .. } = plan.blocks;
    let pool = (pool > 0).then(|| Rc::new(RefCell::new(HostTier::new(pool))));
    let engine = |rank| {
        let cache = KvCache::new(blocks(rank), host).with_pool(pool.clone());
        ModelEngine::new(plan.speed(rank), cache)
    };
    (0..plan.ranks).map(engine).collect()
}

impl<'a> World<'a> {
    fn of(trace: &'a Trace, plan: &'a SimPlan, rule: Rule, clock: LentClock<'a>) -> Self {
        Self::new(Cow::Borrowed(trace), Cow::Borrowed(plan), rule, clock)
    }

    fn replay(&mut self, ended: &mut dyn FnMut(usize)) {
        self.plan_arrivals();
        while let Some((now, event)) = self.next() {
            self.happen(now, event);
            if event == Event::Reports {
                ended(self.trace.requests.len() - self.requests.left);
            }
        }
    }

    fn new(
        trace: Cow<'a, Trace>,
        plan: Cow<'a, SimPlan>,
        rule: Rule,
        clock: LentClock<'a>,
    ) -> Self {
        let count = trace.requests.len();
        let alone = trace.requests.iter().map(|request| RequestOutcome {
            alone_ns: plan.alone_ns(request.input_tokens),
            ..RequestOutcome::default()
        });
        let outcomes = alone.collect();
        let ranks = plan.ranks;
        Self {
            routers: Routers::new(&trace, &plan, rule, clock),
            ranks: SimRanks {
                engines: engines(&trace, &plan),
                waiting: vec![0; ranks],
                pending_events: VecDeque::new(),
                next_scan_at: u64::MAX,
                waited_ns: vec![0; ranks],
                samples: Vec::new(),
                loads: Vec::new(),
            },
            requests: Requests {
                leases: (0..count).map(|_| None).collect(),
                prefills: (0..count).map(|_| None).collect(),
                started_ns: vec![0; count],
                sent: vec![None; count],
                outcomes,
                followers: vec![Vec::new(); count],
                left: count,
                past: PastRequests::default(),
            },
            events: SimEvents::default(),
            first_tokens: FirstTokens::default(),
            priorities: vec![0; count],
            trace,
            plan,
        }
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.events.planned_count += 1;
        self.events.planned.push(Reverse((ns, self.events.planned_count, event)));
    }

    fn next(&mut self) -> Option<(u64, Event)> {
        let SimEvents { arrivals, planned, .. } = &mut self.events;
        let next_ns = planned.peek().map_or(u64::MAX, |Reverse((ns, ..))| *ns);
        if let Some((ns, id)) = arrivals.pop_if(|(ns, _)| *ns <= next_ns) {
            return Some((ns, Event::Arrives(id)));
        }
        let Reverse((ns, _, event)) = planned.pop()?;
        Some((ns, event))
    }

    fn happen(&mut self, now: u64, event: Event) {
        while self.ranks.pending_events.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, rank, changes)) = self.ranks.pending_events.pop_front() else { break };
            self.routers.apply_events(rank, &changes, NanosSinceStart(now));
        }
        match event {
            Event::Arrives(id) => self.arrive(id, now),
            Event::StepsEnd(rank) => self.end_steps(rank as usize, now),
            Event::Late(id) => {
                if let Some(placed) = self.routers.late(id, NanosSinceStart(now)) {
                    self.placed(id, placed, now);
                }
            }
            Event::LooksAgain => {
                self.ranks.next_scan_at = u64::MAX;
                self.serve(true, now);
            }
            Event::Passes(id) => {
                let lease = self.requests.leases.get_mut(self.trace.place(id));
                if let Some(lease) = lease.and_then(Option::as_mut) {
                    lease.prefill_due(NanosSinceStart(now));
                }
                self.serve(false, now);
            }
            Event::Reports => self.report(now),
            Event::Messages => self.exchange_messages(now),
        }
    }

    fn exchange_messages(&mut self, now: u64) {
        if self.requests.left > 0
            && let Some(next) = self.routers.exchange(NanosSinceStart(now))
        {
            self.at(next.0, Event::Messages);
            self.serve(false, now);
        }
    }

    fn arrive(&mut self, id: u32, now: u64) {
        self.requests.started_ns[self.trace.place(id)] = now;
        self.requests.past.arrival_ns = now;
        let request = self.trace.request(id);
        let arrival = TraceArrival { id, request, now: NanosSinceStart(now) };
        let placed = self.routers.place(arrival, &self.ranks.waiting);
        self.placed(id, placed, now);
        self.serve(false, now);
    }

    fn placed(&mut self, id: u32, placed: PlaceOutcome, now: u64) {
        match placed {
            PlaceOutcome::Sent(mut lease) => {
                let rank = lease.rank().index();
                let now_ns = NanosSinceStart(now);
                let kind = self.trace.first_token(id);
                if let Some(time) = self.first_tokens.time_unseen(kind, &mut lease, now_ns) {
                    self.at(now_ns.plus(time).0, Event::Passes(id));
                }
                self.number(id, &lease);
                let at = self.trace.place(id);
                self.requests.leases[at] = Some(lease);
                self.requests.sent[at] = Some((rank, now));
                self.begin(rank, id, EngineJob::Whole, now);
            }
            PlaceOutcome::Paired { prefill, decode } => {
                let rank = prefill.rank().index();
                self.number(id, &prefill);
                let at = self.trace.place(id);
                self.requests.prefills[at] = Some(prefill);
                self.requests.leases[at] = Some(decode);
                self.begin(rank, id, EngineJob::Prompt, now);
            }
            PlaceOutcome::Waits(deadline) => self.at(deadline.0, Event::Late(id)),
            PlaceOutcome::Refused => self.ended(id, now),
        }
    }

    /// Sets the engine priority that the router would send, see `forebay_router::dispatch`.
    fn number(&mut self, id: u32, prefill: &Lease) {
        let queue = &self.plan.config.flow.queue;
        if queue.engine_priority {
            let at = self.trace.place(id);
            let order = EngineOrder {
                arrived_at: START + Duration::from_nanos(self.requests.started_ns[at]),
                prefill_time: prefill.own_prefill_time().unwrap_or_default(),
                overtaken_max: queue.overtaken_max,
            };
            self.priorities[at] = order.number(0);
        }
    }

    fn begin(&mut self, rank: usize, id: u32, job: EngineJob, now: u64) {
        self.ranks.waiting[rank] += 1;
        let priority = self.priorities[self.trace.place(id)];
        let request = EngineRequest { id, priority, job };
        if self.ranks.engines[rank].arrive(request, &self.trace, now) {
            self.plan_end(rank);
        }
        self.send_events(rank, now);
    }

    fn plan_end(&mut self, rank: usize) {
        if let Some(end) = self.ranks.engines[rank].ends_at() {
            self.at(end, Event::StepsEnd(rank as u32));
        }
    }

    fn end_steps(&mut self, rank: usize, now: u64) {
        // A stale event: the steps were cut short.
        if self.ranks.engines[rank].ends_at() != Some(now) {
            return;
        }
        let mut news = Vec::new();
        self.ranks.engines[rank].end_steps(&self.trace, now, &mut news);
        self.send_events(rank, now);
        self.plan_end(rank);
        for news in news {
            match news {
                EngineNews::First(id) => self.first_token(rank, id, now),
                EngineNews::Ended(id) => {
                    match self.requests.prefills[self.trace.place(id)].take() {
                        Some(lease) => self.prompt_computed(id, lease, now),
                        None => self.ended(id, now),
                    }
                }
            }
        }
        self.serve(false, now);
    }

    fn first_token(&mut self, rank: usize, id: u32, now: u64) {
        let at = self.trace.place(id);
        self.ranks.waiting[rank] -= 1;
        // The client does not see the token of a prefill rank.
        if self.requests.prefills[at].is_some() {
            return;
        }
        let ttft = now - self.requests.started_ns[at];
        self.ranks.waited_ns[rank] += now - self.requests.sent[at].map_or(now, |(_, sent)| sent);
        self.requests.outcomes[at].ttft_ns = Some(ttft + self.beside_steps_ns(id));
        if let Some(lease) = &mut self.requests.leases[at]
            && self.trace.first_token(id).shows
        {
            lease.prefill_done(|| NanosSinceStart(now));
        }
    }

    /// Delay of each token of a request outside of the steps.
    fn beside_steps_ns(&self, id: u32) -> u64 {
        let rank = self.requests.leases[self.trace.place(id)].as_ref().map(Lease::rank);
        rank.map_or(0, |rank| self.plan.speed(rank.index()).request_ns as u64)
    }

    /// Ends the prefill leg and begins the decode leg.
    fn prompt_computed(&mut self, id: u32, mut prefill: Lease, now: u64) {
        prefill.prefill_done(|| NanosSinceStart(now));
        self.routers.end(id, prefill, NanosSinceStart(now));
        let decode = self.requests.leases[self.trace.place(id)].as_ref().map(Lease::rank);
        if let Some(decode) = decode {
            self.begin(decode.index(), id, EngineJob::Answer, now);
        }
    }

    /// Sends cache changes to the router, with a delay.
    fn send_events(&mut self, rank: usize, now: u64) {
        let changes = self.ranks.engines[rank].take_changes();
        if let Some(index) = RankIndex::try_from_index(rank).filter(|_| !changes.is_empty()) {
            self.ranks.pending_events.push_back((
                now.saturating_add(EVENT_DELAY_NS),
                index,
                changes,
            ));
        }
    }

    fn ended(&mut self, id: u32, now: u64) {
        let at = self.trace.place(id);
        let gaps = u64::from(self.trace.requests[at].output_tokens.saturating_sub(1));
        let beside_steps_ns = self.beside_steps_ns(id);
        let outcome = &mut self.requests.outcomes[at];
        outcome.is_over = true;
        let first_ns = outcome.ttft_ns.map(|ttft| self.requests.started_ns[at] + ttft);
        let last_ns = now + beside_steps_ns;
        outcome.token_ns = first_ns.and_then(|first| (last_ns - first).checked_div(gaps));
        if let Some(lease) = self.requests.leases[at].take() {
            self.routers.end(id, lease, NanosSinceStart(now));
        }
        self.drop_blocks(at);
        self.requests.left -= 1;
        self.requests.past.end_ns = now;
        for follower in std::mem::take(&mut self.requests.followers[at]) {
            if let TurnStart::After { think_ns, .. } = self.trace.requests[follower as usize].turn {
                self.at(now.saturating_add(think_ns), Event::Arrives(follower));
            }
        }
    }

    fn serve(&mut self, is_due: bool, now: u64) {
        let mut placed = Vec::new();
        self.routers.serve(NanosSinceStart(now), is_due, &mut placed);
        for (id, placed) in placed {
            self.placed(id, placed, now);
        }
        let again = self.routers.next_scan_at().map_or(u64::MAX, |at| at.0.max(now + 1));
        if again < self.ranks.next_scan_at {
            self.ranks.next_scan_at = again;
            self.at(again, Event::LooksAgain);
        }
    }
}
