//! Traces of sampled requests on the way from the shards to the control plane, which makes spans of
//! them.

use forebay_base::{NanosSinceStart, RankIndex, TraceParent};
use forebay_fleet::tenant::TokenUsage;

/// Part of a trace that a shard sends.
#[derive(Debug)]
pub enum TraceRecord {
    Request(Box<RequestTrace>),
    /// A prefill leg that has ended, from the shard that sent it.
    Leg(Box<LegTrace>),
}

/// A request that has ended.
#[derive(Debug)]
pub struct RequestTrace {
    /// Span of the request, the parent of all spans here.
    pub context: TraceParent,
    /// The client's span, parent of `context`.
    pub parent: Option<u64>,
    pub asked: TracedRequest,
    /// When its head was complete.
    pub started_at: NanosSinceStart,
    /// When the request was read completely; `None` if it never was.
    pub read_at: Option<NanosSinceStart>,
    pub ended_at: NanosSinceStart,
    /// Steps of the request, ordered by their start.
    pub steps: Vec<TraceStep>,
    pub answer: TracedAnswer,
}

/// Attributes of the request and its client.
#[derive(Debug, Default)]
pub struct TracedRequest {
    /// HTTP method, or `_OTHER`.
    pub method: &'static str,
    pub endpoint: &'static str,
    /// `http` or `https`, on the connection of the client.
    pub scheme: &'static str,
    /// Path without its query.
    pub path: String,
    pub client: String,
    /// The client's `tracestate`, unchanged.
    pub state: String,
    /// Model as the client names it.
    pub model: String,
    pub request_id: String,
}

/// How a request ended.
#[derive(Debug, Default)]
pub struct TracedAnswer {
    /// Status that the client received.
    pub status: u16,
    /// Outcome, with the value of the log.
    pub outcome: &'static str,
    /// Reason of the last rank's choice.
    pub choice_reason: Option<&'static str>,
    /// Bytes of the prompt that the last rank held, by the index.
    pub hit_bytes: Option<u32>,
    /// The same in tokens, where blocks are counted.
    pub hit_tokens: Option<u32>,
    /// Tokens, as the engine reported them.
    pub usage: Option<TokenUsage>,
    /// How often another rank continued the stream.
    pub continued: u32,
}

/// A step of a request.
#[derive(Clone, Debug)]
pub struct TraceStep {
    pub kind: StepKind,
    /// Id of its span.
    pub span: u64,
    pub from: NanosSinceStart,
    pub until: NanosSinceStart,
    /// The rank of the step, if there is any.
    pub rank: Option<RankIndex>,
    /// Why the step failed, if it did.
    pub fault: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The wait for a rank.
    Queue,
    /// From its dispatch to the first byte of the answer.
    FirstByte,
    /// From there to the end of the answer.
    Stream,
}

/// A prefill leg that was sent for a sampled request.
#[derive(Debug)]
pub struct LegTrace {
    /// Span of the leg, as sent to its worker.
    pub context: TraceParent,
    /// The span of its request.
    pub parent: u64,
    pub rank: RankIndex,
    pub from: NanosSinceStart,
    pub until: NanosSinceStart,
    /// Why the leg failed, if it did.
    pub fault: Option<&'static str>,
}
