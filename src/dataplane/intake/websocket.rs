//! parse: requests to go on by WebSocket. What is wrong with a handshake is said before a worker
//! sees it, and a page of another site gets no WebSocket: browsers ask nobody whether it may.

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

/// What is sent on for `Connection` and `Upgrade`, which belong to one connection.
pub(crate) const UPGRADE: [(&str, &[u8]); 2] =
    [("connection", b"upgrade"), ("upgrade", b"websocket")];

/// The endpoint of a request that no other path takes, if it asks for a WebSocket.
///
/// # Errors
/// `refusal` if it does not, or what is wrong with its handshake.
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
    // What follows the head may be frames: without a WebSocket it must not become a request.
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

/// Is the page from where the request goes?
fn is_own(head: &RequestHead, input: &[u8], origin: &[u8]) -> bool {
    let host = head.value_of(FieldKind::Host, input).unwrap_or_default();
    let at = origin.windows(3).position(|three| three == b"://");
    let shown = at.and_then(|at| origin.get(at + 3..));
    shown.is_some_and(|shown| shown.eq_ignore_ascii_case(host))
}

/// Frames are not read, and may name each model of their worker: the key must be for all of them.
///
/// # Errors
/// A refusal that names a model that the key is not for.
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

/// Looks at a worker's answer, whose head is parsed from `input`: has it read the handshake?
///
/// # Errors
/// [`RelayError::HeadInvalid`] where it switches to something else.
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
