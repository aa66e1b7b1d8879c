//! Calls that the admin API forwards to engines, and their responses.

use axum::body::Bytes;
use std::sync::Arc;

/// Prefix of the path of a call to all engines.
const ALL_ENGINES_PREFIX: &str = "/engines/";
/// Prefix of the path of a call to a worker. The worker's name is the next segment.
const WORKER_PREFIX: &str = "/workers/";
/// Segment between the worker's name and the path of a call to its engine.
const ENGINE_SEGMENT: &str = "engine/";

/// Path and query behind `/engines/`. Empty for another path.
pub(crate) fn target_for_all(path_and_query: &str) -> &str {
    path_and_query.strip_prefix(ALL_ENGINES_PREFIX).unwrap_or_default()
}

/// Path and query behind `/workers/{id}/engine/`. Empty for another path. Goes by segments, since
/// a worker may have the name `engine`.
pub(crate) fn target_for_one(path_and_query: &str) -> &str {
    let named = path_and_query.strip_prefix(WORKER_PREFIX).and_then(|path| path.split_once('/'));
    named.and_then(|(_, path)| path.strip_prefix(ENGINE_SEGMENT)).unwrap_or_default()
}

/// True for the path of a call to engines.
pub(crate) fn is_engine_path(path: &str) -> bool {
    path.starts_with(ALL_ENGINES_PREFIX) || !target_for_one(path).is_empty()
}

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
pub struct EngineCallResult {
    /// The name of the worker.
    pub worker: Arc<str>,
    /// The engine's response, or the reason for its absence.
    pub reply: Result<EngineReply, String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_worker_does_not_change_the_target() {
        for name in ["a", "engine", "engines", "workers", "10.0.0.7:8000", "a%2Fengine%2Fb"] {
            for target in ["health", "engine/health", "get_load?dp_rank=1", "x?path=/engine/y"] {
                let path = format!("/workers/{name}/engine/{target}");
                assert_eq!(target_for_one(&path), target, "{path}");
                assert!(is_engine_path(&path), "{path}");
            }
        }
        assert_eq!(
            target_for_all("/engines/engine/health?x=/engines/"),
            "engine/health?x=/engines/"
        );
        for other in ["", "/workers/a", "/workers/a/engine", "/workers/a/drain"] {
            assert_eq!(target_for_one(other), "", "{other}");
            assert!(!is_engine_path(other), "{other}");
        }
    }
}
