//! Compares a policy with a clairvoyant assignment. A segment of a trace is served twice: by the
//! policy, and by an assignment of its requests to ranks, found by simulated annealing. The
//! assignment knows all arrivals, prompts and answers of the segment.
//!
//! The ranks are the same as in a run. Requests before the segment go to the ranks that the policy
//! chose, and fill the caches. Each request of the segment reaches its rank at its arrival time in
//! the policy's run: no router queue delays it, and no turn of a session starts sooner.
//!
//! The figure is no strict bound. Annealing may miss the best assignment, which makes the bound too
//! weak. It ignores requests after the segment, which makes the bound too strong.

use crate::plan::SimPlan;
use crate::ranks::engine::{EngineNews, EngineRequest, ModelEngine};
use crate::ranks::kv_cache::KvCache;
use crate::rivals::Rule;
use crate::summary::{PolicySummary, RequestOutcome};
use crate::traces::trace::Trace;
use crate::world::{RequestRecord, records};

/// Temperatures at the start and the end: the increase of the summed times, in parts of the mean
/// time, that is accepted with probability 1/e.
const HEAT: (f64, f64) = (0.3, 0.000_3);
/// Most places between the arrivals of two swapped requests.
const SWAP_DISTANCE: usize = 16;

/// Requests of a run, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSegment {
    /// Requests before the segment.
    pub first: usize,
    /// Requests in the segment, at least 1.
    pub count: usize,
}

/// Figures of the requests of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SegmentFigures {
    /// Mean time to the first token, of requests that were not refused.
    pub ttft_ms_mean: f64,
    /// 99 of 100 requests are faster.
    pub ttft_ms_p99: f64,
    /// Share of good requests, as in [`PolicySummary::goodput`].
    pub goodput: f64,
    /// Requests that the router refused.
    pub refused: u64,
}

/// Figures of a segment under a policy, and under the best assignment found.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct SegmentBound {
    /// In the policy's run.
    pub policy: SegmentFigures,
    /// On the ranks that the policy chose, without the router's queue and without later requests.
    pub sent_at_once: SegmentFigures,
    /// On the ranks of the best assignment for the mean.
    pub annealed: SegmentFigures,
    /// Mean of the policy over that of the best assignment.
    pub policy_over_annealed: f64,
}

/// Why a segment has no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundError {
    /// A request of a pair has two ranks.
    #[error("a fleet with prefill ranks has no bound. Leave out the prefill ranks")]
    Pairs,
    /// The segment is empty, or ends behind the trace.
    #[error("the trace has {0} requests. Give a segment of at least one request within them")]
    Outside(usize),
}

/// Serves the segment by the policy, and anneals the assignment for `tries` proposals.
///
/// # Errors
/// The plan has pairs of ranks, or the trace has no such segment.
pub fn bound(
    trace: &Trace,
    plan: &SimPlan,
    rule: Rule,
    segment: TraceSegment,
    tries: u32,
) -> Result<SegmentBound, BoundError> {
    if plan.prefill_ranks > 0 {
        return Err(BoundError::Pairs);
    }
    let TraceSegment { first, count } = segment;
    let all = trace.requests.len();
    let end = first.checked_add(count).filter(|&end| count > 0 && end <= all);
    let end = end.ok_or(BoundError::Outside(all))?;
    let records = records(trace, plan, rule);
    let mut order: Vec<u32> = (0..all as u32).collect();
    order.sort_by_key(|&id| records[id as usize].started_ns);
    let policy: Vec<RequestOutcome> =
        order[first..end].iter().map(|&id| records[id as usize].outcome).collect();
    let mut annealer = Annealer::new(trace, plan, &records, &order[..end], first);
    let sent_at_once = figures(&annealer.outcomes(&records));
    annealer.anneal(tries, &mut fastrand::Rng::with_seed(plan.seed));
    let annealed = figures(&annealer.outcomes(&records));
    let policy = figures(&policy);
    let policy_over_annealed = policy.ttft_ms_mean / annealed.ttft_ms_mean;
    Ok(SegmentBound { policy, sent_at_once, annealed, policy_over_annealed })
}

fn figures(outcomes: &[RequestOutcome]) -> SegmentFigures {
    let mut summary = PolicySummary::default();
    summary.count(outcomes);
    SegmentFigures {
        ttft_ms_mean: summary.times.ttft_ms_mean,
        ttft_ms_p99: summary.times.ttft_ms_p99,
        goodput: summary.goodput,
        refused: summary.refused,
    }
}

