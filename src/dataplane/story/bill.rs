//! account: what a request has cost its tenant, however it ends. The counters, the bucket of tokens
//! per minute, the trace and the use that replicas share are all [`total`].
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
//! | 4xx, 429, 503, 529, no connection, a rank that stands still | nothing | nothing |
//! | a refusal of the router, or the client leaves a queue | attempts before | attempts before |
//! | an answer of another rank behind a failed attempt | that answer | that answer |
//! | a WebSocket, and what no engine computes | nothing | nothing |
//!
//! - *by time*: from the moment when the prompt should be computed, by the speed of the rank
//!   ([`forebay_fleet::worker::RankPast::decoded_in`]), for each answer, and at most the limit of
//!   the request. Less than [`COMPUTED_TIME_MIN`] counts as none.
//! - *by bytes*, *by events*: see `quota`. With `retry.mid_stream` the ids of the stream count.
//! - *cut*: the last report, events since then, and by time since the last event.
//! - *partly*: by bytes, as far as the time is enough for the prompt.

use crate::exchange::slot::Slot;
use crate::exchange::work_meter::WorkMeter;
use crate::relay::UsageScan;
use crate::state::env::Env;
use crate::state::shard::Shard;
use crate::state::workers::Workers;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::tenant::TokenUsage;
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{RelayError, has_no_room};
use forebay_router::request::{Chosen, Failed};
use std::time::Duration;

/// In less time nothing is believed to be computed: the way and the reads take as long.
const COMPUTED_TIME_MIN: Duration = Duration::from_millis(100);

/// How the answer of an attempt ended.
pub(crate) struct AnswerEnd<'a> {
    pub(crate) endpoint: Endpoint,
    /// What was read off the answer; `None` where it has no `usage`.
    pub(crate) scan: Option<&'a UsageScan>,
    /// When the last event came that may have a token.
    pub(crate) last_at: Option<NanosSinceStart>,
    /// Bytes of the body, if that is whole.
    pub(crate) relayed: Result<u64, RelayError>,
    /// By the ids of the stream, where these are kept.
    pub(crate) by_ids: Option<TokenUsage>,
    pub(crate) now: NanosSinceStart,
}

/// What becomes of the work of an attempt without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LostWork {
    Nothing,
    /// As much of the prompt as the time is worth.
    Prompt,
    /// The same, and output.
    All,
    /// All of the prompt, and output: the engine would have gone on.
    Left,
}

/// Time in which a rank computes an answer.
#[derive(Clone, Copy, Debug)]
struct DecodeTime {
    rank: RankIndex,
    from: NanosSinceStart,
    until: NanosSinceStart,
}

/// An attempt of a request begins.
pub(crate) fn begin(env: &Env, slot: &Slot, endpoint: Endpoint, chosen: &Chosen) {
    if let Some(meter) = slot.told.quota.meter().filter(|_| endpoint.is_inference()) {
        let prefill = chosen.prefill.as_ref().map_or(&chosen.lease, |prefill| &prefill.lease);
        meter.begin(prefill.prefill_expected_ns(env.now()));
    }
}

/// An attempt has ended without an answer.
pub(crate) fn lost(shard: &Shard, slot: &Slot, endpoint: Endpoint, failed: &Failed) {
    let work = match &failed.reply.answer {
        // The answer of a trial: an engine may have failed after a while.
        Some(answer) if answer.status >= 500 && !has_no_room(answer.status) => LostWork::All,
        Some(_) => LostWork::Nothing,
        None => LostWork::of(failed.error),
    };
    if slot.told.quota.is_counted() {
        lose(&shard.workers, slot, endpoint, work, shard.env.now());
    }
}

