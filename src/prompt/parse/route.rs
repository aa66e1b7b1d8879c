//! Which API a request is for.

use super::fields::model_path::ModelPath;
use super::fields::stored_call::StoredCall;
use super::refusals::reason::Reason;
use super::refusals::refuse::Refusal;
use super::request::Endpoint;
use forebay_http1::Method;

/// A call that clients may make.
#[derive(Clone, Copy, Debug)]
pub struct ClientRoute {
    /// Path without the query.
    pub path: &'static str,
    /// The API behind the path.
    pub endpoint: Endpoint,
    /// What the call does, for the reference page.
    pub meaning: &'static str,
}

impl ClientRoute {
    /// The methods that the path supports, as the header field `allow` names them.
    #[must_use]
    pub const fn methods(&self) -> &'static str {
        match self.endpoint {
            Endpoint::WebSocket => "GET",
            endpoint if endpoint.is_local() => "GET, HEAD",
            _ => "POST",
        }
    }
}

/// Every call that clients may make. The first match counts, so frequent calls come first.
pub const CLIENT_ROUTES: [ClientRoute; 27] = {
    const fn call(path: &'static str, endpoint: Endpoint, meaning: &'static str) -> ClientRoute {
        ClientRoute { path, endpoint, meaning }
    }
    [
        call("/v1/chat/completions", Endpoint::ChatCompletions, "answer to a chat"),
        call("/v1/completions", Endpoint::Completions, "continuation of a text"),
        call("/v1/responses", Endpoint::Responses, "OpenAI's Responses API"),
        call("/v1/messages", Endpoint::Messages, "Anthropic's Messages API"),
        call("/generate", Endpoint::Generate, "SGLang's own API"),
        call("/v1/embeddings", Endpoint::Embeddings, "vectors of texts"),
        call("/v1/rerank", Endpoint::Rerank, "documents, sorted by a query"),
        call("/v2/rerank", Endpoint::Rerank, "the same"),
        call("/rerank", Endpoint::Rerank, "the same"),
        call("/v1/score", Endpoint::Score, "scores of pairs of texts"),
        call("/score", Endpoint::Score, "the same"),
        call("/tokenize", Endpoint::Tokenize, "token ids of a text"),
        call("/detokenize", Endpoint::Detokenize, "text of token ids"),
        call("/v1/messages/count_tokens", Endpoint::CountTokens, "length of a message in tokens"),
        call("/v1/audio/transcriptions", Endpoint::Other, "text of speech, sent as a form"),
        call("/v1/audio/translations", Endpoint::Other, "the same, in English"),
        call("/v1/audio/speech", Endpoint::Other, "speech of a text"),
        call("/classify", Endpoint::Other, "classes of texts"),
        call("/v1/classify", Endpoint::Other, "the same"),
        call("/pooling", Endpoint::Other, "vectors of texts, as vLLM pools them"),
        call("/invocations", Endpoint::Other, "any of these, as SageMaker asks"),
        call("/v1/realtime", Endpoint::WebSocket, "speech as it comes, over a WebSocket"),
        call("/v1/models", Endpoint::Models, "models of all workers"),
        call(MODEL_CALL, Endpoint::Models, "one of them"),
        call("/health", Endpoint::Health, "200, or 503 while no request could be served"),
        call("/ping", Endpoint::Health, "the same"),
        call("/version", Endpoint::Version, "version of the router"),
    ]
};

/// The path of a model, as the reference page writes it.
const MODEL_CALL: &str = "/v1/models/{id}";

/// The entry of [`CLIENT_ROUTES`] for a path.
fn call_of(path: &[u8]) -> Option<&'static ClientRoute> {
    let path = if ModelPath::of(path).is_some() { MODEL_CALL.as_bytes() } else { path };
    CLIENT_ROUTES.iter().find(|call| call.path.as_bytes() == path)
}

