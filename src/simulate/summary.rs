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
    /// Time to the first token.
    #[serde(flatten)]
    pub ttft: TtftFigures,
    /// Share of the requests whose first token came within twice its own prefill and 10 ms.
    pub goodput: f64,
    /// The most prompt tokens that a rank computed, in parts of the mean.
    pub load_max_over_mean: f64,
    /// Share of the time, until the last request came, in which steps ran.
    pub busy: f64,
}

/// Shares of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct HitFigures {
    /// Found in caches, those of hosts too.
    pub hit_rate: f64,
    /// Found in the caches of hosts.
    pub host_hit_rate: f64,
}

/// Time to the first token, of the requests that were not refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TtftFigures {
    /// Of all of them.
    pub ttft_ms_mean: f64,
    /// Half of the requests are faster.
    pub ttft_ms_p50: f64,
    /// 90 of 100 requests are faster.
    pub ttft_ms_p90: f64,
    /// 99 of 100 requests are faster.
    pub ttft_ms_p99: f64,
}

impl PolicySummary {
    /// Adds what came of the requests.
    pub(crate) fn count(&mut self, outcomes: &[RequestOutcome]) {
        let mut times: Vec<u64> = outcomes.iter().filter_map(|outcome| outcome.ttft_ns).collect();
        times.sort_unstable();
        let is_good = |outcome: &&RequestOutcome| {
            let most = 2 * outcome.alone_ns + GOOD_SLACK_NS;
            outcome.ttft_ns.is_some_and(|ttft| ttft <= most)
        };
        let good = outcomes.iter().filter(is_good).count();
        self.requests = outcomes.len() as u64;
        self.refused = (outcomes.len() - times.len()) as u64;
        self.goodput = good as f64 / outcomes.len().max(1) as f64;
        let at = |part: f64| {
            let place = (part * times.len() as f64) as usize;
            let time = times.get(place.min(times.len().saturating_sub(1)));
            time.map_or(0.0, |&time| time as f64 / NS_PER_MS)
        };
        let sum: f64 = times.iter().map(|&time| time as f64 / NS_PER_MS).sum();
        self.ttft = TtftFigures {
            ttft_ms_mean: sum / times.len().max(1) as f64,
            ttft_ms_p50: at(0.5),
            ttft_ms_p90: at(0.9),
            ttft_ms_p99: at(0.99),
        };
    }
}
