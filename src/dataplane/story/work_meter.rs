//! Work of engines for a request before an answer reports its usage. The bill decides which part of
//! the work counts. The time is an argument.

use forebay_base::limits::USAGE_TOKENS_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::tenant::TokenUsage;
use std::time::Duration;

/// Attempts of a request of a counted tenant.
#[derive(Debug, Default)]
pub(crate) struct WorkMeter {
    attempt: Option<MeteredAttempt>,
    /// Work of attempts without an answer.
    lost: Option<TokenUsage>,
}

/// An attempt at a rank or a pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeteredAttempt {
    /// Expected time to compute the prompt.
    prefill_ns: u64,
    /// Time of the send; `None` before it.
    sent_at: Option<NanosSinceStart>,
    /// Decode rank, and its expected start of decoding.
    pub(crate) decodes: Option<(RankIndex, NanosSinceStart)>,
}

impl WorkMeter {
    /// Begins an attempt with the expected prefill time.
    pub(crate) fn begin(&mut self, prefill_ns: u64) {
        self.attempt = Some(MeteredAttempt { prefill_ns, sent_at: None, decodes: None });
    }

    /// Records the send to the prefill rank.
    pub(crate) fn sent(&mut self, now: NanosSinceStart) {
        if let Some(attempt) = &mut self.attempt {
            attempt.sent_at.get_or_insert(now);
        }
    }

    /// Records the send to the decode rank. `is_prefilled`: the prompt is already computed.
    pub(crate) fn decodes(&mut self, rank: RankIndex, now: NanosSinceStart, is_prefilled: bool) {
        if let Some(attempt) = &mut self.attempt {
            let sent_at = *attempt.sent_at.get_or_insert(now);
            let at = if is_prefilled { now } else { after(sent_at, attempt.prefill_ns) };
            attempt.decodes = Some((rank, at));
        }
    }

    /// Records that the decode rank had no prompt to decode from.
    pub(crate) const fn decodes_nothing(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.decodes = None;
        }
    }

    /// Ends the attempt. `None` if no request was sent.
    pub(crate) fn end(&mut self) -> Option<MeteredAttempt> {
        self.attempt.take().filter(|attempt| attempt.sent_at.is_some())
    }

    /// Adds the work of an attempt without an answer.
    pub(crate) fn lose(&mut self, usage: TokenUsage) {
        let before = self.lost.unwrap_or_default();
        self.lost = Some(TokenUsage {
            prompt: before.prompt.max(usage.prompt),
            cached: 0,
            output: before.output.saturating_add(usage.output),
        });
    }

    /// Clears lost work: the client has a whole answer.
    pub(crate) const fn settle(&mut self) {
        self.lost = None;
    }

    /// Total usage: the answer, plus lost work. The output of lost work is limited to the remainder
    /// of `output_max`.
    pub(crate) fn total(&self, answer: Option<TokenUsage>, output_max: u64) -> Option<TokenUsage> {
        let Some(lost) = self.lost else { return answer };
        let prompt = answer.map_or(lost.prompt, |answer| answer.prompt);
        let answer = answer.unwrap_or_default();
        let output = answer.output.saturating_add(lost.output).min(output_max);
        Some(TokenUsage {
            prompt,
            cached: answer.cached,
            output: output.max(answer.output).min(USAGE_TOKENS_MAX),
        })
    }
}

impl MeteredAttempt {
    /// Time since the send.
    pub(crate) fn passed(&self, now: NanosSinceStart) -> Duration {
        Duration::from_nanos(self.sent_at.map_or(0, |sent_at| now.since(sent_at)))
    }

    /// Tokens of the prompt that should be computed by `now`.
    pub(crate) fn prompt_computed(&self, prompt: u64, now: NanosSinceStart) -> u64 {
        let passed = self.passed(now).as_nanos();
        let part = u128::from(prompt).saturating_mul(passed) / u128::from(self.prefill_ns.max(1));
        u64::try_from(part).unwrap_or(u64::MAX).min(prompt)
    }
}

fn after(at: NanosSinceStart, ns: u64) -> NanosSinceStart {
    NanosSinceStart(at.0.saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: RankIndex = RankIndex(3);

    fn at(ns: u64) -> NanosSinceStart {
        NanosSinceStart(ns)
    }

    fn usage(prompt: u64, output: u64) -> TokenUsage {
        TokenUsage { prompt, cached: 0, output }
    }

    #[test]
    fn nothing_is_computed_before_the_request_leaves() {
        let mut meter = WorkMeter::default();
        meter.sent(at(1));
        assert_eq!(meter.end(), None, "a tenant that is not counted");
        meter.begin(100);
        assert_eq!(meter.end(), None, "no connection");
        meter.begin(100);
        meter.sent(at(1_000));
        let prefill_leg = meter.end().unwrap();
        assert_eq!(prefill_leg.decodes, None);
        let computed = [900, 1_000, 1_050, 1_100, 9_000].map(|now| {
            let computed = prefill_leg.prompt_computed(80, at(now));
            assert!(computed <= 80);
            computed
        });
        assert_eq!(computed, [0, 0, 40, 80, 80]);
    }

    #[test]
    fn the_answer_begins_behind_the_prompt() {
        let mut meter = WorkMeter::default();
        let mut begins = |is_prefilled| {
            meter.begin(100);
            meter.sent(at(1_000));
            meter.decodes(RANK, at(1_040), is_prefilled);
            meter.end().unwrap().decodes
        };
        assert_eq!(begins(false), Some((RANK, at(1_100))), "sent again, or both legs at once");
        assert_eq!(begins(true), Some((RANK, at(1_040))), "a decode leg behind its prefill leg");
        assert_eq!(meter.end(), None, "once");
        meter.begin(100);
        meter.decodes(RANK, at(1_000), false);
        meter.decodes_nothing();
        assert_eq!(meter.end().unwrap().decodes, None, "the prefill leg was not done");
    }

    #[test]
    fn the_prompt_counts_once_and_the_output_of_each_attempt() {
        let mut meter = WorkMeter::default();
        assert_eq!(meter.total(None, 10), None);
        assert_eq!(meter.total(Some(usage(5, 70)), 10), Some(usage(5, 70)), "as reported");
        meter.lose(usage(20, 4));
        meter.lose(usage(20, 5));
        assert_eq!(meter.total(None, 100), Some(usage(20, 9)));
        assert_eq!(meter.total(None, 8), Some(usage(20, 8)), "no more than asked for");
        assert_eq!(meter.total(Some(usage(7, 3)), 100), Some(usage(7, 12)), "the answer knows");
        assert_eq!(meter.total(Some(usage(21, 30)), 8), Some(usage(21, 30)), "what was counted");
        meter.settle();
        assert_eq!(meter.total(Some(usage(21, 3)), 100), Some(usage(21, 3)));
    }
}