/// Calls that change or reveal an engine, by the last part of their path. None is forwarded,
/// whatever stands before that part.
pub const ENGINE_CALLS: [&str; 58] = [
    "abort_request",
    "cancel",
    "clear_hicache_storage_backend",
    "close_session",
    "collective_rpc",
    "configure_logging",
    "continue_generation",
    "destroy_weights_update_group",
    "docs",
    "dump_expert_distribution_record",
    "flush_cache",
    "freeze_gc",
    "get_internal_state",
    "get_load",
    "get_model_info",
    "get_server_info",
    "get_weights_by_name",
    "get_world_size",
    "health",
    "health_generate",
    "hicache",
    "init_weight_transfer_engine",
    "init_weights_send_group_for_remote_instance",
    "init_weights_update_group",
    "is_paused",
    "is_scaling_elastic_ep",
    "is_sleeping",
    "load",
    "load_lora_adapter",
    "loads",
    "metrics",
    "model_info",
    "open_session",
    "openapi.json",
    "pause",
    "pause_generation",
    "ping",
    "redoc",
    "release_memory_occupation",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_prefix_cache",
    "resume",
    "resume_memory_occupation",
    "scale_elastic_ep",
    "send_weights_to_remote_instance",
    "server_info",
    "set_internal_state",
    "sleep",
    "slow_down",
    "start_expert_distribution_record",
    "start_profile",
    "stop_expert_distribution_record",
    "stop_profile",
    "unload_lora_adapter",
    "update_weights",
    "wake_up",
    "weight_version",
];
/// Calls with a last part that begins with such a prefix do the same.
const ENGINE_CALL_PREFIXES: [&str; 3] = ["update_weight", "load_lora", "dump_"];

/// Responses below this path may belong to another tenant. Only calls without a response id in the
/// path are forwarded.
const RESPONSES: &[u8] = b"responses/";
const RESPONSE_CALLS: [&[u8]; 2] = [b"compact", b"input_tokens"];

/// A path below `/v1/` or `/v2/` that engines may know, and that every server reads alike.
fn may_be_an_engines(path: &[u8]) -> bool {
    let below = path.strip_prefix(b"/v1/").or_else(|| path.strip_prefix(b"/v2/"));
    let is_kept = |rest: &[u8]| {
        rest.strip_prefix(RESPONSES).is_some_and(|call| !RESPONSE_CALLS.contains(&call))
    };
    below.is_some_and(|rest| {
        !is_kept(rest) && parts(rest).all(|part| is_plain(part) && !is_closed(part))
    })
}

