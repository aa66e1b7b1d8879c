//! Tests of the judge.

use super::*;
use crate::trust::TrustSample;
use proptest::prelude::*;

const BLOCK: u64 = 16;

/// An answer of a quiet rank.
fn answer(predicted: u64, guessed: u64, found: u64) -> TrustSample {
    TrustSample {
        predicted_tokens: predicted,
        predicted_tokens_max: predicted,
        guessed_tokens: guessed,
        found_tokens: found,
        block_size_tokens: BLOCK,
        is_quiet: true,
        is_bound: false,
    }
}

/// A judge of a fleet, fed answer by answer.
struct Bench {
    judge: ShapeJudge,
    group_count: usize,
}

impl Bench {
    fn new(group_count: usize) -> Self {
        Self { judge: ShapeJudge::default(), group_count }
    }

    fn feed(&mut self, group: usize, sample: TrustSample) {
        let mut grown = [TrustTally::default(); TRUST_GROUPS];
        grown[group] = sample.tally();
        self.judge.observe(&grown, self.group_count);
    }

    /// The same answer, from each group in turn.
    fn feed_all(&mut self, count: u64, sample: TrustSample) {
        let groups = (0..self.group_count).cycle();
        (0..count).zip(groups).for_each(|(_, group)| self.feed(group, sample));
    }

    fn guesses(&self) -> GuessUse {
        self.judge.verdict().guesses
    }
}

const EXACT: TrustSample = TrustSample {
    predicted_tokens: 640,
    predicted_tokens_max: 640,
    guessed_tokens: 600,
    found_tokens: 640,
    block_size_tokens: BLOCK,
    is_quiet: true,
    is_bound: false,
};

#[test]
fn without_reports_nothing_is_learned() {
    let mut bench = Bench::new(4);
    (0..100).for_each(|_| bench.judge.observe(&[TrustTally::default(); TRUST_GROUPS], 4));
    bench.feed_all(100, answer(0, 0, 0));
    assert_eq!(bench.judge.phase(), TrustPhase::Unjudged);
    assert_eq!(bench.judge.verdict(), ShapeTrust::default());
}

#[test]
fn exact_predictions_are_held_without_guesses() {
    let mut bench = Bench::new(4);
    bench.feed_all(PROOF_COUNT + 1, EXACT);
    assert_eq!(bench.judge.phase(), TrustPhase::Held);
    bench.feed_all(10_000, EXACT);
    assert_eq!(bench.judge.verdict(), ShapeTrust::default());
}

/// The fleet of gpt-oss: events hold the system message, and the engine finds the conversation.
#[test]
fn guesses_count_once_engines_find_what_they_say() {
    let mut bench = Bench::new(4);
    bench.feed_all(24, answer(224, 128, 224));
    assert_eq!(bench.judge.phase(), TrustPhase::Watched);
    bench.feed_all(2, answer(224, 290, 288));
    assert_eq!(bench.guesses(), GuessUse::Compared, "two may be chance");
    bench.feed(2, answer(224, 290, 288));
    assert!(bench.judge.verdict().counts_all());
    bench.feed_all(2_000, answer(224, 400, 416));
    assert_eq!(bench.guesses(), GuessUse::Counted);
    assert!(bench.judge.verdict().is_whole());
}

/// A choice by load returns to the holder of a conversation once in 64 turns.
#[test]
fn a_large_fleet_with_a_shared_system_message_learns_too() {
    let mut bench = Bench::new(8);
    for at in 0..64 * 64 {
        let is_back = at % 64 == 63;
        let sample = if is_back { answer(224, 400, 416) } else { answer(224, 128, 224) };
        bench.feed((at * 5 + usize::from(is_back && at % 128 == 127)) % 8, sample);
        if bench.guesses() == GuessUse::Counted {
            return;
        }
    }
    panic!("{:?}", bench.judge);
}

/// Prompts that begin alike may all go to one worker for a while.
#[test]
fn a_worker_with_all_traffic_counts_by_itself() {
    let mut bench = Bench::new(4);
    bench.feed(1, EXACT);
    (0..SIGNS_MIN).for_each(|_| bench.feed(1, answer(224, 400, 416)));
    let trust = bench.judge.verdict();
    assert!(trust.counts_guess(1) && !trust.counts_guess(0), "{trust:?}");
    bench.feed(2, answer(224, 400, 416));
    bench.feed(2, answer(224, 400, 416));
    assert!(bench.judge.verdict().counts_all());
}

