//! CORS: the fields of answers, and the answer to a preflight. Answered on the head alone, before
//! keys and limits.

use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::intake::client_identity::sent;
use crate::reply::discard;
use crate::state::env::Env;
use forebay_board::account::NO_ENDPOINT;
use forebay_config::CorsConfig;
use forebay_http1::{Method, OwnResponse, encode_own, header};
use forebay_identity::{Cors, CorsPolicy, Preflight};
use forebay_prompt::parse::{Reason, Refusal};
use forebay_router::request::Stop;

/// CORS rules from the configuration.
pub(crate) fn cors(config: &CorsConfig) -> Cors {
    Cors::new(CorsPolicy {
        origins: config.origins.clone(),
        methods: config.methods.clone(),
        headers: config.headers.clone(),
        max_age_s: config.max_age.as_secs(),
        credentials: config.credentials,
    })
}

/// Chooses the CORS fields for all answers to the request.
pub(crate) fn choose(cors: &Cors, conn: &Conn, request: &mut Request<'_>) {
    if !cors.is_off() {
        let origin = sent(&request.head, &conn.input, "origin").next();
        request.cors = cors.of(origin);
    }
}

/// Answers a request without an endpoint: a preflight, or the refusal.
pub(crate) async fn answer_or(
    refusal: Refusal,
    env: &Env,
    cors: &Cors,
    conn: &mut Conn,
    request: &mut Request<'_>,
) -> Result<ConnectionReuse, Stop> {
    let Some(asked) = asked(cors, conn, request) else { return Err(Stop::BeforeBody(refusal)) };
    let Some(permitted) = cors.permits(asked) else {
        return Err(Stop::BeforeBody(Refusal::new(Reason::OriginNotAllowed)));
    };
    let [origin, credentials, methods, headers, max_age, vary] = permitted;
    let id = (header::REQUEST_ID, request.buffers.request_id());
    let keep_alive = discard::goes_on(env, conn, &request.head);
    let response = OwnResponse {
        status: 204,
        content_type: "",
        body: b"",
        keep_alive,
        head_only: false,
        extra: &[id, origin, credentials, methods, headers, max_age, vary],
    };
    let mut out = conn.buffer();
    encode_own(&response, &mut out);
    request.story.facts.answer.status = 204;
    env.counters.answered(NO_ENDPOINT, 204);
    conn.wait_at_most(env.config().timeouts.write);
    Ok(match conn.write(out).await {
        Ok(()) if keep_alive => discard::request(env, conn, &request.head).await,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    })
}

/// A preflight has an origin and names a method. Any other OPTIONS is none.
fn asked<'a>(cors: &Cors, conn: &'a Conn, request: &'a Request<'_>) -> Option<Preflight<'a>> {
    if request.head.method != Method::Options || cors.is_off() {
        return None;
    }
    let first = |name| sent(&request.head, &conn.input, name).next();
    let origin = first("origin")?;
    first("access-control-request-method")?;
    let headers = first("access-control-request-headers").unwrap_or_default();
    Some(Preflight { origin, headers })
}
