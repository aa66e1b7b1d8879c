//! Spans as OTLP has them in JSON (opentelemetry-proto 1.x, "OTLP/HTTP"): ids in hexadecimal
//! digits, 64-bit numbers as text, enumerations as numbers.

use forebay_base::limits::TRACESTATE_BYTES_MAX;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::FleetSnapshot;
use forebay_mailbox::{LegTrace, RequestTrace, StepKind, TraceRecord, TraceStep};
use serde::Serialize;
use std::borrow::Cow;

/// Kinds of spans by number: `SPAN_KIND_*`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// The code of a failure: `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;
/// Number of the span of the reading. Numbers of steps are odd as well, and begin elsewhere.
const ADMIT_SPAN: u64 = 0xa5a5_a5a5_a5a5_a5a4;

/// Parts that spans are made of.
pub(super) struct SpanMaker<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    /// Nanoseconds from 1970 to the start of the process clock.
    pub(super) start_ns: u128,
}

/// A span without its attributes.
struct SpanFrame<'a> {
    trace: u128,
    span: u64,
    parent: Option<u64>,
    name: &'a str,
    kind: u8,
    from: NanosSinceStart,
    until: NanosSinceStart,
    fault: Option<&'a str>,
}

/// A span as it is written. Without trees of JSON: each sampled request has several spans.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSpan<'a> {
    #[serde(flatten)]
    ids: SpanIds,
    name: &'a str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: &'a [Attribute<'a>],
    status: SpanStatus<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace_state: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanIds {
    trace_id: String,
    span_id: String,
    parent_span_id: String,
}

#[derive(Serialize)]
struct SpanStatus<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: AttributeValue<'a>,
}

#[derive(Serialize)]
enum AttributeValue<'a> {
    #[serde(rename = "stringValue")]
    Text(Cow<'a, str>),
    #[serde(rename = "intValue")]
    Int(String),
}

