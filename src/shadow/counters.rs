//! Counters of an engine, from its Prometheus text, as sums over its ranks. Sans-IO.

use forebay_load::samples;

/// A counter that the shadow reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    PromptTokens,
    QueriedTokens,
    CachedTokens,
    GeneratedTokens,
    Requests,
    FirstTokens,
    FirstTokenS,
    Prefills,
    PrefillS,
    Queued,
    QueueS,
    LaterTokens,
    LaterTokenS,
}

/// Names of vLLM 0.9 to 0.33 and SGLang 0.5. Of several names of an engine, the first that it has.
const NAMES: [(Counter, &[&str]); 13] = [
    (Counter::PromptTokens, &["vllm:prompt_tokens_total", "sglang:prompt_tokens_total"]),
    (
        Counter::QueriedTokens,
        &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"],
    ),
    (
        Counter::CachedTokens,
        &[
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
            "sglang:cached_tokens_total",
        ],
    ),
    (Counter::GeneratedTokens, &["vllm:generation_tokens_total", "sglang:generation_tokens_total"]),
    (Counter::Requests, &["vllm:request_success_total", "sglang:num_requests_total"]),
    (
        Counter::FirstTokens,
        &["vllm:time_to_first_token_seconds_count", "sglang:time_to_first_token_seconds_count"],
    ),
    (
        Counter::FirstTokenS,
        &["vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"],
    ),
    (Counter::Prefills, &["vllm:request_prefill_time_seconds_count"]),
    (Counter::PrefillS, &["vllm:request_prefill_time_seconds_sum"]),
    (Counter::Queued, &["vllm:request_queue_time_seconds_count"]),
    (Counter::QueueS, &["vllm:request_queue_time_seconds_sum"]),
    (
        Counter::LaterTokens,
        &[
            "vllm:inter_token_latency_seconds_count",
            "vllm:time_per_output_token_seconds_count",
            "sglang:inter_token_latency_seconds_count",
        ],
    ),
    (
        Counter::LaterTokenS,
        &[
            "vllm:inter_token_latency_seconds_sum",
            "vllm:time_per_output_token_seconds_sum",
            "sglang:inter_token_latency_seconds_sum",
        ],
    ),
];
/// A larger value is no counter of an engine; sums of such values stay exact enough.
const VALUE_MAX: f64 = 1e15;

/// Counters of an engine, or of several engines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineCounters([f64; NAMES.len()]);

impl EngineCounters {
    /// Reads `GET /metrics`. A missing or implausible counter is 0.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut counters = Self::default();
        for (counter, names) in NAMES {
            let sums = names.iter().map(|name| {
                let values = samples(text, name).map(|sample| sample.value());
                values.filter(|value| (0.0..=VALUE_MAX).contains(value)).sum::<f64>()
            });
            counters.set(counter, sums.into_iter().find(|sum| *sum > 0.0).unwrap_or(0.0));
        }
        // SGLang counts no queries: it looks each prompt token up.
        if counters.get(Counter::QueriedTokens) <= 0.0 {
            counters.set(Counter::QueriedTokens, counters.get(Counter::PromptTokens));
        }
        counters
    }

    pub(crate) fn get(&self, counter: Counter) -> f64 {
        self.0.get(counter as usize).copied().unwrap_or(0.0)
    }

    fn set(&mut self, counter: Counter, value: f64) {
        if let Some(place) = self.0.get_mut(counter as usize) {
            *place = value;
        }
    }

    /// Adds what an engine counted between two readings. An engine that began anew counts from 0.
    pub(crate) fn add_growth(&mut self, before: &Self, after: &Self) {
        for ((sum, before), after) in self.0.iter_mut().zip(before.0).zip(after.0) {
            *sum += if after >= before { after - before } else { after };
        }
    }

    /// Counts since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut growth = Self::default();
        growth.add_growth(before, self);
        growth
    }

    /// Share of the prompt tokens that the engines found in their caches; `None` if they do not
    /// count them.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        self.ratio(Counter::CachedTokens, Counter::QueriedTokens)
    }

    /// Mean time to the first token in the engines: by their histogram, else queue and prefill.
    #[must_use]
    pub fn ttft_ms_mean(&self) -> Option<f64> {
        let whole = self.ratio(Counter::FirstTokenS, Counter::FirstTokens);
        let parts = || {
            let queue = self.ratio(Counter::QueueS, Counter::Queued)?;
            Some(queue + self.ratio(Counter::PrefillS, Counter::Prefills)?)
        };
        whole.or_else(parts).map(|seconds| seconds * 1e3)
    }

    /// Requests that the engines began or ended, by the first of their counters.
    #[must_use]
    pub fn requests(&self) -> f64 {
        let counts = [Counter::FirstTokens, Counter::Prefills, Counter::Requests];
        counts.map(|counter| self.get(counter)).into_iter().find(|n| *n > 0.0).unwrap_or(0.0)
    }

    pub(crate) fn ratio(&self, of: Counter, to: Counter) -> Option<f64> {
        let all = self.get(to);
        (all > 0.0).then(|| self.get(of) / all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_engines_are_read_over_all_ranks() {
        let vllm = "vllm:prompt_tokens_total{engine=\"0\"} 100.0\n\
                    vllm:prompt_tokens_total{engine=\"1\"} 300.0\n\
                    vllm:prefix_cache_queries_total{engine=\"0\"} 400.0\n\
                    vllm:prefix_cache_hits_total{engine=\"0\"} 100.0\n\
                    vllm:request_queue_time_seconds_sum{engine=\"0\"} 1.0\n\
                    vllm:request_queue_time_seconds_count{engine=\"0\"} 4\n\
                    vllm:request_prefill_time_seconds_sum{engine=\"0\"} 2.0\n\
                    vllm:request_prefill_time_seconds_count{engine=\"0\"} 4\n\
                    vllm:generation_tokens_total{engine=\"0\"} NaN\n";
        let read = EngineCounters::read(vllm);
        assert_eq!(read.get(Counter::PromptTokens).to_bits(), 400.0_f64.to_bits());
        assert_eq!((read.hit_rate(), read.ttft_ms_mean()), (Some(0.25), Some(750.0)));
        assert_eq!(read.get(Counter::GeneratedTokens).to_bits(), 0);
        let sglang = "sglang:prompt_tokens_total{m=\"a\"} 100\nsglang:cached_tokens_total 40\n\
                      sglang:time_to_first_token_seconds_sum 3\n\
                      sglang:time_to_first_token_seconds_count 6\n";
        let read = EngineCounters::read(sglang);
        assert_eq!((read.hit_rate(), read.ttft_ms_mean()), (Some(0.4), Some(500.0)));
        assert_eq!(EngineCounters::read("").hit_rate(), None);
    }

    #[test]
    fn an_engine_that_began_anew_counts_from_zero() {
        let of =
            |tokens: u32| EngineCounters::read(&format!("vllm:prompt_tokens_total {tokens}\n"));
        let mut sum = EngineCounters::default();
        sum.add_growth(&of(100), &of(150));
        sum.add_growth(&of(150), &of(20));
        assert_eq!(sum.get(Counter::PromptTokens).to_bits(), 70.0_f64.to_bits());
    }

    #[test]
    fn each_counter_stands_at_its_place() {
        for (place, (counter, _)) in NAMES.iter().enumerate() {
            assert_eq!(*counter as usize, place);
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_finite_figures(text in "(vllm:prompt_tokens_total\\PC{0,20}\n){0,4}") {
            let read = EngineCounters::read(&text);
            prop_assert!(read.0.iter().all(|value| value.is_finite() && *value >= 0.0));
        }
    }
}