#[test]
fn an_odd_worker_switches_nothing_for_its_fleet() {
    let mut bench = Bench::new(4);
    for _ in 0..2_000 {
        bench.feed(3, answer(224, 400, 5_000));
        (0..3).for_each(|group| bench.feed(group, EXACT));
    }
    let trust = bench.judge.verdict();
    assert!(trust.counts_guess(3) && !trust.counts_all(), "{trust:?}");
    assert!((0..3).all(|group| !trust.counts_guess(group)), "{trust:?}");
    for _ in 0..200 {
        bench.feed(3, answer(640, 600, 0));
        (0..3).for_each(|group| bench.feed(group, EXACT));
    }
    let shares = bench.judge.verdict().claim_shares;
    assert!(shares[3] <= 1, "{shares:?}");
    assert_eq!(shares.iter().filter(|share| **share == SHARES).count(), 7, "only its own claims");
}

/// Issue 39: a worker of another chat template got 0.3 % of the requests. Its answers were too few
/// among those of the model for a doubt, and the other workers ended each doubt before its next
/// answer.
#[test]
fn a_worker_with_few_requests_is_judged_by_its_own_answers() {
    let mut bench = Bench::new(4);
    for at in 0..12_000 {
        let is_odd = at % 300 == 299;
        // The system message alone is in its cache, and the guess about it holds.
        let has_guess = bench.guesses() != GuessUse::None;
        let odd = answer(0, if has_guess { 200 } else { 0 }, 208);
        bench.feed(if is_odd { 3 } else { at % 3 }, if is_odd { odd } else { EXACT });
    }
    let trust = bench.judge.verdict();
    assert!(trust.counts_guess(3) && !trust.counts_all(), "{:?}", bench.judge);
    assert!((0..3).all(|group| !trust.counts_guess(group)), "{trust:?}");
    // Restarted with the template of its siblings: its own answers end the verdict.
    bench.feed_all(4 * RECOVERY_COUNT, EXACT);
    assert_ne!(bench.guesses(), GuessUse::Counted);
}

/// Weights by tokens let four prompts of 100,000 tokens outweigh all other prompts.
#[test]
fn few_long_prompts_of_a_caller_decide_nothing_for_all() {
    let mut bench = Bench::new(1);
    for at in 0..128 {
        let is_odd = at % 32 == 31;
        bench.feed(0, if is_odd { answer(100_000, 0, 0) } else { answer(1_000, 0, 1_000) });
        assert_eq!(bench.judge.verdict().claim_shares[0], SHARES, "answer {at}");
    }
    // As many short ones as honest ones do shrink the claims.
    (0..128).for_each(|_| bench.feed(0, answer(1_000, 0, 0)));
    assert!(bench.judge.verdict().claim_shares[0] < SHARES);
}

#[test]
fn guesses_end_when_the_events_suffice_again() {
    let mut bench = Bench::new(2);
    bench.feed_all(20, answer(224, 400, 416));
    assert_eq!(bench.guesses(), GuessUse::Counted);
    bench.feed_all(RECOVERY_COUNT, EXACT);
    assert_eq!(bench.judge.phase(), TrustPhase::Watched);
    bench.feed_all(PROOF_COUNT, EXACT);
    assert_eq!(bench.judge.phase(), TrustPhase::Held);
    // And again: a deploy changes what engines render.
    bench.feed_all(PAUSE_FIRST, EXACT);
    bench.feed_all(10, answer(224, 0, 416));
    assert_eq!(bench.guesses(), GuessUse::Compared);
    bench.feed_all(10, answer(224, 400, 416));
    assert_eq!(bench.guesses(), GuessUse::Counted);
}

#[test]
fn guesses_end_when_they_prove_wrong() {
    let mut bench = Bench::new(2);
    bench.feed_all(8, answer(224, 400, 416));
    assert_eq!(bench.guesses(), GuessUse::Counted);
    // Evicted within the life of a guess.
    bench.feed_all(60, answer(224, 400, 224));
    assert_ne!(bench.guesses(), GuessUse::Counted);
    bench.feed_all(1_000, answer(224, 400, 224));
    assert_ne!(bench.guesses(), GuessUse::Counted);
}

