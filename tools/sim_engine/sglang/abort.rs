//! `POST /abort_request`: aborts requests by a prefix of their id, or all requests.

use super::body::SglangBody;
use super::error::{ErrorShape, Failure};
use crate::state::EngineState;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

/// Answers at once, whether or not there is such a request.
pub(super) async fn abort_request(State(state): State<EngineState>, bytes: Bytes) -> Response {
    match order(&bytes) {
        Ok(Some(prefix)) => state.requests.aborts.abort(&prefix),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_a_beginning_or_everything() {
        assert_eq!(order(br#"{"rid":"fb-1"}"#), Ok(Some("fb-1".into())));
        assert_eq!(order(br#"{"abort_all":true}"#), Ok(Some(String::new())));
        assert_eq!(order(br#"{"rid":""}"#), Ok(None));
        assert!(order(b"nonsense").is_err() && order(br#"{"rid":5}"#).is_err());
    }
}
