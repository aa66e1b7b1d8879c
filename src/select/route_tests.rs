//! Routes and pairs over small fleets.

use super::*;
use forebay_base::{DpRank, NanosSinceStart, PoolIndex, RankIndex, WorkerIndex};
use forebay_board::account::Lease;
use forebay_board::{
    BreakerRules, FailureScope, FailureWeight, LoadBoard, LoadReports, RankFailure, ShardBoard,
};
use forebay_config::{Config, FlowConfig, Policy, QueueMode};
use forebay_fleet::worker::test_support::REQUESTER;
use forebay_fleet::worker::{
    Bootstrap, Dialect, FleetSnapshot, KvTransfer, Leg, LimitSource, Model, ModelKind, Pool, Rank,
    Role, RoomLimits, SessionKey, SessionSeat, TierRanks, Worker, WorkerGeneration, WorkerState,
};
use forebay_index::{KeySeed, ModelRoots, Overlap, Overlaps, PrefixMarks};
use forebay_mailbox::Pin;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const NOW: NanosSinceStart = NanosSinceStart(1_000);

struct Scene {
    fleet: FleetSnapshot,
    board: ShardBoard,
    overlaps: Overlaps,
    tried: Vec<RankIndex>,
    pin: Option<Pin>,
    prompt_bytes: u64,
    session: Option<SessionKey>,
    turn: RoundRobin,
    random: fastrand::Rng,
}

/// A rank per word: `b`oth, `p`refill, `d`ecode; upper case: SGLang, lower case: vLLM; then its
/// label, if any.
fn scene(words: &str) -> Scene {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut fleet = FleetSnapshot::default();
    for (number, word) in (0..).zip(words.split(' ')) {
        let (kind, label) = word.split_at(1);
        let is_sglang = kind.chars().all(char::is_uppercase);
        fleet.workers.push(Worker {
            name: word.into(),
            authority: word.into(),
            address: nowhere,
            dialect: if is_sglang { Dialect::Sglang } else { Dialect::Vllm },
            state: WorkerState::Up,
            api_key: None,
            generation: WorkerGeneration::default(),
            connector: None,
        });
        let bootstrap = Bootstrap { host: "p".into(), port: None, dp_size: 1, follows_room: false };
        let kv_transfer =
            if is_sglang { KvTransfer::Bootstrap(bootstrap) } else { KvTransfer::TwoPhase };
        let role = match kind {
            "b" | "B" => Role::Both,
            "p" | "P" => Role::Prefill,
            _ => Role::Decode,
        };
        fleet.ranks.push(Rank {
            worker: WorkerIndex(number),
            dp_rank: DpRank(0),
            dp_size: 1,
            address: nowhere,
            block_size_tokens: 16,
            kv_block_count: 0,
            running_max: 0,
            limit_source: LimitSource::Declared,
            kv_feed_live: false,
            feed_suspicion: None,
            losses: None,
            role,
            kv_transfer: (role == Role::Prefill).then_some(kv_transfer),
            kv_flow: None,
            page_tokens: None,
            topology: (!label.is_empty()).then(|| label.into()),
            room: RoomLimits { places_max: 1, ..RoomLimits::default() },
            pool: PoolIndex(if role == Role::Prefill { 1_024 } else { 0 }),
            tiers: TierRanks::default(),
            seat: SessionSeat::of(&format!("w{number}"), DpRank(0)),
            used_as: None,
        });
    }
    let all: Vec<_> = (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index).collect();
    fleet.models.push(Model {
        name: "m".into(),
        card_json: "".into(),
        pool: PoolIndex(0),
        prefill_pool: Some(PoolIndex(1_024)),
        ranks: all.clone(),
        roots: ModelRoots::new(KeySeed(1), "m"),
        text: None,
        kind: ModelKind::Base,
    });
    fleet.pools = vec![Pool { ranks: all, kv_tokens: 0 }];
    Scene {
        fleet,
        board: ShardBoard::from(LoadBoard::new()),
        overlaps: Overlaps::new(64),
        tried: Vec::new(),
        pin: None,
        prompt_bytes: 4_000,
        session: None,
        turn: RoundRobin::default(),
        random: fastrand::Rng::with_seed(1),
    }
}

impl Scene {
    fn model(&self) -> &Model {
        &self.fleet.models[0]
    }

