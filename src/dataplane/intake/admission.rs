//! Admission of a request on its head: caller, rejection window, exact limits, tenant limits.

use super::client_identity;
use crate::exchange::phase::{AdmissionPhase, HeadPhase, LimitPlaces, RouterPlace};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::state::shard::Shard;
use crate::story::quota::{self, QuotaCheck};
use forebay_base::ModelIndex;
use forebay_board::admit::AdmittedRequest as InFlightPlace;
use forebay_fleet::tenant::TenantPart;
use forebay_http1::{BodyFraming, HeadError, RequestHead};
use forebay_prompt::parse::{Endpoint, Principal, Refusal};
use forebay_router::request::{NewRequest, Stop, in_flight_full};

/// Limit of requests in flight that no request reaches.
const NO_LIMIT: u32 = 0;

/// Admits a request before any of its body is read.
///
/// # Errors
/// The request stops with the refusal of its key or of a limit.
pub(crate) fn admit<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, HeadPhase>,
) -> Result<Exchange<'c, AdmissionPhase>, RefusedExchange<'c>> {
    match of_head(shard, conn, &mut exchange.request, exchange.phase.endpoint) {
        Ok(admitted) => Ok(exchange.next(admitted)),
        Err(refusal) => Err(exchange.stop(Stop::BeforeBody(refusal))),
    }
}

fn of_head(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    endpoint: Endpoint,
) -> Result<AdmissionPhase, Refusal> {
    authenticate(shard, conn, request)?;
    client_identity::admit(shard, conn, request)?;
    readable(&request.head)?;
    let mut new_request = NewRequest::of(part(shard, &request.caller.principal));
    let places = enter(shard, request, endpoint, &mut new_request);
    let places = places.inspect_err(|_| request.story.facts.model = only_model(shard))?;
    let tenant = request.caller.principal.tenant;
    let check = quota::enter(shard, request.story.bill_mut(), tenant, endpoint);
    show_limits(request, check)?;
    Ok(AdmissionPhase { endpoint, new_request, places })
}

fn authenticate(shard: &Shard, conn: &Conn, request: &mut Request<'_>) -> Result<(), Refusal> {
    let fleet = shard.workers.fleet.borrow();
    let tokens = shard.intake.known_tokens();
    let queue = &fleet.config.flow.queue;
    let principal = Principal::of(&fleet.tenants, queue, &request.head, &conn.input, &tokens)?;
    request.caller.principal = principal;
    Ok(())
}

/// Part of the tenant in limits that tenants share.
fn part(shard: &Shard, principal: &Principal) -> TenantPart {
    let fleet = shard.workers.fleet.borrow();
    principal.part(&fleet.tenants, &fleet.config.flow.queue)
}

/// Only a body without a content coding can be scanned.
fn readable(head: &RequestHead) -> Result<(), HeadError> {
    let is_coded = head.is_coded && head.body != BodyFraming::None;
    if is_coded { Err(HeadError::ContentCoding) } else { Ok(()) }
}

fn enter(
    shard: &Shard,
    request: &Request<'_>,
    endpoint: Endpoint,
    new_request: &mut NewRequest,
) -> Result<LimitPlaces, Refusal> {
    let router = enter_router(shard, request, endpoint, new_request)?;
    let shard = enter_shard(shard, new_request)?;
    Ok(LimitPlaces { _router: router, shard })
}

/// The rejection window and the router's own limit. The model is not known yet: only a window of
/// all pools refuses here.
fn enter_router(
    shard: &Shard,
    request: &Request<'_>,
    endpoint: Endpoint,
    new_request: &mut NewRequest,
) -> Result<RouterPlace, Refusal> {
    let fleet = shard.workers.fleet.borrow();
    let mut stages = shard.routing.stages.borrow_mut();
    if endpoint.is_inference() {
        stages.windows_of_all(&fleet, request.story.facts.times.started, new_request)?;
    }
    let count = stages.loads.board.in_flight();
    let most = fleet.config.flow.router_in_flight_max;
    if !count.enter(most) {
        // The places of tenants on other shards are not known here: a share of this shard's part.
        let of_shard = usize::try_from(most).unwrap_or(usize::MAX) / shard.links.bells.len().max(1);
        if !shard.intake.in_flight.has_share(new_request.tenant, of_shard) {
            return Err(in_flight_full());
        }
        let is_counted = count.enter(NO_LIMIT);
        debug_assert!(is_counted, "refused without a limit");
    }
    Ok(RouterPlace(stages.loads.board.clone()))
}

/// Model of a request that is refused before its body is read, for the counters.
fn only_model(shard: &Shard) -> Option<usize> {
    shard.workers.fleet.borrow().only_model().map(ModelIndex::index)
}

fn enter_shard(shard: &Shard, new_request: &NewRequest) -> Result<InFlightPlace, Refusal> {
    shard.intake.in_flight.admit(new_request.tenant).map_err(|_| in_flight_full())
}

/// The client sees the standing of its limits, whether or not its request passes.
///
/// # Errors
/// The refusal of the check.
pub(crate) fn show_limits(request: &mut Request<'_>, check: QuotaCheck) -> Result<(), Refusal> {
    let (result, standing) = check;
    if let Some(standing) = standing {
        request.fields.limits.set(standing.requests, standing.tokens);
    }
    result
}
