//! Whether the usable workers can serve requests together, and labels of their roles: a prefill
//! worker needs a decode worker.

use forebay_base::{RankIndex, WorkerIndex};
use forebay_config::PairObstacle;
use forebay_fleet::worker::{FleetSnapshot, KvTransfer, LoneLeg, Role, WorkerState};
use serde_json::{Value, json};

/// Explains to an operator why no worker can serve.
#[must_use]
pub fn why_not(fleet: &FleetSnapshot) -> String {
    let all = engine_count(fleet);
    let counts = census(fleet);
    let up: usize = counts.iter().filter(|(_, state, _)| is_up(state)).map(|(_, _, n)| n).sum();
    if up == 0 {
        let drain = fleet.workers.iter().filter(|worker| worker.state.is_draining()).count();
        let note = if drain == 0 { String::new() } else { format!(" ({drain} drain)") };
        return format!("none of {all} workers is usable{note}");
    }
    // Ranks of an unlisted worker belong to no model.
    let is_unlisted = |&(role, state, count): &(&str, &str, usize)| {
        count == 0 || role == "unknown" || !is_up(state)
    };
    if counts.iter().all(is_unlisted) {
        return format!("no worker of {all} lists a model: see `waits_for` of GET /workers");
    }
    if let Some(lone) = lone_legs(fleet).first() {
        return lone.clone();
    }
    let of = |(role, state, count): &(&str, &str, usize)| format!("{count} {role} {state}");
    let seen: Vec<String> = counts.iter().filter(|(_, _, count)| *count > 0).map(of).collect();
    format!(
        "the usable ones of {all} workers serve no request between them ({}): each prefill worker \
         needs a decode worker of its model, and SGLang's the other way round",
        seen.join(", ")
    )
}

/// A concern for each obstacle between prefill and decode workers that are up and find no partner,
/// with the names of the first two, and what to do.
#[must_use]
pub fn lone_legs(fleet: &FleetSnapshot) -> Vec<String> {
    let worker = |rank| {
        let (_, worker) = fleet.rank(rank)?;
        (worker.state == WorkerState::Up).then_some(&*worker.name)
    };
    let mut found: Vec<(PairObstacle, usize, String)> = Vec::new();
    for LoneLeg { rank, other, obstacle } in fleet.lone_legs() {
        let (Some(name), Some(other)) = (worker(rank), worker(other)) else { continue };
        match found.iter_mut().find(|(known, ..)| *known == obstacle) {
            Some((_, count, _)) => *count += 1,
            None => found.push((obstacle, 1, format!("{name} and {other}"))),
        }
    }
    let text = |(obstacle, count, names): (PairObstacle, usize, String)| {
        let more =
            if count > 1 { format!(", and {} more ranks", count - 1) } else { String::new() };
        let text = obstacle.text();
        let help = obstacle.help();
        format!("prefill and decode workers that can be no pair: {names}{more}: {text}; {help}")
    };
    found.into_iter().map(text).collect()
}

/// Engines of the present workers: an engine with two workers counts once.
pub(crate) fn engine_count(fleet: &FleetSnapshot) -> usize {
    let workers = fleet.present_workers();
    workers.filter(|(_, worker)| worker.state != WorkerState::Unused).count()
}

fn is_up(state: &str) -> bool {
    state == "up" || state == "registering"
}

/// Number of workers for every pair of role and state.
pub(crate) fn census(fleet: &FleetSnapshot) -> Vec<(&'static str, &'static str, usize)> {
    let place = |(worker, _)| (role_of(fleet, worker), state_of(fleet, worker));
    let places: Vec<(&str, &str)> = fleet.present_workers().map(place).collect();
    let mut counts = Vec::new();
    for role in ["unknown", "both", "prefill", "decode"] {
        for state in ["unknown", "up", "registering", "draining", "unused", "down"] {
            let count = places.iter().filter(|place| **place == (role, state)).count();
            counts.push((role, state, count));
        }
    }
    counts
}

/// The worker's role; `unknown` until it is described.
pub(crate) fn role_of(fleet: &FleetSnapshot, worker: WorkerIndex) -> &'static str {
    let first = fleet.present().find(|(_, rank, _)| rank.worker == worker);
    first.map_or("unknown", |(_, rank, _)| rank.role.name())
}

/// `registering`: the worker answers, but decode workers cannot reach all its ranks yet.
fn state_of(fleet: &FleetSnapshot, worker: WorkerIndex) -> &'static str {
    let waits = |(_, rank, _): (
        RankIndex,
        &forebay_fleet::worker::Rank,
        &forebay_fleet::worker::Worker,
    )| {
        rank.worker == worker && rank.role == Role::Prefill && rank.kv_transfer.is_none()
    };
    match fleet.workers.get(worker.index()).map(|worker| worker.state) {
        Some(WorkerState::Up) if fleet.present().any(waits) => "registering",
        Some(WorkerState::Up) => "up",
        Some(WorkerState::Down) => "down",
        Some(WorkerState::Draining { .. }) => "draining",
        Some(WorkerState::Unused) => "unused",
        _ => "unknown",
    }
}

