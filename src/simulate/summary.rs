//! What came of a run, in figures.

/// Time that a first token may take beside twice its own prefill, and still be good.
const GOOD_SLACK_NS: u64 = 10_000_000;
const NS_PER_MS: f64 = 1e6;

/// What came of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestOutcome {
    /// From its start to its first token; `None`: refused.
    pub(crate) ttft_ns: Option<u64>,
    /// Time that an idle rank would take for all of its prompt.
    pub(crate) alone_ns: u64,
    /// Mean time from one token of the answer to the next; `None`: it has one, or none.
    pub(crate) token_ns: Option<u64>,
}

/// The figures of one policy on one trace.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PolicySummary {
    /// Requests that were sent to the router.
    pub requests: u64,
    /// Requests that the router refused.
    pub refused: u64,
    /// Sequences that ranks put off for lack of KV blocks.
    pub preempted: u64,
    /// Prompt tokens that nobody had to compute.
    #[serde(flatten)]
    pub hits: HitFigures,
    /// Times to the first token and between tokens.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Share of the requests whose first token came within twice its own prefill and 10 ms. Of
    /// ranks of unequal speed, the prefill is that of a rank of mean speed.
    pub goodput: f64,
    /// The most work that a rank had with prompts, in parts of the mean: tokens that it computed,
    /// weighed by its speed.
    pub load_max_over_mean: f64,
    /// Share of the time, until the last request came, in which steps ran.
    pub busy: f64,
}

/// Shares of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct HitFigures {
    /// Found in caches, those of hosts and the pool too.
    pub hit_rate: f64,
    /// Found in the caches of hosts.
    pub host_hit_rate: f64,
    /// Found in the pool alone.
    pub pool_hit_rate: f64,
}

/// Times of the requests that were not refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TimeFigures {
    /// Mean time to the first token.
    pub ttft_ms_mean: f64,
    /// Half of the requests are faster.
    pub ttft_ms_p50: f64,
    /// 90 of 100 requests are faster.
    pub ttft_ms_p90: f64,
    /// 99 of 100 requests are faster.
    pub ttft_ms_p99: f64,
    /// Mean over requests of the time from one token of an answer to the next.
    pub tpot_ms_mean: f64,
    /// 99 of 100 requests have less.
    pub tpot_ms_p99: f64,
}

impl RequestOutcome {
    /// Did its first token come within twice its own prefill and a little?
    pub(crate) fn is_good(&self) -> bool {
        let most = 2 * self.alone_ns + GOOD_SLACK_NS;
        self.ttft_ns.is_some_and(|ttft| ttft <= most)
    }
}

impl PolicySummary {
    /// Adds what came of the requests.
    pub(crate) fn count(&mut self, outcomes: &[RequestOutcome]) {
        let mut times: Vec<u64> = outcomes.iter().filter_map(|outcome| outcome.ttft_ns).collect();
        times.sort_unstable();
        let good = outcomes.iter().filter(|outcome| outcome.is_good()).count();
        self.requests = outcomes.len() as u64;
        self.refused = (outcomes.len() - times.len()) as u64;
        self.goodput = good as f64 / outcomes.len().max(1) as f64;
        let mut between: Vec<u64> =
            outcomes.iter().filter_map(|outcome| outcome.token_ns).collect();
        between.sort_unstable();
        self.times = TimeFigures {
            ttft_ms_mean: mean_ms(&times),
            ttft_ms_p50: part_ms(&times, 0.5),
            ttft_ms_p90: part_ms(&times, 0.9),
            ttft_ms_p99: part_ms(&times, 0.99),
            tpot_ms_mean: mean_ms(&between),
            tpot_ms_p99: part_ms(&between, 0.99),
        };
    }
}

fn mean_ms(times: &[u64]) -> f64 {
    let sum: f64 = times.iter().map(|&time| time as f64 / NS_PER_MS).sum();
    sum / times.len().max(1) as f64
}

/// The time that so large a part of them, in order, is below.
fn part_ms(times: &[u64], part: f64) -> f64 {
    let place = (part * times.len() as f64) as usize;
    let time = times.get(place.min(times.len().saturating_sub(1)));
    time.map_or(0.0, |&time| time as f64 / NS_PER_MS)
}
