//! Answers a parsed request: starts its items, and collects or streams their tokens.

use super::answer::SglangAnswer;
use super::item::{ItemEvent, SglangItem, Sink, run};
use super::request::SglangRequest;
use super::stream::stream_response;
use crate::state::EngineState;
use crate::times::TimedRequest;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::time::Duration;
use tokio::sync::mpsc;

/// Answers a parsed request.
pub(super) async fn answer(
    state: &EngineState,
    asked: SglangRequest,
    mut timed: TimedRequest,
) -> Response {
    let shape = asked.form.api.shape();
    if let Some(room) = asked.room_name() {
        timed.meets_at(room);
    }
    let items = match asked.items(state) {
        Ok(items) => items,
        Err(failure) => {
            timed.ended("invalid");
            return failure.response(shape);
        }
    };
    let close = state.config.transfer.sglang.abort_on_close_after;
    let patience =
        close.unwrap_or(if asked.form.stream { STREAM_PATIENCE } else { WHOLE_PATIENCE });
    let answer = SglangAnswer::new(state, &asked, &items, timed);
    let events = start(state, items, patience);
    if asked.form.stream { stream_response(answer, events) } else { whole(answer, events).await }
}

fn start(
    state: &EngineState,
    items: Vec<SglangItem>,
    patience: Duration,
) -> mpsc::UnboundedReceiver<ItemEvent> {
    let (events, receiver) = mpsc::unbounded_channel();
    for (index, item) in items.into_iter().enumerate() {
        let sink = Sink { index, events: events.clone() };
        tokio::spawn(run(state.clone(), item, sink, patience));
    }
    receiver
}

async fn whole(
    mut answer: SglangAnswer,
    mut events: mpsc::UnboundedReceiver<ItemEvent>,
) -> Response {
    while !answer.is_finished() {
        let Some((index, event)) = events.recv().await else {
            return super::error::Failure::unavailable("service unavailable")
                .response(answer.shape());
        };
        if let Err(failure) = answer.take(index, event) {
            answer.timed.ended("failed");
            return failure.response(answer.shape());
        }
    }
    let body = answer.whole_body().to_string();
    answer.timed.first_byte();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Time after which the engine's background task notices that a client left a stream.
const STREAM_PATIENCE: Duration = Duration::from_secs(2);
/// The same for requests without a stream.
const WHOLE_PATIENCE: Duration = Duration::from_secs(4);
