//! Traces of requests: sampling, the context for workers, and the records from which the control
//! plane makes spans. An unsampled request costs a few random numbers and a field; the record of a
//! sampled request is bounded.

use super::event::{
    AnswerEnd, AttemptFailure, AttemptStart, Observer, RankChoice, RoutedHead, StoryEnd,
};
use super::open_trace::{OpenTrace, cut, method_name};
use crate::state::env::Env;
use forebay_base::limits::TRACESTATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, RankIndex, TraceParent};
use forebay_board::account::Count;
use forebay_config::TracesConfig;
use forebay_http1::header::{TRACEPARENT, TRACESTATE};
use forebay_http1::{FieldKind, RequestHead, bytes_of};
use forebay_mailbox::{
    LegTrace, PrefillOutcome, RequestTrace, StepKind, TraceRecord, TraceStep, TracedAnswer,
    TracedRequest,
};
use forebay_prompt::parse::Endpoint;

/// Unit of `traces.sample_per_million`.
const MILLION: u64 = 1_000_000;

/// Trace of a request; `None` if traces are off, or the client's trace passes through unchanged.
/// Boxed: inline it would enlarge every connection.
#[derive(Debug, Default)]
pub(crate) struct TraceObserver(Option<Box<OpenTrace>>);

impl TraceObserver {
    /// Trace id, as in logs.
    pub(crate) fn number(&self) -> Option<u128> {
        self.0.as_ref().map(|open| open.trace())
    }

    /// `traceparent`, and an empty `tracestate` to remove the client's.
    pub(crate) fn fields(&self) -> [Option<(&'static str, &[u8])>; 2] {
        self.0.as_ref().map_or([None; 2], |open| open.fields())
    }

    /// Trace of a prefill leg for this rank.
    pub(crate) fn leg(&mut self, rank: RankIndex) -> Option<Box<LegTrace>> {
        self.0.as_mut()?.leg(rank)
    }
}

impl Observer for TraceObserver {
    fn began(&mut self, event: &RoutedHead<'_>) {
        self.0 = event.endpoint.and_then(|endpoint| begin(event, endpoint));
    }

    fn queued(&mut self, from: NanosSinceStart, until: NanosSinceStart) {
        if let Some(open) = &mut self.0 {
            open.queued(from, until);
        }
    }

    fn chosen(&mut self, event: &RankChoice<'_>) {
        if let Some(recorded) = self.0.as_mut().and_then(|open| open.recorded.as_mut()) {
            recorded.answer.hit_bytes = Some(event.overlap.bytes);
            recorded.answer.hit_tokens = event.overlap.tokens;
        }
    }

    fn sent(&mut self, event: &AttemptStart<'_>) {
        if let Some(open) = &mut self.0 {
            open.leaves(event.rank, event.env.now());
        }
    }

    fn failed(&mut self, event: &AttemptFailure) {
        if let Some(open) = &mut self.0 {
            open.failed(event.error.describe(), event.now);
        }
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        if let Some(open) = &mut self.0 {
            open.first_at = event.times.first_at;
            if let Some(recorded) = &mut open.recorded {
                recorded.answer.usage = event.usage.reported;
            }
        }
    }

    fn ended(&mut self, event: &StoryEnd<'_>) {
        if let Some(mut open) = self.0.take() {
            end(&mut open, event);
        }
    }
}

fn begin(event: &RoutedHead<'_>, endpoint: Endpoint) -> Option<Box<OpenTrace>> {
    let RoutedHead { shard, head, input, at: started, .. } = *event;
    let env = &shard.env;
    let (sample, asked_max) = {
        let TracesConfig { endpoint, sample_per_million, asked_per_second_max, .. } =
            &env.config().traces;
        endpoint.as_ref()?;
        (*sample_per_million, *asked_per_second_max)
    };
    let sent = sent(head, input);
    let draw = || shard.routing.stages.borrow_mut().random.u64(..);
    let context = match sent {
        SentTrace::Valid(parent) => {
            // A trace not recorded here passes through unchanged: a worker may record it.
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
            asked: asked(event, endpoint, parent.is_some()),
            started_at: started,
            read_at: None,
            ended_at: started,
            steps: Vec::new(),
            answer: TracedAnswer::default(),
        })
    });
    Some(Box::new(OpenTrace {
        context,
        header: context.write(),
        drops_state: parent.is_none(),
        span_count: 0,
        recorded,
        first_at: None,
    }))
}

fn asked(event: &RoutedHead<'_>, endpoint: Endpoint, is_continued: bool) -> TracedRequest {
    let RoutedHead { head, input, .. } = *event;
    let state = if is_continued { joined_state(head, input) } else { String::new() };
    TracedRequest {
        method: method_name(head.method),
        endpoint: endpoint.name(),
        scheme: event.scheme,
        path: cut(head.path(input)),
        client: event.client.to_string(),
        state,
        model: String::new(),
        request_id: cut(event.request_id),
    }
}

/// `traceparent` of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentTrace {
    Nothing,
    Valid(TraceParent),
    /// Also if the field occurs twice.
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
    // Compares the length first, which rejects most fields.
    let named = others.filter(move |field| is_named(bytes_of(buffer, &field.name)));
    named.map(|field| bytes_of(buffer, &field.value))
}

/// Joins several fields to a single list (RFC 9110 section 5.3). An overlong list is dropped whole.
fn joined_state(head: &RequestHead, buffer: &[u8]) -> String {
    let all: Vec<&[u8]> = values(head, buffer, TRACESTATE).collect();
    let joined = all.join(&b","[..]);
    if joined.len() > TRACESTATE_BYTES_MAX {
        return String::new();
    }
    String::from_utf8(joined).unwrap_or_default()
}

/// Completes the record of an ended request, and sends it to the control plane.
fn end(open: &mut OpenTrace, event: &StoryEnd<'_>) {
    let Some(mut recorded) = open.recorded.take() else { return };
    let StoryEnd { end, facts, .. } = event;
    let now = end.now;
    let started = facts.times.started;
    recorded.ended_at = now;
    recorded.read_at =
        facts.times.read_ns.map(|nanos| NanosSinceStart(started.0.saturating_add(nanos)));
    recorded.asked.model = cut(end.message.api.asked_model().as_bytes());
    let answer = &mut recorded.answer;
    let (status, outcome) = event.outcome();
    answer.status = status;
    answer.outcome = outcome;
    answer.continued = facts.answer.continued;
    answer.choice_reason = facts.choice_reason.map(|because| because.name());
    answer.usage = facts.answer.usage.or(answer.usage);
    let begun_at = open.first_at.or(facts.times.head_at);
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
    let env = &end.shard.env;
    env.records.traces.give(&env.counters, TraceRecord::Request(recorded));
}

/// Completes the trace of an ended prefill leg, and sends it to the control plane.
pub(crate) fn end_leg(env: &Env, mut leg: Box<LegTrace>, ended: &PrefillOutcome) {
    leg.until = env.now();
    leg.fault = match ended {
        PrefillOutcome::Done(_) => None,
        PrefillOutcome::Refused(_) => Some("the engine refused the request"),
        PrefillOutcome::Failed(_) => Some("the prefill leg failed"),
    };
    env.records.traces.give(&env.counters, TraceRecord::Leg(leg));
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
