//! Routers that know an engine by several names, and use it by different names.

use super::connected_replica::ConnectedReplica;
use super::replica::{Outgoing, Replica};
use super::wire::ReplicaId;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LoadBoard, QueueDemand, QueueLimits};
use forebay_fleet::worker::{
    FleetSnapshot, Rank, RoomDemand, RoomLimits, Worker, WorkerState, test_support,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const KV_MAX: u64 = 1_000;
const STEP: Duration = Duration::from_millis(5);

/// Names by which a router knows the engine; it uses the engine by the first.
type Names = Vec<&'static str>;

struct Router {
    connected: ConnectedReplica,
    board: Arc<LoadBoard>,
    room: RoomLimits,
    /// Tokens and end of each running request.
    running: Vec<(u64, NanosSinceStart)>,
    done: u64,
}

impl Router {
    fn new(number: u64, names: &Names, room: RoomLimits, tokens: u64) -> Self {
        let now = NanosSinceStart(1);
        let board = Arc::new(LoadBoard::new());
        let replica = Replica::new(ReplicaId(number * 7 + 3), format!("router-{number}"), now);
        let mut connected = ConnectedReplica::new(replica, Arc::clone(&board));
        let fleet = fleet(names, room);
        let queue = fleet.queue_of(RankIndex(0)).and_then(|queue| board.queue(queue)).unwrap();
        // A request waits always.
        queue.join(QueueLimits::NONE, QueueDemand { tokens, ..QueueDemand::default() }).unwrap();
        connected.set_fleet(&fleet, now);
        Self { connected, board, room, running: Vec::new(), done: 0 }
    }

    /// Ends requests, and sends requests of `tokens` until the engine is full for this router.
    fn serve(&mut self, tokens: u64, now: NanosSinceStart) {
        let load = self.board.rank(RankIndex(0)).unwrap();
        self.running.retain(|(taken, end)| {
            if *end <= now {
                load.release(*taken);
                self.done += 1;
            }
            *end > now
        });
        let wanted = RoomDemand { kv_tokens: tokens, prefill_tokens: 0 };
        while let Some(taken) = load.try_acquire(self.room, wanted) {
            self.running.push((taken, now.plus(Duration::from_millis(37))));
        }
    }

    fn turn(&mut self, now: NanosSinceStart) -> Option<Outgoing> {
        let is_due = self.connected.turn_at() <= now;
        is_due.then(|| self.connected.turn(now).load).flatten()
    }
}

/// An engine by each name. All ranks but the first are other names of the first.
fn fleet(names: &Names, room: RoomLimits) -> Arc<FleetSnapshot> {
    let state = |place| if place == 0 { WorkerState::Up } else { WorkerState::Unused };
    let workers = names.iter().enumerate().map(|(place, name)| Worker {
        authority: Arc::from(*name),
        state: state(place),
        ..test_support::worker()
    });
    let ranks = (0..names.len()).map(|place| Rank {
        room,
        used_as: (place > 0).then_some(RankIndex(0)),
        ..test_support::rank(u16::try_from(place).unwrap())
    });
    Arc::new(FleetSnapshot {
        workers: workers.collect(),
        ranks: ranks.collect(),
        ..FleetSnapshot::default()
    })
}

/// Most requests and tokens at once after the first second, and the requests that each router has
/// done.
fn run(names: &[Names], places_max: u32, tokens: u64, late: usize) -> (u64, u64, Vec<u64>) {
    let room = RoomLimits { places_max, kv_tokens_max: KV_MAX, ..RoomLimits::default() };
    let numbered = (1..).zip(names);
    let router = |(number, names)| Router::new(number, names, room, tokens);
    let mut routers: Vec<Router> = numbered.map(router).collect();
    let mut on_the_way: Vec<Vec<(usize, Outgoing)>> = vec![Vec::new(); late + 1];
    let mut most = (0, 0);
    for step in 0..1_200_u32 {
        let now = NanosSinceStart(1).plus(STEP * step);
        for (from, (kind, bytes)) in on_the_way.remove(0) {
            for to in (0..routers.len()).filter(|to| *to != from) {
                routers[to].connected.read(&kind.subject("test"), &bytes, now);
            }
        }
        let mut sent = Vec::new();
        for (number, router) in routers.iter_mut().enumerate() {
            // Nothing waits in the first second: the routers find each other.
            if step >= 200 {
                router.serve(tokens, now);
            }
            sent.extend(router.turn(now).map(|message| (number, message)));
        }
        on_the_way.push(sent);
        let running = || routers.iter().flat_map(|router| &router.running);
        let held = (running().count() as u64, running().map(|(tokens, _)| tokens).sum());
        most = (most.0.max(held.0), most.1.max(held.1));
    }
    (most.0, most.1, routers.iter().map(|router| router.done).collect())
}

/// Two routers that used an engine by two names sent it twice its limit.
#[test]
fn routers_that_use_an_engine_by_different_names_share_its_limit() {
    let names = [vec!["gpu:8000", "10.0.0.5:8000"], vec!["10.0.0.5:8000", "gpu:8000"]];
    let (places, _, done) = run(&names, 8, 1, 0);
    assert_eq!(places, 8);
    assert!(done.iter().all(|done| *done > 300), "{done:?}");
}

/// With a steward for each name, each steward gave the whole rank to itself.
#[test]
fn requests_larger_than_a_share_run_by_any_name() {
    let names = [vec!["a:1", "b:1"], vec!["b:1", "a:1"], vec!["b:1"]];
    let (_, tokens, done) = run(&names, 8, KV_MAX * 3 / 4, 1);
    assert!(tokens <= KV_MAX, "{tokens}");
    assert!(done.iter().sum::<u64>() > 20, "{done:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each router knows some of the names in an order of its own. Each pair shares a name.
    #[test]
    fn the_limit_of_an_engine_holds_whatever_its_names(
        firsts in proptest::collection::vec((0_usize..3, any::<bool>(), any::<bool>()), 2..5),
        places_max in 5_u32..12,
        late in 0_usize..6,
    ) {
        let names: Vec<Names> = firsts
            .into_iter()
            .map(|(first, knows_b, knows_c)| {
                let known = [("a:1", true), ("b:1", knows_b), ("c:1", knows_c)];
                let known = known.into_iter().filter(|(_, is_known)| *is_known);
                let mut names: Names = known.map(|(name, _)| name).collect();
                let first = first % names.len();
                names.rotate_left(first);
                names
            })
            .collect();
        let (places, _, done) = run(&names, places_max, 1, late);
        prop_assert!(places <= u64::from(places_max), "{places} of {places_max}: {names:?}");
        let all: u64 = done.iter().sum();
        prop_assert!(all > u64::from(places_max) * 60, "{done:?} by {names:?}");
        prop_assert!(done.iter().all(|done| *done > 0), "{done:?} by {names:?}");
    }
}
