//! Access control of the admin API. A browser on the operator's machine reaches its port, so each
//! call is checked: `Origin` reveals a page of a foreign site, `Host` a foreign name that resolves
//! to this address. If `admin_token_file` is set, a call that changes something needs its token. If
//! `admin_read_token_file` is set, a call that reads needs either token.

use super::calls::engine_call::is_engine_path;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_base::RouterId;
use forebay_http1::header::REASON;
use forebay_http1::via_loop;
use forebay_prompt::parse::Reason;
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tracing::info;

/// POSTs that change nothing.
const READING_POSTS: [&str; 1] = ["/debug/overlap"];

/// Probes of load balancers and kubelets, which have no token.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The live page and its files, which a browser requests without a token. They contain no data of
/// this router; the page's script fetches that with the user's token.
const PAGE: &str = "/";
const PAGE_FILES: &str = "/page/";

/// The stream of the open live page.
const STREAM: &str = "/live";
/// Fetch metadata field; `cross-site` and `same-site` mean that a foreign page makes the call.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Rules that callers are checked against.
#[derive(Debug, Default)]
pub struct Access {
    /// Further names of this host: `admin_hosts`.
    hosts: Vec<String>,
    tokens: watch::Sender<AdminTokens>,
    /// Id of this router in `Via` fields to workers.
    router_id: Option<RouterId>,
}

/// Bearer tokens that authorize callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminTokens {
    /// The token that `admin_token_file` holds.
    pub change: Option<String>,
    /// The token that `admin_read_token_file` holds.
    pub read: Option<String>,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denial {
    Loop,
    Host,
    Origin,
    NotJson,
    NoToken,
    NoReadToken,
    NoClientToken,
    ReadOnly,
}

impl Denial {
    const fn status(self) -> StatusCode {
        match self {
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin | Self::ReadOnly => StatusCode::FORBIDDEN,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoToken | Self::NoReadToken | Self::NoClientToken => StatusCode::UNAUTHORIZED,
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Loop => Reason::RequestLoop.message(),
            Self::Host => {
                "Host is neither an IP address nor localhost. Call the router by its address, or add the name to \
                 `admin_hosts` in its configuration."
            }
            Self::Origin => {
                "A page of another site made this call: Origin is not the same as Host. Call from a program, or from a \
                 page of this address."
            }
            Self::NotJson => "A call with a body needs the header content-type: application/json.",
            Self::NoToken => {
                "This call changes something, or reveals an engine. It needs the header \
                 authorization: Bearer, with the token of `admin_token_file`."
            }
            Self::NoReadToken => {
                "This call needs the header authorization: Bearer, with the token of \
                 `admin_read_token_file` or of `admin_token_file`."
            }
            Self::NoClientToken => {
                "By the port of clients, this call needs the header authorization: Bearer, with \
                 the token of `admin_token_file`."
            }
            Self::ReadOnly => {
                "This call changes something, or reveals an engine, and the token of \
                 `admin_read_token_file` only reads. Use the token of `admin_token_file`."
            }
        }
    }
}

/// Passes a call on, or refuses it.
pub(crate) async fn check(
    State(access): State<Arc<Access>>,
    call: Request,
    next: Next,
) -> Response {
    let target = call.uri().authority().map(|authority| authority.as_str());
    // A call by the client port was authorized before its body was read; see [`ClientGate`].
    if call.extensions().get::<CallerOrigin>().is_some_and(|by| by.is_by_clients) {
        return run(call, next).await;
    }
    let method = call.method();
    let path = call.uri().path();
    let headers = call.headers();
    if access.is_own_question(headers) {
        return refused(Denial::Loop);
    }
    let judged = access.host(target, headers).and_then(|()| access.rest(method, path, headers));
    match judged {
        Ok(()) => run(call, next).await,
        Err(denied) => refused(denied),
    }
}

/// The response to a refused call.
fn refused(denied: Denial) -> Response {
    let bearer = [(header::WWW_AUTHENTICATE, "Bearer")];
    let answer = (denied.status(), Json(json!({ "error": denied.message() })));
    if denied.status() == StatusCode::UNAUTHORIZED {
        return (bearer, answer).into_response();
    }
    if denied == Denial::Loop {
        let reason = [(REASON, Reason::RequestLoop.as_str())];
        return (reason, answer).into_response();
    }
    answer.into_response()
}

