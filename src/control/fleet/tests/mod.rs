//! The fleet: descriptions and health in, snapshots and feed plans out.

mod one_engine;
mod pairs;
mod suspicions;

use super::super::test_config::{SEED, config};
use super::{Fleet, OmittedParts, PlaceError};
use forebay_admin::WorkerDrain;
use forebay_base::limits::WORKERS_MAX;
use forebay_base::{DpRank, NanosSinceStart, RankIndex, WorkerIndex};
use forebay_config::{DisaggregationConfig, Fallback, WorkerConfig};
use forebay_discovery::{
    DescribedRank, Description, EngineReport, EventAnnouncement, KvSource, Listing, Registry,
    RegistryKind, ServerTraits, numbered, read_models,
};
use forebay_fleet::worker::{
    ANY_MODEL, Dialect, EngineLosses, KvTransfer, Leg, Rank, Role, TierRanks, WorkerGeneration,
    WorkerState,
};
use forebay_index::{BlockKey, RootName};
use forebay_kv_events::FeedNotice;
use forebay_zmq::ZmqEndpoint;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

fn description(models: &str, ranks: usize, block_size_tokens: u32) -> Description {
    let models = read_models(models).unwrap().models;
    let listing = if models.is_empty() { NOTHING } else { Listing::Listed };
    let ranks =
        numbered(0, ranks, &DescribedRank { block_size_tokens, ..DescribedRank::default() });
    let dialect = Dialect::Vllm;
    Description {
        dialect,
        models,
        listing,
        ranks,
        role: Role::Both,
        source: None,
        server: ServerTraits::default(),
        reported: EngineReport::default(),
    }
}

/// With KV events of each rank.
fn fed(mut description: Description) -> Description {
    for rank in &mut description.ranks {
        let endpoint = ZmqEndpoint::parse("tcp://a:1", "").unwrap();
        rank.events = Some(EventAnnouncement::at(endpoint));
    }
    description
}

/// Notice of a feed of the first rank that follows events.
fn live_notice(tiers: TierRanks) -> FeedNotice {
    FeedNotice {
        rank: RankIndex(0),
        live: true,
        block_size_tokens: 64,
        has_foreign_replay: false,
        tiers,
    }
}

fn root(model: &str, block_size_tokens: u32, lora: &str) -> BlockKey {
    BlockKey::root(SEED, &RootName { model, block_size_tokens, lora, cache_salt: "" })
}

const NOTHING: Listing = Listing::Nothing { status: None, is_well: false };
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

#[test]
fn ranks_keep_their_numbers_and_models_their_roots() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1", "http://b:1"])), SEED);
    let start = fleet.snapshot();
    assert_eq!((start.workers.len(), start.ranks.len(), start.models.len()), (2, 0, 0));
    assert_eq!(start.workers[0].state, WorkerState::Unknown);

    let two = r#"{"data":[{"id":"m"},{"id":"alias"},{"id":"lora","parent":"m"}]}"#;
    fleet.describe(WorkerIndex(1), ADDRESS, description(two, 2, 16), BTreeMap::new());
    fleet.describe(
        WorkerIndex(0),
        ADDRESS,
        description(r#"{"data":[{"id":"m"}]}"#, 1, 32),
        BTreeMap::new(),
    );
    assert!(fleet.set_state(WorkerIndex(0), WorkerState::Up));
    assert!(!fleet.set_state(WorkerIndex(0), WorkerState::Up));
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.generation, 2);
    let of = |name: &str| snapshot.model(name).unwrap().1.clone();
    assert_eq!(of("m").ranks, [RankIndex(0), RankIndex(1), RankIndex(2)]);
    assert_eq!(of("alias").ranks, [RankIndex(0), RankIndex(1)]);
    let keys = |name: &str| of(name).roots.blocks.iter().map(|root| root.key).collect::<Vec<_>>();
    assert_eq!(keys("m"), [root("m", 16, ""), root("m", 32, "")]);
    assert_eq!(keys("alias"), [root("m", 16, "")], "another name of the same cache");
    assert_eq!(keys("lora"), [root("m", 16, "lora")]);
    assert_eq!(of("lora").ranks, [RankIndex(0), RankIndex(1)], "only who lists it serves it");
    assert_eq!(["m", "alias", "lora"].map(|name| of(name).is_adapter()), [false, false, true]);
    assert_eq!((snapshot.ranks[1].dp_rank, snapshot.ranks[1].dp_size), (DpRank(1), 2));

    // Worker b comes back with a single rank and another model; a's rank and all numbers stay.
    let other = r#"{"data":[{"id":"n"}]}"#;
    fleet.describe(WorkerIndex(1), ADDRESS, fed(description(other, 1, 16)), BTreeMap::new());
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.ranks.len(), 3);
    assert_eq!(snapshot.model("m").unwrap().1.ranks, [RankIndex(2)]);
    assert_eq!(snapshot.model("n").unwrap().1.ranks, [RankIndex(0)]);
    assert!(snapshot.model("alias").unwrap().1.ranks.is_empty());

    // Events may correct the block size.
    let tiers = TierRanks { host: Some(RankIndex(1_023)), ..TierRanks::default() };
    let notice = live_notice(tiers);
    assert!(fleet.set_feed(notice));
    assert!(!fleet.set_feed(notice));
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.model("n").unwrap().1.roots.blocks[0].key, root("n", 64, ""));
    assert!(snapshot.ranks[0].kv_feed_live);
    assert_eq!(snapshot.ranks[0].tiers, tiers);
}

