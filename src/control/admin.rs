//! The admin API: `/healthz`, `/readyz`, `/metrics`, `/workers`. Asks the control plane's loop, which owns the
//! answers; never touches a worker, so a probe costs nothing.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracing::error;

/// A question to the loop, with the way back.
#[derive(Debug)]
pub(super) enum Question {
    /// Why no requests can be served; empty when they can.
    Ready(oneshot::Sender<Vec<String>>),
    /// All metrics as text.
    Metrics(oneshot::Sender<String>),
    /// The fleet.
    Workers(oneshot::Sender<Value>),
}

type Questions = mpsc::Sender<Question>;

/// Serves until the task is dropped.
pub(super) async fn serve(listener: TcpListener, questions: Questions) {
    if let Err(error) = axum::serve(listener, router(questions)).await {
        error!(%error, "the admin API ended");
    }
}

fn router(questions: Questions) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/workers", get(workers))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /healthz, /readyz, /metrics or /workers\n")
        })
        .with_state(questions)
}

async fn readyz(State(questions): State<Questions>) -> Response {
    let Some(reasons) = ask(&questions, Question::Ready).await else { return gone() };
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "reasons": reasons }))).into_response()
}

async fn metrics(State(questions): State<Questions>) -> Response {
    let Some(text) = ask(&questions, Question::Metrics).await else { return gone() };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn workers(State(questions): State<Questions>) -> Response {
    let Some(list) = ask(&questions, Question::Workers).await else { return gone() };
    Json(list).into_response()
}

async fn ask<T>(
    questions: &Questions,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (back, answer) = oneshot::channel();
    questions.send(question(back)).await.ok()?;
    answer.await.ok()
}

fn gone() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response()
}