/// A KV transfer as JSON: parameters that decode workers receive.
pub(crate) fn kv_transfer(kv_transfer: Option<&KvTransfer>) -> Value {
    match kv_transfer {
        None => Value::Null,
        Some(KvTransfer::TwoPhase) => json!({ "kind": "two_phase" }),
        Some(KvTransfer::Bootstrap(bootstrap)) => json!({
            "kind": "bootstrap",
            "bootstrap_host": &*bootstrap.host,
            "bootstrap_port": bootstrap.port,
            "dp_size": bootstrap.dp_size,
            "follow_bootstrap_room": bootstrap.follows_room,
        }),
        Some(KvTransfer::Push(push)) => json!({
            "kind": "push",
            "engine_id": &*push.engine_id,
            "host": &*push.host,
            "port": push.port,
            "tp_size": push.tp_size,
            "pp_size": push.pp_size,
        }),
        Some(KvTransfer::Mooncake(source)) => json!({
            "kind": "mooncake",
            "bootstrap_addr": &*source.bootstrap_addr,
            "engine_id": &*source.engine_id,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Config, DisaggregationConfig, Fallback, FlowConfig};
    use forebay_fleet::worker::Dialect;
    use forebay_fleet::worker::test_support::two_pools;
    use std::sync::Arc;

    /// One worker with three ranks: 0 and 1 serve `base`, 2 serves `other`.
    fn fleet(dialect: Dialect, roles: [Role; 3]) -> FleetSnapshot {
        let mut fleet = two_pools();
        fleet.workers[0].dialect = dialect;
        for (rank, role) in fleet.ranks.iter_mut().zip(roles) {
            rank.role = role;
            rank.kv_transfer = (role == Role::Prefill).then_some(KvTransfer::TwoPhase);
        }
        fleet
    }

    #[test]
    fn a_leg_alone_serves_nothing() {
        use Role::{Both, Decode, Prefill};
        for (dialect, roles, wanted) in [
            (Dialect::Vllm, [Both, Prefill, Prefill], true),
            (Dialect::Vllm, [Prefill, Prefill, Prefill], false),
            (Dialect::Vllm, [Prefill, Prefill, Decode], true),
            (Dialect::Sglang, [Prefill, Prefill, Decode], false),
            (Dialect::Sglang, [Prefill, Decode, Decode], true),
            (Dialect::Sglang, [Decode, Decode, Prefill], false),
        ] {
            let fleet = fleet(dialect, roles);
            assert_eq!(fleet.can_serve(), wanted, "{dialect:?} {roles:?}");
        }
        let mut pair = fleet(Dialect::Sglang, [Prefill, Decode, Decode]);
        pair.ranks[0].topology = Some("a".into());
        assert!(pair.can_serve());
        pair.ranks[1].topology = Some("b".into());
        assert!(!pair.can_serve(), "too far apart");
        // Issue 39: the reason was that each leg needs the other.
        let why = why_not(&pair);
        assert!(why.contains("can be no pair") && why.contains("`topology`"), "{why}");
        pair.ranks[1].topology = Some("a".into());
        pair.ranks[0].kv_transfer = None;
        assert!(!pair.can_serve(), "not registered");
        assert!(why_not(&pair).contains("registering"), "{}", why_not(&pair));
        pair.workers[0].state = WorkerState::Down;
        assert!(!pair.can_serve());
        assert_eq!(why_not(&pair), "none of 1 workers is usable");
        pair.workers[0].state = WorkerState::Up.draining(false);
        assert!(!pair.can_serve());
        assert_eq!(why_not(&pair), "none of 1 workers is usable (1 drain)");
        assert!(!FleetSnapshot::default().can_serve());
    }

    #[test]
    fn decode_workers_alone_do_not_count_where_that_is_refused() {
        let mut fleet = fleet(Dialect::Vllm, [Role::Decode, Role::Decode, Role::Decode]);
        assert!(fleet.can_serve());
        let disaggregation =
            DisaggregationConfig { fallback: Fallback::Reject, ..DisaggregationConfig::default() };
        let flow = FlowConfig { disaggregation, ..FlowConfig::default() };
        fleet.config = Arc::new(Config { flow, ..Config::default() });
        assert!(!fleet.can_serve());
        fleet.ranks[0].role = Role::Both;
        assert!(fleet.can_serve());
    }

    #[test]
    fn workers_are_counted_by_role_and_state() {
        let counted = |fleet: &FleetSnapshot| {
            let seen = census(fleet).into_iter().filter(|(_, _, count)| *count > 0);
            seen.map(|(role, state, count)| format!("{count} {role} {state}")).collect::<Vec<_>>()
        };
        let mut prefill = fleet(Dialect::Vllm, [Role::Prefill; 3]);
        assert_eq!(counted(&prefill), ["1 prefill up"]);
        prefill.ranks[2].kv_transfer = None;
        assert_eq!(counted(&prefill), ["1 prefill registering"]);
        prefill.ranks.clear();
        assert_eq!(counted(&prefill), ["1 unknown up"]);
    }
}
