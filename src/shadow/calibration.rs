//! Speed and capacity of the simulated ranks, by the counters of the engines. Sans-IO.
//!
//! | figure | from |
//! |---|---|
//! | tokens of a unit of text | prompt tokens a request, beside the bytes of mirrored prompts |
//! | time of a prompt token | time in prefill, else to the first token, over computed tokens |
//! | time of a decode step | time between tokens |
//! | tokens of an answer | generated tokens a request |
//!
//! The simulation counts in units of text, so a mirror of a part of the traffic is calibrated too.

use crate::counters::{Counter, EngineCounters};
use crate::limits::{BLOCK_UNITS_MAX, BLOCK_UNITS_MIN, FLEET_BLOCKS_MAX};
use forebay_simulate::{ModelSpeed, StepCost, TransferCost};
use std::fmt;
use std::ops::RangeInclusive;

/// Requests of the engines, and mirrored prompts, that a calibration needs.
const REQUESTS_MIN: f64 = 20.0;
/// Prompt tokens that a step computes at most; engines have 512 to 16,384.
const STEP_TOKENS_MAX: u32 = 512;
/// Requests that a rank runs at once if the engine does not report its limit.
const RUNNING_MAX_DEFAULT: u32 = 256;

/// Mirrored prompts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MirroredSum {
    pub(crate) prompts: u64,
    pub(crate) units: u64,
}

/// Facts of the engines, by their counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Calibration {
    /// Tokens of the engines for each unit of mirrored text.
    pub tokens_per_unit: f64,
    /// Prompt tokens that a rank computes in a second.
    pub prefill_tokens_per_s: f64,
    /// Time between two tokens of a request.
    pub between_tokens_ms: f64,
    /// Mean tokens of an answer.
    pub answer_tokens: f64,
    /// Mirrored requests, in parts of the engines' requests.
    pub mirrored_share: f64,
}

/// Why the engines' counters do not suffice yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationFault {
    /// Fewer than 20 mirrored prompts.
    FewPrompts,
    /// The engines count fewer than 20 requests, or no requests.
    FewRequests,
    /// The engines count no prompt tokens.
    NoTokens,
    /// The engines measure no time of prefill and no time to the first token.
    NoTimes,
    /// The engines count tokens of other text than the mirrored text.
    Implausible,
}

impl fmt::Display for CalibrationFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::FewPrompts => "fewer than 20 mirrored requests: does the mirror send here?",
            Self::FewRequests => {
                "the engines count fewer than 20 requests: does the balancer send to these engines?"
            }
            Self::NoTokens => "the engines count no prompt tokens: look at their /metrics",
            Self::NoTimes => "the engines measure no prefill time: give --prefill-tokens-per-s",
            Self::Implausible => {
                "the engines count other tokens than the mirrored text has: do all requests of \
                 these engines pass the mirror?"
            }
        })
    }
}

/// Tokens of four bytes of text. Templates add tokens to short prompts, images add many.
const PLAUSIBLE_TOKENS_PER_UNIT: RangeInclusive<f64> = 0.01..=100.0;

impl Calibration {
    /// Share of the requests and prompts that a calibration needs.
    pub(crate) fn progress(engines: &EngineCounters, mirrored: MirroredSum) -> f64 {
        (engines.requests().min(mirrored.prompts as f64) / REQUESTS_MIN).min(1.0)
    }

    /// Calibrates by counts since the start. `prefill_tokens_per_s`: the speed by a flag.
    pub(crate) fn of(
        engines: &EngineCounters,
        mirrored: MirroredSum,
        prefill_tokens_per_s: Option<u32>,
    ) -> Result<Self, CalibrationFault> {
        let requests = engines.requests();
        let prompts = mirrored.prompts as f64;
        if prompts < REQUESTS_MIN || mirrored.units == 0 {
            return Err(CalibrationFault::FewPrompts);
        }
        if requests < REQUESTS_MIN {
            return Err(CalibrationFault::FewRequests);
        }
        let tokens = engines.get(Counter::PromptTokens);
        if tokens <= 0.0 {
            return Err(CalibrationFault::NoTokens);
        }
        // Engines count tokens at the first token, and some times at the last: means of requests
        // compare, sums do not.
        let computed = tokens / requests * (1.0 - engines.hit_rate().unwrap_or(0.0));
        let prefill = engines.ratio(Counter::PrefillS, Counter::Prefills);
        let first = || engines.ratio(Counter::FirstTokenS, Counter::FirstTokens);
        let seconds = prefill.or_else(first).filter(|seconds| *seconds > 0.0);
        let measured = seconds.filter(|_| computed > 0.0).map(|seconds| computed / seconds);
        let given = prefill_tokens_per_s.map(f64::from);
        let prefill_tokens_per_s = given.or(measured).ok_or(CalibrationFault::NoTimes)?.max(1.0);
        let tokens_per_unit = (tokens / requests) / (mirrored.units as f64 / prompts);
        if !PLAUSIBLE_TOKENS_PER_UNIT.contains(&tokens_per_unit) {
            return Err(CalibrationFault::Implausible);
        }
        Ok(Self {
            tokens_per_unit,
            prefill_tokens_per_s,
            between_tokens_ms: engines
                .ratio(Counter::LaterTokenS, Counter::LaterTokens)
                .map_or(0.0, |seconds| seconds.min(10.0) * 1e3),
            answer_tokens: (engines.get(Counter::GeneratedTokens) / requests).max(1.0),
            mirrored_share: prompts / requests,
        })
    }

