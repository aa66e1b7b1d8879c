//! `POST /abort_request`: ends requests by the beginning of their id, or all of them.

use super::body::SglangBody;
use super::error::{ErrorShape, Failure};
use crate::engine::http::EngineState;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Tells every running request which ids are to end. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Aborts {
    orders: broadcast::Sender<Arc<str>>,
}

/// Hears of aborts from its making on.
#[derive(Debug)]
pub(super) struct Listening {
    orders: broadcast::Receiver<Arc<str>>,
}

impl Aborts {
    pub(in crate::engine) fn new() -> Self {
        Self { orders: broadcast::Sender::new(ORDERS_MAX) }
    }

    pub(super) fn listen(&self) -> Listening {
        Listening { orders: self.orders.subscribe() }
    }

    /// Every request whose id begins so ends.
    fn abort(&self, prefix: &str) {
        let _nobody_runs = self.orders.send(prefix.into());
    }
}

impl Listening {
    /// Returns when the request of that id is to end.
    pub(super) async fn aborted(&mut self, rid: &str) {
        loop {
            match self.orders.recv().await {
                Ok(prefix) if rid.starts_with(&*prefix) => return,
                // More orders than can be kept came in one moment: those are lost on this request.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Answers at once, whether or not there is such a request.
pub(super) async fn abort_request(State(state): State<EngineState>, bytes: Bytes) -> Response {
    match order(&bytes) {
        Ok(Some(prefix)) => state.aborts.abort(&prefix),
        // An empty id is ignored, as the engine does.
        Ok(None) => {}
        Err(failure) => return failure.response(ErrorShape::Native),
    }
    ().into_response()
}

fn order(bytes: &[u8]) -> Result<Option<String>, Failure> {
    let body = SglangBody::read(bytes, ErrorShape::Native)?;
    if body.get("abort_all")?.unwrap_or(false) {
        return Ok(Some(String::new()));
    }
    let rid: String = body.get("rid")?.unwrap_or_default();
    Ok(Some(rid).filter(|rid| !rid.is_empty()))
}

/// Orders that a request may be behind.
const ORDERS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_matched_by_their_beginning() {
        assert_eq!(order(br#"{"rid":"fb-1"}"#), Ok(Some("fb-1".into())));
        assert_eq!(order(br#"{"abort_all":true}"#), Ok(Some(String::new())));
        assert_eq!(order(br#"{"rid":""}"#), Ok(None));
        assert!(order(b"nonsense").is_err() && order(br#"{"rid":5}"#).is_err());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let aborts = Aborts::new();
            let mut listening = aborts.listen();
            aborts.abort("fb-2");
            aborts.abort("fb-1");
            listening.aborted("fb-11").await;
        });
    }
}
