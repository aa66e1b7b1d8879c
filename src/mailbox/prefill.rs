//! Prefill legs on the way from the shard that has the request to the shard that owns the prefill
//! rank, and their outcomes.

use super::trace_record::LegTrace;
use super::waiting::Ticket;
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::account::Lease;
use forebay_fleet::worker::KvTransfer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A prefill leg, ready to be sent. Dropping it gives its lease back.
#[derive(Debug)]
pub struct PrefillLeg {
    pub ticket: Ticket,
    /// Its place on the prefill rank.
    pub lease: Lease,
    pub worker: WorkerIndex,
    /// The HTTP request of the leg.
    pub call: LegCall,
    /// Mode of KV transfer; it defines the fields that the leg's answer must have.
    pub kv_transfer: KvTransfer,
    /// Call that aborts the leg in the engine, beside the end of its connection.
    pub abort: Option<AbortCall>,
    pub posted_at: NanosSinceStart,
    /// Time from `posted_at` within which the answer must end.
    pub timeout: Duration,
}

/// The request of a prefill leg.
#[derive(Debug)]
pub struct LegCall {
    /// Address of the rank.
    pub address: SocketAddr,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    /// Span of the leg, if the request is sampled. The times are filled in when the leg ends.
    pub trace: Option<Box<LegTrace>>,
}

/// `POST /abort_request` of SGLang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortCall {
    pub worker: WorkerIndex,
    pub address: SocketAddr,
    /// Value of the `Host` field.
    pub authority: Arc<str>,
    /// Value of the `Authorization` field.
    pub authorization: Option<Arc<str>>,
    /// Body of the call; it names the request. Engines use the name as a prefix of all requests to
    /// abort, so no name may be a prefix of another name.
    pub body: Arc<[u8]>,
}

/// How a prefill leg ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefillOutcome {
    /// The prompt is computed. Contains the fields for the decode leg, if the leg needs any.
    Done(Option<Vec<u8>>),
    /// The engine refused the request itself (400 to 499): the answer is relayed to the client.
    Refused(EngineAnswer),
    Failed(PrefillFault),
}

/// A complete answer of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAnswer {
    pub status: u16,
    pub body: Vec<u8>,
    /// `None`: the answer is a JSON body without further fields.
    pub received: Option<ReceivedHead>,
}

/// Head of an answer, and the worker that sent the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedHead {
    /// The head as the router received it, up to its empty line.
    pub bytes: Vec<u8>,
    /// Value of `x-forebay-worker` for the client.
    pub worker: Arc<str>,
}

impl EngineAnswer {
    /// A JSON body without further fields.
    #[must_use]
    pub const fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, body, received: None }
    }
}

/// Why a prefill leg failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefillFault {
    /// The engine had no room (429, 503, 529).
    Busy,
    /// The connection was refused, or the host is unreachable. Nothing was sent.
    ConnectFailed,
    /// TLS setup failed; the reason is for people. Nothing was sent.
    HandshakeFailed(String),
    /// The router's host had no socket for a connection. Nothing was sent.
    OutOfSockets,
    /// The connection was not accepted in time. Nothing was sent.
    ConnectTimedOut,
    /// No answer in time. Where prefill waits for decode, either leg may be the cause.
    TimedOut,
    /// The engine reports that the decode leg never arrived; the text is the engine's.
    NoDecode(String),
    /// The KV transfer failed, by the prefill engine's fault or not; the text is the engine's.
    Transfer(String),
    /// The connection, the answer or the engine is broken; the reason is for people.
    Broken(String),
    /// The answer lacks fields that the decode leg needs; the reason is for people.
    NoKvTransfer(String),
    /// The engine reports a failure, but not whether the request caused it; the text is for people.
    /// Another worker would hardly do better.
    Unclear(String),
    /// The leg was cancelled.
    Cancelled,
}
