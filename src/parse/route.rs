//! Which API a request is for.

use super::reason::Reason;
use super::refuse::Refusal;
use super::request::Endpoint;
use crate::http1::Method;

/// Endpoint of a method and path (without query). Paths match byte for byte: no decoding, no
/// trailing slash.
///
/// Refuses with 404 for an unknown path and 405, naming what is allowed, for the wrong method.
pub fn route(method: &Method, path: &[u8]) -> Result<Endpoint, Refusal> {
    let endpoint = match path {
        b"/v1/chat/completions" => Endpoint::ChatCompletions,
        b"/v1/completions" => Endpoint::Completions,
        b"/v1/embeddings" => Endpoint::Embeddings,
        b"/v1/responses" => Endpoint::Responses,
        b"/v1/messages" => Endpoint::Messages,
        b"/v1/rerank" | b"/v2/rerank" | b"/rerank" => Endpoint::Rerank,
        b"/v1/score" | b"/score" => Endpoint::Score,
        b"/generate" => Endpoint::Generate,
        b"/tokenize" => Endpoint::Tokenize,
        b"/detokenize" => Endpoint::Detokenize,
        b"/v1/models" => Endpoint::Models,
        b"/health" | b"/ping" => Endpoint::Health,
        b"/version" => Endpoint::Version,
        b"*" => return Err(Refusal::new(Reason::MethodNotAllowed).with_allow("GET, HEAD, POST")),
        _ => return Err(Refusal::new(Reason::NotFound)),
    };
    match (endpoint, method) {
        (Endpoint::Models | Endpoint::Health | Endpoint::Version, method) => match method {
            Method::Get | Method::Head => Ok(endpoint),
            _ => Err(Refusal::new(Reason::MethodNotAllowed).with_allow("GET, HEAD")),
        },
        (_, Method::Post) => Ok(endpoint),
        (_, _) => Err(Refusal::new(Reason::MethodNotAllowed).with_allow("POST")),
    }
}

#[cfg(test)]
mod tests {
    use super::route;
    use crate::http1::Method;
    use crate::parse::{Endpoint, Reason};

    #[test]
    fn paths_reach_their_endpoint() {
        assert_eq!(route(&Method::Post, b"/v1/chat/completions"), Ok(Endpoint::ChatCompletions));
        assert_eq!(route(&Method::Post, b"/v2/rerank"), Ok(Endpoint::Rerank));
        assert_eq!(route(&Method::Head, b"/v1/models"), Ok(Endpoint::Models));
        assert_eq!(route(&Method::Get, b"/ping"), Ok(Endpoint::Health));
    }

    #[test]
    fn unknown_paths_and_wrong_methods_are_refused() {
        for path in [&b"/"[..], b"/v1/chat/completions/", b"/V1/models", b"/v1/%6dodels", b""] {
            let refusal = route(&Method::Post, path).unwrap_err();
            assert_eq!((refusal.status(), refusal.reason()), (404, Reason::NotFound));
        }
        let refusal = route(&Method::Get, b"/v1/completions").unwrap_err();
        assert_eq!((refusal.status(), refusal.allow()), (405, Some("POST")));
        assert_eq!(route(&Method::Trace, b"/v1/models").unwrap_err().status(), 405);
        assert_eq!(route(&Method::Options, b"*").unwrap_err().status(), 405);
    }
}