#[test]
fn claims_shrink_to_what_engines_serve_and_grow_again() {
    let mut bench = Bench::new(2);
    bench.feed_all(2, answer(128, 0, 64));
    assert!(bench.judge.verdict().is_whole(), "too few");
    bench.feed_all(40, answer(128, 0, 64));
    let trust = bench.judge.verdict();
    assert_eq!((trust.share(0, 1_000), trust.share(1, 1_000)), (500, 500));
    assert_eq!(trust.share(2, 1_000), 1_000, "no evidence");
    bench.feed_all(40, answer(128, 0, 16));
    assert!(bench.judge.verdict().share(0, 1_000) <= 375);
    bench.feed_all(2_000, answer(128, 0, 128));
    assert!(bench.judge.verdict().is_whole());
}

#[test]
fn busy_ranks_and_upper_bounds_prove_nothing() {
    let mut bench = Bench::new(2);
    bench.feed_all(2, EXACT);
    bench.feed_all(500, TrustSample { is_quiet: false, ..answer(64, 400, 416) });
    bench.feed_all(500, TrustSample { is_quiet: false, ..answer(640, 0, 0) });
    bench.feed_all(500, TrustSample { is_bound: true, ..answer(640, 0, 0) });
    let lower = TrustSample { predicted_tokens_max: 900, ..answer(640, 0, 900) };
    bench.feed_all(500, lower);
    assert_ne!(bench.guesses(), GuessUse::Counted);
    assert!(bench.judge.verdict().is_whole());
}

/// Doubts that prove wrong become rare: guesses are stored for a small part of the answers.
#[test]
fn doubts_that_prove_wrong_cost_less_and_less() {
    let mut bench = Bench::new(2);
    let mut watched = 0;
    let count = 400_000;
    for at in 0..count {
        // A few percent with more in the cache, where no guess is above the events.
        bench.feed(at % 2, if at % 31 < 2 { answer(64, 0, 640) } else { EXACT });
        watched += usize::from(bench.guesses() == GuessUse::Compared);
    }
    assert!(watched * 10 < count, "{watched}");
}

fn any_sample() -> impl Strategy<Value = TrustSample> {
    let tokens = || prop_oneof![Just(0_u64), 0..2_000_u64, Just(1 << 14), Just(u64::MAX)];
    let parts = (tokens(), tokens(), tokens(), tokens(), any::<bool>(), any::<bool>());
    parts.prop_map(|parts| TrustSample {
        predicted_tokens: parts.0,
        predicted_tokens_max: parts.1,
        guessed_tokens: parts.2,
        found_tokens: parts.3,
        block_size_tokens: BLOCK,
        is_quiet: parts.4,
        is_bound: parts.5,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Whatever engines report, exact answers bring the default back.
    #[test]
    fn every_verdict_is_forgiven(
        samples in proptest::collection::vec((0..TRUST_GROUPS, any_sample()), 0..400),
    ) {
        let mut bench = Bench::new(TRUST_GROUPS);
        for (group, sample) in samples {
            bench.feed(group, sample);
            let trust = bench.judge.verdict();
            prop_assert!((0..TRUST_GROUPS).all(|group| trust.share(group, 900) <= 900));
        }
        // Counts fade by half after each 64 answers of a group.
        bench.feed_all(12_000, EXACT);
        prop_assert_eq!(bench.judge.verdict(), ShapeTrust::default());
    }

    /// Reports within the slack of the prediction never add a guess and never shrink a claim.
    #[test]
    fn predictions_that_hold_change_nothing(
        answers in proptest::collection::vec((0..4_usize, 0..200_u64, -1..=1_i64), 1..2_000),
    ) {
        let mut bench = Bench::new(4);
        for (group, blocks, off) in answers {
            let predicted = blocks * BLOCK;
            let found = predicted.saturating_add_signed(off * BLOCK.cast_signed());
            bench.feed(group, answer(predicted, predicted.saturating_sub(100), found));
            prop_assert_ne!(bench.guesses(), GuessUse::Counted);
            prop_assert!(bench.judge.verdict().is_whole());
        }
    }
}
