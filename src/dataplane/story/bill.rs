//! Bill of a request: tokens charged to its tenant, however it ends. Counters, the bucket of tokens
//! per minute, the trace and the usage shared by replicas all use [`Bill::settle`].
//!
//! | the request ends with | prompt | output |
//! |---|---|---|
//! | a whole answer or stream with `usage` | as reported | as reported |
//! | a stream that the router ends, with `usage` | as reported | as reported |
//! | a whole stream without | by bytes | by events |
//! | a whole answer without | by bytes | by time, at most a token a byte |
//! | a stream that is cut | as reported, else by bytes | *cut* |
//! | no answer, the client has left | by bytes | by time |
//! | no answer, the worker has failed or is late | *partly* | by time |
//! | 5xx of an engine, without 503 and 529 | *partly* | by time |
//! | the prefill leg of a pair is not done | by bytes, or *partly* | nothing |
//! | 4xx, 429, 503, 529, no connection, a stalled rank | nothing | nothing |
//! | a refusal of the router, or the client leaves a queue | attempts before | attempts before |
//! | an answer of another rank behind a failed attempt | that answer | that answer |
//! | a WebSocket, and answers without an engine | nothing | nothing |
//!
//! - *by time*: from the expected end of the prompt's computation, by the speed of the rank
//!   ([`forebay_board::RankPast::decoded_in`]), for each answer, and at most the limit of
//!   the request. Less than [`COMPUTED_TIME_MIN`] counts as none.
//! - *by bytes*, *by events*: see `quota`. With `retry.mid_stream` the ids of the stream count.
//! - *cut*: the last report, events since then, and by time since the last event.
//! - *partly*: by bytes, in proportion to the time of the attempt.

use super::event::{
    AnswerEnd, AnswerPart, AnswerUsage, AttemptFailure, AttemptLoss, AttemptStart, Observer,
    RankChoice, StoryEnd, StreamTimes,
};
use super::quota_hold::QuotaHold;
use super::work_meter::WorkMeter;
use crate::state::workers::Workers;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::tenant::TokenUsage;
use forebay_http1::ResponseHead;
use forebay_json::UsageScan;
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_router::dispatch::{RelayError, has_no_room};
use std::time::Duration;

/// Shorter computations count as none: network and reads take about as long.
const COMPUTED_TIME_MIN: Duration = Duration::from_millis(100);

/// Bill of a request.
#[derive(Debug, Default)]
pub(crate) struct Bill {
    /// Place and tokens of its tenant's limits, returned at the end.
    pub(super) held: Option<QuotaHold>,
    /// Counted work, if the tenant is counted. Boxed: most tenants are not, and inline it would
    /// enlarge every connection.
    counted: Option<Box<CountedWork>>,
}

/// Work of engines for a request of a counted tenant.
#[derive(Debug)]
struct CountedWork {
    endpoint: Endpoint,
    /// Estimated tokens of the prompt.
    prompt_estimate: u64,
    /// Answers that the request asks for, at least 1.
    answers: u64,
    /// Limit of output tokens, all answers together.
    output_max: u64,
    meter: WorkMeter,
    /// Usage of the answer, once the answer has ended.
    usage: Option<TokenUsage>,
}

/// Billed share of an attempt without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LostWork {
    Nothing,
    /// The part of the prompt computed in the time of the attempt.
    Prompt,
    /// That part of the prompt, and output by time.
    All,
    /// The whole prompt, and output by time: the engine would have continued.
    Left,
}

/// Time in which a rank computes an answer.
#[derive(Clone, Copy, Debug)]
struct DecodeTime {
    rank: RankIndex,
    from: NanosSinceStart,
    until: NanosSinceStart,
}

impl Bill {
    /// Starts counting the work of engines for the request. `prompt_estimate` of 0 counts no work.
    pub(super) fn count(&mut self, endpoint: Endpoint, api: &ApiRequest, prompt_estimate: u64) {
        let answers = u64::from(api.answer_count);
        let asked = api.max_tokens.map(u64::from);
        self.counted = (prompt_estimate > 0).then(|| {
            Box::new(CountedWork {
                endpoint,
                prompt_estimate,
                answers,
                output_max: asked.map_or(u64::MAX, |asked| asked.saturating_mul(answers)),
                meter: WorkMeter::default(),
                usage: None,
            })
        });
    }

    /// True if the work of engines is counted.
    pub(crate) const fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Estimated tokens of the prompt; 0 if work is not counted.
    pub(crate) fn prompt_estimate(&self) -> u64 {
        self.counted.as_ref().map_or(0, |work| work.prompt_estimate)
    }