/// Is a path, without the first slash, that of a call which changes or reveals an engine?
#[must_use]
pub fn is_engine_call(path: &str) -> bool {
    let path = path.as_bytes();
    parts(path).all(is_plain) && parts(path).any(is_closed)
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// A part of a path without escapes and dots, which every server reads alike.
fn is_plain(part: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    !part.is_empty() && (part.iter().all(is_plain) || part == b"openapi.json")
}

fn is_closed(part: &[u8]) -> bool {
    let is_call = ENGINE_CALLS.iter().any(|call| part.eq_ignore_ascii_case(call.as_bytes()));
    let begins = |prefix: &&str| {
        part.get(..prefix.len()).is_some_and(|part| part.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    is_call || ENGINE_CALL_PREFIXES.iter().any(begins)
}

/// May a request upgrade to a WebSocket on this path? Paths of other calls may not: the router
/// reads their bodies, and does not read frames.
#[must_use]
pub fn may_be_websocket(path: &[u8]) -> bool {
    match call_of(path) {
        Some(call) => call.endpoint == Endpoint::WebSocket,
        None => !path.starts_with(b"/v1/responses/") && may_be_an_engines(path),
    }
}

/// Endpoint of a method and path (without query). Paths match byte for byte, but for the id of a
/// model: no decoding, no trailing slash.
///
/// Refuses with 404 for an unknown path and 405, naming what is allowed, for the wrong method.
pub fn route(method: &Method, path: &[u8]) -> Result<Endpoint, Refusal> {
    if path == b"*" {
        return Err(Refusal::new(Reason::MethodNotAllowed).with_allow("GET, HEAD, POST"));
    }
    let Some(call) = call_of(path) else {
        if let Some(stored) = StoredCall::of(path) {
            return stored.route(method);
        }
        let is_other = *method == Method::Post && may_be_an_engines(path);
        return is_other.then_some(Endpoint::Other).ok_or(Refusal::new(Reason::NotFound));
    };
    let is_supported = match method {
        Method::Get if call.endpoint == Endpoint::WebSocket => {
            return Err(Refusal::no_upgrade());
        }
        Method::Get | Method::Head => call.endpoint.is_local(),
        _ if call.endpoint == Endpoint::WebSocket => false,
        Method::Post => !call.endpoint.is_local(),
        _ => false,
    };
    if is_supported {
        Ok(call.endpoint)
    } else {
        Err(Refusal::new(Reason::MethodNotAllowed).with_allow(call.methods()))
    }
}

#[cfg(test)]
mod tests {
    use super::{ENGINE_CALLS, may_be_websocket, route};
    use crate::parse::{Endpoint, Reason};
    use forebay_http1::Method;

    #[test]
    fn paths_reach_their_endpoint() {
        assert_eq!(route(&Method::Post, b"/v1/chat/completions"), Ok(Endpoint::ChatCompletions));
        assert_eq!(route(&Method::Post, b"/v2/rerank"), Ok(Endpoint::Rerank));
        assert_eq!(route(&Method::Head, b"/v1/models"), Ok(Endpoint::Models));
        assert_eq!(route(&Method::Get, b"/ping"), Ok(Endpoint::Health));
    }

    #[test]
    fn no_call_that_changes_or_reveals_an_engine_is_forwarded() {
        let more = ["update_weights_from_disk", "load_lora_adapter_from_tensors", "dump_stats"];
        for call in ENGINE_CALLS.into_iter().chain(more) {
            for path in [format!("/{call}"), format!("/v1/{call}"), format!("/v1/{call}/x")] {
                if let Ok(endpoint) = route(&Method::Post, path.as_bytes()) {
                    panic!("{path} is {endpoint:?}");
                }
            }
            let path = format!("/v1/{}", call.to_uppercase());
            assert_eq!(route(&Method::Post, path.as_bytes()).unwrap_err().status(), 404, "{path}");
        }
    }

    #[test]
    fn paths_that_engines_may_know_go_on_by_model() {
        for path in [&b"/v1/images/edits"[..], b"/v1/images/generations", b"/v2/new-thing"] {
            assert_eq!(route(&Method::Post, path), Ok(Endpoint::Other));
            assert_eq!(route(&Method::Get, path).unwrap_err().status(), 404);
        }
        let count = route(&Method::Post, b"/v1/messages/count_tokens");
        assert_eq!(count, Ok(Endpoint::CountTokens));
    }

    #[test]
    fn a_model_is_looked_up_by_whatever_id_it_has() {
        for id in ["m", "Qwen/Qwen3-8B", "Qwen%2FQwen3-8B", "llama3:8b", "a/", "/", "..", "load"] {
            let path = format!("/v1/models/{id}");
            for method in [Method::Get, Method::Head] {
                assert_eq!(route(&method, path.as_bytes()), Ok(Endpoint::Models), "{path}");
            }
            for method in [Method::Post, Method::Delete] {
                let refusal = route(&method, path.as_bytes()).unwrap_err();
                assert_eq!((refusal.status(), refusal.allow()), (405, Some("GET, HEAD")));
            }
            assert!(!may_be_websocket(path.as_bytes()), "{path}");
        }
        assert_eq!(route(&Method::Get, b"/v1/models/").unwrap_err().status(), 404);
    }

    #[test]
    fn unknown_paths_and_wrong_methods_are_refused() {
        let unknown = [&b"/"[..], b"/v1/chat/completions/", b"/V1/models", b"/v1/%6dodels", b""];
        let odd = [&b"/v1/../flush_cache"[..], b"/v1//x", b"/v1/", b"/v1/x;y", b"/v3/x", b"/x"];
        for path in unknown.into_iter().chain(odd) {
            let refusal = route(&Method::Post, path).unwrap_err();
            assert_eq!((refusal.status(), refusal.reason()), (404, Reason::NotFound));
        }
        let refusal = route(&Method::Get, b"/v1/completions").unwrap_err();
        assert_eq!((refusal.status(), refusal.allow()), (405, Some("POST")));
        assert_eq!(route(&Method::Trace, b"/v1/models").unwrap_err().status(), 405);
        assert_eq!(route(&Method::Options, b"*").unwrap_err().status(), 405);
    }
}
