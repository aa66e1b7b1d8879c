//! Routes and legs as `/debug/overlap` shows them.

use super::explain::{ExplainRequest, ExplainSources, Explainer};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_board::{LoadBoard, LoadReports};
use forebay_config::{Config, FlowConfig, Policy, QueueMode};
use forebay_fleet::worker::test_support::two_pools;
use forebay_fleet::worker::{FleetSnapshot, KvTransfer, Leg, Role, RoomDemand, SessionSeat};
use forebay_index::{KeySeed, index};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Rank 0 prefills for rank 1.
fn pair(uncached_tokens_min: u32) -> FleetSnapshot {
    let mut fleet = two_pools();
    fleet.ranks[0].role = Role::Prefill;
    fleet.ranks[0].kv_transfer = Some(KvTransfer::TwoPhase);
    fleet.ranks[1].role = Role::Decode;
    fleet.models[0].prefill_pool = Some(PoolIndex(1_024));
    let mut flow = FlowConfig::default();
    flow.disaggregation.uncached_tokens_min = uncached_tokens_min;
    fleet.config = Arc::new(Config { flow, ..Config::default() });
    fleet
}

fn explained(fleet: &FleetSnapshot, body: &'static str, leg: Option<Leg>) -> Value {
    explained_with(fleet, body, leg, None)
}

fn explained_with(
    fleet: &FleetSnapshot,
    body: &'static str,
    leg: Option<Leg>,
    session: Option<&str>,
) -> Value {
    let policy = session.map_or(Policy::Kv, |_| Policy::Session);
    explained_on(fleet, &Arc::new(LoadBoard::new()), policy, (body, leg, session))
}

fn explained_on(
    fleet: &FleetSnapshot,
    board: &Arc<LoadBoard>,
    policy: Policy,
    (body, leg, session): (&'static str, Option<Leg>, Option<&str>),
) -> Value {
    let config = Config { policy, ..Config::default() };
    let reports = LoadReports::new(Duration::from_secs(5));
    let (reader, _writers) = index(1, KeySeed(1), 1 << 24);
    let sources = ExplainSources {
        config: &config,
        fleet,
        board,
        reports: &reports,
        index: &reader,
        counters: &[],
        now: NanosSinceStart(1),
    };
    let endpoint = "/v1/completions".to_owned();
    let session = session.filter(|name| !name.is_empty()).map(str::to_owned);
    let asked = ExplainRequest { endpoint, body: body.into(), leg, session, with_text: false };
    Explainer::new().explain(&asked, &sources).unwrap()
}

const PROMPT: &str = r#"{"model":"base","prompt":"Why is the sky blue?"}"#;
const TWICE: &str = r#"{"model":"base","prompt":"Why is the sky blue?","n":2}"#;

#[test]
fn the_route_and_both_ranks_of_a_pair_are_told() {
    let found = explained(&pair(0), PROMPT, None);
    assert_eq!((&found["route"], &found["leg"]), (&"pair".into(), &"decode".into()));
    assert_eq!(found["chosen"]["rank"], 1);
    assert_eq!(found["prefill_chosen"]["rank"], 0);
    let [prefill, decode] = [&found["ranks"][0], &found["ranks"][1]];
    assert_eq!((&prefill["leg"], &decode["leg"]), (&"prefill".into(), &"decode".into()));
    assert_eq!(prefill["cost_parts"]["uncached_tokens"], prefill["cost"]);
    assert!(prefill["cost"].as_u64().unwrap() > 0);
    assert_eq!(decode["cost"], 0, "it computes nothing");
    let found = explained(&pair(0), PROMPT, Some(Leg::Prefill));
    assert_eq!(found["chosen"]["rank"], 0);
    let found = explained(&pair(0), PROMPT, Some(Leg::Whole));
    assert_eq!((&found["chosen"]["rank"], &found["route"]), (&1.into(), &"pair".into()));
}

#[test]
fn why_a_request_stays_whole_or_is_refused_is_told() {
    let route = |found: &Value| (found["route"].clone(), found["route_because"].clone());
    let short = explained(&pair(10_000), PROMPT, None);
    assert_eq!(route(&short), ("whole".into(), "few_uncached_tokens".into()));
    assert_eq!((&short["leg"], &short["chosen"]["rank"]), (&"whole".into(), &1.into()));
    let twice = explained(&pair(0), TWICE, None);
    assert_eq!(route(&twice), ("whole".into(), "cannot_split".into()));
    let mut fleet = pair(0);
    fleet.ranks[1].role = Role::Prefill;
    let refused = explained(&fleet, PROMPT, None);
    assert_eq!(route(&refused), (Value::Null, "no_decode".into()));
    assert!(refused["route_refused"].as_str().unwrap().contains("decode workers"));
    let plain = explained(&two_pools(), PROMPT, None);
    assert_eq!(route(&plain), ("whole".into(), "no_roles".into()));
}

#[test]
fn the_anchor_of_a_session_is_told() {
    let mut fleet = two_pools();
    for rank in &mut fleet.ranks {
        rank.seat = SessionSeat::of("w:1", rank.dp_rank);
    }
    let with = |body, session: &str| explained_with(&fleet, body, None, Some(session));
    for name in ["ann", "bob", "eve"] {
        let told = with(PROMPT, name);
        assert_eq!((&told["because"], &told["by_chance"]), (&"session_kept".into(), &false.into()));
        assert_eq!(with(PROMPT, name)["chosen"], told["chosen"], "the same each time");
    }
    let in_body = with(r#"{"model":"base","prompt":"Hi","session_id":"ann"}"#, "");
    assert_eq!(in_body["chosen"], with(PROMPT, "ann")["chosen"]);
    assert_eq!(
        (&in_body["has_session"], &with(PROMPT, "")["has_session"]),
        (&true.into(), &false.into())
    );
}

/// Both ranks serve the model; rank 1 has less to compute, and all its places are taken.
#[test]
fn a_request_waits_for_its_cheapest_rank_where_that_has_no_room() {
    let mut fleet = two_pools();
    let board = Arc::new(LoadBoard::new());
    board.rank(RankIndex(0)).unwrap().add_prefill(50_000);
    for _ in 0..4 {
        let wanted = RoomDemand { kv_tokens: 1, prefill_tokens: 0 };
        let taken = board.rank(RankIndex(1)).unwrap().try_acquire(fleet.room(RankIndex(1)), wanted);
        assert_eq!(taken, Some(1));
    }
    let told = |fleet: &FleetSnapshot, policy| {
        let found = explained_on(fleet, &board, policy, (PROMPT, Some(Leg::Whole), None));
        (found["chosen"]["rank"].clone(), found["waits_for"]["rank"].clone())
    };
    for (mode, policy, expected) in [
        (QueueMode::Pool, Policy::Kv, (Value::Null, 1.into())),
        (QueueMode::Endpoint, Policy::Kv, (0.into(), Value::Null)),
        (QueueMode::Off, Policy::Kv, (0.into(), Value::Null)),
        (QueueMode::Pool, Policy::RoundRobin, (0.into(), Value::Null)),
    ] {
        let mut flow = FlowConfig::default();
        flow.queue.mode = mode;
        fleet.config = Arc::new(Config { flow, ..Config::default() });
        assert_eq!(told(&fleet, policy), expected, "{mode:?} {policy:?}");
    }
}
