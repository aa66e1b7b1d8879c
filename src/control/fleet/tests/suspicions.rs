//! Suspicions about KV events, as workers join, leave, and change.

use super::*;

const PORTS: [(u16, Option<u16>); 3] = [(7, Some(9)), (8, None), (9, Some(7))];

/// Three workers at a host: followed and announced port of each.
fn fleet(ports: [(u16, Option<u16>); 3]) -> Fleet {
    let urls = ["http://h:1", "http://h:2", "http://h:3"];
    let mut fleet = Fleet::new(&Arc::new(config(&urls)), SEED);
    for (place, ports) in ports.into_iter().enumerate() {
        describe(&mut fleet, place, ports);
    }
    fleet
}

fn describe(fleet: &mut Fleet, place: usize, (followed, announced): (u16, Option<u16>)) {
    let at = |port: u16| ZmqEndpoint::parse(&format!("tcp://h:{port}"), "h").unwrap();
    let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
    let announced = announced.map(at);
    let events = EventAnnouncement { announced, ..EventAnnouncement::at(at(followed)) };
    description.ranks[0].events = Some(events);
    let worker = WorkerIndex::try_from_index(place).unwrap();
    let port = u16::try_from(place + 1).unwrap();
    fleet.describe(worker, SocketAddr::from(([10, 0, 0, 1], port)), description, BTreeMap::new());
    fleet.set_state(worker, WorkerState::Up);
}

/// Each suspicion as `worker: other`.
fn suspicions(fleet: &mut Fleet) -> Vec<String> {
    let snapshot = fleet.snapshot();
    let shown = |rank: &Rank| {
        let worker = &snapshot.workers[rank.worker.index()].name;
        let suspicion = rank.feed_suspicion.as_ref()?;
        let other = suspicion.other().map_or("another replay", |other| &*other.name);
        Some(format!("{worker}: {other}"))
    };
    snapshot.ranks.iter().filter_map(shown).collect()
}

/// Issue 39: an endpoint that is followed for two workers was not seen at all.
#[test]
fn an_endpoint_that_two_workers_share_is_suspect() {
    let mut shared = fleet([(7, None), (8, None), (8, None)]);
    assert_eq!(suspicions(&mut shared), ["h:2: h:3", "h:3: h:2"]);
    describe(&mut shared, 2, (9, None));
    assert_eq!(suspicions(&mut shared), [""; 0]);
}

#[test]
fn a_pair_is_suspect_while_both_workers_answer() {
    let mut fleet = fleet(PORTS);
    let pair = ["h:1: h:3", "h:3: h:1"];
    assert_eq!(suspicions(&mut fleet), pair);
    // A pair that then shares an endpoint is suspect all the same.
    describe(&mut fleet, 0, (9, None));
    assert_eq!(suspicions(&mut fleet), pair);
    describe(&mut fleet, 0, PORTS[0]);
    fleet.set_draining(WorkerIndex(2), WorkerDrain::KeepStreams);
    assert_eq!(suspicions(&mut fleet), pair, "a drained engine publishes");
    fleet.set_draining(WorkerIndex(2), WorkerDrain::Off);
    fleet.set_state(WorkerIndex(2), WorkerState::Down);
    assert_eq!(suspicions(&mut fleet), [""; 0]);
    fleet.set_state(WorkerIndex(2), WorkerState::Up);
    assert_eq!(suspicions(&mut fleet), pair);
    fleet.remove(WorkerIndex(2));
    assert_eq!(suspicions(&mut fleet), [""; 0]);
    // The worker comes back under a name.
    let table = WorkerConfig {
        url: "http://h:3".to_owned(),
        name: Some("c".to_owned()),
        ..WorkerConfig::default()
    };
    fleet.add(&config(&[]), &table, None).unwrap();
    assert_eq!(suspicions(&mut fleet), [""; 0], "not described yet");
    describe(&mut fleet, 2, PORTS[2]);
    assert_eq!(suspicions(&mut fleet), ["h:1: c", "c: h:1"]);
}

/// Issue 39: what a feed finds about its replay endpoint was a line of the log alone. Endpoints
/// that show the other rank have precedence.
#[test]
fn a_replay_that_the_feed_found_foreign_is_suspect() {
    let mut alone = fleet([(7, None), (8, None), (9, None)]);
    let mut described = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
    let at = |port: u16| ZmqEndpoint::parse(&format!("tcp://h:{port}"), "h").unwrap();
    let events = EventAnnouncement { replay: Some(at(17)), ..EventAnnouncement::at(at(7)) };
    described.ranks[0].events = Some(events);
    let address = SocketAddr::from(([10, 0, 0, 1], 1));
    alone.describe(WorkerIndex(0), address, described, BTreeMap::new());
    let notice = FeedNotice { has_foreign_replay: true, ..live_notice(TierRanks::default()) };
    assert!(alone.set_feed(notice));
    assert!(!alone.set_feed(notice));
    assert_eq!(suspicions(&mut alone), ["h:1: another replay"]);
    let snapshot = alone.snapshot();
    let cause = snapshot.ranks[0].feed_suspicion.as_ref().unwrap().cause();
    assert_eq!(cause, "tcp://h:17 replays other batches than this worker publishes");
    describe(&mut alone, 1, (7, None));
    assert_eq!(suspicions(&mut alone), ["h:1: h:2", "h:2: h:1"]);
    describe(&mut alone, 1, (8, None));
    assert!(alone.set_feed(FeedNotice { has_foreign_replay: false, ..notice }));
    assert_eq!(suspicions(&mut alone), [""; 0]);
}

/// Requests use an engine by a single worker, and so do suspicions.
#[test]
fn an_engine_with_two_spellings_is_not_suspect() {
    let urls = ["http://h:1", "http://10.0.0.1:1"];
    let mut fleet = Fleet::new(&Arc::new(config(&urls)), SEED);
    for worker in [0, 1].map(WorkerIndex) {
        let mut description = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
        let endpoint = ZmqEndpoint::parse("tcp://10.0.0.1:7", "h").unwrap();
        description.ranks[0].events = Some(EventAnnouncement::at(endpoint));
        let address = SocketAddr::from(([10, 0, 0, 1], 1));
        fleet.describe(worker, address, description, BTreeMap::new());
        fleet.set_state(worker, WorkerState::Up);
    }
    assert_eq!(suspicions(&mut fleet), [""; 0]);
}
