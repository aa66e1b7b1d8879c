//! Workers that are the same engine by other names.

use super::*;

/// A worker that answers at an address.
fn answers(fleet: &mut Fleet, worker: u16, address: SocketAddr) {
    let worker = WorkerIndex(worker);
    let described = description(r#"{"data":[{"id":"m"}]}"#, 1, 16);
    fleet.describe(worker, address, described, BTreeMap::new());
    fleet.set_state(worker, WorkerState::Up);
}

/// For each worker, whether requests may use it.
fn used(fleet: &mut Fleet) -> Vec<bool> {
    let snapshot = fleet.snapshot();
    snapshot.workers.iter().map(|worker| worker.state == WorkerState::Up).collect()
}

#[test]
fn one_engine_is_used_by_one_worker_however_it_is_spelled() {
    let urls = ["http://localhost:9", "http://127.0.0.1:9", "http://gpu:9", "http://127.0.0.2:9"];
    let mut fleet = Fleet::new(&Arc::new(config(&urls)), SEED);
    answers(&mut fleet, 1, ADDRESS);
    assert_eq!(used(&mut fleet), [false, true, false, false]);
    answers(&mut fleet, 0, ADDRESS);
    assert_eq!(used(&mut fleet), [false, true, false, false], "the one that is used stays");
    assert_eq!(fleet.engine_used_by(WorkerIndex(0)), Some("127.0.0.1:9"));
    let shown = fleet.snapshot();
    assert_eq!(shown.workers[0].state, WorkerState::Unused, "M1: it had the state of a drain");
    let told = fleet.take_shared_engines();
    assert_eq!((told.len(), &*told[0].first, &*told[0].second), (1, "127.0.0.1:9", "localhost:9"));
    assert!(told[0].is_certain && fleet.take_shared_engines().is_empty(), "once");
    // The used worker goes down: its twin serves, and still does when the first comes back.
    fleet.set_state(WorkerIndex(1), WorkerState::Down);
    assert_eq!(used(&mut fleet), [true, false, false, false]);
    fleet.set_state(WorkerIndex(1), WorkerState::Up);
    assert_eq!(used(&mut fleet), [true, false, false, false]);
    // The operator keeps the engine idle: its twin must not use it either.
    assert!(fleet.set_draining(WorkerIndex(0), WorkerDrain::KeepStreams));
    assert_eq!(used(&mut fleet), [false; 4]);
    assert!(fleet.set_draining(WorkerIndex(0), WorkerDrain::Off));
    // A removed worker gives way at once.
    assert!(fleet.leave(WorkerIndex(0), NanosSinceStart(1)));
    assert_eq!(used(&mut fleet), [false, true, false, false]);
    // A name moves to the address of a present worker, and away again.
    let there = SocketAddr::from(([127, 0, 0, 2], 9));
    let apart = SocketAddr::from(([127, 0, 0, 3], 9));
    answers(&mut fleet, 2, apart);
    answers(&mut fleet, 3, there);
    assert_eq!(used(&mut fleet), [false, true, true, true]);
    answers(&mut fleet, 2, there);
    assert_eq!(used(&mut fleet), [false, true, false, true], "the worker that was there stays");
    assert_eq!(fleet.engine_used_by(WorkerIndex(2)), Some("127.0.0.2:9"));
    answers(&mut fleet, 2, apart);
    assert_eq!(used(&mut fleet), [false, true, true, true]);
}

/// Issue 39: replicas that used an engine by two names did not compare their loads.
#[test]
fn each_name_of_an_engine_shows_the_rank_in_use() {
    let urls = ["http://gpu:9", "http://127.0.0.1:9", "http://127.0.0.2:9"];
    let mut fleet = Fleet::new(&Arc::new(config(&urls)), SEED);
    let used_as = |fleet: &mut Fleet| {
        let ranks = fleet.snapshot().ranks;
        ranks.iter().map(|rank| rank.used_as.map(|used| used.0)).collect::<Vec<_>>()
    };
    answers(&mut fleet, 0, ADDRESS);
    answers(&mut fleet, 1, ADDRESS);
    answers(&mut fleet, 2, SocketAddr::from(([127, 0, 0, 2], 9)));
    assert_eq!(used_as(&mut fleet), [None, Some(0), None]);
    // At once, in the fleet of the change: the first name is still a name of the engine.
    fleet.set_state(WorkerIndex(0), WorkerState::Down);
    assert_eq!(used_as(&mut fleet), [Some(1), None, None]);
}

/// Issue 39: the other name of an engine began with a full limit beside the requests of the name
/// that left.
#[test]
fn requests_of_a_worker_that_leaves_count_for_its_twin() {
    let mut fleet =
        Fleet::new(&Arc::new(config(&["http://localhost:9", "http://127.0.0.1:9"])), SEED);
    answers(&mut fleet, 0, ADDRESS);
    answers(&mut fleet, 1, ADDRESS);
    assert_eq!(used(&mut fleet), [true, false]);
    let busy = |rank: RankIndex| u32::from(rank == RankIndex(0)) * 2;
    assert_eq!(fleet.busy_twins(busy), [], "its own requests");
    assert!(fleet.leave(WorkerIndex(0), NanosSinceStart(1)));
    assert_eq!(used(&mut fleet), [false, true]);
    assert_eq!(fleet.busy_twins(busy), [(RankIndex(1), RankIndex(0))]);
    assert_eq!(fleet.busy_twins(|_| 0), []);
    // Requests that wait for the leaving worker are still served there.
    let both = [(RankIndex(1), RankIndex(0)), (RankIndex(0), RankIndex(1))];
    assert_eq!(fleet.busy_twins(|_| 1), both);
    // Late streams outlive the worker.
    fleet.remove(WorkerIndex(0));
    assert_eq!(used(&mut fleet), [false, true]);
    assert_eq!(fleet.busy_twins(busy), [(RankIndex(1), RankIndex(0))]);
}

/// The second name left while the first still had requests: the queue was sent to a worker that
/// was gone, beside them.
#[test]
fn workers_of_one_engine_that_both_leave_count_for_each_other() {
    let mut fleet =
        Fleet::new(&Arc::new(config(&["http://localhost:9", "http://127.0.0.1:9"])), SEED);
    answers(&mut fleet, 0, ADDRESS);
    answers(&mut fleet, 1, ADDRESS);
    assert!(fleet.leave(WorkerIndex(0), NanosSinceStart(1)));
    assert!(fleet.leave(WorkerIndex(1), NanosSinceStart(1)));
    assert_eq!(used(&mut fleet), [false, false]);
    let both = [(RankIndex(1), RankIndex(0)), (RankIndex(0), RankIndex(1))];
    assert_eq!(fleet.busy_twins(|_| 1), both);
    let first = |rank: RankIndex| u32::from(rank == RankIndex(0));
    assert_eq!(fleet.busy_twins(first), [(RankIndex(1), RankIndex(0))]);
}

#[test]
fn two_names_of_one_address_are_both_used_and_named() {
    let mut fleet = Fleet::new(&Arc::new(config(&["http://a:9", "http://b:9"])), SEED);
    answers(&mut fleet, 0, ADDRESS);
    answers(&mut fleet, 1, ADDRESS);
    assert_eq!(used(&mut fleet), [true, true]);
    let told = fleet.take_shared_engines();
    assert_eq!((told.len(), told[0].is_certain), (1, false));
}

#[test]
fn a_worker_that_is_there_by_another_spelling_is_not_added() {
    let config = config(&["http://127.0.0.1:9", "http://gpu:9"]);
    let mut fleet = Fleet::new(&Arc::new(config.clone()), SEED);
    let at = |url: &str| WorkerConfig { url: url.to_owned(), ..WorkerConfig::default() };
    for url in ["http://localhost:9", "http://[::ffff:127.0.0.1]:9", "http://[::ffff:7f00:1]:9"] {
        let refused = fleet.add(&config, &at(url), None);
        assert_eq!(refused, Err(PlaceError::Engine("127.0.0.1:9".into())), "{url}");
    }
    let resolved = at("http://10.0.0.7:9");
    answers(&mut fleet, 1, SocketAddr::from(([10, 0, 0, 7], 9)));
    assert_eq!(fleet.add(&config, &resolved, None), Err(PlaceError::Engine("gpu:9".into())));
    assert!(fleet.add(&config, &at("http://10.0.0.7:8"), None).is_ok(), "another port");
    // A new spelling of a leaving worker may join at once.
    assert!(fleet.leave(WorkerIndex(0), NanosSinceStart(1)));
    assert!(fleet.add(&config, &at("http://localhost:9"), None).is_ok());
}
