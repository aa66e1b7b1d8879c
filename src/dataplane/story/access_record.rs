//! Access records: of every request if `log.requests` is on, of slow requests with `log.slow`. The
//! shard formats a record, the log thread writes it.

use super::event::{AnswerEnd, MessageParts, Observer, RoutedHead, StoryEnd};
use super::open_trace::{cut, method_name};
use crate::ingress::ConnectedClient;
use crate::state::env::Env;
use forebay_base::NanosSinceStart;
use forebay_config::{RecordField, RecordFormat};
use forebay_fleet::tenant::TokenUsage;
use forebay_prompt::parse::Refusal;
use std::io::{self, Write};
use std::time::Duration;

/// First status of a fault that is not the client's: such a record has the level WARN.
const SERVER_ERROR: u16 = 500;

/// Access record of a request; `None` if `log.requests` is off.
#[derive(Debug, Default)]
pub(crate) struct AccessRecord(Option<Box<RecordParts>>);

/// Parts of a record that are known before the end.
#[derive(Debug, Default)]
struct RecordParts {
    /// Copied, because the head may be gone when the request ends.
    path: String,
    /// First byte of a stream.
    first_at: Option<NanosSinceStart>,
    /// As the engine reports it.
    usage: Option<TokenUsage>,
}

impl Observer for AccessRecord {
    fn began(&mut self, event: &RoutedHead<'_>) {
        if event.shard.env.config().log.requests {
            let path = cut(event.head.path(event.input));
            self.0 = Some(Box::new(RecordParts { path, ..RecordParts::default() }));
        }
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        if let Some(parts) = &mut self.0 {
            parts.first_at = parts.first_at.or(event.times.first_at);
            parts.usage = event.usage.reported.or(parts.usage);
        }
    }

    fn ended(&mut self, event: &StoryEnd<'_>) {
        let env = &event.end.shard.env;
        let slow = env.config().log.slow;
        if let Some(parts) = self.0.take() {
            parts.write(event);
        }
        let now = event.end.now;
        let times = &event.facts.times;
        let until_head = times.head_at.unwrap_or(now).since(times.started);
        if !slow.is_zero() && Duration::from_nanos(until_head) > slow {
            let mut log = env.records.slow_log.get();
            let left_out = log.take(now);
            env.records.slow_log.set(log);
            if let Some(left_out) = left_out {
                write_slow(event, now, left_out);
            }
        }
    }
}

impl RecordParts {
    fn write(&self, event: &StoryEnd<'_>) {
        let StoryEnd { end, facts, .. } = event;
        let (status, outcome) = event.outcome();
        if let Some(format) = end.shard.env.records.format() {
            let line = self.formatted(&format, event);
            match status {
                SERVER_ERROR.. => tracing::warn!("{line}"),
                _ => tracing::info!("{line}"),
            }
            return;
        }
        let fleet = end.shard.workers.fleet();
        let rank = facts.rank.and_then(|rank| fleet.rank(rank));
        let MessageParts { head, api, request_id } = end.message;
        let total_ns = end.now.since(facts.times.started);
        let usage = facts.answer.usage.or(self.usage);
        // The level of an event is a constant, so each level has its own copy of the fields.
        macro_rules! record {
            ($level:ident) => {
                tracing::$level!(
                    status,
                    outcome,
                    cause = event.cause(),
                    method = method_name(head.method),
                    path = self.path,
                    endpoint = facts.endpoint().map_or("none", |endpoint| endpoint.name()),
                    // Refused before its body was read, or without a model.
                    model = Some(&*api.model).filter(|model| !model.is_empty()),
                    tenant = fleet.tenants.name(end.tenant),
                    stream = facts.stream,
                    because = facts.choice_reason.map_or("", |because| because.name()),
                    continued = facts.answer.continued,
                    worker = rank.map_or("", |(_, worker)| &*worker.name),
                    dp_rank = rank.map_or(0, |(rank, _)| rank.dp_rank.0),
                    client = %end.client.address,
                    peer = %end.client.peer,
                    request_id = &*String::from_utf8_lossy(request_id),
                    trace_id = event.trace.map(|trace| format!("{trace:032x}")),
                    read_ms = ms(facts.times.read_ns.unwrap_or(total_ns)),
                    queue_ms = ms(facts.times.queued_ns),
                    ttft_ms = self.ttft_ms(event),
                    total_ms = ms(total_ns),
                    prompt_tokens = usage.map(|usage| usage.prompt),
                    cached_tokens = usage.map(|usage| usage.cached),
                    output_tokens = usage.map(|usage| usage.output),
                    "request"
                )
            };
        }
        match status {
            SERVER_ERROR.. => record!(warn),
            _ => record!(info),
        }
    }

    /// Milliseconds until the first byte of a stream, else until the head of the answer.
    fn ttft_ms(&self, event: &StoryEnd<'_>) -> Option<u64> {
        let times = &event.facts.times;
        Some(ms(self.first_at.or(times.head_at)?.since(times.started)))
    }

