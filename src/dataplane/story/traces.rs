//! Traces of requests: which are sampled, what workers are told of them, and what is handed over to
//! the control plane, which makes spans of it. A request that is not sampled costs a few random
//! numbers and a field; all that is kept for a sampled one is bounded.

use super::access_record;
use crate::exchange::labels::Labels;
use crate::exchange::open_trace::{OpenTrace, cut, method_name};
use crate::exchange::slot::{After, Slot};
use crate::ingress::Conn;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_base::limits::TRACESTATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, TraceParent};
use forebay_config::TracesConfig;
use forebay_fleet::account::Count;
use forebay_fleet::mailbox::{
    LegTrace, PrefillEnded, RequestTrace, StepKind, TraceStep, Traced, TracedAnswer, TracedAsk,
};
use forebay_http1::header::{TRACEPARENT, TRACESTATE};
use forebay_http1::{FieldKind, RequestHead, bytes_of};
use forebay_prompt::parse::Endpoint;
use forebay_router::request::Stop;
use std::cell::Cell;

/// What `traces.sample_per_million` counts in.
const MILLION: u64 = 1_000_000;

/// Begins the trace of the request whose head is parsed in the slot. `None` where traces are off,
/// and where the client's trace goes past the router.
pub(crate) fn begin(
    shard: &Shard,
    conn: &Conn,
    slot: &Slot,
    endpoint: Endpoint,
    started: NanosSinceStart,
) -> Option<Box<OpenTrace>> {
    let env = &shard.env;
    let (sample, asked_max) = {
        let TracesConfig { endpoint, sample_per_million, asked_per_second_max, .. } =
            &env.config().traces;
        endpoint.as_ref()?;
        (*sample_per_million, *asked_per_second_max)
    };
    let sent = sent(&slot.head, &conn.input);
    let draw = || shard.routing.stages.borrow_mut().random.u64(..);
    let context = match sent {
        SentTrace::Valid(parent) => {
            // What is not recorded here goes on as it came: it may be recorded behind the router.
            if !parent.is_sampled
                || !env.records.traces.may_be_asked(&env.counters, started, asked_max)
            {
                return None;
            }
            TraceParent { span: draw() | 1, ..parent }
        }
        SentTrace::Nothing | SentTrace::Invalid => {
            let high = draw();
            let low = draw() | 1;
            let is_sampled = high % MILLION < u64::from(sample);
            let trace = u128::from(high) << 64 | u128::from(low);
            TraceParent { trace, span: draw() | 1, is_sampled }
        }
    };
    let parent = if let SentTrace::Valid(parent) = sent { Some(parent.span) } else { None };
    let recorded = context.is_sampled.then(|| {
        env.count(Count::Traces);
        Box::new(RequestTrace {
            context,
            parent,
            asked: asked(conn, slot, endpoint, parent.is_some()),
            started_at: started,
            read_at: None,
            ended_at: started,
            steps: Vec::new(),
            answer: TracedAnswer::default(),
        })
    });
    Some(Box::new(OpenTrace {
        context,
        told: context.write(),
        drops_state: parent.is_none(),
        span_count: 0,
        recorded,
        first_at: Cell::new(None),
        usage: Cell::new(None),
    }))
}

fn asked(conn: &Conn, slot: &Slot, endpoint: Endpoint, is_continued: bool) -> TracedAsk {
    let state = if is_continued { joined_state(&slot.head, &conn.input) } else { String::new() };
    TracedAsk {
        method: method_name(slot.head.method),
        endpoint: endpoint.name(),
        path: cut(slot.head.path(&conn.input)),
        client: conn.client.address.to_string(),
        state,
        model: String::new(),
        request_id: cut(&slot.request_id),
    }
}

/// The `traceparent` that a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentTrace {
    Nothing,
    Valid(TraceParent),
    /// Also where there are two.
    Invalid,
}

fn sent(head: &RequestHead, buffer: &[u8]) -> SentTrace {
    let mut values = values(head, buffer, TRACEPARENT);
    match (values.next(), values.next()) {
        (None, _) => SentTrace::Nothing,
        (Some(value), None) => {
            TraceParent::parse(value).map_or(SentTrace::Invalid, SentTrace::Valid)
        }
        _ => SentTrace::Invalid,
    }
}