/// A request that reaches a rank during the segment.
#[derive(Clone, Copy, Debug)]
struct SegmentArrival {
    at_ns: u64,
    id: u32,
    rank: usize,
    /// Is the request in the segment? Earlier requests that were still queued in the router keep
    /// their rank.
    is_free: bool,
}

/// The search for an assignment of the segment's requests.
struct Annealer<'a> {
    trace: &'a Trace,
    plan: &'a SimPlan,
    /// State of the ranks at the start of the segment.
    engines: Vec<ModelEngine>,
    /// In order of time.
    arrivals: Vec<SegmentArrival>,
    /// Indices of the arrivals that may move.
    free: Vec<usize>,
    /// By rank: sum of the times to first tokens of its requests of the segment.
    costs_ns: Vec<u64>,
}

impl<'a> Annealer<'a> {
    /// `order`: the requests up to the end of the segment, which begins at `first`.
    fn new(
        trace: &'a Trace,
        plan: &'a SimPlan,
        records: &[RequestRecord],
        order: &[u32],
        first: usize,
    ) -> Self {
        let begin_ns = records[order[first] as usize].started_ns;
        let mut earlier: Vec<SegmentArrival> = order[..first]
            .iter()
            .filter_map(|&id| {
                let (rank, at_ns) = records[id as usize].sent?;
                Some(SegmentArrival { at_ns, id, rank, is_free: false })
            })
            .collect();
        earlier.sort_by_key(|arrival| arrival.at_ns);
        let waiting = earlier.split_off(earlier.partition_point(|one| one.at_ns < begin_ns));
        let segment = order[first..].iter().map(|&id| {
            let record = &records[id as usize];
            let rank = record.sent.map_or(id as usize % plan.ranks.max(1), |(rank, _)| rank);
            SegmentArrival { at_ns: record.started_ns, id, rank, is_free: true }
        });
        let mut arrivals: Vec<SegmentArrival> = waiting.into_iter().chain(segment).collect();
        arrivals.sort_by_key(|arrival| arrival.at_ns);
        let free = (0..arrivals.len()).filter(|&at| arrivals[at].is_free).collect();
        let blocks = plan.device_blocks(trace);
        let engines = (0..plan.ranks).map(|rank| {
            let cache = KvCache::new(blocks(rank), plan.blocks.host);
            let mut engine = ModelEngine::new(plan.speed(rank), cache);
            let own = earlier.iter().filter(|arrival| arrival.rank == rank);
            serve(&mut engine, trace, own, &mut |_, _| true);
            advance(&mut engine, trace, begin_ns, &mut |_, _| true);
            engine.take_changes();
            engine
        });
        let engines = engines.collect();
        let costs_ns = vec![0; plan.ranks];
        let mut annealer = Self { trace, plan, engines, arrivals, free, costs_ns };
        annealer.costs_ns = (0..plan.ranks).map(|rank| annealer.cost_ns(rank)).collect();
        annealer
    }

    /// Serves the arrivals of `rank` until each request of the segment has its first token.
    fn first_tokens(&self, rank: usize, on_first: &mut dyn FnMut(&SegmentArrival, u64)) {
        let of_rank = self.arrivals.iter().filter(|arrival| arrival.rank == rank);
        let own: Vec<&SegmentArrival> = of_rank.collect();
        let mut left = own.iter().filter(|arrival| arrival.is_free).count();
        if left == 0 {
            return;
        }
        let beside_steps_ns = self.plan.speed(rank).request_ns as u64;
        let mut on_token = |id: u32, now: u64| {
            let of_segment = own.iter().find(|arrival| arrival.id == id && arrival.is_free);
            if let Some(arrival) = of_segment {
                on_first(arrival, now - arrival.at_ns + beside_steps_ns);
                left -= 1;
            }
            left > 0
        };
        let mut engine = self.engines[rank].clone();
        serve(&mut engine, self.trace, own.iter().copied(), &mut on_token);
        advance(&mut engine, self.trace, u64::MAX, &mut on_token);
    }

    fn cost_ns(&self, rank: usize) -> u64 {
        let mut sum = 0;
        self.first_tokens(rank, &mut |_, ttft_ns| sum += ttft_ns);
        sum
    }

