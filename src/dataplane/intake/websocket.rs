//! parse: WebSocket upgrades. Invalid handshakes are refused before a worker sees them. So are
//! pages of other sites, because browsers send no preflight for a WebSocket.

use super::client_identity::sent;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::relay::answers_key;
use forebay_base::limits::RANKS_MAX;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_http1::{FieldKind, RequestHead, asks_for_websocket, websocket_accept, websocket_key};
use forebay_identity::Cors;
use forebay_prompt::parse::{Endpoint, Reason, Refusal, may_be_websocket};
use forebay_router::dispatch::RelayError;

/// Values of the hop-by-hop fields `Connection` and `Upgrade` for the worker and the client.
pub(crate) const UPGRADE: [(&str, &[u8]); 2] =
    [("connection", b"upgrade"), ("upgrade", b"websocket")];

/// Endpoint of a request without any other endpoint, if it asks for a WebSocket.
///
/// # Errors
/// `refusal` if it does not, else the fault of its handshake.
pub(crate) fn route(
    refusal: Refusal,
    cors: &Cors,
    conn: &Conn,
    head: &mut RequestHead,
) -> Result<Endpoint, Refusal> {
    let input = &conn.input[..];
    if !asks_for_websocket(head, input) {
        return Err(refusal);
    }
    // Bytes after the head may be frames. If the upgrade is refused, they must not be parsed as a
    // request.
    head.keep_alive = false;
    if !may_be_websocket(head.path(input)) {
        return Err(refusal);
    }
    websocket_key(head, input)?;
    let origin = sent(head, input, "origin").next();
    if origin.is_some_and(|origin| !is_own(head, input, origin) && !cors.lists(origin)) {
        return Err(Refusal::new(Reason::OriginNotAllowed));
    }
    Ok(Endpoint::WebSocket)
}

/// True if the page's origin is the host of the request.
fn is_own(head: &RequestHead, input: &[u8], origin: &[u8]) -> bool {
    let host = head.value_of(FieldKind::Host, input).unwrap_or_default();
    let at = origin.windows(3).position(|three| three == b"://");
    let shown = at.and_then(|at| origin.get(at + 3..));
    shown.is_some_and(|shown| shown.eq_ignore_ascii_case(host))
}

/// The router does not read frames, and a frame may name any model of the worker. The key must
/// therefore cover all of them.
///
/// # Errors
/// A refusal with a model that the key does not cover.
pub(crate) fn check_models(
    fleet: &FleetSnapshot,
    model: &Model,
    listed: &[String],
) -> Result<(), Refusal> {
    let mut serves = [false; RANKS_MAX];
    for rank in &model.ranks {
        if let Some(serves) = serves.get_mut(rank.index()) {
            *serves = true;
        }
    }
    let is_beside = |other: &&Model| {
        other.ranks.iter().any(|rank| serves.get(rank.index()).copied().unwrap_or(false))
    };
    let mut beside = fleet.models.iter().filter(is_beside);
    match beside.find(|other| !listed.iter().any(|name| **name == *other.name)) {
        Some(other) => Err(Refusal::forbidden_model(&other.name).with_message(format!(
            "A WebSocket may use all models of its worker, and this API key may not use `{}`.",
            other.name
        ))),
        None => Ok(()),
    }
}

/// Checks that a worker's 101 answers the handshake of the client.
///
/// # Errors
/// [`RelayError::HeadInvalid`] if the worker switches to another protocol.
pub(crate) fn check_answer(request: &Request<'_>, input: &[u8]) -> Result<(), RelayError> {
    let answer = &request.answer_head;
    if answer.status != 101 {
        return Ok(());
    }
    let key = websocket_key(&request.head, &request.message);
    let accept = websocket_accept(answer, input);
    let accepted = accept.is_some_and(|accept| key.is_ok_and(|key| answers_key(key, accept)));
    accepted.then_some(()).ok_or(RelayError::HeadInvalid)
}
