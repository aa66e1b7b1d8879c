//! What each call of the admin API takes, and the form of its errors, for all calls at once. A call
//! with a parameter or a body that its route does not take is refused, and the answer names it:
//! an ignored word would be a silent order. Each error is JSON with `error`.

use super::question::refused;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

/// Longest body of a call. An explained request is rendered, which takes some milliseconds.
pub(crate) const CALL_BYTES_MAX: usize = 1024 * 1024;
/// Longest text of an error that is not JSON yet.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Longest unknown parameter that an answer repeats, in characters.
const QUOTED_CHARS_MAX: usize = 64;

/// A call of the admin API.
#[derive(Clone, Copy, Debug)]
pub struct AdminRoute {
    /// The method: `GET`, `POST` or `DELETE`.
    pub method: &'static str,
    /// Path and query of the call.
    pub path: &'static str,
    /// Effect or answer of the call, for the reference page.
    pub meaning: &'static str,
    /// What the query may hold.
    pub(crate) parameters: QueryRule,
    /// What the body may be.
    pub(crate) body: BodyRule,
}

impl AdminRoute {
    /// Takes these parameters, and no other.
    pub(crate) const fn with(self, names: &'static [&'static str]) -> Self {
        Self { parameters: QueryRule::Named(names), ..self }
    }

    /// Takes parameters of any name.
    pub(crate) const fn with_any(self) -> Self {
        Self { parameters: QueryRule::Any, ..self }
    }

    /// The body has to follow this rule.
    pub(crate) const fn of(self, body: BodyRule) -> Self {
        Self { body, ..self }
    }

    /// The path without the query shown on the reference page.
    pub(crate) fn path(&self) -> &'static str {
        self.path.split_once('?').map_or(self.path, |(path, _)| path)
    }

    /// The call, for messages.
    pub(crate) fn call(&self) -> String {
        format!("{} {}", self.method, self.path())
    }
}

/// Parameters in the query of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueryRule {
    /// These names; another name is refused.
    Named(&'static [&'static str]),
    /// Any: browsers, probes and later peers add their own, and engines judge theirs.
    Any,
}

/// Body of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyRule {
    /// No body, or `{}` of a client that always sends JSON.
    Nothing,
    /// A JSON object, as the text describes it. The handler refuses an empty body if it needs more.
    Object(&'static str),
    /// Any bytes: an engine or the parser of requests judges them.
    Any,
}

/// Refuses parameters and bodies that the route does not take.
pub(crate) async fn check(State(route): State<AdminRoute>, call: Request, next: Next) -> Response {
    let (head, body) = call.into_parts();
    if let QueryRule::Named(names) = route.parameters
        && let Some(fault) = parameter_fault(&route, names, &head.uri)
    {
        return refused(StatusCode::BAD_REQUEST, &fault);
    }
    // The connection has read the body already, up to the limit.
    let Ok(body) = to_bytes(body, CALL_BYTES_MAX).await else { return too_long() };
    if let Some(fault) = body_fault(&route, &body) {
        return refused(StatusCode::BAD_REQUEST, &fault);
    }
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// The response to a body above the limit.
pub(crate) fn too_long() -> Response {
    let error = format!("the body broke off, or is too long: send up to {CALL_BYTES_MAX} bytes");
    refused(StatusCode::PAYLOAD_TOO_LARGE, &error)
}

/// The response to a method that no route of a path has. axum adds `Allow`.
pub(crate) fn wrong_method(path: &str, methods: &[&str]) -> Response {
    let error = format!("{path} takes {} alone", methods.join(" and "));
    refused(StatusCode::METHOD_NOT_ALLOWED, &error)
}

fn parameter_fault(route: &AdminRoute, names: &[&str], uri: &axum::http::Uri) -> Option<String> {
    let Ok(Query(given)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        return Some("the query is not written as name=value&name=value".to_owned());
    };
    let (unknown, _) = given.iter().find(|(name, _)| !names.contains(&&**name))?;
    let unknown: String = unknown.chars().take(QUOTED_CHARS_MAX).collect();
    let call = route.call();
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    Some(match &*quoted {
        [] => format!("{unknown:?} is no parameter of {call}: remove it, the call takes none"),
        quoted => {
            format!("{unknown:?} is no parameter of {call}: it takes {}", quoted.join(", "))
        }
    })
}

fn body_fault(route: &AdminRoute, body: &[u8]) -> Option<String> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let first = body.iter().find(|byte| !blank(byte))?;
    let call = route.call();
    match route.body {
        BodyRule::Any => None,
        // serde reads the fields of a struct from an array too.
        BodyRule::Object(_) if *first == b'{' => None,
        BodyRule::Object(how) => Some(format!("the body of {call} is no JSON object; {how}")),
        BodyRule::Nothing => {
            let empty = serde_json::from_slice::<Map<String, Value>>(body);
            let is_empty = empty.is_ok_and(|members| members.is_empty());
            (!is_empty).then(|| format!("{call} takes no body: send it without"))
        }
    }
}

