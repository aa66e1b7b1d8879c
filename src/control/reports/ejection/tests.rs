//! Six ranks, each of its own worker: four share a model, the fifth has its own model, the sixth
//! prefills.

use super::*;
use forebay_board::FirstBytes;
use forebay_config::Config;
use forebay_fleet::worker::{Worker, pools, test_support};
use std::sync::Arc;

const R: [RankIndex; 4] = [RankIndex(0), RankIndex(1), RankIndex(2), RankIndex(3)];
const ALONE: RankIndex = RankIndex(4);
const PREFILLS: RankIndex = RankIndex(5);
const TICK_MS: u64 = 100;

struct Scene {
    fleet: FleetSnapshot,
    ejection: Ejection,
    now_ms: u64,
    steps: Vec<(RankIndex, EjectionStep, u64)>,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.health.stall_timeout = Duration::from_secs(60);
        config.health.slow_factor = 4;
        config.health.slow_after = Duration::from_secs(10);
        config.health.timeout = Duration::from_secs(1);
        config.breaker.open = Duration::from_secs(2);
        change(&mut config);
        let mut fleet = FleetSnapshot {
            workers: (0..6).map(|_| test_support::worker()).collect(),
            ranks: (0..6).map(test_support::rank).collect(),
            models: vec![
                test_support::model("all", &[0, 1, 2, 3, 5]),
                test_support::model("alone", &[4]),
            ],
            config: Arc::new(config),
            ..FleetSnapshot::default()
        };
        fleet.ranks[PREFILLS.index()].role = Role::Prefill;
        pools::assign(&mut fleet);
        // Not 0, where a process begins.
        Self { fleet, ejection: Ejection::default(), now_ms: 1_000, steps: Vec::new() }
    }

    /// Looks once in each tick for `seconds`.
    fn pass(&mut self, seconds: u64, mut look: impl FnMut(RankIndex) -> RankLook) {
        let end = self.now_ms + seconds * 1_000;
        while self.now_ms < end {
            self.now_ms += TICK_MS;
            let now = NanosSinceStart(self.now_ms * 1_000_000);
            let steps = self.ejection.observe(&self.fleet, now, &mut look);
            let at = self.now_ms;
            self.steps.extend(steps.into_iter().map(|(rank, step)| (rank, step, at)));
        }
    }

    fn now(&self) -> NanosSinceStart {
        NanosSinceStart(self.now_ms * 1_000_000)
    }

    fn out(&self) -> Vec<RankIndex> {
        self.ejection.ejected().map(|(rank, _)| rank).collect()
    }

    fn takes(&mut self) -> Vec<(RankIndex, EjectionStep, u64)> {
        std::mem::take(&mut self.steps)
    }
}

/// Streams wait without progress.
fn silent() -> RankLook {
    RankLook { awaited: true, ..RankLook::default() }
}

/// Streams wait while other streams progress.
fn busy() -> RankLook {
    RankLook { awaited: true, answers: true, ..RankLook::default() }
}

fn among(ranks: &[RankIndex], look: RankLook) -> impl FnMut(RankIndex) -> RankLook {
    move |rank| if ranks.contains(&rank) { look } else { busy() }
}

/// First bytes after `waited_ms`, for `tokens`.
fn first_byte(waited_ms: u64, tokens: u64) -> RankLook {
    let first_bytes = FirstBytes { count: 1, waited_us: waited_ms * 1_000, tokens };
    RankLook { answers: true, first_bytes, ..RankLook::default() }
}

fn ejected(
    rank: RankIndex,
    reason: EjectReason,
    at_ms: u64,
    pause_s: u64,
) -> (RankIndex, EjectionStep, u64) {
    let until = NanosSinceStart((at_ms + pause_s * 1_000) * 1_000_000);
    (rank, EjectionStep::Eject { reason, until }, at_ms)
}

#[test]
fn a_rank_where_streams_wait_and_nothing_moves_is_ejected() {
    let mut scene = Scene::new(|_| {});
    scene.pass(60, among(&R[..1], silent()));
    assert_eq!(scene.out(), []);
    scene.pass(1, among(&R[..1], silent()));
    assert_eq!(scene.takes(), [ejected(R[0], EjectReason::Stalled, 61_100, 2)]);
}

#[test]
fn a_busy_rank_is_not_dead() {
    let mut scene = Scene::new(|_| {});
    let mut tick = 0;
    // A prompt takes 59 s; then a byte of another stream comes.
    scene.pass(600, |_| {
        tick += 1;
        if tick % (590 * 5) < 5 { busy() } else { silent() }
    });
    assert_eq!(scene.takes(), []);
    // No stream waits: clients are idle, or no answer streams.
    scene.pass(600, |_| RankLook::default());
    assert_eq!(scene.takes(), []);
}

