//! Records of requests: one for each where `log.requests` asks for it, and one for each slow one
//! where `log.slow` does. The shard formats a record, and the thread of the log writes it.

use crate::exchange::labels::{CLIENT_GONE, Labels};
use crate::exchange::open_trace::{cut, method_name};
use crate::exchange::slot::{After, Slot};
use crate::ingress::{Conn, ConnectedClient};
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_base::NanosSinceStart;
use forebay_config::{RecordField, RecordFormat};
use forebay_router::request::Stop;
use std::io::Write;
use std::time::Duration;

/// Notes what a record has of the head, which is gone when the request ends.
pub(crate) fn begin(env: &Env, conn: &Conn, slot: &mut Slot) {
    if env.records.has_path() {
        slot.told.path = cut(slot.head.path(&conn.input));
    }
}

/// Writes the records of a request that has ended.
pub(crate) fn note(
    shard: &Shard,
    client: &ConnectedClient,
    slot: &Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
    started: NanosSinceStart,
) {
    let (writes_all, slow) = {
        let log = &shard.env.config().log;
        (log.requests, log.slow)
    };
    if !writes_all && slow.is_zero() {
        return;
    }
    let now = shard.env.now();
    if writes_all {
        write(shard, client, slot, labels, served, now.since(started));
    }
    let until_head = slot.answer.head_at.unwrap_or(now).since(started);
    if !slow.is_zero() && Duration::from_nanos(until_head) > slow {
        let mut log = shard.env.records.slow_log.get();
        let left_out = log.take(now);
        shard.env.records.slow_log.set(log);
        if let Some(left_out) = left_out {
            write_slow(shard, slot, labels, served, Times { started, now, left_out });
        }
    }
}

fn write(
    shard: &Shard,
    client: &ConnectedClient,
    slot: &Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
    total_ns: u64,
) {
    let (status, outcome) = ended(slot, labels, served);
    let fleet = shard.workers.fleet();
    let rank = labels.rank.and_then(|rank| fleet.rank(rank));
    if let Some(format) = shard.env.records.format() {
        let line =
            formatted(&format, shard, client, slot, labels, &Ended { status, outcome, total_ns });
        tracing::info!("{line}");
        return;
    }
    tracing::info!(
        status,
        outcome,
        endpoint = labels.endpoint().map_or("none", |endpoint| endpoint.name()),
        model = slot.request.model,
        tenant = fleet.tenants.name(slot.told.whom.tenant),
        stream = labels.stream.unwrap_or(false),
        continued = slot.pair.keeping.continued(),
        worker = rank.map_or("", |(_, worker)| &*worker.name),
        dp_rank = rank.map_or(0, |(rank, _)| rank.dp_rank.0),
        client = %client.address,
        peer = %client.peer,
        request_id = &*String::from_utf8_lossy(&slot.request_id),
        micros = total_ns / 1_000,
        "request"
    );
}

/// How a request has ended.
struct Ended {
    status: u16,
    outcome: &'static str,
    total_ns: u64,
}

/// The record as `log.format` has it.
fn formatted(
    format: &RecordFormat,
    shard: &Shard,
    client: &ConnectedClient,
    slot: &Slot,
    labels: &Labels,
    ended: &Ended,
) -> String {
    let fleet = shard.workers.fleet();
    let rank = labels.rank.and_then(|rank| fleet.rank(rank));
    let ms = |nanos: u64| nanos / 1_000_000;
    format.write(|field, out| {
        // Into memory, which takes all.
        let _ = match field {
            RecordField::Because => {
                out.write_all(labels.because.map_or("", |because| because.name()).as_bytes())
            }
            RecordField::Client => write!(out, "{}", client.address),
            RecordField::Continued => write!(out, "{}", slot.pair.keeping.continued()),
            RecordField::DpRank => match rank {
                Some((rank, _)) => write!(out, "{}", rank.dp_rank.0),
                None => Ok(()),
            },
            RecordField::Endpoint => {
                out.write_all(labels.endpoint().map_or("", |endpoint| endpoint.name()).as_bytes())
            }
            RecordField::Method => out.write_all(method_name(slot.head.method).as_bytes()),
            RecordField::Model => out.write_all(slot.request.asked_model().as_bytes()),
            RecordField::Outcome => out.write_all(ended.outcome.as_bytes()),
            RecordField::Path => out.write_all(slot.told.path.as_bytes()),
            RecordField::Peer => write!(out, "{}", client.peer),
            RecordField::QueueMs => write!(out, "{}", ms(labels.queued_ns)),
            RecordField::ReadMs => write!(out, "{}", ms(labels.read_ns.unwrap_or(ended.total_ns))),
            RecordField::RequestId => out.write_all(&slot.request_id),
            RecordField::Status => write!(out, "{}", ended.status),
            RecordField::Stream => write!(out, "{}", labels.stream.unwrap_or(false)),
            RecordField::Tenant => {
                out.write_all(fleet.tenants.name(slot.told.whom.tenant).as_bytes())
            }
            RecordField::TotalMs => write!(out, "{}", ms(ended.total_ns)),
            RecordField::TraceId => match &slot.told.trace {
                Some(trace) => write!(out, "{:032x}", trace.trace()),
                None => Ok(()),
            },
            RecordField::Worker => {
                out.write_all(rank.map_or("", |(_, worker)| &*worker.name).as_bytes())
            }
        };
    })
}

/// Moments of a slow request.
#[derive(Clone, Copy)]
struct Times {
    started: NanosSinceStart,
    now: NanosSinceStart,
    left_out: u64,
}

/// Where the time went, in milliseconds: reading, waiting for a rank, from there to the head of the
/// answer, all together.
fn write_slow(
    shard: &Shard,
    slot: &Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
    times: Times,
) {
    let Times { started, now, left_out } = times;
    let (status, outcome) = ended(slot, labels, served);
    let fleet = shard.workers.fleet();
    let rank = labels.rank.and_then(|rank| fleet.rank(rank));
    let until_head_ns = slot.answer.head_at.unwrap_or(now).since(started);
    let read_ns = labels.read_ns.unwrap_or(until_head_ns);
    let engine_ns = until_head_ns.saturating_sub(read_ns).saturating_sub(labels.queued_ns);
    let ms = |nanos: u64| nanos / 1_000_000;
    tracing::warn!(
        status,
        outcome,
        model = slot.request.model,
        tenant = fleet.tenants.name(slot.told.whom.tenant),
        worker = rank.map_or("", |(_, worker)| &*worker.name),
        dp_rank = rank.map_or(0, |(rank, _)| rank.dp_rank.0),
        because = labels.because.map_or("", |because| because.name()),
        read_ms = ms(read_ns),
        queue_ms = ms(labels.queued_ns),
        engine_ms = ms(engine_ns),
        total_ms = ms(now.since(started)),
        request_id = &*String::from_utf8_lossy(&slot.request_id),
        left_out,
        "slow request"
    );
}

/// The status that the client has heard, and how the request ended.
pub(crate) fn ended(
    slot: &Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
) -> (u16, &'static str) {
    match served {
        Ok(_) => (labels.status, "answered"),
        Err(Stop::BeforeBody(refusal) | Stop::InBody(refusal) | Stop::Refused(refusal)) => {
            (refusal.status(), refusal.reason().as_str())
        }
        Err(Stop::Engine(answer)) => (answer.status, "engine-refused"),
        Err(Stop::ClientGone) => (slot.answer.status.unwrap_or(CLIENT_GONE), "client-gone"),
        Err(Stop::Cut(error)) => {
            (slot.answer.status.unwrap_or(slot.answer.head.status), error.describe())
        }
    }
}