    fn route(&self, uncached_tokens_min: u64, falls_back: bool, splits: bool) -> String {
        let reports = LoadReports::new(Duration::from_secs(5));
        let asked = RouteRequest {
            fleet: &self.fleet,
            model: self.model(),
            request: self.request(&reports, Leg::Whole),
            pin: self.pin,
            tried: &self.tried,
            ignores_pauses: false,
            rules: RouteRules { uncached_tokens_min, falls_back },
        };
        match route(&asked, &mut Candidates::default(), |_| splits) {
            Ok(Route::Pair) => "pair".to_owned(),
            Ok(Route::Whole(because)) => format!("whole: {}", because.as_str()),
            Err(why) => format!("refused: {}", why.as_str()),
        }
    }

    fn request<'a>(&'a self, reports: &'a LoadReports, leg: Leg) -> PickRequest<'a> {
        PickRequest {
            requester: REQUESTER,
            leg,
            ranks: &[],
            board: &self.board,
            reports,
            now: NOW,
            overlaps: &self.overlaps,
            fleet: &self.fleet,
            prices: Prices::LEAST,
            prompt: PromptSize::new(self.prompt_bytes, 4.0),
            marks: &PrefixMarks::NONE,
            session: self.session,
            anchor: None,
        }
    }

    /// Binds a single leg.
    fn bind(&mut self, policy: Policy, leg: Leg, near: Option<RankIndex>) -> Option<Lease> {
        let reports = LoadReports::new(Duration::from_secs(5));
        let mut turn = std::mem::take(&mut self.turn);
        let mut random = self.random.fork();
        let mut candidates = Candidates::default();
        let seeking =
            RankSearch { requester: REQUESTER, leg, near, pin: self.pin, tried: &self.tried };
        let _ = candidates.collect(&self.fleet, self.model(), &self.board, seeking, NOW);
        let lease = Binder {
            fleet: &self.fleet,
            board: &self.board,
            reports: &reports,
            policy,
            now: NOW,
            turn: &mut turn,
            random: &mut random,
        }
        .bind(&self.request(&reports, leg), 10, &mut candidates);
        self.turn = turn;
        lease
    }

    fn decode(&mut self) -> Option<u16> {
        self.bind(Policy::Kv, Leg::Decode, None).map(|lease| lease.rank().0)
    }

    fn down(&mut self, rank: usize) -> &mut Self {
        self.fleet.workers[rank].state = WorkerState::Down;
        self
    }

    fn queue(&mut self, mode: QueueMode) {
        let mut flow = FlowConfig::default();
        flow.queue.mode = mode;
        self.fleet.config = Arc::new(Config { flow, ..Config::default() });
    }
}

#[test]
fn a_fleet_without_roles_serves_everything_whole() {
    assert_eq!(scene("b B b").route(0, false, true), "whole: no_roles");
}

#[test]
fn only_what_leaves_enough_to_compute_is_split() {
    // 1,000 tokens; the decode rank of vLLM holds 900, the prefill rank everything.
    let mut scene = scene("p d");
    scene.overlaps.record(RankIndex(0), Overlap { blocks: 0, bytes: 4_000 });
    scene.overlaps.record(RankIndex(1), Overlap { blocks: 0, bytes: 3_600 });
    assert_eq!(scene.route(0, true, true), "pair");
    assert_eq!(scene.route(100, true, true), "pair", "just enough");
    assert_eq!(scene.route(101, true, true), "whole: few_uncached_tokens");
    scene.tried.push(RankIndex(1));
    assert_eq!(scene.route(101, true, true), "refused: no_decode");
}

#[test]
fn a_short_prompt_needs_a_rank_that_can_take_it_whole() {
    let mut scene = scene("P D B");
    scene.prompt_bytes = 4;
    assert_eq!(scene.route(10, true, true), "whole: few_uncached_tokens");
    assert_eq!(scene.down(2).route(10, true, true), "pair", "no plain request for SGLang's decode");
}

#[test]
fn a_request_that_cannot_be_split_goes_whole_or_is_refused() {
    assert_eq!(scene("p d").route(0, false, false), "whole: cannot_split");
    assert_eq!(scene("P D B").route(0, false, false), "whole: cannot_split");
    assert_eq!(scene("P D").route(0, true, false), "refused: cannot_split");
    assert_eq!(scene("P D B").down(2).route(0, true, false), "refused: cannot_split");
    assert_eq!(scene("p d").down(0).route(0, false, false), "whole: cannot_split");
}