#[test]
fn streams_that_come_and_go_leave_no_silence_behind() {
    let mut scene = Scene::new(|_| {});
    for _ in 0..10 {
        scene.pass(50, |_| silent());
        scene.pass(2, |_| RankLook::default());
    }
    assert_eq!(scene.takes(), []);
    // Shards report four times a second, not at each look.
    let mut tick = 0;
    scene.pass(61, |rank| {
        tick += 1;
        if rank == R[0] && tick / 5 % 3 == 0 { silent() } else { RankLook::default() }
    });
    assert_eq!(scene.out(), R[..1]);
}

#[test]
fn a_report_that_moves_is_a_sign_of_life_and_one_that_repeats_itself_is_none() {
    let mut scene = Scene::new(|_| {});
    let mut now = scene.now();
    scene.pass(200, |rank| {
        if rank == R[0] {
            now = now.plus(Duration::from_millis(TICK_MS));
        }
        RankLook { moved_at: Some(now), ..silent() }
    });
    assert_eq!(scene.takes(), [], "it moves with each look");
    let stood = scene.now();
    scene.pass(61, among(&R[..1], RankLook { moved_at: Some(stood), ..silent() }));
    assert_eq!(scene.out(), R[..1]);
}

#[test]
fn unobserved_time_is_no_silence() {
    let mut scene = Scene::new(|_| {});
    scene.pass(30, |_| silent());
    scene.now_ms += 600_000;
    scene.pass(59, |_| silent());
    assert_eq!(scene.takes(), []);
}

#[test]
fn half_of_a_pool_stays_and_one_that_is_alone_too() {
    let mut scene = Scene::new(|_| {});
    scene.pass(300, |_| RankLook { is_tried: false, ..silent() });
    assert_eq!(scene.out(), R[..2]);
    for (share, out_count) in [(0, 0), (24, 0), (25, 1), (100, 3)] {
        let mut scene = Scene::new(|config| config.health.ejected_share_percent = share);
        scene.pass(300, |_| silent());
        assert_eq!(scene.out().len(), out_count, "{share} %");
        assert!(!scene.out().contains(&ALONE) && !scene.out().contains(&PREFILLS));
    }
}

#[test]
fn a_model_that_only_one_rank_serves_keeps_it() {
    let mut scene = Scene::new(|_| {});
    scene.fleet.models.push(test_support::model("adapter", &[0]));
    scene.pass(61, among(&R[..1], silent()));
    assert_eq!(scene.takes(), []);
}

#[test]
fn ranks_come_back_when_too_few_others_are_left() {
    let mut scene = Scene::new(|_| {});
    scene.pass(61, among(&R[..2], silent()));
    assert_eq!(scene.out(), R[..2]);
    scene.takes();
    let down = Worker { state: WorkerState::Down, ..test_support::worker() };
    scene.fleet.workers[3] = down.clone();
    scene.pass(1, among(&R[..2], silent()));
    assert_eq!(scene.out(), R[1..2], "one of three");
    scene.fleet.workers[1] = down;
    scene.pass(1, among(&R[..2], silent()));
    let back = |rank: usize, at| (R[rank], EjectionStep::Readmit, at);
    assert_eq!(scene.takes(), [back(0, 62_100), back(1, 63_100)]);
}

#[test]
fn ranks_with_an_open_breaker_do_not_count() {
    let mut scene = Scene::new(|_| {});
    let open = RankLook { is_restricted: true, ..RankLook::default() };
    scene.pass(61, |rank| match rank {
        RankIndex(0 | 1) => silent(),
        RankIndex(2 | 3) => open,
        _ => busy(),
    });
    assert_eq!(scene.out(), R[..1], "one of the two that serve");
}

#[test]
fn a_stalled_rank_is_tried_ever_less_often_until_it_answers() {
    let mut scene = Scene::new(|_| {});
    scene.pass(61, among(&R[..1], silent()));
    let tried = RankLook { is_tried: true, ..silent() };
    scene.pass(300, among(&R[..1], tried));
    let try_at = |at| (R[0], EjectionStep::LetTry, at);
    let out = |at, pause| ejected(R[0], EjectReason::Stalled, at, pause);
    let wanted = [
        out(61_100, 2),
        try_at(63_100),
        out(123_200, 4),
        try_at(127_200),
        out(187_300, 8),
        try_at(195_300),
        out(255_400, 16),
        try_at(271_400),
        out(331_500, 32),
    ];
    assert_eq!(scene.takes(), wanted);
    scene.pass(32, among(&R[..1], tried));
    scene.takes();
    // No request tries the rank.
    scene.pass(600, among(&R[..1], RankLook::default()));
    assert_eq!(scene.takes(), []);
    scene.pass(1, |_| busy());
    let at = scene.now_ms - 900;
    assert_eq!(scene.takes(), [(R[0], EjectionStep::Readmit, at)]);
    // A quick relapse gets a pause of the same length; after a while the rank is forgiven.
    scene.pass(61, among(&R[..1], silent()));
    assert_eq!(scene.takes()[0].1, ejected(R[0], EjectReason::Stalled, scene.now_ms - 1_000, 64).1);
    scene.pass(601, |_| busy());
    scene.pass(61, among(&R[..1], silent()));
    assert_eq!(scene.takes()[1].1, ejected(R[0], EjectReason::Stalled, scene.now_ms - 1_000, 2).1);
}

