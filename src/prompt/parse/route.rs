//! Which API a request is for.

use super::reason::Reason;
use super::refuse::Refusal;
use super::request::Endpoint;
use forebay_http1::Method;

/// A call that clients may make.
#[derive(Clone, Copy, Debug)]
pub struct ClientRoute {
    /// What is called, without the query.
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
        if self.endpoint.is_page() { "GET, HEAD" } else { "POST" }
    }
}

/// Every call that clients may make. The first match counts, so frequent calls come first.
pub const CLIENT_ROUTES: [ClientRoute; 17] = {
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
        call("/v1/models", Endpoint::Models, "models of all workers"),
        call("/health", Endpoint::Health, "200, or 503 while no request could be served"),
        call("/ping", Endpoint::Health, "the same"),
        call("/version", Endpoint::Version, "version of the router"),
    ]
};

/// Endpoint of a method and path (without query). Paths match byte for byte: no decoding, no
/// trailing slash.
///
/// Refuses with 404 for an unknown path and 405, naming what is allowed, for the wrong method.
pub fn route(method: &Method, path: &[u8]) -> Result<Endpoint, Refusal> {
    if path == b"*" {
        return Err(Refusal::new(Reason::MethodNotAllowed).with_allow("GET, HEAD, POST"));
    }
    let Some(call) = CLIENT_ROUTES.iter().find(|call| call.path.as_bytes() == path) else {
        return Err(Refusal::new(Reason::NotFound));
    };
    let is_supported = match method {
        Method::Get | Method::Head => call.endpoint.is_page(),
        Method::Post => !call.endpoint.is_page(),
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
    use super::route;
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
