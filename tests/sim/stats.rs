//! How much of everything happened: a simulator that never does a thing proves nothing about it.

use super::request::Answer;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) steps: u64,
    pub(crate) bound: u64,
    pub(crate) waited: u64,
    pub(crate) granted: u64,
    pub(crate) rerouted: u64,
    /// Grants that found their request gone.
    pub(crate) returned: u64,
    /// Messages that a full ring refused.
    pub(crate) kept: u64,
    /// Turns of a home after which a rank is kept for one who is short.
    pub(crate) kept_ranks: u64,
    pub(crate) quiet_checks: u64,
    pub(crate) opened: u64,
    pub(crate) closed_early: u64,
    /// Refused by a full queue that was not full for others.
    pub(crate) turned_alone: u64,
    /// Requests that were routed whole though their model has other ranks.
    pub(crate) stayed_whole: u64,
    /// Requests that no rank could take for want of a pair.
    pub(crate) no_pair: u64,
    pub(crate) pairs: u64,
    pub(crate) instead_of_a_pair: u64,
    pub(crate) waited_for_decode: u64,
    pub(crate) waited_for_prefill: u64,
    /// Those whose decode rank, or all prefill ranks near it, went while they waited.
    pub(crate) lost_its_pair: u64,
    pub(crate) prefill_failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) answers: BTreeMap<Answer, u64>,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.bound += other.bound;
        self.waited += other.waited;
        self.granted += other.granted;
        self.rerouted += other.rerouted;
        self.returned += other.returned;
        self.kept += other.kept;
        self.kept_ranks += other.kept_ranks;
        self.quiet_checks += other.quiet_checks;
        self.opened += other.opened;
        self.closed_early += other.closed_early;
        self.turned_alone += other.turned_alone;
        self.stayed_whole += other.stayed_whole;
        self.no_pair += other.no_pair;
        self.pairs += other.pairs;
        self.instead_of_a_pair += other.instead_of_a_pair;
        self.waited_for_decode += other.waited_for_decode;
        self.waited_for_prefill += other.waited_for_prefill;
        self.lost_its_pair += other.lost_its_pair;
        self.prefill_failed += other.prefill_failed;
        self.cancelled += other.cancelled;
        for (answer, count) in &other.answers {
            *self.answers.entry(*answer).or_default() += count;
        }
    }

    /// Least of all figures.
    pub(crate) fn least(&self) -> u64 {
        let figures = [
            self.bound,
            self.waited,
            self.granted,
            self.rerouted,
            self.returned,
            self.kept,
            self.kept_ranks,
            self.quiet_checks,
            self.opened,
            self.closed_early,
            self.turned_alone,
            self.stayed_whole,
            self.no_pair,
            self.pairs,
            self.instead_of_a_pair,
            self.waited_for_decode,
            self.waited_for_prefill,
            self.lost_its_pair,
            self.prefill_failed,
            self.cancelled,
        ];
        let all = [
            Answer::Served,
            Answer::Failed,
            Answer::Gone,
            Answer::Window,
            Answer::NoRoom,
            Answer::Full,
            Answer::TooLate,
            Answer::NoWorker,
            Answer::Late,
            Answer::Draining,
        ];
        let answers = all.iter().map(|answer| self.answers.get(answer).copied().unwrap_or(0));
        figures.into_iter().chain(answers).min().unwrap_or(0)
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} steps: {} bound at once, {} waited, {} granted, {} rerouted, {} grants returned, {} messages kept, \
             {} turns with kept ranks, {} quiet moments, windows {} opened, {} closed early, {} turned alone; {} stayed whole, {} without a pair, {} pairs, {} whole \
             instead, {} waited for decode, {} for prefill, {} lost a half, {} prefills failed, {} cancelled; answers {:?}",
            self.steps,
            self.bound,
            self.waited,
            self.granted,
            self.rerouted,
            self.returned,
            self.kept,
            self.kept_ranks,
            self.quiet_checks,
            self.opened,
            self.closed_early,
            self.turned_alone,
            self.stayed_whole,
            self.no_pair,
            self.pairs,
            self.instead_of_a_pair,
            self.waited_for_decode,
            self.waited_for_prefill,
            self.lost_its_pair,
            self.prefill_failed,
            self.cancelled,
            self.answers
        )
    }
}
