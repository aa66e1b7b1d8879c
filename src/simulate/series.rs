//! Time series of a run, for charts.

use crate::summary::RequestOutcome;

/// Points of a curve.
const BINS: usize = 60;
const NS_PER_S: f64 = 1e9;
const NS_PER_MS: f64 = 1e6;

/// A run over its virtual time, in equal parts. Parts without a request are left out.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct RunSeries {
    /// Times to the first token of the requests that arrived in a part.
    pub ttft: Vec<TtftPoint>,
    /// Shares of prompt tokens found in caches, by the second at which a part ends.
    pub hits: Vec<(f64, f64)>,
    /// Prompt tokens that each rank computed.
    pub computed_tokens: Vec<u64>,
}

/// Times to the first token in a part.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct TtftPoint {
    /// Seconds at which the part ends.
    pub at_s: f64,
    /// Half of the requests are faster.
    pub p50_ms: f64,
    /// 90 of 100 requests are faster.
    pub p90_ms: f64,
}

/// Cached and computed tokens of all ranks, up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenSample {
    pub(crate) at_ns: u64,
    pub(crate) cached: u64,
    pub(crate) computed: u64,
}

impl RunSeries {
    pub(crate) fn of(
        started_ns: &[u64],
        outcomes: &[RequestOutcome],
        samples: &[TokenSample],
        computed_tokens: Vec<u64>,
    ) -> Self {
        let end_ns = started_ns.iter().copied().max().unwrap_or(0).max(1);
        let ttft = ttft(started_ns, outcomes, end_ns);
        Self { ttft, hits: hits(samples, end_ns), computed_tokens }
    }
}

fn bin_of(at_ns: u64, end_ns: u64) -> usize {
    let bin = u128::from(at_ns) * BINS as u128 / u128::from(end_ns);
    (bin as usize).min(BINS - 1)
}

fn end_of(bin: usize, end_ns: u64) -> f64 {
    (bin + 1) as f64 * end_ns as f64 / BINS as f64 / NS_PER_S
}

fn ttft(started_ns: &[u64], outcomes: &[RequestOutcome], end_ns: u64) -> Vec<TtftPoint> {
    let mut bins = vec![Vec::new(); BINS];
    for (&started, outcome) in started_ns.iter().zip(outcomes) {
        bins[bin_of(started, end_ns)].extend(outcome.ttft_ns);
    }
    let points = bins.into_iter().enumerate().filter(|(_, times)| !times.is_empty());
    let points = points.map(|(bin, mut times)| {
        times.sort_unstable();
        let at = |part: f64| times[(part * times.len() as f64) as usize] as f64 / NS_PER_MS;
        TtftPoint { at_s: end_of(bin, end_ns), p50_ms: at(0.5), p90_ms: at(0.9) }
    });
    points.collect()
}

fn hits(samples: &[TokenSample], end_ns: u64) -> Vec<(f64, f64)> {
    let mut last_of_bin = [None; BINS];
    for sample in samples.iter().filter(|sample| sample.at_ns <= end_ns) {
        last_of_bin[bin_of(sample.at_ns, end_ns)] = Some(*sample);
    }
    let mut before = TokenSample::default();
    let mut points = Vec::new();
    for (bin, sample) in last_of_bin.into_iter().enumerate() {
        let Some(sample) = sample else { continue };
        let cached = sample.cached - before.cached;
        let all = cached + sample.computed - before.computed;
        if all > 0 {
            points.push((end_of(bin, end_ns), cached as f64 / all as f64));
        }
        before = sample;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_own_requests_and_tokens() {
        let second = 1_000_000_000;
        let started: Vec<u64> = (0..=60).map(|at| at * second).collect();
        let slow =
            |at: u64| RequestOutcome { ttft_ns: Some(at * 1_000_000), ..RequestOutcome::default() };
        let mut outcomes: Vec<RequestOutcome> = (0..=60).map(slow).collect();
        outcomes[7].ttft_ns = None;
        let sample =
            |at: u64| TokenSample { at_ns: at * second, cached: at * at, computed: 100 * at };
        let samples: Vec<TokenSample> = (0..=80).map(sample).collect();
        let series = RunSeries::of(&started, &outcomes, &samples, vec![1, 2]);
        assert_eq!(series.ttft.len(), 59, "the part of the refused request is empty");
        assert_eq!(series.ttft[3], TtftPoint { at_s: 4.0, p50_ms: 3.0, p90_ms: 3.0 });
        // Between the seconds 4 and 5.
        let (at_s, share) = series.hits[4];
        assert!((at_s - 6.0).abs() < 1e-9 && (share - 9.0 / 109.0).abs() < 1e-9, "{at_s} {share}");
        assert!(series.hits.iter().all(|(at, _)| *at <= 60.0), "nothing after the last request");
    }
}