/// Caller of a request, and the port that it used.
#[derive(Clone, Debug)]
pub(crate) struct CallerOrigin {
    /// Logged with each change.
    pub(crate) name: Arc<str>,
    /// The call came by the client port.
    pub(crate) is_by_clients: bool,
}

impl CallerOrigin {
    /// A caller on the admin API's own address.
    pub(crate) fn here(name: String) -> Self {
        Self { name: name.into(), is_by_clients: false }
    }
}

/// Runs an authorized call. Calls that change something are logged.
async fn run(call: Request, next: Next) -> Response {
    if call.method().is_safe() || is_reading(call.method(), call.uri().path()) {
        return next.run(call).await;
    }
    let caller = call.extensions().get::<CallerOrigin>().cloned();
    let method = call.method().clone();
    let path = call.uri().path().to_owned();
    let answer = next.run(call).await;
    let status = answer.status().as_u16();
    let caller = caller.map_or("?".into(), |caller| caller.name);
    info!(%caller, %method, path, status, "the admin API was asked to change something");
    answer
}

fn is_reading(method: &Method, path: &str) -> bool {
    // What an engine reveals, its key among it, is not for readers.
    !is_engine_path(path) && (method.is_safe() || READING_POSTS.contains(&path))
}

impl Access {
    /// Access rules with these host names and tokens.
    #[must_use]
    pub fn new(hosts: Vec<String>, tokens: AdminTokens) -> Self {
        Self { hosts, tokens: watch::Sender::new(tokens), router_id: None }
    }

    /// Refuses calls that this router sent to itself: the URL of a worker leads here.
    #[must_use]
    pub fn of_router(self, router_id: RouterId) -> Self {
        Self { router_id: Some(router_id), ..self }
    }

    fn is_own_question(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(header::VIA).iter().map(HeaderValue::as_bytes);
        self.router_id.is_some_and(|own| via_loop(values, own).is_some())
    }

    /// Requires these tokens from now on; returns the previous tokens.
    pub fn set_tokens(&self, tokens: AdminTokens) -> AdminTokens {
        self.tokens.send_replace(tokens)
    }

    /// No web page can omit `Host`; load balancers that speak HTTP/1.0 do.
    fn host(&self, target: Option<&str>, headers: &HeaderMap) -> Result<(), Denial> {
        let named = headers.get_all(header::HOST).iter().map(|value| value.to_str());
        let named = named.collect::<Result<Vec<_>, _>>().map_err(|_| Denial::Host)?;
        let mut all = named.into_iter().chain(target);
        if all.all(|authority| self.is_ours(authority)) { Ok(()) } else { Err(Denial::Host) }
    }

