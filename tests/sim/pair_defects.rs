//! What pairs can get wrong, each as one case: ranks that are held while others are waited for. A
//! fault that seeds find needs no case, as in `defects.rs`.

use super::stage::{PREFILL_POOL, Stage, pair};
use forebay_base::limits::QUEUE_RECHECK;
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::Lease;
use forebay_board::{BreakerRules, QueueDemand, QueueLimits, WindowOrigin};
use forebay_config::QueueMode;
use forebay_fleet::worker::{Leg, Requester};
use forebay_mailbox::{Ticket, Verdict};
use forebay_prompt::parse::Reason;
use forebay_router::request::{Action, Judgement, hold_against};
use std::time::Duration;

fn stage(mode: QueueMode, words: &str) -> Stage {
    let places = vec![1; words.split(' ').count()];
    let all: Vec<u16> = (0..).zip(&places).map(|(rank, _)| rank).collect();
    Stage::new(mode, &places, &[&all]).roles(words)
}

fn in_flight(stage: &Stage, rank: u16) -> u32 {
    stage.board.rank(RankIndex(rank)).unwrap().in_flight()
}

fn granted(mut verdicts: Vec<(Ticket, Verdict)>) -> (Ticket, Lease) {
    match (verdicts.pop(), verdicts.pop()) {
        (Some((ticket, Verdict::Granted(lease))), None) => (ticket, lease),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_holds_a_prefill_rank_and_waits_for_a_decode_rank() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = stage(mode, "P P D");
        let ask = stage.any();
        let (decode, prefill) = stage.bind_pair(&ask);
        assert_eq!(decode.rank(), RankIndex(2));
        let waits = stage.wait(&ask);
        assert_eq!(waits.waiter.leg, Leg::Decode);
        let free = RankIndex(1 - prefill.rank().0);
        assert_eq!(in_flight(&stage, free.0), 0, "{mode:?}");
        drop(decode);
        let (ticket, lease) = granted(stage.look());
        assert_eq!((ticket, lease.rank()), (waits.ticket, RankIndex(2)));
        let (_decode, prefill) = pair(stage.tell(waits, Verdict::Granted(lease)).1);
        assert_eq!(prefill.rank(), free);
    }
}

#[test]
fn a_decode_rank_that_has_left_its_model_is_given_back() {
    let mut stage = stage(QueueMode::Endpoint, "P D");
    stage.fleet.ranks[1].room.places_max = 2;
    let ask = stage.any();
    let _pair = stage.bind_pair(&ask);
    let waits = stage.wait(&ask);
    stage.fleet.models[0].ranks.pop();
    let (_, action) = stage.tell(waits, Verdict::Reroute);
    assert!(matches!(action, Action::End(_)), "{action:?}");
    assert_eq!(in_flight(&stage, 1), 1);
}

#[test]
fn a_decode_rank_whose_prefill_rank_is_waited_for_comes_last() {
    let mut stage = stage(QueueMode::Endpoint, "Px Py Dx Dy");
    let one = QueueDemand { bytes: 1, tokens: 1, ..QueueDemand::default() };
    stage.board.queue(QueueIndex(0)).unwrap().join(QueueLimits::NONE, one).unwrap();
    let ask = stage.any();
    assert_eq!(stage.bind_pair(&ask).0.rank(), RankIndex(3));
}

#[test]
fn a_decode_rank_is_looked_at_again_when_its_prefill_may_be_used_again() {
    let mut stage = stage(QueueMode::Pool, "Px Py Dx Dy");
    let ask = stage.any();
    let opened = Duration::from_millis(30);
    let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
    let failure = Judgement::failure(true).against(RankIndex(0), requester, false).unwrap();
    let rules = BreakerRules { failures: 1, open: opened };
    hold_against(&stage.fleet, &stage.board, failure, rules, stage.now);
    let pair = stage.bind_pair(&ask);
    assert_eq!(pair.0.rank(), RankIndex(3), "x has no prefill for now");
    let waits = stage.wait(&ask);
    assert!(stage.look().is_empty());
    // Nothing happens but time; no lease ends, no fleet comes.
    let again = stage.home.look_again_at().expect("somebody looks");
    assert!(again <= stage.now.plus(QUEUE_RECHECK));
    stage.now = again.max(stage.now.plus(opened));
    let (ticket, lease) = granted(stage.look());
    assert_eq!((ticket, lease.rank()), (waits.ticket, RankIndex(2)));
}

#[test]
fn without_queues_nobody_waits_with_half_a_pair() {
    let mut stage = stage(QueueMode::Off, "P D D");
    let ask = stage.any();
    let _pair = stage.bind_pair(&ask);
    assert_eq!(stage.refused(&ask), Some(Reason::RejectedBusy));
    assert_eq!(in_flight(&stage, 1) + in_flight(&stage, 2), 1);
}

#[test]
fn the_window_of_a_prefill_pool_is_its_own_and_closes_with_its_queue() {
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        let mut stage = stage(mode, "P D D");
        let ask = stage.any();
        let (_decode, prefill) = stage.bind_pair(&ask);
        let _waits = stage.wait(&ask);
        let far = NanosSinceStart(u64::MAX);
        for pool in [PoolIndex(0), PREFILL_POOL] {
            stage.board.windows().open(pool, WindowOrigin::Here, stage.now, far);
        }
        drop(prefill);
        let _granted = granted(stage.look());
        let open = |pool| stage.board.windows().open_here_until(pool, stage.now).is_some();
        assert_eq!((open(PoolIndex(0)), open(PREFILL_POOL)), (true, false), "{mode:?}");
    }
}
