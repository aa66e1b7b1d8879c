//! `GET /v1/models`: the models of all workers, answered from the fleet snapshot.

use super::env::Env;
use super::slot::{After, Slot};
use crate::ingress::Conn;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_http1::{Method, OwnResponse, encode_own};
use forebay_prompt::parse::Endpoint;

/// With health checks off the models are unknown, so a worker is asked.
pub(super) fn is_forwarded(fleet: &FleetSnapshot) -> bool {
    fleet.model("*").is_some()
}

/// Answers in OpenAI's shape: one card per model name, as its first worker describes it. A key sees
/// the models that it may use.
pub(super) async fn answer(
    env: &Env,
    conn: &mut Conn,
    slot: &Slot,
    fleet: &FleetSnapshot,
) -> After {
    // A model that nobody serves any more keeps its index, but is not shown.
    let is_shown = |model: &&Model| {
        !model.ranks.is_empty() && slot.told.whom.may_see(&fleet.tenants, &model.name)
    };
    let served = fleet.models.iter().filter(is_shown);
    send(env, conn, slot, served.map(|model| &*model.card_json)).await
}

/// The same where the workers' models are unknown: those that the key is for.
pub(super) async fn of_key(env: &Env, conn: &mut Conn, slot: &Slot, names: &[String]) -> After {
    let card = |name: &String| {
        serde_json::json!({ "id": name, "object": "model", "owned_by": "forebay" }).to_string()
    };
    send(env, conn, slot, names.iter().map(card)).await
}

async fn send<T: AsRef<str>>(
    env: &Env,
    conn: &mut Conn,
    slot: &Slot,
    cards: impl Iterator<Item = T>,
) -> After {
    let mut body = br#"{"object":"list","data":["#.to_vec();
    for (position, card) in cards.enumerate() {
        if position > 0 {
            body.push(b',');
        }
        body.extend_from_slice(card.as_ref().as_bytes());
    }
    body.extend_from_slice(b"]}");
    let keep_alive = slot.head.keep_alive && !env.draining.is_set();
    let response = OwnResponse {
        status: 200,
        content_type: "application/json",
        body: &body,
        keep_alive,
        head_only: slot.head.method == Method::Head,
        extra: &slot.own_fields(),
    };
    let mut out = Vec::with_capacity(body.len() + 256);
    encode_own(&response, &mut out);
    env.counters.answered(Endpoint::Models as usize, 200);
    conn.wait_at_most(env.config().timeouts.write);
    match conn.write(out).await {
        Ok(()) if keep_alive => After::KeepAlive,
        Ok(()) => After::Linger,
        Err(_) => After::Drop,
    }
}
