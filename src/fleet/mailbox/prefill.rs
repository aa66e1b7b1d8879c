//! Prefill legs as they cross from the shard that has the request to the shard that is home to the
//! prefill rank, and what comes back.

use super::traced::LegTrace;
use super::waiting::Ticket;
use crate::account::Lease;
use crate::worker::KvTransfer;
use forebay_base::{NanosSinceStart, WorkerIndex};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// One prefill leg, ready to be sent. Who drops it gives its lease back.
#[derive(Debug)]
pub struct PrefillLeg {
    /// The request that it belongs to.
    pub ticket: Ticket,
    /// Its place on the prefill rank.
    pub lease: Lease,
    /// The rank's worker.
    pub worker: WorkerIndex,
    /// What is sent.
    pub call: LegCall,
    /// How its KV is transferred, and with it what its answer has to hold.
    pub kv_transfer: KvTransfer,
    /// How the engine is told that the leg is not wanted any more, beside the end of its
    /// connection.
    pub abort: Option<AbortCall>,
    /// When it was posted.
    pub posted_at: NanosSinceStart,
    /// Its answer has to have come to its end so long after that.
    pub timeout: Duration,
}

/// The request of a prefill leg.
#[derive(Debug)]
pub struct LegCall {
    /// Where the rank is reached.
    pub address: SocketAddr,
    /// Its head, as it is sent.
    pub head: Vec<u8>,
    /// Its body, as it is sent.
    pub body: Vec<u8>,
    /// Its span, where its request is sampled. The times come when it ends.
    pub trace: Option<Box<LegTrace>>,
}

/// `POST /abort_request` of SGLang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortCall {
    /// The worker that is told.
    pub worker: WorkerIndex,
    /// Where.
    pub address: SocketAddr,
    /// Value of `Host`.
    pub authority: Arc<str>,
    /// Value of `Authorization`.
    pub authorization: Option<Arc<str>>,
    /// The call's body: it names the request. Engines end all whose names begin with that, so no
    /// name may be the beginning of another.
    pub body: Arc<[u8]>,
}

/// How a prefill leg ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefillEnded {
    /// It is computed. With what the decode leg has to be sent, where that was wanted.
    Done(Option<Vec<u8>>),
    /// The engine refused the request itself (400 to 499): the client hears it as it is.
    Refused(EngineAnswer),
    /// It failed.
    Failed(PrefillFault),
}

/// An answer that an engine gave in whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAnswer {
    /// Status.
    pub status: u16,
    /// Body as the engine sent it.
    pub body: Vec<u8>,
    /// Its type; JSON where the engine sent none.
    pub content_type: Option<String>,
    /// `Retry-After` as the engine sent it.
    pub retry_after: Option<Vec<u8>>,
}

impl EngineAnswer {
    /// A body of JSON, without a word of when to come back.
    #[must_use]
    pub const fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, body, content_type: None, retry_after: None }
    }
}

/// Why a prefill leg failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefillFault {
    /// The engine had no room (429, 503, 529).
    Busy,
    /// The connection was refused, or the host is unreachable. Nothing was sent.
    ConnectFailed,
    /// TLS could not begin: for people, why. Nothing was sent.
    HandshakeFailed(String),
    /// The router's host had no socket for a connection. Nothing was sent.
    OutOfSockets,
    /// The connection was not accepted in time. Nothing was sent.
    ConnectTimedOut,
    /// No answer in time. Where prefill waits for decode, either of them may be why.
    TimedOut,
    /// The engine says that the decode leg never came: for people, in its words.
    NoDecode(String),
    /// The KV did not get from one to the other, by prefill's fault or not: for people, in its
    /// words.
    Transfer(String),
    /// The connection, the answer or the engine is broken: for people, what happened.
    Broken(String),
    /// The answer lacks what the decode leg needs: a sentence for people.
    NoKvTransfer(String),
    /// The engine says that it failed, and not whether the request is to blame: a sentence for
    /// people. Another worker would hardly do better.
    Unclear(String),
    /// It was not wanted any more.
    Cancelled,
}