    /// A simulated rank with room for `kv_tokens`, which counts in units.
    pub(crate) fn speed(&self, kv_tokens: u64, running_max: Option<u32>) -> ModelSpeed {
        let step = StepCost {
            fixed_ns: 0.0,
            token_ns: 1e9 / self.prefill_tokens_per_s * self.tokens_per_unit,
            attention_ns: 0.0,
            weights_ns: self.between_tokens_ms * 1e6,
            kv_read_ns: 0.0,
        };
        ModelSpeed {
            request_ns: 0.0,
            step_tokens_max: units(f64::from(STEP_TOKENS_MAX) / self.tokens_per_unit),
            sequences_max: running_max.unwrap_or(RUNNING_MAX_DEFAULT).max(1),
            kv_tokens: units(kv_tokens as f64 / self.tokens_per_unit),
            declares_limit: running_max.is_some(),
            priority_scheduling: false,
            step,
            transfer: TransferCost::default(),
        }
    }

    /// Units of an answer: the mean of all answers, or the limit of the request.
    pub(crate) fn answer_units(&self, tokens_max: Option<u32>) -> u32 {
        let tokens =
            tokens_max.map_or(self.answer_tokens, |most| self.answer_tokens.min(f64::from(most)));
        units(tokens / self.tokens_per_unit)
    }
}

/// Units of a block, for a fleet of that many units: small blocks measure hits best.
pub(crate) fn block_units(fleet_units: u64) -> u32 {
    let sizes = (0..=5).map(|step| BLOCK_UNITS_MIN << step);
    let fits = |size: &u32| fleet_units / u64::from(*size) <= FLEET_BLOCKS_MAX;
    sizes.into_iter().find(fits).unwrap_or(BLOCK_UNITS_MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 1 and a billion by the clamp"
)]
fn units(value: f64) -> u32 {
    value.round().clamp(1.0, 1e9) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(text: &str) -> EngineCounters {
        EngineCounters::read(&text.replace(';', "\n"))
    }

    const VLLM: &str = "vllm:prompt_tokens_total 50000;vllm:prefix_cache_queries_total 50000;\
        vllm:prefix_cache_hits_total 10000;vllm:generation_tokens_total 5000;\
        vllm:request_prefill_time_seconds_sum 4;vllm:request_prefill_time_seconds_count 50;\
        vllm:inter_token_latency_seconds_sum 50;vllm:inter_token_latency_seconds_count 5000;";

    #[test]
    fn ranks_are_as_fast_and_as_large_as_the_engines() {
        // A mirror of half of the requests, with 5 bytes of text for each token.
        let mirrored = MirroredSum { prompts: 25, units: 31_250 };
        let found = Calibration::of(&engines(VLLM), mirrored, None).unwrap();
        let expected = Calibration {
            tokens_per_unit: 0.8,
            prefill_tokens_per_s: 10_000.0,
            between_tokens_ms: 10.0,
            answer_tokens: 100.0,
            mirrored_share: 0.5,
        };
        assert_eq!(found, expected);
        let speed = found.speed(80_000, Some(16));
        assert_eq!((speed.kv_tokens, speed.sequences_max), (100_000, 16));
        assert!((speed.step.token_ns - 80_000.0).abs() < 1e-6);
        let answers = [found.answer_units(None), found.answer_units(Some(8))];
        assert_eq!(answers, [125, 10]);
        let given = Calibration::of(&engines(VLLM), mirrored, Some(500)).unwrap();
        assert_eq!(given.prefill_tokens_per_s.to_bits(), 500.0_f64.to_bits());
    }

    #[test]
    fn too_little_is_named() {
        let mirrored = MirroredSum { prompts: 25, units: 31_250 };
        let of = |text: &str, mirrored| Calibration::of(&engines(text), mirrored, None);
        assert_eq!(of(VLLM, MirroredSum::default()), Err(CalibrationFault::FewPrompts));
        assert_eq!(of("", mirrored), Err(CalibrationFault::FewRequests));
        let counts = "vllm:request_success_total 50;";
        assert_eq!(of(counts, mirrored), Err(CalibrationFault::NoTokens));
        let tokens = "vllm:request_success_total 50;vllm:prompt_tokens_total 9;";
        assert_eq!(of(tokens, mirrored), Err(CalibrationFault::NoTimes));
        let few = Calibration::of(&engines(tokens), mirrored, Some(1_000));
        assert_eq!(few, Err(CalibrationFault::Implausible), "9 tokens of 31,250 units");
    }

    #[test]
    fn blocks_grow_with_the_fleet() {
        let sizes = [1_000, 8_388_623, 8_388_624, 1 << 27, u64::MAX].map(block_units);
        assert_eq!(sizes, [16, 16, 32, 256, 512]);
    }
}
