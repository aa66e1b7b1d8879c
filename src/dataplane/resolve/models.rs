//! `GET /v1/models` and `GET /v1/models/{id}`: the models of all workers, answered from the fleet
//! snapshot.

use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::state::env::Env;
use forebay_fleet::worker::{ANY_MODEL, FleetSnapshot, Model};
use forebay_http1::{Method, OwnResponse, encode_own};
use forebay_prompt::parse::{Endpoint, ModelPath, Principal, Refusal};
use forebay_text::context_tokens;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Without health checks and configured names the models are unknown, so the request goes to a
/// worker.
fn is_forwarded(fleet: &FleetSnapshot) -> bool {
    !fleet.config.health.enabled && !fleet.has_names()
}

/// Body of the answer in OpenAI's shape; `None` if a worker answers. A key sees only the models
/// that it covers.
///
/// # Errors
/// A refusal for a model that does not exist or that the key does not cover.
pub(crate) fn body(
    fleet: &FleetSnapshot,
    request: &Request<'_>,
) -> Result<Option<Vec<u8>>, Refusal> {
    let principal = &request.caller.principal;
    if let Some(path) = ModelPath::of(request.head.path(&request.message)) {
        return card(fleet, principal, path).map(|card| Some(card.into_owned().into_bytes()));
    }
    if !is_forwarded(fleet) {
        return Ok(Some(list(cards(fleet, principal))));
    }
    let only = principal.only_models(&fleet.tenants);
    Ok(only.map(|names| list(names.iter().map(|name| plain(name)))))
}

/// Each card once: models, then adapters, by name, then the names of `[[model]]`. Sorted, because
/// the order of models in the fleet depends on which worker answered first.
fn cards<'a>(
    fleet: &'a FleetSnapshot,
    principal: &Principal,
) -> impl Iterator<Item = Cow<'a, str>> {
    // A model without ranks keeps its index, but is not listed.
    let is_shown = |model: &&Model| {
        !model.ranks.is_empty() && !model.is_any() && principal.may_see(&fleet.tenants, &model.name)
    };
    let mut served: Vec<&Model> = fleet.models.iter().filter(is_shown).collect();
    served.sort_unstable_by_key(|model| (model.is_adapter(), &model.name));
    let served = served.into_iter().map(|model| Cow::Borrowed(&*model.card_json));
    let may_see = |name: &&str| principal.may_see(&fleet.tenants, name);
    let named = names(fleet).filter(may_see).filter_map(|name| named(fleet, name));
    served.chain(named.map(Cow::Owned))
}

/// Card of a model.
fn card<'a>(
    fleet: &'a FleetSnapshot,
    principal: &Principal,
    path: ModelPath<'_>,
) -> Result<Cow<'a, str>, Refusal> {
    let names = path.names();
    let find = |name: &Cow<'_, str>| {
        if !principal.may_see(&fleet.tenants, name) || **name == *ANY_MODEL {
            return None;
        }
        let listed = served(fleet, name).map(|model| Cow::Borrowed(&*model.card_json));
        listed.or_else(|| named(fleet, name).map(Cow::Owned))
    };
    if let Some(card) = names.iter().find_map(find) {
        return Ok(card);
    }
    let [name, _] = names;
    // A worker without a model list accepts any name; only its answers would show which names it
    // serves.
    if is_forwarded(fleet) && *name != *ANY_MODEL && principal.may_see(&fleet.tenants, &name) {
        return Ok(Cow::Owned(plain(&name)));
    }
    Err(Refusal::unknown_model(&name))
}

/// Names of `[[model]]` that no worker serves, each once.
fn names(fleet: &FleetSnapshot) -> impl Iterator<Item = &str> {
    let tables = &fleet.config.models;
    let is_first =
        |at: usize, name: &str| tables.iter().position(|table| table.name == name) == Some(at);
    let names = tables.iter().map(|table| table.name.as_str()).enumerate();
    let names = names.filter(move |(at, name)| is_first(*at, name)).map(|(_, name)| name);
    names.filter(|name| served(fleet, name).is_none())
}

/// Card of a `[[model]]` name: of the models behind the name, the card with the shortest context,
/// because a request may go to any of them.
fn named(fleet: &FleetSnapshot, name: &str) -> Option<String> {
    let tables = fleet.config.models.iter().filter(|table| table.name == name);
    let served = tables.filter_map(|table| served(fleet, &table.to));
    let context = |model: &&Model| context_tokens(&model.card_json).unwrap_or(u64::MAX);
    renamed(name, &served.min_by_key(context)?.card_json)
}

/// The card with another id. Parsed, because workers format cards differently.
fn renamed(name: &str, card_json: &str) -> Option<String> {
    let mut card: Value = serde_json::from_str(card_json).ok()?;
    card.as_object_mut()?.insert("id".to_owned(), name.into());
    Some(card.to_string())
}

/// Card of a name without a worker's card.
fn plain(name: &str) -> String {
    json!({ "id": name, "object": "model", "owned_by": "forebay" }).to_string()
}

fn served<'a>(fleet: &'a FleetSnapshot, name: &str) -> Option<&'a Model> {
    fleet.model(name).map(|(_, model)| model).filter(|model| !model.ranks.is_empty())
}

fn list<T: AsRef<str>>(cards: impl Iterator<Item = T>) -> Vec<u8> {
    let mut body = br#"{"object":"list","data":["#.to_vec();
    for (position, card) in cards.enumerate() {
        if position > 0 {
            body.push(b',');
        }
        body.extend_from_slice(card.as_ref().as_bytes());
    }
    body.extend_from_slice(b"]}");
    body
}

/// Sends the page of models.
pub(crate) async fn send(
    env: &Env,
    conn: &mut Conn,
    request: &mut Request<'_>,
    body: &[u8],
) -> ConnectionReuse {
    request.story.facts.answer.status = 200;
    let keep_alive = request.head.keep_alive && !env.draining.is_set();
    let response = OwnResponse {
        status: 200,
        content_type: "application/json",
        body,
        keep_alive,
        head_only: request.head.method == Method::Head,
        extra: &request.own_fields(),
    };
    let mut out = Vec::with_capacity(body.len() + 256);
    encode_own(&response, &mut out);
    env.counters.answered(Endpoint::Models as usize, 200);
    conn.wait_at_most(env.config().timeouts.write);
    match conn.write(out).await {
        Ok(()) if keep_alive => ConnectionReuse::KeepAlive,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::renamed;
    use serde_json::{Value, json};

    #[test]
    fn a_card_gets_another_name_whatever_its_spaces() {
        let card = renamed("chat", r#"{ "object": "model", "id" : "a", "root": "a" }"#).unwrap();
        let expected = json!({"object": "model", "id": "chat", "root": "a"});
        assert_eq!(serde_json::from_str::<Value>(&card).unwrap(), expected);
        assert_eq!(renamed("chat", "[]"), None);
    }
}