    /// Outcomes of the segment's requests under the current assignment.
    fn outcomes(&self, records: &[RequestRecord]) -> Vec<RequestOutcome> {
        let mut outcomes = Vec::with_capacity(self.free.len());
        for rank in 0..self.plan.ranks {
            self.first_tokens(rank, &mut |arrival, ttft_ns| {
                let alone_ns = records[arrival.id as usize].outcome.alone_ns;
                let ttft_ns = Some(ttft_ns);
                outcomes.push(RequestOutcome { ttft_ns, alone_ns, ..RequestOutcome::default() });
            });
        }
        outcomes
    }

    /// Runs the annealing; afterwards `arrivals` has the best assignment found.
    fn anneal(&mut self, tries: u32, random: &mut fastrand::Rng) {
        let sum = |costs: &[u64]| costs.iter().sum::<u64>();
        let mean_ns = sum(&self.costs_ns) as f64 / self.free.len().max(1) as f64;
        let mut best = (sum(&self.costs_ns), self.arrivals.clone());
        for attempt in 0..tries {
            let part = f64::from(attempt) / f64::from(tries);
            let heat_ns = mean_ns * HEAT.0 * (HEAT.1 / HEAT.0).powf(part);
            let moves = self.propose(random);
            let mut ranks: Vec<usize> =
                moves.iter().flat_map(|&(at, rank)| [self.arrivals[at].rank, rank]).collect();
            ranks.sort_unstable();
            ranks.dedup();
            let before: u64 = ranks.iter().map(|&rank| self.costs_ns[rank]).sum();
            let back = self.assign(&moves);
            let costs: Vec<u64> = ranks.iter().map(|&rank| self.cost_ns(rank)).collect();
            let more_ns = sum(&costs) as f64 - before as f64;
            if more_ns > 0.0 && random.f64() >= (-more_ns / heat_ns).exp() {
                self.assign(&back);
                continue;
            }
            ranks.iter().zip(costs).for_each(|(&rank, cost)| self.costs_ns[rank] = cost);
            let all_ns = sum(&self.costs_ns);
            if all_ns < best.0 {
                best = (all_ns, self.arrivals.clone());
            }
        }
        self.arrivals = best.1;
    }

    /// Moves arrivals to other ranks; returns their previous ranks.
    fn assign(&mut self, moves: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let swap = |&(at, rank): &(usize, usize)| {
            (at, std::mem::replace(&mut self.arrivals[at].rank, rank))
        };
        moves.iter().map(swap).collect()
    }

    /// Proposes a move of a request, a move of a request and the rest of its session, or a swap of
    /// two.
    fn propose(&self, random: &mut fastrand::Rng) -> Vec<(usize, usize)> {
        let place = random.usize(..self.free.len());
        let at = self.free[place];
        let rank = random.usize(..self.plan.ranks);
        let session = |at: usize| self.trace.requests[self.arrivals[at].id as usize].session;
        match random.usize(..3) {
            0 => vec![(at, rank)],
            1 => {
                let behind = self.free[place..].iter().copied();
                behind.filter(|&other| session(other) == session(at)).map(|at| (at, rank)).collect()
            }
            _ => {
                let end = (place + SWAP_DISTANCE + 1).min(self.free.len());
                let other = self.free[random.usize(place..end)];
                vec![(at, self.arrivals[other].rank), (other, self.arrivals[at].rank)]
            }
        }
    }
}

/// Runs the engine until the last of the requests has arrived. `on_first` gets each first token and
/// its time, and returns false to stop.
fn serve<'a>(
    engine: &mut ModelEngine,
    trace: &Trace,
    arrivals: impl Iterator<Item = &'a SegmentArrival>,
    on_first: &mut dyn FnMut(u32, u64) -> bool,
) {
    for arrival in arrivals {
        advance(engine, trace, arrival.at_ns, on_first);
        let request = EngineRequest { id: arrival.id, ..EngineRequest::default() };
        engine.arrive(request, trace, arrival.at_ns);
    }
}

