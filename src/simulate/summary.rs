//! Figures of a run.

/// Slack of goodput: a good TTFT is at most twice the own prefill time plus this.
const GOOD_SLACK_NS: u64 = 10_000_000;
const NS_PER_MS: f64 = 1e6;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestOutcome {
    /// From its start to its first token; `None`: refused.
    pub(crate) ttft_ns: Option<u64>,
    /// Prefill time of the whole prompt on an idle rank.
    pub(crate) alone_ns: u64,
    /// Mean time between tokens of the answer; `None`: the answer has fewer than two tokens.
    pub(crate) token_ns: Option<u64>,
    /// Refused, or answered to the last token.
    pub(crate) is_over: bool,
}

/// Figures of a policy on a trace.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PolicySummary {
    /// Requests that were sent to the router.
    pub requests: u64,
    /// Requests that the router refused.
    pub refused: u64,
    /// Sequences that ranks preempted for lack of KV blocks.
    pub preempted: u64,
    /// Prompt tokens that no rank had to compute.
    #[serde(flatten)]
    pub hits: HitFigures,
    /// Times to the first token and between tokens.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Share of the requests with a TTFT of at most twice the own prefill time plus
    /// `GOOD_SLACK_NS`. With unequal ranks, the prefill time is that of a rank of mean speed.
    pub goodput: f64,
    /// Largest prefill work of a rank, in parts of the mean: computed tokens, weighted by the
    /// rank's speed.
    pub load_max_over_mean: f64,
    /// Share of the time until the last arrival in which steps ran.
    pub busy: f64,
}

/// Shares of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct HitFigures {
    /// Found in caches, including hosts and the pool.
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
    /// Mean over requests of the time between tokens.
    pub tpot_ms_mean: f64,
    /// 99 of 100 requests have less.
    pub tpot_ms_p99: f64,
}

impl RequestOutcome {
    /// Is the TTFT at most twice the own prefill time plus the slack?
    pub(crate) fn is_good(&self) -> bool {
        let most = 2 * self.alone_ns + GOOD_SLACK_NS;
        self.ttft_ns.is_some_and(|ttft| ttft <= most)
    }
}

impl PolicySummary {
    /// Adds the outcomes of requests.
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

/// Quantile `part` of the times, which are in order.
fn part_ms(times: &[u64], part: f64) -> f64 {
    let place = (part * times.len() as f64) as usize;
    let time = times.get(place.min(times.len().saturating_sub(1)));
    time.map_or(0.0, |&time| time as f64 / NS_PER_MS)
}