    /// Records the send of a prefill leg.
    pub(crate) fn leg_sent(&mut self, now: NanosSinceStart) {
        if let Some(work) = &mut self.counted {
            work.meter.sent(now);
        }
    }

    /// Records the usage of a stream that the router has completed in place of an engine.
    pub(super) const fn ended_here(&mut self, usage: TokenUsage) {
        if let Some(work) = &mut self.counted {
            work.meter.settle();
            work.usage = Some(usage);
        }
    }

    /// Tokens charged for the request in total; `None` if no work counts.
    pub(super) fn settle(&self) -> Option<TokenUsage> {
        let work = self.counted.as_ref()?;
        work.meter.total(work.usage, work.output_max)
    }
}

impl Observer for Bill {
    fn chosen(&mut self, event: &RankChoice<'_>) {
        let Some(work) = self.counted.as_mut().filter(|work| work.endpoint.is_inference()) else {
            return;
        };
        let prefill = event.chosen.prefill.as_ref();
        let lease = prefill.map_or(&event.chosen.lease, |prefill| &prefill.lease);
        work.meter.begin(lease.prefill_expected_ns(event.shard.env.now()));
    }

    fn sent(&mut self, event: &AttemptStart<'_>) {
        if let Some(work) = &mut self.counted {
            work.meter.decodes(event.rank, event.env.now(), event.is_prefilled);
        }
    }

    fn failed(&mut self, event: &AttemptFailure) {
        if let Some(work) = self.counted.as_mut().filter(|_| event.is_unprefilled) {
            work.meter.decodes_nothing();
        }
    }

    fn lost(&mut self, event: &AttemptLoss<'_>) {
        let Some(work) = &mut self.counted else { return };
        let share = match &event.failed.reply.answer {
            // Answer of a failed trial: the engine may have computed before it failed.
            Some(answer) if answer.status >= 500 && !has_no_room(answer.status) => LostWork::All,
            Some(_) => LostWork::Nothing,
            None => LostWork::of(event.failed.error),
        };
        work.lose(event.workers, share, event.now);
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        if let Some(work) = &mut self.counted {
            work.answered(event);
        }
    }

    fn ended(&mut self, event: &StoryEnd<'_>) {
        let usage = event.facts.answer.usage;
        if let Some(usage) = usage {
            let model = event.facts.model.unwrap_or(usize::MAX);
            event.end.shard.env.counters.tokens_used(event.end.tenant, model, usage);
        }
        if let Some(mut held) = self.held.take() {
            held.settle(usage.map_or(0, |usage| usage.prompt.saturating_add(usage.output)));
        }
    }
}

impl LostWork {
    fn of(error: RelayError) -> Self {
        match error {
            RelayError::ClientGone | RelayError::ClientStalled => Self::Left,
            RelayError::PrefillFailed => Self::Prompt,
            RelayError::ConnectFailed
            | RelayError::OutOfSockets
            | RelayError::ConnectTimedOut
            | RelayError::HandshakeFailed
            | RelayError::CertificateRefused(_)
            | RelayError::EngineBusy
            | RelayError::CallerLimited
            | RelayError::Looped
            | RelayError::RestRefused
            | RelayError::NoKvTransfer
            | RelayError::Stalled
            | RelayError::Cancelled => Self::Nothing,
            RelayError::ClosedBeforeHead
            | RelayError::ClosedInHead
            | RelayError::HeadInvalid
            | RelayError::InterimEndless
            | RelayError::FirstByteTimedOut
            | RelayError::DownBeforeHead
            | RelayError::ClosedBeforeBody
            | RelayError::BodyInvalidAtOnce
            | RelayError::EngineFailed
            | RelayError::TrialFailed
            | RelayError::ClosedMidStream
            | RelayError::BodyInvalid
            | RelayError::FailedMidStream
            | RelayError::StreamIdle
            | RelayError::DownMidStream
            | RelayError::Moved => Self::All,
        }
    }
}

