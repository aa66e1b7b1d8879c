//! Calls that the admin API forwards to engines, and their responses.

use axum::body::Bytes;
use std::sync::Arc;

/// Prefix of the path of a call to all engines.
pub(crate) const TO_ALL: &str = "/engines/";
/// Part between the worker's name and the path of a call to its engine.
pub(crate) const TO_ONE: &str = "/engine/";

/// A call to engines.
#[derive(Clone, Debug)]
pub struct EngineCall {
    /// Name of the worker; `None`: all workers.
    pub worker: Option<String>,
    /// A POST with this body, else a GET.
    pub post: Option<Bytes>,
    /// Path and query as sent to the engine.
    pub target: String,
}

/// Result of a call at a worker.
#[derive(Debug)]
pub struct CallAnswer {
    /// The name of the worker.
    pub worker: Arc<str>,
    /// The engine's response, or the reason for its absence.
    pub said: Result<EngineReply, String>,
}

/// Response of an engine.
#[derive(Debug)]
pub struct EngineReply {
    /// HTTP status of the response.
    pub status: u16,
    /// The body, or its beginning.
    pub body: String,
    /// True if `body` is truncated.
    pub is_cut: bool,
}

/// Why a call reaches no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineCallRefusal {
    /// No worker has the name, or the fleet is empty.
    NoWorker,
    /// The limit of concurrent engine calls is reached.
    Busy,
}
