//! Prefill ranks: registration, push sources, limits by role.

use super::*;
use forebay_config::PairObstacle;

fn prefill(ranks: usize, source: KvSource) -> Description {
    let source = Some(source);
    Description {
        role: Role::Prefill,
        source,
        ..description(r#"{"data":[{"id":"m"}]}"#, ranks, 16)
    }
}

fn registry(port: u16) -> Registry {
    Registry {
        kind: RegistryKind::Sglang,
        base: format!("http://a:{port}"),
        told: ("a".into(), port),
        host_is_configured: false,
        ranks: vec![0, 1],
    }
}

#[test]
fn prefill_ranks_take_traffic_once_registered() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let worker = WorkerIndex(0);
    let kv_transfers = |fleet: &mut Fleet| {
        let snapshot = fleet.snapshot();
        let has = |rank: &Rank| (rank.role, rank.kv_transfer.is_some());
        snapshot.ranks.iter().map(has).collect::<Vec<_>>()
    };
    let of = |port| KvSource::Registry(registry(port));
    fleet.describe(worker, ADDRESS, prefill(2, of(8_998)), BTreeMap::new());
    assert_eq!(kv_transfers(&mut fleet), [(Role::Prefill, false); 2]);
    assert!(fleet.lacks(worker).unwrap().contains("http://a:8998"));
    let whole = registry(8_998).read(r#"{"dp_size":2}"#);
    assert!(fleet.set_registration(worker, &whole));
    assert!(!fleet.set_registration(worker, &whole), "known");
    assert_eq!(
        (kv_transfers(&mut fleet), fleet.lacks(worker)),
        (vec![(Role::Prefill, true); 2], None)
    );
    let snapshot = fleet.snapshot();
    assert!(
        snapshot.serves(RankIndex(0), Leg::Prefill) && !snapshot.serves(RankIndex(0), Leg::Whole)
    );
    assert!(forebay_fleet::worker::pools::is_prefill(snapshot.ranks[0].pool));

    fleet.describe(worker, ADDRESS, prefill(2, of(8_998)), BTreeMap::new());
    assert_eq!(kv_transfers(&mut fleet), [(Role::Prefill, true); 2], "described again, the same");
    fleet.describe(worker, ADDRESS, prefill(2, of(9)), BTreeMap::new());
    assert_eq!(kv_transfers(&mut fleet), [(Role::Prefill, false); 2], "another registry");
    fleet.describe(
        worker,
        ADDRESS,
        description(r#"{"data":[{"id":"m"}]}"#, 2, 16),
        BTreeMap::new(),
    );
    assert!(!fleet.set_registration(worker, &whole), "late: it does not prefill any more");
    assert_eq!(kv_transfers(&mut fleet), [(Role::Both, false); 2]);
}

/// SGLang ends a decode engine that meets pages of another size.
#[test]
fn workers_with_pages_of_different_sizes_are_no_pair() {
    let with = |role, tokens| {
        let mut worker = prefill(1, KvSource::Registry(registry(8_998)));
        worker.dialect = Dialect::Sglang;
        worker.role = role;
        worker.server.page_tokens = tokens;
        worker
    };
    for (tokens, obstacle) in [(64, None), (16, Some(PairObstacle::Pages)), (0, None)] {
        let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1", "http://b:1"])), SEED);
        fleet.describe(WorkerIndex(0), ADDRESS, with(Role::Prefill, 64), BTreeMap::new());
        fleet.describe(WorkerIndex(1), ADDRESS, with(Role::Decode, tokens), BTreeMap::new());
        let snapshot = fleet.snapshot();
        assert_eq!(snapshot.pair_obstacle(RankIndex(0), RankIndex(1)), obstacle, "{tokens}");
    }
}

#[test]
fn an_unknown_push_source_is_used_in_two_phases_where_that_is_the_fallback() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    fleet.describe(
        WorkerIndex(0),
        ADDRESS,
        prefill(1, KvSource::PushUnknown("`kv_engine_id`")),
        BTreeMap::new(),
    );
    assert_eq!(fleet.snapshot().ranks[0].kv_transfer, None);
    let mut config = config(&["http://a:1"]);
    config.flow.disaggregation.fallback = Fallback::TwoPhase;
    fleet.set_config(Arc::new(config));
    assert_eq!(fleet.snapshot().ranks[0].kv_transfer, Some(KvTransfer::TwoPhase));
}

#[test]
fn limits_are_those_of_the_role_before_those_of_all() {
    let room = |role: Role, split: DisaggregationConfig, own: Option<u32>| {
        let mut config = config(&["http://a:1"]);
        config.flow.rank_concurrency_max = Some(100);
        config.flow.queue.kv_use_percent = 90;
        config.flow.queue.prefill_tokens_max = Some(1_000);
        config.flow.disaggregation = split;
        config.workers[0].concurrency_max = own;
        let mut fleet = Fleet::new(&Arc::new(config.clone()), SEED);
        let mut described = description(r#"{"data":[{"id":"m"}]}"#, 1, 10);
        described.ranks[0].kv_block_count = 100;
        described.role = role;
        fleet.describe(WorkerIndex(0), ADDRESS, described, BTreeMap::new());
        let room = fleet.snapshot().ranks[0].room;
        (room.places_max, room.kv_tokens_max, room.prefill_tokens_max)
    };
    let split = || DisaggregationConfig {
        prefill_concurrency_max: Some(8),
        decode_concurrency_max: Some(16),
        prefill_tokens_max: Some(0),
        prefill_kv_use_percent: Some(50),
        decode_kv_use_percent: Some(80),
        ..DisaggregationConfig::default()
    };
    assert_eq!(room(Role::Both, split(), None), (100, 900, 1_000));
    assert_eq!(room(Role::Prefill, split(), None), (8, 500, 0));
    assert_eq!(room(Role::Decode, split(), None), (16, 800, 1_000));
    assert_eq!(room(Role::Prefill, split(), Some(3)), (3, 500, 0), "the worker's own word first");
    let none = DisaggregationConfig::default;
    assert_eq!(room(Role::Prefill, none(), None), (100, 900, 1_000));
    assert_eq!(room(Role::Decode, none(), None), (100, 900, 1_000));
}
