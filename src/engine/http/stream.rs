//! Server-sent events: tokens as they come. The stream owns the answer, so a client that leaves drops it, which frees
//! the request in its rank at once.

use super::answer::Answer;
use super::generate::STEPS_AT_ONCE;
use crate::engine::schedule::Step;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc;

/// The streamed answer.
pub(super) fn stream_response(answer: Answer, steps: mpsc::UnboundedReceiver<Step>) -> Response {
    let events = unfold(Some((answer, steps)), |state| async move {
        let (mut answer, mut steps) = state?;
        let mut batch = Vec::new();
        if steps.recv_many(&mut batch, STEPS_AT_ONCE).await == 0 {
            // The engine stops: break the connection, so that the client sees that the answer is not whole.
            return Some((Err(std::io::Error::other("the engine is stopping")), None));
        }
        let mut out = String::with_capacity(batch.len() * 256);
        for step in batch {
            let Some(index) = answer.take(step) else { continue };
            if answer.is_first_token(index) {
                answer.write_role_chunk(index, &mut out);
            }
            answer.write_token_chunk(index, &mut out);
        }
        let finished = answer.is_finished();
        if finished {
            answer.write_end(&mut out);
        }
        let rest = if finished { None } else { Some((answer, steps)) };
        Some((Ok(Bytes::from(out)), rest))
    });
    let content_type = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (content_type, Body::from_stream(events)).into_response()
}