fn values<'a>(
    head: &'a RequestHead,
    buffer: &'a [u8],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    let is_named = move |name_sent: &[u8]| name_sent.eq_ignore_ascii_case(name.as_bytes());
    let others = head.fields.iter().filter(|field| field.kind == FieldKind::Other);
    // The length is compared first.
    let named = others.filter(move |field| is_named(bytes_of(buffer, &field.name)));
    named.map(|field| bytes_of(buffer, &field.value))
}

/// Several fields are one list (RFC 9110 section 5.3). One that is too long is left out whole.
fn joined_state(head: &RequestHead, buffer: &[u8]) -> String {
    let all: Vec<&[u8]> = values(head, buffer, TRACESTATE).collect();
    let joined = all.join(&b","[..]);
    if joined.len() > TRACESTATE_BYTES_MAX {
        return String::new();
    }
    String::from_utf8(joined).unwrap_or_default()
}

/// Hands the trace of a request over that has ended.
pub(crate) fn end(
    shard: &Shard,
    slot: &mut Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
    started: NanosSinceStart,
) {
    let Some(mut open) = slot.told.trace.take() else { return };
    let Some(mut recorded) = open.recorded.take() else { return };
    let now = shard.env.now();
    recorded.ended_at = now;
    recorded.read_at = labels.read_ns.map(|nanos| NanosSinceStart(started.0.saturating_add(nanos)));
    recorded.asked.model = cut(slot.request.asked_model().as_bytes());
    let answer = &mut recorded.answer;
    (answer.status, answer.outcome) = access_record::ended(slot, labels, served);
    answer.continued = slot.pair.keeping.continued();
    answer.because = labels.because.map(|because| because.name());
    answer.usage = slot.answer.usage.get().or(open.usage.get());
    let begun_at = open.first_at.get().or(slot.answer.head_at);
    if let Some(step) = recorded.steps.last_mut()
        && step.kind == StepKind::FirstByte
        && step.fault.is_none()
    {
        step.until = begun_at.unwrap_or(now).max(step.from);
        let from = step.until;
        let rank = step.rank;
        if begun_at.is_some() {
            let span = open.next_span();
            let kind = StepKind::Stream;
            recorded.steps.push(TraceStep { kind, span, from, until: now, rank, fault: None });
        }
    }
    shard.env.records.traces.give(&shard.env.counters, Traced::Request(recorded));
}

/// Hands the trace of a prefill leg over that has ended.
pub(crate) fn end_leg(env: &Env, mut leg: Box<LegTrace>, ended: &PrefillEnded) {
    leg.until = env.now();
    leg.fault = match ended {
        PrefillEnded::Done(_) => None,
        PrefillEnded::Refused(_) => Some("the engine refused the request"),
        PrefillEnded::Failed(_) => Some("the prefill leg failed"),
    };
    env.records.traces.give(&env.counters, Traced::Leg(leg));
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_http1::{HeadLimits, parse_request};

    fn sent_in(fields: &str) -> (SentTrace, String) {
        let text = format!("GET /v1/models HTTP/1.1\r\nhost: h\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        parse_request(text.as_bytes(), &HeadLimits::default(), &mut head).unwrap();
        (sent(&head, text.as_bytes()), joined_state(&head, text.as_bytes()))
    }

    #[test]
    fn a_context_comes_once_and_its_state_may_come_in_parts() {
        let one = "traceparent: 00-00000000000000000000000000000001-0000000000000002-01\r\n";
        let context = TraceParent { trace: 1, span: 2, is_sampled: true };
        let parts = format!("{one}TraceState: a=1\r\ntracestate: b=2\r\n");
        assert_eq!(sent_in(&parts), (SentTrace::Valid(context), "a=1,b=2".into()));
        assert_eq!(sent_in(&format!("{one}{one}")).0, SentTrace::Invalid);
        assert_eq!(sent_in("traceparent: 00-1-2-01\r\n").0, SentTrace::Invalid);
        assert_eq!(sent_in("").0, SentTrace::Nothing);
        let hop = format!("connection: traceparent\r\n{one}");
        assert_eq!(sent_in(&hop).0, SentTrace::Nothing, "it belongs to the connection");
        let long = format!("{one}tracestate: a={}\r\n", "x".repeat(TRACESTATE_BYTES_MAX));
        assert_eq!(sent_in(&long).1, "");
    }
}
