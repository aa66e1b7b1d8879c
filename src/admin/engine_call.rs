//! Calls that the admin API hands to engines, and what these answer.

use axum::body::Bytes;
use std::sync::Arc;

/// What stands before the path of a call to all engines.
pub(crate) const TO_ALL: &str = "/engines/";
/// What stands between the name of a worker and the path of a call to its engine.
pub(crate) const TO_ONE: &str = "/engine/";

/// A call for engines.
#[derive(Clone, Debug)]
pub struct EngineCall {
    /// The one worker that it is for; all without it.
    pub worker: Option<String>,
    /// A POST with this body, else a GET.
    pub post: Option<Bytes>,
    /// Path and query, as the engine gets them.
    pub target: String,
}

/// What came of a call at one worker.
#[derive(Debug)]
pub struct CallAnswer {
    /// The name of the worker.
    pub worker: Arc<str>,
    /// Its answer, or why there is none.
    pub said: Result<EngineReply, String>,
}

/// What an engine answered.
#[derive(Debug)]
pub struct EngineReply {
    /// The status of its answer.
    pub status: u16,
    /// The body, or its beginning.
    pub body: String,
    /// There is more of it.
    pub is_cut: bool,
}

/// Why a call reaches no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineCallRefused {
    /// No worker has the name, or there is none at all.
    NoWorker,
    /// As many calls as may be are under way.
    Busy,
}