/// After a worker loses its KV events by configuration, or leaves, no state of its feed is left.
#[test]
fn a_rank_without_a_feed_has_no_tiers() {
    let model = r#"{"data":[{"id":"m"}]}"#;
    let tiers = TierRanks { kv_pool: Some(RankIndex(1_023)), ..TierRanks::default() };
    let notice = live_notice(tiers);
    for is_removed in [false, true] {
        let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
        let describe = |fleet: &mut Fleet, described: Description| {
            fleet.describe(WorkerIndex(0), ADDRESS, described, BTreeMap::new());
        };
        describe(&mut fleet, fed(description(model, 1, 16)));
        assert!(fleet.set_feed(notice));
        if is_removed {
            fleet.remove(WorkerIndex(0));
        } else {
            describe(&mut fleet, description(model, 1, 16));
        }
        assert!(!fleet.set_feed(notice), "it came late");
        let rank = &fleet.snapshot().ranks[0];
        assert_eq!((rank.kv_feed_live, rank.tiers), (false, TierRanks::default()));
    }
}

/// M1: an engine that came back without its KV events lost its series, and had no fault. Events
/// that the configuration gave are taken away by the configuration.
#[test]
fn an_engine_that_announces_its_kv_events_no_more_has_lost_them() {
    let model = r#"{"data":[{"id":"m"}]}"#;
    for has_own_key in [false, true] {
        let mut tested = config(&["http://a:1"]);
        if has_own_key {
            tested.workers[0].kv_events = vec!["tcp://a:1".to_owned()];
        }
        let mut fleet = Fleet::new(&Arc::new(tested), SEED);
        let mut lost = |described: Option<Description>| {
            match described {
                Some(described) => {
                    fleet.describe(WorkerIndex(0), ADDRESS, described, BTreeMap::new());
                }
                None => fleet.remove(WorkerIndex(0)),
            }
            let fault =
                fleet.snapshot().ranks[0].losses.as_deref().and_then(EngineLosses::kv_events_fault);
            let reported = fleet.found().next().is_some_and(|(_, found)| found.has_lost_events);
            assert_eq!(reported, fault.is_some());
            fault
        };
        let bare = || Some(description(model, 1, 16));
        assert_eq!(lost(bare()), None, "a worker that never had events");
        assert_eq!(lost(Some(fed(description(model, 1, 16)))), None);
        let fault = lost(bare());
        assert_eq!(fault.is_none(), has_own_key, "{fault:?}");
        assert!(fault.is_none_or(|fault| fault.contains("announced tcp://a:1 before")));
        assert_eq!(lost(bare()).is_none(), has_own_key, "it stays");
        assert_eq!(lost(Some(fed(description(model, 1, 16)))), None, "the events are back");
        assert_eq!(lost(bare()).is_none(), has_own_key, "again");
        assert_eq!(lost(None), None, "the worker left");
    }
}