#[test]
fn without_prefill_the_fallback_decides() {
    assert_eq!(scene("p d").down(0).route(0, true, true), "whole: no_prefill");
    assert_eq!(scene("p d").down(0).route(0, false, true), "refused: no_prefill");
    assert_eq!(scene("P D").down(0).route(0, true, true), "refused: no_prefill");
    assert_eq!(scene("P D B").down(0).route(0, true, true), "whole: no_prefill");
    // Without the fallback, decode ranks are spared; ranks for whole requests may serve.
    assert_eq!(scene("p d b").down(0).route(0, false, true), "pair");
    let mut unregistered = scene("P D");
    unregistered.fleet.ranks[0].kv_transfer = None;
    assert_eq!(unregistered.route(0, true, true), "refused: no_prefill");
}

#[test]
fn without_decode_other_ranks_serve_whole() {
    assert_eq!(scene("p d").down(1).route(0, true, true), "refused: no_decode");
    assert_eq!(scene("p d b").down(1).route(0, false, true), "whole: no_decode");
}

#[test]
fn pairs_are_near_and_of_one_engine() {
    assert_eq!(scene("px dy").route(0, false, true), "refused: not_near");
    assert_eq!(scene("px dy").route(0, true, true), "whole: not_near");
    assert_eq!(scene("px d").route(0, false, true), "pair", "without a label all is near");
    assert_eq!(scene("P d").route(0, false, true), "refused: not_near");
    assert_eq!(scene("px dy dx").down(2).route(0, false, true), "refused: not_near");
}

#[test]
fn a_request_for_a_rank_number_goes_where_such_a_rank_answers() {
    let mut scene = scene("P D D B");
    scene.fleet.ranks[2].dp_rank = DpRank(1);
    scene.pin = Some(Pin::Number(DpRank(1)));
    assert_eq!(scene.route(0, true, true), "pair");
    assert_eq!(scene.decode(), Some(2));
    let prefill = scene.bind(Policy::Kv, Leg::Prefill, Some(RankIndex(2)));
    assert_eq!(prefill.map(|lease| lease.rank()), Some(RankIndex(0)), "that only computes");
    assert_eq!(scene.down(2).route(0, true, true), "refused: no_decode");
    scene.pin = Some(Pin::Number(DpRank(0)));
    assert_eq!(scene.route(0, true, true), "pair");
}

#[test]
fn a_decode_rank_is_chosen_by_the_prefill_that_it_reaches() {
    let mut scene = scene("Px Py Dx Dy Dz");
    scene.overlaps.record(RankIndex(1), Overlap { blocks: 0, bytes: 4_000 });
    for _ in 0..20 {
        assert_eq!(scene.decode(), Some(3), "where the prompt is known");
    }
    // Blocks that the decode ranks hold save no prefill work.
    scene.overlaps.record(RankIndex(2), Overlap { blocks: 0, bytes: 4_000 });
    assert_eq!(scene.decode(), Some(3));
    scene.board.rank(RankIndex(1)).unwrap().add_prefill(1_001);
    assert_eq!(scene.decode(), Some(2), "its queue is longer than what it saves");
    scene.board.rank(RankIndex(1)).unwrap().sub_prefill(1_001);
    let prefill = scene.bind(Policy::Kv, Leg::Prefill, Some(RankIndex(3))).unwrap();
    assert_eq!((prefill.rank(), scene.decode()), (RankIndex(1), Some(2)), "no room in y");
    let other = scene.bind(Policy::Kv, Leg::Prefill, Some(RankIndex(2))).unwrap();
    assert!(matches!(scene.decode(), Some(2 | 3)), "it may wait for its prefill");
    scene.queue(QueueMode::Off);
    assert_eq!(scene.decode(), None, "nobody waits");
    drop((prefill, other));
    assert_eq!(scene.down(0).down(1).decode(), None, "z is alone, x and y have lost theirs");
}

