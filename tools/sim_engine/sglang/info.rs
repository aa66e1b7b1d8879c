//! Routes of SGLang with information about the engine, its tokenizer, and the flush of its cache.

use super::body::SglangBody;
use super::error::{ErrorShape, Failure};
use super::request::encode;
use crate::config::EngineRole;
use crate::encode::Input;
use crate::state::EngineState;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// `GET /v1/models`: the model that the engine serves.
pub(super) async fn models(State(state): State<EngineState>) -> Json<Value> {
    let name = state.config.model_name();
    Json(json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": state.place.started_s, "owned_by": "sglang",
        "root": name,
        "parent": null, "max_model_len": state.config.model_tokens_max(),
    }] }))
}

/// `GET /model_info`: the model and the role.
pub(super) async fn model_info(State(state): State<EngineState>) -> Json<Value> {
    let path = model_path(&state);
    Json(json!({
        "model_path": path, "served_model_name": state.config.model_name(), "tokenizer_path": path,
        "is_generation": true, "preferred_sampling_params": null, "weight_version": "default",
        "load_format": "auto", "reasoning_parser": null, "tool_call_parser": null,
        "disaggregation_mode": mode(state.config.role),
    }))
}

/// `GET /server_info`: the form of the Rust server with a single rank; with several ranks behind a
/// port the form of the Python server, which has no `frontend`.
pub(super) async fn server_info(State(state): State<EngineState>) -> Json<Value> {
    let config = &state.config;
    let path = model_path(&state);
    let tokens = config.model_tokens_max();
    let mut info = json!({
        "model_path": path, "served_model_name": config.model_name(),
        "disaggregation_mode": mode(config.role),
        "disaggregation_bootstrap_port": state.place.registry_port, "dp_size": config.ranks,
        "page_size": config.block_size, "kv_events": kv_events(&state), "status": "ready",
        "max_total_num_tokens": config.kv_blocks as usize * config.block_size as usize,
        "max_req_input_len": tokens, "max_running_requests": config.concurrency,
        "enable_http2": false,
        "launch_command": "forebay engine", "tokenizer_path": path, "max_context_length": tokens,
        "version": state.config.wire.release(), "frontend": "rust", "internal_states": [{}],
        "host": config.listen.ip().to_string(), "port": state.place.http_port,
        "incremental_streaming_output": false, "disable_radix_cache": !config.prefix_caching,
        "deployment_info": {
            "disaggregation_bootstrap_port": state.place.registry_port, "node_rank": 0, "nnodes": 1,
            "dp_size": config.ranks, "dp_rank": 0, "page_size": config.block_size,
            "max_running_requests": config.concurrency, "enable_dp_attention": false,
        },
    });
    if config.ranks > 1
        && let Some(object) = info.as_object_mut()
    {
        object.remove("frontend");
    }
    Json(info)
}

/// `POST /tokenize`: token ids of a text or of a chat.
pub(super) async fn tokenize(State(state): State<EngineState>, bytes: Bytes) -> Response {
    let ids = match read_tokens(&state, bytes).await {
        Ok(ids) => ids,
        Err(failure) => return failure.response(ErrorShape::Openai),
    };
    let count = ids.len();
    let limit = state.config.model_tokens_max();
    Json(json!({ "tokens": ids, "count": count, "max_model_len": limit })).into_response()
}

async fn read_tokens(state: &EngineState, bytes: Bytes) -> Result<Vec<u32>, Failure> {
    let body = SglangBody::read(&bytes, ErrorShape::Openai)?;
    let input = match body.get::<String>("prompt")? {
        Some(text) => {
            Input::Text { text, special: body.get("add_special_tokens")?.unwrap_or(true) }
        }
        None if body.raw("messages").is_some() => Input::Chat(bytes.clone()),
        None => {
            let message = "Exactly one of 'prompt' or 'messages' must be provided.";
            return Err(Failure::bad_request(message));
        }
    };
    encode(state, input).await
}

/// `POST /flush_cache`: empties every cache, unless a request uses it.
pub(super) async fn flush_cache(State(state): State<EngineState>) -> Response {
    if state.ranks.clear_caches().await {
        return "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"
            .into_response();
    }
    (StatusCode::BAD_REQUEST, "Flush cache failed.\n").into_response()
}

fn model_path(state: &EngineState) -> String {
    let dir = state.config.model_dir.as_ref().map(|dir| dir.display().to_string());
    dir.unwrap_or_else(|| state.config.model_name().to_owned())
}

fn mode(role: EngineRole) -> &'static str {
    match role {
        EngineRole::Both => "null",
        EngineRole::Prefill => "prefill",
        EngineRole::Decode => "decode",
    }
}

/// The KV-event endpoints, if every rank's port follows from the first.
fn kv_events(state: &EngineState) -> Value {
    let port =
        |endpoint: &str| endpoint.rsplit(':').next().and_then(|port| port.parse::<u32>().ok());
    let base = |ports: Vec<Option<u32>>| {
        let base = ports.first().copied().flatten()?;
        let in_row = (base..).zip(&ports).all(|(wanted, port)| *port == Some(wanted));
        in_row.then_some(base)
    };
    let sources = &state.place.kv_sources;
    let Some(live) = base(sources.iter().map(|source| port(&source.endpoint)).collect()) else {
        return Value::Null;
    };
    let host = sources.first().and_then(|source| source.endpoint.strip_prefix("tcp://"));
    let host = host.and_then(|address| address.rsplit_once(':')).map_or("*", |(host, _)| host);
    let mut events = json!({
        "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": live, "topic": "",
        "block_size": state.config.block_size, "dp_size": state.config.ranks,
    });
    let replays = sources.iter().map(|source| source.replay_endpoint.as_deref().and_then(port));
    if let (Some(replay), Some(object)) = (base(replays.collect()), events.as_object_mut()) {
        object.insert("replay_endpoint_port_base".into(), replay.into());
    }
    events
}