/// Issue 35, F7: the worker that answered first gave the card.
#[test]
fn the_card_of_a_model_is_that_of_its_shortest_context() {
    let cards = [
        r#"{"data":[{"id":"m","max_model_len":32768},{"id":"n","x":1}]}"#,
        r#"{"data":[{"id":"m"},{"id":"n","x":2},{"id":"l","parent":"m","max_model_len":1}]}"#,
        r#"{"data":[{"id":"m","max_model_len":4096},{"id":"l","parent":"m","max_model_len":2}]}"#,
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut fleet =
            Fleet::new(&Arc::new(config(&["http://c:1", "http://b:1", "http://a:1"])), SEED);
        let describe = |worker: usize, fleet: &mut Fleet| {
            let index = WorkerIndex::try_from_index(worker).unwrap();
            fleet.describe(index, ADDRESS, description(cards[worker], 1, 16), BTreeMap::new());
        };
        order.into_iter().for_each(|worker| describe(worker, &mut fleet));
        let snapshot = fleet.snapshot();
        let card = |name: &str| snapshot.model(name).unwrap().1.card_json.to_string();
        assert_eq!(card("m"), r#"{"id":"m","max_model_len":4096}"#);
        assert_eq!(card("n"), r#"{"id":"n","x":2}"#, "of the first address");
        let [unequal] = &fleet.unequal_lengths()[..] else { panic!("one model, no adapter") };
        assert_eq!((&*unequal.model, unequal.shortest.tokens), ("m", 4_096));
        assert_eq!(unequal.longest.workers, ["c:1".into()]);
        fleet.remove(WorkerIndex(2));
        let snapshot = fleet.snapshot();
        assert!(snapshot.model("m").unwrap().1.card_json.contains("32768"));
        assert!(fleet.unequal_lengths().is_empty(), "a card without a length is no length");
    }
}

#[test]
fn unknown_models_are_any_model() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    fleet.describe(WorkerIndex(0), ADDRESS, description(r#"{"data":[]}"#, 1, 16), BTreeMap::new());
    let snapshot = fleet.snapshot();
    let (_, model) = snapshot.model(ANY_MODEL).unwrap();
    assert_eq!((model.ranks.len(), model.roots.blocks[0].key), (1, root(ANY_MODEL, 16, "")));
}

#[test]
fn caches_are_taken_for_lost_when_a_worker_goes_down_or_is_another() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let worker = WorkerIndex(0);
    let described = |fleet: &mut Fleet, card: &str, block_size_tokens| {
        let description = description(card, 1, block_size_tokens);
        fleet.describe(worker, ADDRESS, description, BTreeMap::new());
        fleet.snapshot().workers[0].generation.cache
    };
    let card = r#"{"data":[{"id":"m","created":1}]}"#;
    assert_eq!(described(&mut fleet, card, 16), 0, "the first life");
    fleet.set_state(worker, WorkerState::Up);
    let later = r#"{"data":[{"id":"m","created":2}]}"#;
    assert_eq!(described(&mut fleet, later, 16), 0, "the same, asked again");
    fleet.set_state(worker, WorkerState::Down);
    fleet.set_state(worker, WorkerState::Down);
    assert_eq!(described(&mut fleet, later, 16), 1, "once for an outage");
    fleet.set_state(worker, WorkerState::Up);
    assert_eq!(described(&mut fleet, later, 32), 2, "restarted between two checks");
    let generation = |fleet: &mut Fleet| fleet.snapshot().workers[0].generation;
    assert_eq!(generation(&mut fleet), WorkerGeneration { engine: 2, cache: 2 });
    fleet.empty_caches(worker);
    assert_eq!(generation(&mut fleet), WorkerGeneration { engine: 2, cache: 3 }, "it is the same");
    let model = fleet.snapshot().model("m").unwrap().1.clone();
    let roots = model.roots.guesses;
    assert!(
        model
            .roots
            .blocks
            .iter()
            .all(|root| root.key != roots.approximate && root.key != roots.speculative)
    );
}

#[test]
fn the_operators_word_outlives_health_and_descriptions() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1", "http://b:1"])), SEED);
    let worker = fleet.worker_named("b:1").unwrap();
    assert_eq!((worker, fleet.worker_named("c:1")), (WorkerIndex(1), None));
    let card = r#"{"data":[{"id":"m"}]}"#;
    for index in [WorkerIndex(0), worker] {
        fleet.describe(index, ADDRESS, description(card, 1, 16), BTreeMap::new());
        fleet.set_state(index, WorkerState::Up);
    }
    assert!(fleet.set_draining(worker, WorkerDrain::KeepStreams));
    assert!(!fleet.set_draining(worker, WorkerDrain::KeepStreams), "said before");
    let state = |fleet: &mut Fleet| fleet.snapshot().workers[1].state;
    assert_eq!(state(&mut fleet), WorkerState::Draining { answers: true, moves: false });
    assert_eq!(fleet.snapshot().model("m").unwrap().1.ranks.len(), 2, "its cache is still known");
    assert!(fleet.set_state(worker, WorkerState::Down));
    assert_eq!(state(&mut fleet), WorkerState::Draining { answers: false, moves: false });
    assert!(state(&mut fleet).is_down(), "who is silent there is cut");
    fleet.set_state(worker, WorkerState::Up);
    fleet.describe(worker, ADDRESS, description(card, 2, 32), BTreeMap::new());
    fleet.set_config(Arc::new(config(&["http://a:1", "http://b:1"])));
    assert_eq!(
        state(&mut fleet),
        WorkerState::Draining { answers: true, moves: false },
        "restarted, reloaded"
    );
    assert!(fleet.set_draining(worker, WorkerDrain::MoveStreams));
    assert_eq!(state(&mut fleet), WorkerState::Draining { answers: true, moves: true });
    assert!(fleet.leave(worker, NanosSinceStart::default()), "removed then");
    assert!(state(&mut fleet).moves_streams());
    assert!(fleet.set_draining(worker, WorkerDrain::KeepStreams));
    assert!(!state(&mut fleet).moves_streams() && state(&mut fleet).is_draining());
    assert!(fleet.snapshot().can_serve());
    fleet.set_draining(WorkerIndex(0), WorkerDrain::KeepStreams);
    assert!(!fleet.snapshot().can_serve());
    assert!(fleet.set_draining(worker, WorkerDrain::Off));
    assert_eq!(state(&mut fleet), WorkerState::Up);
    assert!(!fleet.set_draining(WorkerIndex(9), WorkerDrain::KeepStreams), "nobody");
}

#[test]
fn a_place_stays_reserved_for_its_address() {
    let at = |url: &str, name: &str| WorkerConfig {
        url: url.into(),
        name: Some(name.into()),
        ..WorkerConfig::default()
    };
    let config = config(&["http://a:1"]);
    let mut fleet = Fleet::new(&Arc::new(config.clone()), SEED);
    let card = r#"{"data":[{"id":"m"}]}"#;
    let added = fleet.add(&config, &at("http://b:1", "b"), None);
    assert_eq!(added, Ok(WorkerIndex(1)));
    assert_eq!(fleet.add(&config, &at("http://b:1/", "c"), None), Err(PlaceError::Url));
    assert_eq!(fleet.add(&config, &at("http://c:1", "b"), None), Err(PlaceError::Name));
    assert_eq!(fleet.add(&config, &at("http://c:1", "a:1"), None), Err(PlaceError::Name));
    for index in [WorkerIndex(0), WorkerIndex(1)] {
        fleet.describe(index, ADDRESS, description(card, 1, 16), BTreeMap::new());
        fleet.set_state(index, WorkerState::Up);
    }
    let s = |seconds| NanosSinceStart::default().plus(Duration::from_secs(seconds));
    assert!(fleet.leave(WorkerIndex(1), s(30)) && !fleet.leave(WorkerIndex(1), s(60)));
    let state = fleet.snapshot().workers[1].state;
    assert!(state.is_draining() && !state.moves_streams());
    let busy = |rank: RankIndex| rank != RankIndex(1);
    assert_eq!(fleet.leaving(s(29), busy), []);
    assert_eq!(fleet.leaving(s(30), busy), [WorkerIndex(1)], "late");
    assert_eq!(fleet.leaving(s(1), |_| true), [WorkerIndex(1)], "idle");
    fleet.remove(WorkerIndex(1));
    assert_eq!((fleet.worker_named("b"), fleet.name(WorkerIndex(1))), (None, None));
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.workers[1].state, WorkerState::Gone);
    assert_eq!(snapshot.workers[1].generation.cache, 1);
    assert_eq!(snapshot.model("m").unwrap().1.ranks, [RankIndex(0)]);
    assert_eq!(fleet.feed_plans().len() + fleet.load_plans().len(), 1, "of the other");
    // The last result of a probe comes too late.
    fleet.describe(WorkerIndex(1), ADDRESS, description(card, 1, 16), BTreeMap::new());
    fleet.set_state(WorkerIndex(1), WorkerState::Up);
    assert!(!fleet.set_draining(WorkerIndex(1), WorkerDrain::Off));
    assert_eq!(fleet.snapshot().workers[1].state, WorkerState::Gone);
    assert_eq!(fleet.snapshot().model("m").unwrap().1.ranks, [RankIndex(0)]);

    assert_eq!(
        fleet.add(&config, &at("http://d:1", "b"), None),
        Ok(WorkerIndex(2)),
        "not its place"
    );
    assert_eq!(fleet.add(&config, &at("http://b:1", "new"), None), Ok(WorkerIndex(1)), "its own");
    fleet.describe(WorkerIndex(1), ADDRESS, description(card, 1, 16), BTreeMap::new());
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.model("m").unwrap().1.ranks, [RankIndex(0), RankIndex(1)]);
    assert_eq!((snapshot.ranks.len(), snapshot.workers[1].generation.cache), (2, 1));
    assert!(fleet.leave(WorkerIndex(1), s(30)));
    assert!(fleet.set_draining(WorkerIndex(1), WorkerDrain::Off), "called off");
    assert_eq!(fleet.leaving(s(99), |_| true), []);
}