/// A request that checks its rank while another request tries the rank must leave too.
#[test]
fn all_that_waits_has_time_to_leave_before_a_trial() {
    let mut scene = Scene::new(|config| config.health.timeout = Duration::from_secs(9));
    scene.pass(75, among(&R[..1], silent()));
    let steps = scene.takes();
    assert_eq!(
        steps,
        [
            (
                R[0],
                EjectionStep::Eject {
                    reason: EjectReason::Stalled,
                    until: NanosSinceStart(70_600_000_000)
                },
                61_100
            ),
            (R[0], EjectionStep::LetTry, 70_600),
        ]
    );
}

#[test]
fn answers_of_what_was_sent_before_bring_a_stalled_rank_back_at_once() {
    let mut scene = Scene::new(|config| config.breaker.open = Duration::from_secs(3_600));
    scene.pass(61, among(&R[..1], silent()));
    scene.takes();
    scene.pass(1, |_| busy());
    assert_eq!(scene.takes(), [(R[0], EjectionStep::Readmit, 62_100)]);
}

#[test]
fn a_trial_that_takes_long_is_not_given_up_while_reports_move() {
    let mut scene = Scene::new(|_| {});
    scene.pass(61, among(&R[..1], silent()));
    scene.takes();
    let mut now = scene.now();
    scene.pass(300, |rank| {
        if rank == R[0] {
            now = now.plus(Duration::from_millis(TICK_MS));
        }
        RankLook { is_tried: rank == R[0], moved_at: Some(now), ..silent() }
    });
    assert_eq!(scene.takes(), [(R[0], EjectionStep::LetTry, 64_000 - 900)]);
}

#[test]
fn a_rank_far_slower_than_its_pool_is_ejected_and_comes_back() {
    let mut scene = Scene::new(|_| {});
    let look = |rank: RankIndex| first_byte(if rank == R[2] { 2_000 } else { 400 }, 4_000);
    scene.pass(12, look);
    let [(rank, EjectionStep::Eject { reason, until }, at)] = scene.takes()[..] else { panic!() };
    assert_eq!((rank, reason), (R[2], EjectReason::Slow));
    assert!((11_000..=12_500).contains(&at), "{at}");
    assert_eq!(until.0 / 1_000_000, at + 30_000);
    scene.pass(40, |_| first_byte(400, 4_000));
    assert_eq!(scene.takes(), [(R[2], EjectionStep::Readmit, at + 30_000)]);
    scene.pass(60, |_| first_byte(400, 4_000));
    assert_eq!(scene.takes(), []);
}

#[test]
fn long_prompts_queues_short_spells_and_few_samples_are_no_fault() {
    let mut scene = Scene::new(|_| {});
    // Ten times the time for ten times the work.
    scene.pass(60, |rank| {
        if rank == R[0] { first_byte(10_000, 100_000) } else { first_byte(1_000, 9_600) }
    });
    assert_eq!(scene.takes(), [], "work");
    let fast = |_| first_byte(1_000, 9_600);
    scene.pass(60, fast);
    scene.pass(5, |rank| if rank == R[0] { first_byte(60_000, 9_600) } else { fast(rank) });
    scene.pass(30, fast);
    assert_eq!(scene.takes(), [], "a spell that ends");
    let mut tick = 0;
    scene.pass(60, |rank| {
        tick += 1;
        match rank {
            RankIndex(0) if tick % 5_000 == 1 => first_byte(90_000, 9_600),
            RankIndex(0) => RankLook::default(),
            _ => fast(rank),
        }
    });
    assert_eq!(scene.takes(), [], "one request");
    scene.pass(60, |rank| first_byte(if rank == R[0] { 90 } else { 1 }, 9_600));
    assert_eq!(scene.takes(), [], "soon enough for anybody");
}

#[test]
fn disabled_ejection_readmits_all_ranks() {
    let off = |config: &mut Config| {
        config.health.stall_timeout = Duration::ZERO;
        config.health.slow_factor = 0;
    };
    let look = |rank: RankIndex| match rank {
        RankIndex(0) => silent(),
        RankIndex(1) => first_byte(60_000, 100),
        _ => first_byte(100, 100),
    };
    let unchecked = |config: &mut Config| config.health.enabled = false;
    for change in [off as fn(&mut Config), unchecked] {
        let mut scene = Scene::new(change);
        scene.pass(100, look);
        assert_eq!(scene.takes(), []);
        let mut scene = Scene::new(|config| {
            config.health.stall_timeout = Duration::from_secs(12);
        });
        scene.pass(14, look);
        assert_eq!(scene.out(), R[..2]);
        scene.takes();
        let mut config = (*scene.fleet.config).clone();
        change(&mut config);
        scene.fleet.config = Arc::new(config);
        scene.pass(1, look);
        let back = |rank| (rank, EjectionStep::Readmit, 15_100);
        assert_eq!(scene.takes(), [back(R[0]), back(R[1])]);
    }
}