    fn is_ours(&self, authority: &str) -> bool {
        let host = host_of(authority);
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    fn rest(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Denial> {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if let Some(origin) = text(header::ORIGIN.as_str()) {
            let from = origin.split_once("://").map_or(origin, |(_, authority)| authority);
            if text(header::HOST.as_str()).is_none_or(|host| !host.eq_ignore_ascii_case(from)) {
                return Err(Denial::Origin);
            }
        }
        // A foreign page cannot read the stream, and must not occupy a viewer's place either.
        if path == STREAM && text(SEC_FETCH_SITE).is_some_and(|site| site.contains("-site")) {
            return Err(Denial::Origin);
        }
        let has_body = headers.contains_key(header::TRANSFER_ENCODING)
            || text(header::CONTENT_LENGTH.as_str()).is_some_and(|length| length.trim() != "0");
        let kind = text(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if has_body && !kind.eq_ignore_ascii_case("application/json") {
            return Err(Denial::NotJson);
        }
        self.token(method, path, text(header::AUTHORIZATION.as_str()))
    }

    /// The response to a call by the client port that is not authorized.
    pub(crate) fn refuse_client(&self, head: &Parts) -> Option<Response> {
        let judged = self.by_clients(&head.method, head.uri.path(), &head.headers);
        judged.err().map(refused)
    }

    /// Clients use any host name for that port, and each call there needs a token.
    fn by_clients(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Denial> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let is = |token: &Option<String>| token.as_ref().is_some_and(|is| is_bearer(bearer, is));
        let has_token = {
            let tokens = self.tokens.borrow();
            is(&tokens.change) || is(&tokens.read)
        };
        if !has_token {
            return Err(Denial::NoClientToken);
        }
        self.rest(method, path, headers)
    }

    /// The token for changes also allows reading.
    fn token(&self, method: &Method, path: &str, bearer: Option<&str>) -> Result<(), Denial> {
        let is = |token: &Option<String>| token.as_ref().is_some_and(|is| is_bearer(bearer, is));
        let is_page = path == PAGE || path.starts_with(PAGE_FILES);
        let is_probe = method.is_safe() && (is_page || PROBES.contains(&path));
        let reads = is_reading(method, path);
        let tokens = self.tokens.borrow();
        match (&tokens.change, &tokens.read) {
            (change, read) if change.is_some() && !reads && !is(change) => {
                Err(if is(read) { Denial::ReadOnly } else { Denial::NoToken })
            }
            (change, read) if read.is_some() && !is_probe && !is(change) && !is(read) => {
                Err(Denial::NoReadToken)
            }
            _ => Ok(()),
        }
    }
}

/// The host without the port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_bearer(authorization: Option<&str>, token: &str) -> bool {
    let Some((scheme, given)) = authorization.and_then(|value| value.split_once(' ')) else {
        return false;
    };
    scheme.eq_ignore_ascii_case("bearer")
        && bool::from(given.trim().as_bytes().ct_eq(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn tokens(change: Option<&str>, read: Option<&str>) -> AdminTokens {
        let [change, read] = [change, read].map(|token| token.map(str::to_owned));
        AdminTokens { change, read }
    }

    fn with(change: Option<&str>, read: Option<&str>) -> Access {
        Access::new(Vec::new(), tokens(change, read))
    }

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        fields.iter().map(field).collect()
    }

    #[test]
    fn only_own_names_are_answered() {
        let hosts = vec!["Router-A.example".into()];
        let access = Access { hosts, ..Access::default() };
        let host = |host: &str| access.host(None, &headers(&[("host", host)])).is_ok();
        for ours in [
            "127.0.0.1:9090",
            "10.0.0.1",
            "[::1]:9090",
            "[fe80::1]",
            "localhost",
            "LocalHost:9090",
            "router-a.example:9090",
        ] {
            assert!(host(ours), "{ours}");
        }
        for foreign in [
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil",
            "::x",
        ] {
            assert!(!host(foreign), "{foreign}");
        }
        assert!(access.host(None, &headers(&[])).is_ok(), "HTTP/1.0 of balancers");
        let two = headers(&[("host", "127.0.0.1"), ("host", "evil.example")]);
        assert_eq!(access.host(None, &two), Err(Denial::Host));
        let mine = headers(&[("host", "127.0.0.1")]);
        assert_eq!(access.host(Some("evil.example:80"), &mine), Err(Denial::Host));
    }

    #[test]
    fn pages_of_other_sites_and_bodies_that_a_form_can_send_are_refused() {
        let access = Access::default();
        let judge = |method: Method, path: &str, fields: &[(&str, &str)]| {
            let mut all = headers(&[("host", "127.0.0.1:9090")]);
            all.extend(headers(fields));
            access.rest(&method, path, &all)
        };
        let window = "/admin/window";
        let json = ("content-type", "application/json; charset=utf-8");
        let length = ("content-length", "13");
        assert_eq!(judge(Method::POST, window, &[json, length]), Ok(()));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:9091", "http://127.0.0.1"] {
            let refused = judge(Method::POST, window, &[json, length, ("origin", origin)]);
            assert_eq!(refused, Err(Denial::Origin), "{origin}");
            assert_eq!(judge(Method::GET, "/workers", &[("origin", origin)]), Err(Denial::Origin));
        }
        let own = ("origin", "http://127.0.0.1:9090");
        assert_eq!(judge(Method::POST, window, &[json, length, own]), Ok(()));
        assert_eq!(judge(Method::POST, window, &[length]), Err(Denial::NotJson));
        let form = ("content-type", "text/plain");
        assert_eq!(judge(Method::POST, window, &[form, length]), Err(Denial::NotJson));
        let chunked = ("transfer-encoding", "chunked");
        assert_eq!(judge(Method::POST, window, &[form, chunked]), Err(Denial::NotJson));
        assert_eq!(judge(Method::POST, "/admin/reload", &[("content-length", "0")]), Ok(()));
    }

    #[test]
    fn what_changes_something_needs_the_token() {
        let access = with(Some("s3cret"), None);
        let judge = |method: Method, path: &str, authorization: Option<&str>| {
            let fields = authorization.map(|value| ("authorization", value));
            access.rest(&method, path, &headers(fields.as_slice()))
        };
        for wrong in [
            None,
            Some("Bearer s3cre"),
            Some("Bearer s3cret2"),
            Some("Basic s3cret"),
            Some("s3cret"),
        ] {
            assert_eq!(
                judge(Method::POST, "/admin/reload", wrong),
                Err(Denial::NoToken),
                "{wrong:?}"
            );
            assert_eq!(judge(Method::DELETE, "/workers/a", wrong), Err(Denial::NoToken));
        }
        assert_eq!(judge(Method::POST, "/admin/reload", Some("bearer s3cret")), Ok(()));
        assert_eq!(judge(Method::GET, "/workers", None), Ok(()));
        assert_eq!(judge(Method::POST, "/debug/overlap", None), Ok(()));
    }

    #[test]
    fn by_the_port_of_clients_each_call_needs_a_token() {
        let access = with(Some("s3cret"), Some("r3ad"));
        let judge = |access: &Access, method: Method, token: Option<&str>| {
            let value = token.map(|token| format!("Bearer {token}"));
            let mut fields = vec![("host", "llm.example")];
            fields.extend(value.as_deref().map(|value| ("authorization", value)));
            access.by_clients(&method, "/list_workers", &headers(&fields))
        };
        for token in [None, Some("other")] {
            assert_eq!(judge(&access, Method::GET, token), Err(Denial::NoClientToken));
            let open = Access::default();
            assert_eq!(judge(&open, Method::GET, token), Err(Denial::NoClientToken));
        }
        assert_eq!(judge(&access, Method::GET, Some("r3ad")), Ok(()));
        assert_eq!(judge(&access, Method::POST, Some("r3ad")), Err(Denial::ReadOnly));
        assert_eq!(judge(&access, Method::POST, Some("s3cret")), Ok(()));
    }

    #[test]
    fn readers_have_a_token_of_their_own_that_changes_nothing() {
        let access = with(Some("s3cret"), Some("r3ad"));
        let judge = |method: Method, path: &str, token: Option<&str>| {
            let value = token.map(|token| format!("Bearer {token}"));
            let fields = value.as_deref().map(|value| ("authorization", value));
            access.rest(&method, path, &headers(fields.as_slice()))
        };
        for path in ["/metrics", "/workers", "/debug/overlap", "/live"] {
            assert_eq!(judge(Method::GET, path, None), Err(Denial::NoReadToken), "{path}");
            assert_eq!(judge(Method::GET, path, Some("other")), Err(Denial::NoReadToken));
            assert_eq!(judge(Method::GET, path, Some("r3ad")), Ok(()));
            assert_eq!(judge(Method::GET, path, Some("s3cret")), Ok(()));
        }
        assert_eq!(judge(Method::POST, "/debug/overlap", Some("r3ad")), Ok(()));
        for path in ["/healthz", "/readyz", "/", "/page/app.js"] {
            assert_eq!(judge(Method::GET, path, None), Ok(()), "a probe or a page has no token");
            assert_eq!(judge(Method::POST, path, None), Err(Denial::NoToken));
        }
        for path in ["/engines/get_server_info", "/workers/a/engine/metrics"] {
            assert_eq!(judge(Method::GET, path, Some("r3ad")), Err(Denial::ReadOnly), "{path}");
            assert_eq!(judge(Method::GET, path, None), Err(Denial::NoToken));
            assert_eq!(judge(Method::GET, path, Some("s3cret")), Ok(()));
        }
        let reload = |token| judge(Method::POST, "/admin/reload", token);
        assert_eq!(reload(Some("r3ad")), Err(Denial::ReadOnly));
        assert_eq!(reload(None), Err(Denial::NoToken));
        assert_eq!(reload(Some("s3cret")), Ok(()));
        assert_eq!(
            access.set_tokens(tokens(None, Some("r3ad"))),
            tokens(Some("s3cret"), Some("r3ad"))
        );
        let alone = access;
        let changing = alone.rest(&Method::POST, "/admin/reload", &headers(&[]));
        assert_eq!(changing, Err(Denial::NoReadToken), "not open, though the check forbids this");
    }
}