#[test]
fn places_are_bounded() {
    let config = config(&[]);
    let mut fleet = Fleet::new(&Arc::new(config.clone()), SEED);
    let at = |n: usize| WorkerConfig { url: format!("http://w{n}:1"), ..WorkerConfig::default() };
    for n in 0..WORKERS_MAX {
        assert!(fleet.add(&config, &at(n), None).is_ok(), "{n}");
    }
    assert_eq!(fleet.add(&config, &at(WORKERS_MAX), None), Err(PlaceError::Full));
    fleet.remove(WorkerIndex(7));
    assert_eq!(fleet.add(&config, &at(WORKERS_MAX), None), Err(PlaceError::Full), "it is w7's");
    assert_eq!(fleet.add(&config, &at(7), None), Ok(WorkerIndex(7)));
}

#[test]
fn declared_capacity_is_kept_and_is_no_sign_of_a_restart() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let worker = WorkerIndex(0);
    let told = |fleet: &mut Fleet, block_size_tokens, running_max| {
        let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, block_size_tokens);
        description.ranks[0].running_max = running_max;
        fleet.describe(worker, ADDRESS, description, BTreeMap::new());
        let snapshot = fleet.snapshot();
        (snapshot.ranks[0].running_max, snapshot.workers[0].generation.cache)
    };
    assert_eq!(told(&mut fleet, 16, None), (0, 0));
    assert_eq!(told(&mut fleet, 16, Some(64)), (64, 0));
    assert_eq!(told(&mut fleet, 16, None), (64, 0), "not told this time");
    assert_eq!(told(&mut fleet, 16, Some(32)), (32, 0));
    assert_eq!(told(&mut fleet, 32, None), (0, 1), "another engine");
}

