//! `GET /v1/models`: the models of all workers, answered from the fleet snapshot.

use super::env::Env;
use super::slot::{After, Slot};
use crate::ingress::Conn;
use forebay_fleet::worker::FleetSnapshot;
use forebay_http1::{Method, OwnResponse, encode_own};
use forebay_prompt::parse::Endpoint;

/// With health checks off the models are unknown, so a worker is asked.
pub(super) fn is_forwarded(fleet: &FleetSnapshot) -> bool {
    fleet.model("*").is_some()
}

/// Answers in OpenAI's shape: one card per model name, as its first worker describes it.
pub(super) async fn answer(
    env: &Env,
    conn: &mut Conn,
    slot: &Slot,
    fleet: &FleetSnapshot,
) -> After {
    let mut body = br#"{"object":"list","data":["#.to_vec();
    // A model that nobody serves any more keeps its index, but is not shown.
    let served = fleet.models.iter().filter(|model| !model.ranks.is_empty());
    for (position, model) in served.enumerate() {
        if position > 0 {
            body.push(b',');
        }
        body.extend_from_slice(model.card_json.as_bytes());
    }
    body.extend_from_slice(b"]}");
    let keep_alive = slot.head.keep_alive && !env.draining.is_set();
    let response = OwnResponse {
        status: 200,
        content_type: "application/json",
        body: &body,
        keep_alive,
        head_only: slot.head.method == Method::Head,
        extra: &[("x-request-id", &slot.request_id)],
    };
    let mut out = Vec::with_capacity(body.len() + 256);
    encode_own(&response, &mut out);
    env.counters.answered(Endpoint::Models as usize, 200);
    conn.wait_at_most(env.config.timeouts.write);
    match conn.write(out).await {
        Ok(()) if keep_alive => After::KeepAlive,
        Ok(()) => After::Linger,
        Err(_) => After::Drop,
    }
}
