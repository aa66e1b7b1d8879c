//! `/health`, `/ping` and `/version` as on inference servers: load balancers and benchmark clients
//! request them from the address that serves requests. Answered on the head alone, past all limits,
//! windows and workers.

use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::reply::discard;
use crate::state::env::Env;
use forebay_fleet::worker::FleetSnapshot;
use forebay_http1::{Method, OwnResponse, encode_own};
use forebay_prompt::parse::{Endpoint, Reason, Refusal};
use forebay_router::request::{self, Stop};

/// Page that the router answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnPage {
    Health,
    Version,
}

/// Page of an endpoint, if the router answers it.
pub(crate) const fn of(endpoint: Endpoint) -> Option<OwnPage> {
    match endpoint {
        Endpoint::Health => Some(OwnPage::Health),
        Endpoint::Version => Some(OwnPage::Version),
        _ => None,
    }
}

/// Answers, and discards a body of the request.
pub(crate) async fn answer(
    env: &Env,
    fleet: &FleetSnapshot,
    conn: &mut Conn,
    request: &mut Request<'_>,
    page: OwnPage,
) -> Result<ConnectionReuse, Stop> {
    let body = match page {
        OwnPage::Version => concat!("{\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}"),
        OwnPage::Health => healthy(env, fleet).map_err(Stop::BeforeBody)?,
    };
    request.story.facts.answer.status = 200;
    if let Some(endpoint) = request.story.facts.endpoint() {
        env.counters.answered(endpoint.index(), 200);
    }
    let keep_alive = discard::goes_on(env, conn, &request.head);
    let response = OwnResponse {
        status: 200,
        content_type: "application/json",
        body: body.as_bytes(),
        keep_alive,
        head_only: request.head.method == Method::Head,
        extra: &request.own_fields(),
    };
    let mut out = conn.buffer();
    encode_own(&response, &mut out);
    conn.wait_at_most(env.config().timeouts.write);
    Ok(match conn.write(out).await {
        Ok(()) if keep_alive => discard::request(env, conn, &request.head).await,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    })
}

/// Body of a healthy answer; a refusal if no request could be served now.
fn healthy(env: &Env, fleet: &FleetSnapshot) -> Result<&'static str, Refusal> {
    if env.leaving.is_unready.get() {
        return Err(Refusal::new(Reason::Draining));
    }
    if !fleet.can_serve() {
        return Err(request::no_worker("the usable workers serve nothing between them"));
    }
    Ok("{\"status\":\"ok\"}")
}
