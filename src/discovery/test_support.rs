//! Fake workers with recorded responses, for the tests here and in the control plane.
#![allow(clippy::unwrap_used, reason = "a test that cannot begin must stop")]

use axum::Router;
use axum::http::{StatusCode, Uri};
use std::net::{Ipv4Addr, SocketAddr};

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("../../tests/data/workers/", $name))
    };
}

/// Paths with the bodies of their responses.
pub type Answers = &'static [(&'static str, &'static str)];

/// Recorded responses of vLLM 0.32.
pub const VLLM: Answers = &[
    ("/v1/models", recorded!("vllm-0.32.0/models.json")),
    ("/version", recorded!("vllm-0.32.0/version.json")),
    ("/metrics", recorded!("vllm-0.32.0/metrics.txt")),
    ("/kv_event_sources", recorded!("vllm-0.32.0/kv_event_sources.json")),
    ("/health", ""),
];
/// vLLM behind its Rust frontend.
pub const VLLM_RUST: Answers = &[
    ("/v1/models", recorded!("vllm-rs-0.33.0/models.json")),
    ("/metrics", recorded!("vllm-rs-0.33.0/metrics.txt")),
    ("/health", ""),
];
/// Recorded responses of SGLang 0.5.23.
pub const SGLANG: Answers = &[
    ("/v1/models", recorded!("sglang-0.5.23/models.json")),
    ("/server_info", recorded!("sglang-0.5.23/server_info.json")),
    ("/model_info", recorded!("sglang-0.5.23/model_info.json")),
];
/// A server that lists a model and its adapter.
pub const PLAIN: Answers =
    &[("/v1/models", r#"{"object":"list","data":[{"id":"a"},{"id":"b","parent":"a"}]}"#)];

/// A server with these responses, and 404 for any other path.
///
/// # Panics
/// Where the system has no more sockets.
pub async fn fake(answers: Answers) -> SocketAddr {
    refusing(answers, &[]).await
}

/// A server that answers some paths with another status.
///
/// # Panics
/// Where the system has no more sockets.
pub async fn refusing(answers: Answers, refused: &'static [(&'static str, u16)]) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(move |uri: Uri| async move {
        if let Some((_, status)) = refused.iter().find(|(path, _)| *path == uri.path()) {
            return (StatusCode::from_u16(*status).unwrap(), "");
        }
        let known = answers.iter().find(|(path, _)| *path == uri.path());
        known.map_or((StatusCode::NOT_FOUND, ""), |(_, body)| (StatusCode::OK, *body))
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}