#[test]
fn a_rank_for_whole_requests_replaces_a_pair_only_when_no_pair_has_room() {
    let mut scene = scene("P D B");
    assert_eq!(scene.decode(), Some(1));
    let prefill = scene.bind(Policy::Kv, Leg::Prefill, Some(RankIndex(1))).unwrap();
    let whole = scene.bind(Policy::Kv, Leg::Decode, None).unwrap();
    assert_eq!(whole.rank(), RankIndex(2), "the prefill rank is full");
    let load = scene.board.rank(RankIndex(2)).unwrap();
    assert_eq!(load.prefill_tokens(), 1_000, "it computes the prompt itself");
    assert_eq!(scene.decode(), Some(1), "it will wait for its prefill");
    drop((prefill, whole));
    let decode = scene.bind(Policy::Kv, Leg::Decode, None).unwrap();
    assert_eq!((decode.rank(), scene.decode()), (RankIndex(1), Some(2)));
}

/// A worker was back, and still paused, when the second worker ended: requests that the second
/// worker had refused got 502.
#[test]
fn a_request_that_failed_elsewhere_gets_the_last_rank_though_it_is_paused() {
    let mut scene = scene("b b b");
    let refused = RankFailure {
        rank: RankIndex(0),
        requester: REQUESTER,
        scope: FailureScope::Rank,
        weight: FailureWeight::Failed,
        status: 0,
        is_trial: false,
    };
    let rules = BreakerRules { failures: 1, open: Duration::from_secs(1) };
    scene.board.hold_against(refused, [1, 2].map(RankIndex).into_iter(), rules, NOW);
    let bind = |scene: &mut Scene| scene.bind(Policy::Kv, Leg::Whole, None).map(|it| it.rank().0);
    scene.tried.push(RankIndex(1));
    assert_eq!(bind(&mut scene), Some(2), "the one that is not paused");
    scene.tried.push(RankIndex(2));
    assert_eq!(bind(&mut scene), Some(0), "the last one");
    scene.tried.push(RankIndex(0));
    assert_eq!(bind(&mut scene), None, "each once");
}

#[test]
fn no_half_of_a_pair_is_bound_to_a_worker_that_is_gone() {
    let mut scene = scene("P D D");
    let near = Some(RankIndex(1));
    assert!(scene.bind(Policy::Kv, Leg::Prefill, near).is_some());
    assert!(scene.down(1).bind(Policy::Kv, Leg::Prefill, near).is_none());
}

#[test]
fn all_policies_use_all_pairs() {
    for policy in [
        Policy::Kv,
        Policy::Session,
        Policy::LeastLoaded,
        Policy::PowerOfTwo,
        Policy::RoundRobin,
        Policy::Random,
    ] {
        let mut scene = scene("P P D D");
        let mut decodes = [0; 4];
        let mut prefills = [0; 4];
        for seed in 0..40 {
            scene.random = fastrand::Rng::with_seed(seed);
            let decode = scene.bind(policy, Leg::Decode, None).unwrap();
            let prefill = scene.bind(policy, Leg::Prefill, Some(decode.rank())).unwrap();
            decodes[decode.rank().index()] += 1;
            prefills[prefill.rank().index()] += 1;
        }
        assert!(decodes[2] > 5 && decodes[3] > 5, "{policy:?} {decodes:?}");
        assert!(prefills[0] > 5 && prefills[1] > 5, "{policy:?} {prefills:?}");
    }
}

#[test]
fn the_rank_that_computes_the_prompt_is_the_anchor() {
    let mut scene = scene("P P P D D");
    let mut sessions = [0; 3];
    for session in 0..60 {
        scene.session = SessionKey::of(format!("s{session}").as_bytes());
        let mut prefill = |seed| {
            scene.random = fastrand::Rng::with_seed(seed);
            let decode = scene.bind(Policy::Session, Leg::Decode, None).unwrap();
            scene.bind(Policy::Session, Leg::Prefill, Some(decode.rank())).unwrap().rank()
        };
        let anchor = prefill(0);
        assert!((1..10).all(|seed| prefill(seed) == anchor), "session {session}");
        sessions[anchor.index()] += 1;
    }
    assert!(sessions.iter().all(|&count| count > 5), "{sessions:?}");
}

#[test]
fn the_policies_that_look_at_load_look_at_both_legs() {
    for policy in [Policy::LeastLoaded, Policy::Kv] {
        let mut scene = scene("Px Py Dx Dy");
        for rank in &mut scene.fleet.ranks {
            rank.room = RoomLimits::default();
        }
        let _busy = scene.bind(policy, Leg::Prefill, Some(RankIndex(2))).unwrap();
        for _ in 0..20 {
            let decode = scene.bind(policy, Leg::Decode, None).unwrap();
            assert_eq!(decode.rank(), RankIndex(3), "{policy:?}");
        }
    }
}