#[test]
fn a_rank_may_have_what_is_configured_else_what_it_declares() {
    let places = |all: Option<u32>, own: Option<u32>, declared: Option<u32>| {
        let mut config = config(&["http://a:1"]);
        config.flow.rank_concurrency_max = all;
        config.workers[0].concurrency_max = own;
        let mut fleet = Fleet::new(&Arc::new(config.clone()), SEED);
        let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
        description.ranks[0].running_max = declared;
        fleet.describe(WorkerIndex(0), ADDRESS, description, BTreeMap::new());
        fleet.snapshot().ranks[0].room.places_max
    };
    assert_eq!(places(None, None, None), 0, "an engine that tells nothing has no limit");
    assert_eq!(places(None, None, Some(48)), 48, "its own word");
    assert_eq!(places(Some(8), None, Some(48)), 8);
    assert_eq!(places(Some(8), Some(3), Some(48)), 3);
    assert_eq!(places(Some(0), None, Some(48)), 0, "no limit is a limit too");
}

#[test]
fn ranks_on_ports_of_their_own_are_not_pinned() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let mut both = description(r#"{"data":[{"id":"m"}]}"#, 2, 1);
    both.server.port_per_rank = true;
    fleet.describe(WorkerIndex(0), ADDRESS, both, BTreeMap::new());
    let snapshot = fleet.snapshot();
    let shown: Vec<(u16, u32)> =
        snapshot.ranks.iter().map(|rank| (rank.address.port(), rank.dp_size)).collect();
    assert_eq!(shown, [(9, 1), (10, 1)]);
}

#[test]
fn a_fleet_past_the_limit_leaves_ranks_out() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1", "http://b:1"])), SEED);
    let many = || description(r#"{"data":[{"id":"m"}]}"#, 700, 16);
    assert_eq!(
        fleet.describe(WorkerIndex(0), ADDRESS, many(), BTreeMap::new()),
        OmittedParts::default()
    );
    let left = fleet.describe(WorkerIndex(1), ADDRESS, many(), BTreeMap::new());
    assert_eq!(left.ranks, 1_400 - forebay_base::limits::RANKS_MAX);
}

