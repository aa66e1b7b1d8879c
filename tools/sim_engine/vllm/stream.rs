//! Server-sent events: tokens as they arrive. The stream owns the answer, so a client that leaves
//! drops the answer, which frees the request in its rank at once.

use super::answer::OpenAiAnswer;
use super::answer_start::{BegunAnswer, STEPS_AT_ONCE, StartRefusal};
use super::error::ApiError;
use crate::batching::schedule::TokenStep;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use std::future::Future;
use std::pin::Pin;
use tokio::sync::mpsc;

type Beginning = Pin<Box<dyn Future<Output = Result<BegunAnswer, StartRefusal>> + Send>>;
type Chunk = Result<Bytes, std::io::Error>;

enum Phase {
    Begins(Beginning),
    Runs(Box<OpenAiAnswer>, mpsc::UnboundedReceiver<TokenStep>),
}

/// Streams an answer in progress.
pub(super) fn stream_response(
    answer: OpenAiAnswer,
    steps: mpsc::UnboundedReceiver<TokenStep>,
) -> Response {
    response(Phase::Runs(Box::new(answer), steps))
}

/// Streams an answer that has not begun, and may fail to begin.
pub(super) fn stream_response_later(
    begin: impl Future<Output = Result<BegunAnswer, StartRefusal>> + Send + 'static,
) -> Response {
    response(Phase::Begins(Box::pin(begin)))
}

fn response(phase: Phase) -> Response {
    let events = unfold(Some(phase), |phase| async move {
        match phase? {
            Phase::Runs(answer, steps) => Some(next_chunk(answer, steps).await),
            Phase::Begins(begin) => match begin.await {
                Ok((answer, steps)) => Some(next_chunk(Box::new(answer), steps).await),
                Err(StartRefusal::Error(error)) => Some((Ok(Bytes::from(error.event())), None)),
                Err(StartRefusal::Refused) => {
                    Some((Ok(Bytes::from(ApiError::busy().event())), None))
                }
            },
        }
    });
    let content_type = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (content_type, Body::from_stream(events)).into_response()
}

async fn next_chunk(
    mut answer: Box<OpenAiAnswer>,
    mut steps: mpsc::UnboundedReceiver<TokenStep>,
) -> (Chunk, Option<Phase>) {
    let mut batch = Vec::new();
    if steps.recv_many(&mut batch, STEPS_AT_ONCE).await == 0 {
        // The engine stops: break the connection, so that the client sees an incomplete answer.
        return (Err(std::io::Error::other("the engine is stopping")), None);
    }
    let mut out = String::with_capacity(batch.len() * 256);
    for step in batch {
        let Some(index) = answer.take(step) else { continue };
        if answer.is_finished() {
            answer.hand_over().await;
        }
        if answer.is_first_token(index) {
            answer.write_role_chunk(index, &mut out);
        }
        answer.write_token_chunk(index, &mut out);
    }
    answer.timed.first_byte();
    let finished = answer.is_finished();
    if finished {
        answer.write_end(&mut out);
    }
    let rest = if finished { None } else { Some(Phase::Runs(answer, steps)) };
    (Ok(Bytes::from(out)), rest)
}