/// Gives an error the form of all errors. Text of a handler or of axum becomes `error`.
pub(crate) async fn in_form(answer: Response) -> Response {
    let status = answer.status();
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let text = to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_else(|_| Bytes::new());
    let text = String::from_utf8_lossy(&text);
    let error = match text.trim() {
        "" => status.canonical_reason().unwrap_or("the call failed"),
        text => text,
    };
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::CONTENT_TYPE);
    let (formed, body) = refused(status, error).into_parts();
    head.headers.extend(formed.headers);
    (head, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::routes::{admin_routes, router};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use tokio::sync::mpsc;

    /// Bodies that are no JSON object.
    const NO_OBJECTS: [&str; 8] =
        ["[]", " [\"http://a:1\"]", "null", "true", "1", "\"a\"", "{}[]", "\u{c}{}"];
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

    /// Response of the admin API whose loop has ended: a call that passes the checks gets 503.
    async fn answered(method: &str, path: &str, body: &str) -> (StatusCode, String, Value) {
        let (questions, _) = mpsc::channel(1);
        let service = TowerToHyperService::new(router(questions, Arc::new(Access::default())));
        let call = hyper::Request::builder().method(method).uri(path);
        let call = call.header("content-type", "application/json");
        let call = call.body(Body::from(body.to_owned())).unwrap();
        let answer = service.call(call).await.unwrap();
        let status = answer.status();
        let allow = answer.headers().get(header::ALLOW);
        let allow = allow.map_or("", |allow| allow.to_str().unwrap()).to_owned();
        let body = to_bytes(Body::new(answer.into_body()), CALL_BYTES_MAX).await.unwrap();
        let body = serde_json::from_slice(&body);
        let is_error = status.is_client_error() || status.is_server_error();
        assert!(!is_error || method == "HEAD" || body.is_ok(), "{method} {path}: {status}");
        (status, allow, body.unwrap_or(Value::Null))
    }

    fn error(body: &Value) -> &str {
        body["error"].as_str().unwrap_or_default()
    }

    /// A path of the route.
    fn example(route: &AdminRoute) -> String {
        let path = route.path();
        path.replace("{id}", "w").replace("{*call}", "health").replace("{file}", "none.js")
    }

    /// Issue 39: `POST /workers` with an array added a worker, `undrain` took any body, and a
    /// misspelled parameter of `/debug/overlap` was ignored.
    #[tokio::test]
    async fn each_call_refuses_what_it_does_not_take_and_names_it() {
        for route in admin_routes() {
            let path = example(&route);
            let call = route.call();
            if let QueryRule::Named(names) = route.parameters {
                for unknown in ["modle", "URL", "urls", "", "a%20b", "%22"] {
                    let known = names.first().map_or(String::new(), |name| format!("{name}=1&"));
                    let asked = format!("{path}?{known}{unknown}=1");
                    let (status, _, body) = answered(route.method, &asked, "").await;
                    assert_eq!(status, StatusCode::BAD_REQUEST, "{asked}");
                    let names_all = names.iter().all(|name| error(&body).contains(*name));
                    assert!(error(&body).contains(&call) && names_all, "{asked}: {body}");
                }
            }
            let refused: &[&str] = match route.body {
                BodyRule::Any => &[],
                BodyRule::Object(_) => &["{", "{\"no_such\": 1}"],
                BodyRule::Nothing => &["{", "{\"no_such\": 1}", "text"],
            };
            let no_objects = NO_OBJECTS.iter().filter(|_| !matches!(route.body, BodyRule::Any));
            for wrong in no_objects.chain(refused) {
                let (status, _, body) = answered(route.method, &path, wrong).await;
                assert_eq!(status, StatusCode::BAD_REQUEST, "{call} {wrong:?}");
                assert!(error(&body).len() > "invalid".len(), "{call} {wrong:?}: {body}");
            }
        }
    }

    /// Issue 39: a 405 had an empty body, and so had a 400 of `/remove_worker`.
    #[tokio::test]
    async fn each_error_has_the_form_and_each_wrong_method_names_the_right_methods() {
        let paths: BTreeSet<String> = admin_routes().map(|route| example(&route)).collect();
        for path in &paths {
            let here = admin_routes().filter(|route| example(route) == *path);
            let known: Vec<&str> = here.map(|route| route.method).collect();
            for method in METHODS {
                let is_known =
                    known.contains(&method) || method == "HEAD" && known.contains(&"GET");
                let (status, allow, body) = answered(method, path, "").await;
                assert_eq!(status == StatusCode::METHOD_NOT_ALLOWED, !is_known, "{method} {path}");
                if !is_known {
                    assert!(known.iter().all(|known| allow.contains(known)), "{path}: {allow}");
                    let names_all = known.iter().all(|known| error(&body).contains(known));
                    assert!(names_all || method == "HEAD", "{method} {path}: {body}");
                }
            }
        }
        for (method, path) in [
            ("GET", "/nothing"),
            ("GET", "/workers/%ff"),
            ("GET", "/debug/overlap"),
            ("GET", "/debug/overlap?model=m&prompt=p&text=perhaps"),
            ("GET", "/debug/overlap?model=m&model=n&prompt=p"),
            ("POST", "/remove_worker"),
            ("POST", "/add_worker?url=ftp://a"),
            ("GET", "/replicas/messages?replica=x"),
        ] {
            let (status, _, body) = answered(method, path, "").await;
            assert!(status.is_client_error(), "{method} {path}: {status}");
            assert!(error(&body).contains(' '), "{method} {path}: {body}");
        }
    }

    /// `{}` is the body of clients that always send JSON.
    #[tokio::test]
    async fn what_a_call_takes_passes() {
        for (method, path, body) in [
            ("POST", "/workers/w/undrain", ""),
            ("POST", "/workers/w/undrain", " {}\n"),
            ("POST", "/workers/w/drain", ""),
            ("POST", "/workers/w/drain", " {\"move_streams\": true}"),
            ("POST", "/workers", "\n{\"url\": \"http://a:1\"}"),
            ("POST", "/engines/flush_cache?timeout=1", "[1]"),
            ("GET", "/readyz?verbose", ""),
            ("GET", "/workers?", ""),
        ] {
            let (status, _, body) = answered(method, path, body).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{method} {path}: {body}");
        }
    }
}