/// Runs the steps that end before that time. At equal times an arrival precedes the end of a step,
/// as in a run.
fn advance(
    engine: &mut ModelEngine,
    trace: &Trace,
    before_ns: u64,
    on_first: &mut dyn FnMut(u32, u64) -> bool,
) {
    let mut news = Vec::new();
    while let Some(end) = engine.ends_at().filter(|&end| end < before_ns) {
        engine.end_steps(trace, end, &mut news);
        let mut goes_on = true;
        for news in news.drain(..) {
            if let EngineNews::First(id) = news {
                goes_on = on_first(id, end);
            }
        }
        if !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::speed::ModelSpeed;
    use crate::traces::generate::Scenario;
    use crate::traces::trace_file::parse;

    fn trace(requests: &[(u32, &[u64])]) -> Trace {
        let line = |(at, (tokens, hashes)): (usize, &(u32, &[u64]))| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 1, \
                 \"hash_ids\": {hashes:?}}}\n"
            )
        };
        parse(&requests.iter().enumerate().map(line).collect::<String>()).unwrap()
    }

    /// Ranks of 1,000 tokens/s, and requests that arrive almost at once.
    fn plan(ranks: usize) -> SimPlan {
        let engines = vec![ModelSpeed::of_prompts(1_000.0)];
        SimPlan { ranks, engines, load_percent: 1e7, ..SimPlan::default() }
    }

    #[test]
    fn short_prompts_go_where_no_long_prompt_is() {
        let trace = trace(&[(1_600, &[1]), (1_600, &[2]), (160, &[3]), (160, &[4])]);
        let segment = TraceSegment { first: 0, count: 4 };
        let rule = || "least_loaded".parse().unwrap();
        let found = bound(&trace, &plan(2), rule(), segment, 500).unwrap();
        // Both long prompts on a single rank: 1.6, 3.2, 0.16 and 0.32 s. A long prompt on each: 1.6
        // and 1.76.
        assert!((found.annealed.ttft_ms_mean - 1_320.0).abs() < 1.0, "{found:?}");
        assert!((found.policy.ttft_ms_mean - 1_680.0).abs() < 1.0, "{found:?}");
        assert!((found.policy_over_annealed - 1.273).abs() < 0.001, "{found:?}");
    }

    #[test]
    fn no_assignment_is_better_than_the_one_that_is_found() {
        let full = [1_024, 1_536, 512, 2_048].map(|tokens: u32| tokens);
        let paths: [&[u64]; 4] = [&[1, 2], &[1, 2, 3], &[9], &[1, 2, 4, 5]];
        let requests: Vec<(u32, &[u64])> = (0..8).map(|at| (full[at % 4], paths[at % 4])).collect();
        let trace = trace(&requests);
        let plan = SimPlan { load_percent: 200.0, ..plan(2) };
        let records = records(&trace, &plan, "round_robin".parse().unwrap());
        let order: Vec<u32> = (0..8).collect();
        let mut annealer = Annealer::new(&trace, &plan, &records, &order, 2);
        let mut least_ns = u64::MAX;
        for ranks in 0..1_u32 << 6 {
            for at in 0..6 {
                annealer.arrivals[at].rank = (ranks >> at & 1) as usize;
            }
            least_ns = least_ns.min((0..2).map(|rank| annealer.cost_ns(rank)).sum());
        }
        let mut annealer = Annealer::new(&trace, &plan, &records, &order, 2);
        let before_ns: u64 = annealer.costs_ns.iter().sum();
        annealer.anneal(2_000, &mut fastrand::Rng::with_seed(1));
        let found_ns: u64 = (0..2).map(|rank| annealer.cost_ns(rank)).sum();
        assert_eq!(found_ns, least_ns);
        assert!(found_ns < before_ns, "{found_ns} {before_ns}");
    }

    /// Without a router queue and without later requests, both runs are equal.
    #[test]
    fn a_segment_is_served_as_in_the_run() {
        let trace = Scenario::Shared.trace(3).first(400);
        let plan = SimPlan { ranks: 4, load_percent: 120.0, ..SimPlan::default() };
        let rule = || "lmetric".parse().unwrap();
        let found =
            bound(&trace, &plan, rule(), TraceSegment { first: 250, count: 150 }, 0).unwrap();
        assert_eq!(found.policy, found.sent_at_once);
        assert_eq!(found.policy, found.annealed, "no try, no change");
        let found =
            bound(&trace, &plan, rule(), TraceSegment { first: 250, count: 150 }, 300).unwrap();
        assert!(found.policy_over_annealed > 1.01, "{found:?}");
    }

    #[test]
    fn a_segment_lies_within_its_trace() {
        let trace = Scenario::Shared.trace(3).first(40);
        let found = |first, count, prefill_ranks| {
            let plan = SimPlan { prefill_ranks, ..SimPlan::default() };
            bound(&trace, &plan, "kv".parse().unwrap(), TraceSegment { first, count }, 0)
                .unwrap_err()
        };
        assert_eq!(found(0, 0, 0), BoundError::Outside(40));
        assert_eq!(found(40, 1, 0), BoundError::Outside(40));
        assert_eq!(found(1, usize::MAX, 0), BoundError::Outside(40));
        assert_eq!(found(0, 1, 4), BoundError::Pairs);
    }
}