impl CountedWork {
    fn lose(&mut self, workers: &Workers, share: LostWork, now: NanosSinceStart) {
        let Some(attempt) = self.meter.end() else { return };
        if share != LostWork::Left && attempt.passed(now) < COMPUTED_TIME_MIN {
            return;
        }
        let prompt = match share {
            LostWork::Nothing => return,
            LostWork::Left => self.prompt_estimate,
            LostWork::Prompt | LostWork::All => attempt.prompt_computed(self.prompt_estimate, now),
        };
        let decoding = attempt.decodes.filter(|_| share != LostWork::Prompt);
        let output = decoding
            .map_or(0, |(rank, from)| self.by_time(workers, DecodeTime { rank, from, until: now }));
        self.meter.lose(TokenUsage { prompt, cached: 0, output });
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        let AnswerEnd { sending, head, relayed, .. } = *event;
        let workers = sending.workers;
        let StreamTimes { last_at, .. } = event.times;
        let until = sending.env.now();
        let Some(scan) = event.usage.scan else {
            let is_failure = head.status >= 500 && !has_no_room(head.status);
            let share = if is_failure { LostWork::All } else { LostWork::Nothing };
            return self.lose(workers, share, until);
        };
        let decodes = self.meter.end().and_then(|attempt| attempt.decodes);
        let time = decodes.map(|(rank, from)| DecodeTime { rank, from, until });
        let mut usage = self.of_answer(scan, event.usage, head, relayed.is_ok());
        match (relayed, time) {
            (Ok(body_bytes), Some(time)) => {
                // An answer of an unknown path may be an image.
                let is_text = !head.is_event_stream() && self.endpoint != Endpoint::Other;
                if is_text && scan.usage().is_none() {
                    usage.output = self.by_time(workers, time).min(body_bytes);
                }
                let until = last_at.unwrap_or(until);
                // The remainder is only part of a stream's output.
                if event.part != AnswerPart::Remainder {
                    self.learn(workers, DecodeTime { until, ..time }, usage.output);
                }
            }
            (Err(error), Some(time)) if goes_on_computing(error) => {
                let last_at = last_at.filter(|_| usage.output > 0).unwrap_or(time.from);
                let since = DecodeTime { from: last_at.max(time.from), ..time };
                let more = self.by_time(workers, since);
                let output = usage.output.saturating_add(more).min(self.output_max);
                usage.output = usage.output.max(output);
            }
            _ => {}
        }
        if relayed.is_ok() {
            // The client has a whole answer: lost work is not charged.
            self.meter.settle();
        }
        self.usage = Some(usage);
    }

    /// Usage of the received part of an answer. An early report excludes later events, and an
    /// answer that was cut lacks the final report.
    fn of_answer(
        &self,
        scan: &UsageScan,
        usage: AnswerUsage<'_>,
        head: &ResponseHead,
        is_whole: bool,
    ) -> TokenUsage {
        let reported = if is_whole { scan.usage() } else { scan.usage_of_whole_events() };
        let Some(reported) = reported else {
            return usage.by_ids.unwrap_or_else(|| self.by_events(scan, head));
        };
        let since = if is_whole { 0 } else { scan.events_since_report() };
        TokenUsage { output: reported.output.saturating_add(since), ..reported }
    }

    /// Usage without an engine's report: about a token per event.
    fn by_events(&self, scan: &UsageScan, head: &ResponseHead) -> TokenUsage {
        // The first event of a chat contains only the role.
        let empty = u64::from(self.endpoint == Endpoint::ChatCompletions);
        let output = if head.is_event_stream() { scan.events().saturating_sub(empty) } else { 0 };
        TokenUsage { prompt: self.prompt_estimate, cached: 0, output }
    }

    /// Output tokens that the rank should have computed in `time`.
    fn by_time(&self, workers: &Workers, time: DecodeTime) -> u64 {
        let time_ns = time.until.since(time.from);
        let is_enough = Duration::from_nanos(time_ns) >= COMPUTED_TIME_MIN;
        let is_counted = is_enough && makes_tokens(self.endpoint);
        let past = workers.board.past(time.rank).filter(|_| is_counted);
        let per_answer = past.map_or(0, |past| past.decoded_in(time_ns));
        per_answer.saturating_mul(self.answers).min(self.output_max)
    }

    /// Updates the speed of the rank from a whole answer.
    fn learn(&self, workers: &Workers, time: DecodeTime, output: u64) {
        if let Some(past) = workers.board.past(time.rank) {
            past.decoded(output / self.answers, time.until.since(time.from));
        }
    }
}

/// True if the engine probably computed until the error.
const fn goes_on_computing(error: RelayError) -> bool {
    !matches!(error, RelayError::Stalled | RelayError::DownMidStream)
}

/// True if an answer may contain output tokens. Engines have more paths than the router knows.
const fn makes_tokens(endpoint: Endpoint) -> bool {
    matches!(
        endpoint,
        Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Generate
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::Other
    )
}
