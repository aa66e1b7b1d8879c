//! The calls about other replicas: their list, and the messages that peers read.

use crate::question::{Question, Questions, ask, gone, refused};
use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_replicas::{ReplicaId, SubscribeError};
use serde::Deserialize;

/// Answers `GET /replicas`: this router and its replicas.
pub(crate) async fn list(State(questions): State<Questions>) -> Response {
    match ask(&questions, Question::Replicas).await {
        Some(Some(list)) => Json(list).into_response(),
        Some(None) => {
            let alone = "neither `replicas.peers` nor `nats.url` is configured\n";
            (StatusCode::NOT_FOUND, alone).into_response()
        }
        None => gone(),
    }
}

#[derive(Deserialize)]
pub(crate) struct Reader {
    /// The replica that reads; absent for an operator.
    replica: Option<ReplicaId>,
}

/// Answers `GET /replicas/messages`: a message per line until the reader disconnects.
pub(crate) async fn messages(
    State(questions): State<Questions>,
    Query(reader): Query<Reader>,
) -> Response {
    let fields = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match ask(&questions, |back| Question::ReplicaMessages(reader.replica, back)).await {
        Some(Ok(stream)) => (fields, Body::from_stream(stream)).into_response(),
        Some(Err(fault)) => match fault {
            SubscribeError::NoPeers => {
                (StatusCode::NOT_FOUND, "`replicas.peers` is not configured\n")
            }
            // The reader learns from its own id that it has called itself.
            SubscribeError::Own => {
                let own = reader.replica.map(|id| id.to_string()).unwrap_or_default();
                let error = format!("the replica {own} is this router");
                return refused(StatusCode::CONFLICT, &error);
            }
            SubscribeError::TooMany => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many routers read messages\n")
            }
        }
        .into_response(),
        None => gone(),
    }
}
