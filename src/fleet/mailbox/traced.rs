//! Traces of sampled requests as they cross from the shards to the control plane, which makes spans
//! of them.

use crate::tenant::TokenUsage;
use forebay_base::{NanosSinceStart, RankIndex, TraceParent};

/// What a shard hands over of a trace.
#[derive(Debug)]
pub enum Traced {
    /// A request that has ended.
    Request(Box<RequestTrace>),
    /// A prefill leg that has ended, on the shard that has sent it.
    Leg(Box<LegTrace>),
}

/// A request that has ended.
#[derive(Debug)]
pub struct RequestTrace {
    /// Its own span, the parent of all others here.
    pub context: TraceParent,
    /// The span of the client that it belongs to.
    pub parent: Option<u64>,
    /// What was asked for.
    pub asked: TracedAsk,
    /// When its head had come.
    pub started_at: NanosSinceStart,
    /// When all of it had been read, if it ever was.
    pub read_at: Option<NanosSinceStart>,
    /// When it had ended.
    pub ended_at: NanosSinceStart,
    /// What happened to it, in the order of its beginnings.
    pub steps: Vec<TraceStep>,
    /// How the request ended.
    pub answer: TracedAnswer,
}

/// What was asked for, by whom.
#[derive(Debug, Default)]
pub struct TracedAsk {
    /// Method of HTTP, or `_OTHER`.
    pub method: &'static str,
    /// Name of the endpoint.
    pub endpoint: &'static str,
    /// Path without its query.
    pub path: String,
    /// Address of the client.
    pub client: String,
    /// The client's `tracestate`, as it came.
    pub state: String,
    /// Model as the client names it.
    pub model: String,
    /// The id of the request.
    pub request_id: String,
}

/// How a request ended.
#[derive(Debug, Default)]
pub struct TracedAnswer {
    /// Status that the client has heard.
    pub status: u16,
    /// How it ended, as the log says it.
    pub outcome: &'static str,
    /// Why the last rank was chosen.
    pub because: Option<&'static str>,
    /// Bytes of the prompt that the last rank held, as the index says.
    pub hit_bytes: Option<u32>,
    /// The same in tokens, where blocks are counted.
    pub hit_tokens: Option<u32>,
    /// Tokens, as the engine tells them.
    pub usage: Option<TokenUsage>,
    /// How often another rank went on with the stream.
    pub continued: u32,
}

/// A part of the way of a request.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// Which part it is.
    pub kind: StepKind,
    /// Number of its span.
    pub span: u64,
    /// When this part began.
    pub from: NanosSinceStart,
    /// When this part ended.
    pub until: NanosSinceStart,
    /// The rank that was asked, if one was.
    pub rank: Option<RankIndex>,
    /// Why it failed, if it did.
    pub fault: Option<&'static str>,
}

/// Parts of the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// It waits for a rank.
    Queue,
    /// From its dispatch to the first byte of the answer.
    FirstByte,
    /// From there to the end of the answer.
    Stream,
}

/// A prefill leg that was sent for a sampled request.
#[derive(Debug)]
pub struct LegTrace {
    /// The span of the leg, as its worker is told.
    pub context: TraceParent,
    /// The span of its request.
    pub parent: u64,
    /// The prefill rank that was asked.
    pub rank: RankIndex,
    /// When it was posted.
    pub from: NanosSinceStart,
    /// When it had ended.
    pub until: NanosSinceStart,
    /// Why it failed, if it did.
    pub fault: Option<&'static str>,
}