    /// The record, formatted by `log.format`.
    fn formatted(&self, format: &RecordFormat, event: &StoryEnd<'_>) -> String {
        let StoryEnd { end, facts, trace } = event;
        let (status, outcome) = event.outcome();
        let fleet = end.shard.workers.fleet();
        let rank = facts.rank.and_then(|rank| fleet.rank(rank));
        let MessageParts { head, api, request_id } = end.message;
        let total_ns = end.now.since(facts.times.started);
        let usage = facts.answer.usage.or(self.usage);
        let endpoint = || facts.endpoint().map_or("", |endpoint| endpoint.name());
        format.write(|field, out| {
            // Writing to memory cannot fail.
            let _ = match field {
                RecordField::CachedTokens => number(out, usage.map(|usage| usage.cached)),
                RecordField::Cause => out.write_all(event.cause().as_bytes()),
                RecordField::ChoiceReason => out
                    .write_all(facts.choice_reason.map_or("", |because| because.name()).as_bytes()),
                RecordField::Client => write!(out, "{}", end.client.address),
                RecordField::Continued => write!(out, "{}", facts.answer.continued),
                RecordField::DpRank => match rank {
                    Some((rank, _)) => write!(out, "{}", rank.dp_rank.0),
                    None => Ok(()),
                },
                RecordField::Endpoint => out.write_all(endpoint().as_bytes()),
                RecordField::Method => out.write_all(method_name(head.method).as_bytes()),
                RecordField::Model => out.write_all(api.asked_model().as_bytes()),
                RecordField::Outcome => out.write_all(outcome.as_bytes()),
                RecordField::OutputTokens => number(out, usage.map(|usage| usage.output)),
                RecordField::Path => out.write_all(self.path.as_bytes()),
                RecordField::Peer => write!(out, "{}", end.client.peer),
                RecordField::PromptTokens => number(out, usage.map(|usage| usage.prompt)),
                RecordField::QueueMs => write!(out, "{}", ms(facts.times.queued_ns)),
                RecordField::ReadMs => {
                    write!(out, "{}", ms(facts.times.read_ns.unwrap_or(total_ns)))
                }
                RecordField::RequestId => out.write_all(request_id),
                RecordField::Status => write!(out, "{status}"),
                RecordField::Stream => write!(out, "{}", facts.stream.unwrap_or(false)),
                RecordField::Tenant => out.write_all(fleet.tenants.name(end.tenant).as_bytes()),
                RecordField::TotalMs => write!(out, "{}", ms(total_ns)),
                RecordField::TraceId => match trace {
                    Some(trace) => write!(out, "{trace:032x}"),
                    None => Ok(()),
                },
                RecordField::TtftMs => number(out, self.ttft_ms(event)),
                RecordField::Worker => {
                    out.write_all(rank.map_or("", |(_, worker)| &*worker.name).as_bytes())
                }
            };
        })
    }
}

/// Writes the record of a request without a readable head, if `log.requests` is on. Such a request
/// has no path, and its story has not begun.
pub(crate) fn write_unread(
    env: &Env,
    client: &ConnectedClient,
    request_id: &[u8],
    refusal: &Refusal,
) {
    if !env.config().log.requests {
        return;
    }
    let status = refusal.status();
    let outcome = refusal.reason().as_str();
    let cause = refusal.message();
    // `client.address` is of the request before.
    let address = client.from.ip();
    if let Some(format) = env.records.format() {
        let line = format.write(|field, out| {
            // Writing to memory cannot fail.
            let _ = match field {
                RecordField::Cause => out.write_all(cause.as_bytes()),
                RecordField::Client => write!(out, "{address}"),
                RecordField::Outcome => out.write_all(outcome.as_bytes()),
                RecordField::Peer => write!(out, "{}", client.peer),
                RecordField::RequestId => out.write_all(request_id),
                RecordField::Status => write!(out, "{status}"),
                _ => Ok(()),
            };
        });
        tracing::info!("{line}");
        return;
    }
    tracing::info!(
        status,
        outcome,
        cause,
        endpoint = "none",
        client = %address,
        peer = %client.peer,
        request_id = &*String::from_utf8_lossy(request_id),
        "request"
    );
}

/// Writes the number; a field without a value stays empty.
fn number(out: &mut impl Write, value: Option<u64>) -> io::Result<()> {
    value.map_or(Ok(()), |value| write!(out, "{value}"))
}

const fn ms(nanos: u64) -> u64 {
    nanos / 1_000_000
}

/// Logs the times of a slow request in milliseconds: reading, waiting for a rank, from there to the
/// head of the answer, total.
fn write_slow(event: &StoryEnd<'_>, now: NanosSinceStart, left_out: u64) {
    let StoryEnd { end, facts, .. } = event;
    let (status, outcome) = event.outcome();
    let fleet = end.shard.workers.fleet();
    let rank = facts.rank.and_then(|rank| fleet.rank(rank));
    let times = &facts.times;
    let until_head_ns = times.head_at.unwrap_or(now).since(times.started);
    let read_ns = times.read_ns.unwrap_or(until_head_ns);
    let engine_ns = until_head_ns.saturating_sub(read_ns).saturating_sub(times.queued_ns);
    tracing::warn!(
        status,
        outcome,
        model = end.message.api.model,
        tenant = fleet.tenants.name(end.tenant),
        worker = rank.map_or("", |(_, worker)| &*worker.name),
        dp_rank = rank.map_or(0, |(rank, _)| rank.dp_rank.0),
        because = facts.choice_reason.map_or("", |because| because.name()),
        read_ms = ms(read_ns),
        queue_ms = ms(times.queued_ns),
        engine_ms = ms(engine_ns),
        total_ms = ms(now.since(times.started)),
        request_id = &*String::from_utf8_lossy(end.message.request_id),
        left_out,
        "slow request"
    );
}
