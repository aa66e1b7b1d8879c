//! Measurements of the demo. Sums and a histogram, fed by a single task; no clock, no I/O.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Outcome of a request at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoOutcome {
    /// The answer arrived in full.
    Answered {
        /// Time from sending the request to the first token, in microseconds.
        ttft_us: u64,
        /// Prompt length as counted by the engine.
        prompt_tokens: u64,
        /// Prompt tokens from the engine's cache.
        cached_tokens: u64,
    },
    /// Refused, or ended before an answer began.
    Failed,
    /// Ended in the middle of an answer, or with an invalid event.
    Cut,
}

/// Sums since the meter's creation.
#[derive(Debug)]
pub struct Meter {
    requests: u64,
    failed: u64,
    cut: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    ttft_us: Option<Histogram<u64>>,
}

/// Figures of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests that were answered in full.
    pub requests: u64,
    /// Requests without a full answer.
    pub errors: u64,
    /// Share of prompt tokens found in caches, 0 to 1.
    pub hit_rate: f64,
    /// Median time to the first token.
    pub ttft_ms_p50: f64,
    /// 99th percentile of the time to the first token.
    pub ttft_ms_p99: f64,
    /// Full answers per second.
    pub requests_per_s: f64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            requests: 0,
            failed: 0,
            cut: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            ttft_us: Histogram::new_with_bounds(1, TTFT_US_MAX, 3).ok(),
        }
    }
}

impl Meter {
    /// Adds the outcome of a request.
    pub fn add(&mut self, outcome: DemoOutcome) {
        match outcome {
            DemoOutcome::Failed => self.failed += 1,
            DemoOutcome::Cut => self.cut += 1,
            DemoOutcome::Answered { ttft_us, prompt_tokens, cached_tokens } => {
                self.requests += 1;
                self.prompt_tokens += prompt_tokens;
                self.cached_tokens += cached_tokens;
                if let Some(histogram) = &mut self.ttft_us {
                    histogram.saturating_record(ttft_us);
                }
            }
        }
    }

    /// Requests that were answered in full.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.requests
    }

    /// Requests that failed before an answer began.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Answers that ended early.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Median time to the first token.
    #[must_use]
    pub fn ttft_ms_p50(&self) -> f64 {
        self.ttft_ms(0.50)
    }

    fn ttft_ms(&self, quantile: f64) -> f64 {
        let value = self.ttft_us.as_ref().map_or(0, |ttft| ttft.value_at_quantile(quantile));
        value as f64 / 1_000.0
    }

    /// The figures after `elapsed_s` seconds of measuring.
    #[must_use]
    pub fn figures(&self, elapsed_s: f64) -> Figures {
        Figures {
            requests: self.requests,
            errors: self.failed + self.cut,
            hit_rate: self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            ttft_ms_p50: self.ttft_ms(0.50),
            ttft_ms_p99: self.ttft_ms(0.99),
            requests_per_s: self.requests as f64 / elapsed_s.max(1e-9),
        }
    }
}

impl Figures {
    /// Figures for `demo --json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "requests": self.requests, "errors": self.errors, "hit_rate": rounded(self.hit_rate, 4),
            "ttft_ms_p50": rounded(self.ttft_ms_p50, 2),
            "ttft_ms_p99": rounded(self.ttft_ms_p99, 2),
            "requests_per_s": rounded(self.requests_per_s, 2),
        })
    }
}

pub(super) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

const TTFT_US_MAX: u64 = 600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_hundred_requests() {
        let mut meter = Meter::default();
        for at in 1..=100 {
            let ttft_us = at * 1_000;
            meter.add(DemoOutcome::Answered { ttft_us, prompt_tokens: 10, cached_tokens: 4 });
        }
        meter.add(DemoOutcome::Failed);
        meter.add(DemoOutcome::Cut);
        let figures = meter.figures(10.0);
        assert_eq!((figures.requests, figures.errors), (100, 2));
        assert!((figures.hit_rate - 0.4).abs() < 1e-9);
        assert!((figures.requests_per_s - 10.0).abs() < 1e-9);
        assert!((figures.ttft_ms_p50 - 50.0).abs() < 0.1, "{figures:?}");
        assert!((figures.ttft_ms_p99 - 99.0).abs() < 0.1, "{figures:?}");
    }

    #[test]
    fn nothing_measured_is_zero_not_nan() {
        assert_eq!(Meter::default().figures(0.0), Figures::default());
    }
}
