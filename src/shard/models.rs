//! `GET /v1/models`: the models of all workers, answered from the fleet snapshot.

use super::env::Env;
use super::slot::{After, Slot};
use crate::ingress::Conn;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_http1::{Method, OwnResponse, encode_own};
use forebay_prompt::parse::Endpoint;
use std::borrow::Cow;

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
    let served = served.map(|model| Cow::Borrowed(&*model.card_json));
    let may_see = |name: &&str| slot.told.whom.may_see(&fleet.tenants, name);
    let named = names(fleet).filter(may_see).filter_map(|name| named(fleet, name));
    send(env, conn, slot, served.chain(named.map(Cow::Owned))).await
}

/// Names of `[[model]]` that no worker serves by itself, once each.
fn names(fleet: &FleetSnapshot) -> impl Iterator<Item = &str> {
    let tables = &fleet.config.models;
    let is_first =
        |at: usize, name: &str| tables.iter().position(|one| one.name == name) == Some(at);
    let names = tables.iter().map(|table| table.name.as_str()).enumerate();
    let names = names.filter(move |(at, name)| is_first(*at, name)).map(|(_, name)| name);
    names.filter(|name| fleet.model(name).is_none_or(|(_, model)| model.ranks.is_empty()))
}

/// The card of the first model that the name stands for, if one is served.
fn named(fleet: &FleetSnapshot, name: &str) -> Option<String> {
    let tables = fleet.config.models.iter().filter(|table| table.name == name);
    let mut served = tables.filter_map(|table| Some(fleet.model(&table.to)?.1));
    let model = served.find(|model| !model.ranks.is_empty())?;
    card_of(name, &model.card_json)
}

/// A card with another name, however the worker has written the card.
fn card_of(name: &str, card_json: &str) -> Option<String> {
    let mut card: serde_json::Value = serde_json::from_str(card_json).ok()?;
    card.as_object_mut()?.insert("id".to_owned(), name.into());
    Some(card.to_string())
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

#[cfg(test)]
mod tests {
    use super::card_of;
    use serde_json::{Value, json};

    #[test]
    fn a_card_gets_another_name_whatever_its_spaces() {
        let card = card_of("chat", r#"{ "object": "model", "id" : "a", "root": "a" }"#).unwrap();
        let expected = json!({"object": "model", "id": "chat", "root": "a"});
        assert_eq!(serde_json::from_str::<Value>(&card).unwrap(), expected);
        assert_eq!(card_of("chat", "[]"), None);
    }
}