#[test]
fn feeds_are_replaced_only_when_they_would_do_something_else() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let with = |port: u16| {
        let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
        let endpoint = ZmqEndpoint::parse(&format!("tcp://a:{port}"), "a").unwrap();
        description.ranks[0].events = Some(EventAnnouncement::at(endpoint));
        description
    };
    fleet.describe(WorkerIndex(0), ADDRESS, with(1), BTreeMap::new());
    let first = fleet.feed_plans().remove(0);
    fleet.describe(WorkerIndex(0), ADDRESS, with(1), BTreeMap::new());
    assert!(fleet.feed_plans()[0].same_as(&first));
    fleet.describe(WorkerIndex(0), ADDRESS, with(2), BTreeMap::new());
    assert!(!fleet.feed_plans()[0].same_as(&first));
}

#[test]
fn ranks_that_a_worker_has_no_more_serve_nothing_and_come_back_under_their_numbers() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    let card = r#"{"data":[{"id":"m"}]}"#;
    let with_events = |ranks| {
        let mut description = description(card, ranks, 16);
        for rank in &mut description.ranks {
            let endpoint =
                ZmqEndpoint::parse(&format!("tcp://a:{}", 5_557 + rank.number), "a").unwrap();
            rank.events = Some(EventAnnouncement::at(endpoint));
        }
        description
    };
    fleet.describe(WorkerIndex(0), ADDRESS, with_events(4), BTreeMap::new());
    fleet.set_state(WorkerIndex(0), WorkerState::Up);
    let present = |fleet: &mut Fleet| {
        let snapshot = fleet.snapshot();
        assert_eq!(snapshot.ranks.len(), 4, "numbers are never given twice");
        let ranks: Vec<u16> = snapshot.present().map(|(index, _, _)| index.0).collect();
        let of_model = snapshot.model("m").unwrap().1.ranks.iter().map(|rank| rank.0);
        assert_eq!(of_model.collect::<Vec<_>>(), ranks);
        ranks
    };
    assert_eq!((present(&mut fleet), fleet.feed_plans().len()), (vec![0, 1, 2, 3], 4));
    fleet.describe(WorkerIndex(0), ADDRESS, with_events(2), BTreeMap::new());
    assert_eq!((present(&mut fleet), fleet.feed_plans().len()), (vec![0, 1], 2));
    let snapshot = fleet.snapshot();
    let legs = [Leg::Whole, Leg::Prefill, Leg::Decode];
    assert!(legs.iter().all(|leg| !snapshot.serves(RankIndex(3), *leg)), "nothing goes there");
    assert_eq!(fleet.load_plans()[0].ranks.len(), 2);
    assert_eq!(fleet.snapshot().ranks[0].dp_size, 2);
    fleet.describe(WorkerIndex(0), ADDRESS, with_events(4), BTreeMap::new());
    assert_eq!((present(&mut fleet), fleet.feed_plans().len()), (vec![0, 1, 2, 3], 4));
}

#[test]
fn ranks_behind_one_of_several_urls_are_pinned_by_position_and_known_by_number() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1", "http://b:1"])), SEED);
    let numbered_from = |first, count, port_per_rank| {
        let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
        description.ranks = numbered(first, count, &description.ranks[0]);
        description.server.port_per_rank = port_per_rank;
        description
    };
    // The second machine of four ranks behind one port (hybrid), and rank 6 with a URL of its own
    // (external).
    fleet.describe(WorkerIndex(0), ADDRESS, numbered_from(4, 2, false), BTreeMap::new());
    fleet.describe(WorkerIndex(1), ADDRESS, numbered_from(6, 1, false), BTreeMap::new());
    let shown = |fleet: &mut Fleet| {
        let snapshot = fleet.snapshot();
        let of = |rank: &Rank| (rank.dp_rank.0, rank.dp_size, rank.address.port());
        snapshot.ranks.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(shown(&mut fleet), [(0, 2, 9), (1, 2, 9), (6, 1, 9)]);
    let firsts: Vec<u32> = fleet.load_plans().iter().map(|plan| plan.first).collect();
    assert_eq!(firsts, [4, 6], "reports name ranks by number");
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:1"])), SEED);
    fleet.describe(WorkerIndex(0), ADDRESS, numbered_from(4, 2, true), BTreeMap::new());
    assert_eq!(shown(&mut fleet), [(4, 1, 9), (5, 1, 10)], "rooms go by number");
}
