//! What operators turn by hand through the admin API: the rejection windows and the configuration.
//! Answers are JSON, also where they refuse.

use super::question::{Question, Questions, ask, gone};
use super::windows::WindowRequest;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// `GET /admin/window`.
pub(crate) async fn windows(State(questions): State<Questions>) -> Response {
    ask(&questions, Question::Windows).await.map_or_else(gone, |list| Json(list).into_response())
}

/// `POST /admin/window`; answers what GET would then.
pub(crate) async fn set_window(State(questions): State<Questions>, body: Bytes) -> Response {
    let asked = match WindowRequest::from_body(&body) {
        Ok(asked) => asked,
        Err(fault) => return refused(StatusCode::BAD_REQUEST, &fault),
    };
    match ask(&questions, |back| Question::SetWindow(asked, back)).await {
        Some(Ok(list)) => Json(list).into_response(),
        Some(Err(unknown)) => refused(StatusCode::NOT_FOUND, &unknown.0),
        None => gone(),
    }
}

/// `POST /admin/reload`.
pub(crate) async fn reload(State(questions): State<Questions>) -> Response {
    match ask(&questions, Question::Reload).await {
        Some(Ok(done)) => Json(done.shown()).into_response(),
        Some(Err(refused)) => (refused.status(), Json(refused.shown())).into_response(),
        None => gone(),
    }
}

fn refused(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}