fn lose(workers: &Workers, slot: &Slot, endpoint: Endpoint, work: LostWork, now: NanosSinceStart) {
    let prompt_estimate = slot.told.quota.prompt_estimate;
    let Some(meter) = slot.told.quota.meter() else { return };
    let Some(attempt) = meter.end() else { return };
    if work != LostWork::Left && attempt.passed(now) < COMPUTED_TIME_MIN {
        return;
    }
    let prompt = match work {
        LostWork::Nothing => return,
        LostWork::Left => prompt_estimate,
        LostWork::Prompt | LostWork::All => attempt.prompt_computed(prompt_estimate, now),
    };
    let decoding = attempt.decodes.filter(|_| work != LostWork::Prompt);
    let output = decoding.map_or(0, |(rank, from)| {
        by_time(workers, slot, endpoint, DecodeTime { rank, from, until: now })
    });
    meter.lose(TokenUsage { prompt, cached: 0, output });
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

/// The answer of an attempt has ended, or was cut.
pub(crate) fn answered(workers: &Workers, slot: &Slot, end: &AnswerEnd<'_>) {
    let AnswerEnd { endpoint, relayed, now: until, .. } = *end;
    let status = slot.answer.head.status;
    let Some(scan) = end.scan else {
        let is_failure = status >= 500 && !has_no_room(status);
        let work = if is_failure { LostWork::All } else { LostWork::Nothing };
        return lose(workers, slot, endpoint, work, until);
    };
    let meter = slot.told.quota.meter();
    let decodes = meter.and_then(WorkMeter::end).and_then(|attempt| attempt.decodes);
    let time = decodes.map(|(rank, from)| DecodeTime { rank, from, until });
    let mut usage = counted(scan, slot, end);
    match (relayed, time) {
        (Ok(body_bytes), Some(time)) => {
            // An answer of a path that is not known may be an image.
            let is_text = !slot.answer.head.event_stream && endpoint != Endpoint::Other;
            if is_text && scan.told().is_none() {
                usage.output = by_time(workers, slot, endpoint, time).min(body_bytes);
            }
            let until = end.last_at.unwrap_or(until);
            learn(workers, slot, DecodeTime { until, ..time }, usage.output);
        }
        (Err(error), Some(time)) if goes_on_computing(error) => {
            let last_at = end.last_at.filter(|_| usage.output > 0).unwrap_or(time.from);
            let since = DecodeTime { from: last_at.max(time.from), ..time };
            let more = by_time(workers, slot, endpoint, since);
            let output = usage.output.saturating_add(more).min(output_max(slot));
            usage.output = usage.output.max(output);
        }
        _ => {}
    }
    if relayed.is_ok() {
        settle(slot);
    }
    slot.answer.usage.set(Some(usage));
}

/// What the answer has cost, as far as it came. A report in the beginning does not count what
/// follows, and an answer that is cut has no end with a report.
fn counted(scan: &UsageScan, slot: &Slot, end: &AnswerEnd<'_>) -> TokenUsage {
    let is_whole = end.relayed.is_ok();
    let Some(told) = (if is_whole { scan.told() } else { scan.reported_in_whole_events() }) else {
        return end.by_ids.unwrap_or_else(|| by_events(scan, slot, end.endpoint));
    };
    let since = if is_whole { 0 } else { scan.events_since_report() };
    TokenUsage { output: told.output.saturating_add(since), ..told }
}

/// An answer without a report of its engine: about a token an event.
fn by_events(scan: &UsageScan, slot: &Slot, endpoint: Endpoint) -> TokenUsage {
    // The first event of a chat has the role alone.
    let empty = u64::from(endpoint == Endpoint::ChatCompletions);
    let is_stream = slot.answer.head.event_stream;
    let output = if is_stream { scan.events().saturating_sub(empty) } else { 0 };
    TokenUsage { prompt: slot.told.quota.prompt_estimate, cached: 0, output }
}

/// The router has ended the stream by itself, and the client takes it for whole.
pub(crate) fn ended_here(slot: &Slot, usage: TokenUsage) {
    settle(slot);
    slot.answer.usage.set(Some(usage));
}

/// The client has an answer that is whole: what was computed for nothing is not counted.
fn settle(slot: &Slot) {
    if let Some(meter) = slot.told.quota.meter() {
        meter.settle();
    }
}

/// What the request has cost in all; `None`: nothing that counts.
pub(crate) fn total(slot: &Slot) -> Option<TokenUsage> {
    let answer = slot.answer.usage.get();
    slot.told.quota.meter().map_or(answer, |meter| meter.total(answer, output_max(slot)))
}

/// Does the engine compute until the moment of this error, as far as is known?
const fn goes_on_computing(error: RelayError) -> bool {
    !matches!(error, RelayError::Stalled | RelayError::DownMidStream)
}

/// Most tokens that the request asks for.
fn output_max(slot: &Slot) -> u64 {
    let asked = slot.request.max_tokens.map(u64::from);
    asked.map_or(u64::MAX, |asked| asked.saturating_mul(answers(slot)))
}

fn answers(slot: &Slot) -> u64 {
    u64::from(slot.request.answer_count.max(1))
}

/// Tokens that the rank should have made for the request in that time.
fn by_time(workers: &Workers, slot: &Slot, endpoint: Endpoint, time: DecodeTime) -> u64 {
    let time_ns = time.until.since(time.from);
    let is_enough = Duration::from_nanos(time_ns) >= COMPUTED_TIME_MIN && makes_tokens(endpoint);
    let past = workers.board.past(time.rank).filter(|_| is_enough);
    let one = past.map_or(0, |past| past.decoded_in(time_ns));
    one.saturating_mul(answers(slot)).min(output_max(slot))
}

/// May an answer have tokens of output? Engines have more paths than the router knows.
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

/// A whole answer shows how fast the rank is.
fn learn(workers: &Workers, slot: &Slot, time: DecodeTime, output: u64) {
    // The rest of a stream is not all of its output.
    if !slot.answer.early.is_broken()
        && let Some(past) = workers.board.past(time.rank)
    {
        past.decoded(output / answers(slot), time.until.since(time.from));
    }
}
