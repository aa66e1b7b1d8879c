//! Load from SGLang's JSON: `/v1/loads` (since 0.5.8) and `/get_load` (up to 0.5.20).

use super::readings::{RankNumber, ReadFault, Readings, permille, requests, tokens};
use serde_json::Value;

/// Reads the answer of either endpoint into readings that have begun.
pub fn read_loads(body: &str, readings: &mut Readings) {
    let answer = serde_json::from_str::<Value>(body).unwrap_or(Value::Null);
    let loads = match &answer {
        Value::Object(object) => object.get("loads"),
        other => Some(other),
    };
    let Some(loads) = loads.and_then(Value::as_array) else {
        return readings.fault(ReadFault::Malformed);
    };
    for load in loads {
        if load.is_object() {
            read_load(load, readings);
        } else {
            readings.fault(ReadFault::Malformed);
        }
    }
    readings.end();
}

fn read_load(load: &Value, readings: &mut Readings) {
    let rank = match load.get("dp_rank") {
        None | Some(Value::Null) => RankNumber::Missing,
        Some(value) => value.as_u64().map_or(RankNumber::Invalid, RankNumber::Is),
    };
    let number = |key: &str| load.get(key).filter(|value| !value.is_null());
    let count = |key: &str| number(key).and_then(Value::as_f64).and_then(requests);
    let waiting = count("num_waiting_reqs");
    let running = match number("num_running_reqs") {
        Some(_) => count("num_running_reqs"),
        // The count of `/get_load` includes waiting requests.
        None => count("num_reqs").zip(waiting).map(|(all, waiting)| all.saturating_sub(waiting)),
    };
    if readings.at(rank).is_none() {
        return;
    }
    readings.put(rank, running, |draft, n| draft.running = Some(n));
    readings.put(rank, waiting, |draft, n| draft.waiting = Some(n));
    if let Some(usage) = number("token_usage") {
        let share = usage.as_f64().and_then(permille);
        readings.put(rank, share, |draft, n| draft.rest.kv_permille = Some(n));
    }
    let mut optional = |key: &str, place: fn(&mut super::readings::Draft, u64)| {
        if let Some(value) = number(key) {
            readings.put(rank, value.as_f64().and_then(tokens), place);
        }
    };
    optional("num_tokens", |draft, n| draft.rest.used_tokens = Some(n));
    optional("num_used_tokens", |draft, n| draft.rest.used_tokens = Some(n));
    optional("max_total_num_tokens", |draft, n| draft.rest.capacity_tokens = Some(n));
    optional("num_waiting_uncached_tokens", |draft, n| draft.rest.waiting_tokens = Some(n));
}
