//! Calls for responses that engines keep: `/v1/responses/{id}`, and what is below.

use crate::parse::refusals::reason::Reason;
use crate::parse::refusals::refuse::Refusal;
use crate::parse::request::Endpoint;
use forebay_http1::Method;
use forebay_mailbox::ResponseId;

/// A path of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCall {
    pub id: ResponseId,
    allow: &'static str,
}

impl StoredCall {
    /// Reads a path, without the query. An id begins with `resp`: other words below `/v1/responses`
    /// are calls that engines may know.
    #[must_use]
    pub fn of(path: &[u8]) -> Option<Self> {
        let mut parts = path.strip_prefix(b"/v1/responses/")?.split(|byte| *byte == b'/');
        let id = parts.next()?;
        let call = parts.next();
        let rest = parts.next();
        let allow = match call {
            None => "GET, DELETE",
            Some(b"cancel") => "POST",
            Some(b"input_items") => "GET",
            Some(_) => return None,
        };
        let is_id = id.starts_with(b"resp") && rest.is_none();
        let id = ResponseId::of(id).filter(|_| is_id)?;
        Some(Self { id, allow })
    }

    /// The endpoint, or 405 for a wrong method.
    pub(crate) fn route(self, method: &Method) -> Result<Endpoint, Refusal> {
        let name = match method {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Delete => "DELETE",
            _ => "",
        };
        if self.allow.split(", ").any(|allowed| allowed == name) {
            return Ok(Endpoint::StoredResponse);
        }
        Err(Refusal::new(Reason::MethodNotAllowed).with_allow(self.allow))
    }
}

#[cfg(test)]
mod tests {
    use super::StoredCall;
    use crate::parse::{Endpoint, Reason, may_be_websocket, route};
    use forebay_http1::Method;

    #[test]
    fn responses_are_read_deleted_and_cancelled() {
        for (method, path) in [
            (Method::Get, "/v1/responses/resp_1"),
            (Method::Delete, "/v1/responses/resp_1"),
            (Method::Post, "/v1/responses/resp_1/cancel"),
            (Method::Get, "/v1/responses/resp_1/input_items"),
        ] {
            assert_eq!(route(&method, path.as_bytes()), Ok(Endpoint::StoredResponse), "{path}");
        }
        for (method, path, allow) in [
            (Method::Post, "/v1/responses/resp_1", "GET, DELETE"),
            (Method::Put, "/v1/responses/resp_1", "GET, DELETE"),
            (Method::Get, "/v1/responses/resp_1/cancel", "POST"),
            (Method::Delete, "/v1/responses/resp_1/input_items", "GET"),
        ] {
            let refusal = route(&method, path.as_bytes()).unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.allow()),
                (Reason::MethodNotAllowed, Some(allow))
            );
        }
    }

    #[test]
    fn other_paths_are_none_of_them() {
        let long = format!("/v1/responses/resp_{}", "a".repeat(64));
        for path in [
            "/v1/responses/",
            "/v1/responses/compact",
            "/v1/responses/resp_1/",
            "/v1/responses/resp_1/flush_cache",
            "/v1/responses/resp_1/cancel/x",
            "/v1/responses/resp_%31",
            "/v1/responses/resp.1",
            "/v1/responses//cancel",
            &long,
        ] {
            assert_eq!(StoredCall::of(path.as_bytes()), None, "{path}");
        }
        assert_eq!(route(&Method::Post, b"/v1/responses/compact"), Ok(Endpoint::Other));
        for path in [
            "/v1/responses/resp_1/tool_outputs",
            "/v1/responses/compact/x",
            "/v2/responses/resp_1/cancel",
            &long,
        ] {
            let refusal = route(&Method::Post, path.as_bytes()).unwrap_err();
            assert_eq!(refusal.reason(), Reason::NotFound, "{path}");
            assert!(!may_be_websocket(path.as_bytes()), "{path}");
        }
    }
}
