//! Server-sent events of SGLang's routes. The status is sent before any result, so a failure is an
//! event.

use super::answer::SglangAnswer;
use super::item::ItemEvent;
use super::request::SglangApi;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc;

/// Streams the progress of the items.
pub(super) fn stream_response(
    answer: SglangAnswer,
    events: mpsc::UnboundedReceiver<ItemEvent>,
) -> Response {
    let api = answer.form.api;
    let chunks = unfold(Some((answer, events)), |state| async move {
        let (mut answer, mut events) = state?;
        let mut batch = Vec::new();
        if events.recv_many(&mut batch, EVENTS_AT_ONCE).await == 0 {
            // The engine stops: break the connection, so that the client sees an incomplete answer.
            return Some((Err(std::io::Error::other("the engine is stopping")), None));
        }
        let mut out = String::with_capacity(batch.len() * 256);
        for (index, event) in batch {
            if let Err(failure) = answer.take(index, event) {
                answer.timed.ended("failed");
                let body = failure.body(answer.shape());
                out.push_str(&format!("data: {body}\n\ndata: [DONE]\n\n"));
                return Some((Ok(Bytes::from(out)), None));
            }
            answer.write_chunk(index, &mut out);
        }
        answer.timed.first_byte();
        let finished = answer.is_finished();
        if finished {
            answer.write_end(&mut out);
        }
        let rest = if finished { None } else { Some((answer, events)) };
        Some((Ok(Bytes::from(out)), rest))
    });
    let body = Body::from_stream(chunks);
    match api {
        SglangApi::Generate => {
            let head =
                [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
            (head, body).into_response()
        }
        SglangApi::Chat | SglangApi::Completion => {
            ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
        }
    }
}

/// Most tokens in a write when several are ready.
const EVENTS_AT_ONCE: usize = 64;