/// The request of an export, around spans that are JSON already.
pub(super) fn envelope(service: &str, spans: &[String]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = written(&[text("service.name", service), text("service.version", version)]);
    let scope = format!(r#"{{"name":"forebay","version":"{version}"}}"#);
    let spans = spans.join(",");
    let scoped = format!(r#"{{"scope":{scope},"spans":[{spans}]}}"#);
    let resource = format!(r#"{{"attributes":{attributes}}}"#);
    format!(r#"{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{scoped}]}}]}}"#)
}

/// Serialisation cannot fail: all keys are text.
fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl SpanMaker<'_> {
    /// Spans of a shard's trace, each as JSON.
    pub(super) fn spans(&self, traced: &TraceRecord) -> Vec<String> {
        match traced {
            TraceRecord::Request(request) => self.of_request(request),
            TraceRecord::Leg(leg) => vec![self.of_leg(leg)],
        }
    }

    fn of_request(&self, request: &RequestTrace) -> Vec<String> {
        let context = request.context;
        let mut spans = vec![self.of_server(request)];
        let admitted = SpanFrame {
            trace: context.trace,
            span: context.span ^ ADMIT_SPAN,
            parent: Some(context.span),
            name: "admit",
            kind: INTERNAL,
            from: request.started_at,
            until: request.read_at.unwrap_or(request.ended_at),
            fault: None,
        };
        spans.push(self.span(&admitted, &[], ""));
        spans.extend(request.steps.iter().map(|step| self.of_step(request, step)));
        spans
    }

    fn of_server(&self, request: &RequestTrace) -> String {
        let asked = &request.asked;
        let answer = &request.answer;
        let name = format!("{} {}", asked.method, asked.path);
        let is_fault = answer.status >= 500;
        let frame = SpanFrame {
            trace: request.context.trace,
            span: request.context.span,
            parent: request.parent,
            name: if asked.path.is_empty() { asked.method } else { &name },
            kind: SERVER,
            from: request.started_at,
            until: request.ended_at,
            fault: is_fault.then_some(answer.outcome),
        };
        let mut attributes = vec![
            text("http.request.method", asked.method),
            text("url.scheme", asked.scheme),
            text("url.path", &asked.path),
            int("http.response.status_code", u64::from(answer.status)),
            text("client.address", &asked.client),
            text("forebay.endpoint", asked.endpoint),
            text("forebay.outcome", answer.outcome),
            text("forebay.request_id", &asked.request_id),
        ];
        if is_fault {
            attributes.push(text("error.type", answer.status.to_string()));
        }
        if !asked.model.is_empty() {
            attributes.push(text("gen_ai.request.model", &asked.model));
        }
        if let Some(usage) = answer.usage {
            attributes.push(int("gen_ai.usage.input_tokens", usage.prompt));
            attributes.push(int("gen_ai.usage.output_tokens", usage.output));
            attributes.push(int("forebay.cached_tokens", usage.cached));
        }
        attributes.extend(answer.choice_reason.map(|because| text("forebay.because", because)));
        if answer.continued > 0 {
            attributes.push(int("forebay.continued", u64::from(answer.continued)));
        }
        let hits =
            [("forebay.hit_bytes", answer.hit_bytes), ("forebay.hit_tokens", answer.hit_tokens)];
        attributes
            .extend(hits.iter().filter_map(|(name, hit)| Some(int(name, u64::from((*hit)?)))));
        let is_short = asked.state.len() <= TRACESTATE_BYTES_MAX;
        self.span(&frame, &attributes, if is_short { &asked.state } else { "" })
    }

    fn of_step(&self, request: &RequestTrace, step: &TraceStep) -> String {
        let (name, kind) = match step.kind {
            StepKind::Queue => ("queue", INTERNAL),
            StepKind::FirstByte => ("first_byte", CLIENT),
            StepKind::Stream => ("stream", INTERNAL),
        };
        let frame = SpanFrame {
            trace: request.context.trace,
            span: step.span,
            parent: Some(request.context.span),
            name,
            kind,
            from: step.from,
            until: step.until,
            fault: step.fault,
        };
        let attributes = step.rank.map_or_else(Vec::new, |rank| self.of_rank(rank));
        self.span(&frame, &attributes, "")
    }

    fn of_leg(&self, leg: &LegTrace) -> String {
        let frame = SpanFrame {
            trace: leg.context.trace,
            span: leg.context.span,
            parent: Some(leg.parent),
            name: "prefill_leg",
            kind: CLIENT,
            from: leg.from,
            until: leg.until,
            fault: leg.fault,
        };
        self.span(&frame, &self.of_rank(leg.rank), "")
    }

    /// Attributes of the rank and its address.
    fn of_rank(&self, index: RankIndex) -> Vec<Attribute<'_>> {
        let Some((rank, worker)) = self.fleet.rank(index) else { return Vec::new() };
        vec![
            text("server.address", rank.address.ip().to_string()),
            int("server.port", u64::from(rank.address.port())),
            text("forebay.worker", &*worker.name),
            int("forebay.dp_rank", u64::from(rank.dp_rank.0)),
        ]
    }

    fn span(&self, frame: &SpanFrame<'_>, attributes: &[Attribute<'_>], state: &str) -> String {
        let at = |time: NanosSinceStart| (self.start_ns + u128::from(time.0)).to_string();
        let ids = SpanIds {
            trace_id: format!("{:032x}", frame.trace),
            span_id: format!("{:016x}", frame.span),
            parent_span_id: frame.parent.map_or_else(String::new, |id| format!("{id:016x}")),
        };
        written(&WrittenSpan {
            ids,
            name: frame.name,
            kind: frame.kind,
            start_time_unix_nano: at(frame.from),
            end_time_unix_nano: at(frame.until.max(frame.from)),
            attributes,
            status: SpanStatus { code: frame.fault.map(|_| ERROR), message: frame.fault },
            trace_state: state,
        })
    }
}

fn text<'a>(key: &'static str, value: impl Into<Cow<'a, str>>) -> Attribute<'a> {
    Attribute { key, value: AttributeValue::Text(value.into()) }
}

fn int(key: &'static str, value: u64) -> Attribute<'static> {
    Attribute { key, value: AttributeValue::Int(value.to_string()) }
}
