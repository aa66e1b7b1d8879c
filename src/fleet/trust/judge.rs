//! Judge of the predictions for a shape of request. Input: counts of compared answers. Output: a
//! verdict for the choice of a rank.
//!
//! | phase | guesses | next phase |
//! |---|---|---|
//! | unjudged | none | watched: the first compared answer |
//! | watched | compared | finds more: reports match the guesses. Held: events confirm guesses |
//! | held | none | watched: reports are above the events |
//! | finds more | counted | watched: events confirm guesses, or guesses prove wrong |
//!
//! Guesses count for the groups of workers with such answers, and for all workers once a second
//! group has them. Claims shrink by themselves, for each group of workers, while reports are below
//! the events. The evidence comes from answers of ranks that computed nothing else, so that no
//! queue explains a difference.

use super::model_trust::{ALL_GROUPS, GuessUse, SHARES, ShapeTrust, bit};
use super::tally::{TRUST_GROUPS, TrustCount, TrustTally};

/// Answers that begin a phase. Fewer may be chance.
const SIGNS_MIN: u64 = 3;
/// Signs among this many other answers are chance.
const ANSWERS_PER_SIGN: u64 = 128;
/// Signs of a group that change the choice for the group, and signs outside of the group with most
/// that change the choice for all: an odd worker decides for itself alone.
const GROUP_SIGNS_MIN: u64 = 2;
/// Confirmed guesses in a row that prove the events.
const PROOF_COUNT: u64 = 256;
/// Confirmed guesses in a row that end guesses.
const RECOVERY_COUNT: u64 = 128;
/// Compared answers after which a shape without returning prompts counts as held.
const WATCHED_MAX: u64 = 2_048;
/// Answers of a doubted group that settle the doubt.
const DOUBT_ANSWERS: u64 = 16;
/// Wrong guesses that end guesses, if they are more than twice the right guesses.
const WRONG_MIN: u64 = 16;
/// Answers of a group after which its older answers count by half.
const WINDOW_COUNT: u64 = 128;
/// Answers with less that shrink the claims of a group.
const LESS_MIN: u64 = 4;
/// First pause between two doubts, in answers. Doubles with each doubt that proves wrong.
const PAUSE_FIRST: u64 = 1_024;
const PAUSE_MAX: u64 = 1 << 20;

/// Phase of a [`ShapeJudge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrustPhase {
    #[default]
    Unjudged,
    Watched,
    Held,
    FindsMore,
}

/// Evidence and verdict for requests of a shape.
#[derive(Clone, Debug)]
pub struct ShapeJudge {
    phase: TrustPhase,
    /// Recent counts of each group.
    groups: [TrustTally; TRUST_GROUPS],
    claim_shares: [u8; TRUST_GROUPS],
    /// Groups with guesses that count.
    counted_groups: u8,
    /// Confirmed guesses of each group since its last other answer.
    confirmed_runs: [u64; TRUST_GROUPS],
    /// Compared answers of each group since the phase began.
    phase_samples: [u64; TRUST_GROUPS],
    /// Groups with signs that began the doubt. The doubt waits for answers of these groups.
    doubted_groups: u8,
    /// Answers that a doubt has to wait for.
    pause: u64,
}

impl Default for ShapeJudge {
    fn default() -> Self {
        Self {
            phase: TrustPhase::default(),
            groups: [TrustTally::default(); TRUST_GROUPS],
            claim_shares: [SHARES; TRUST_GROUPS],
            counted_groups: 0,
            confirmed_runs: [0; TRUST_GROUPS],
            phase_samples: [0; TRUST_GROUPS],
            doubted_groups: 0,
            pause: 0,
        }
    }
}

impl ShapeJudge {
    #[must_use]
    pub const fn phase(&self) -> TrustPhase {
        self.phase
    }

    /// Recent counts of all groups.
    #[must_use]
    pub fn total(&self) -> TrustTally {
        let mut total = TrustTally::default();
        self.groups.iter().for_each(|group| total.add(group));
        total
    }

    /// The verdict for shards.
    #[must_use]
    pub const fn verdict(&self) -> ShapeTrust {
        let guesses = match self.phase {
            TrustPhase::Unjudged | TrustPhase::Held => GuessUse::None,
            TrustPhase::Watched => GuessUse::Compared,
            TrustPhase::FindsMore => GuessUse::Counted,
        };
        let counted_groups = self.counted_groups;
        let claim_shares = self.claim_shares;
        ShapeTrust { guesses, counted_groups, claim_shares, is_logged: false }
    }

    /// Adds the counts since the last call. `group_count`: groups of workers that serve the model.
    pub fn observe(&mut self, grown: &[TrustTally; TRUST_GROUPS], group_count: usize) {
        if grown.iter().all(|grown| grown.get(TrustCount::Samples) == 0) {
            return;
        }
        let counts = self.groups.iter_mut().zip(&mut self.confirmed_runs);
        for (((group, run), samples), grown) in counts.zip(&mut self.phase_samples).zip(grown) {
            group.add(grown);
            *samples = samples.saturating_add(grown.get(TrustCount::Samples));
            let others = grown.get(TrustCount::GuessRight) + grown.get(TrustCount::More);
            *run = match others {
                0 => run.saturating_add(grown.get(TrustCount::Confirmed)),
                _ => 0,
            };
        }
        let next = self.next_phase();
        let counts = next.unwrap_or(self.phase) == TrustPhase::FindsMore;
        self.counted_groups = if counts { self.next_groups(group_count) } else { 0 };
        if let Some(next) = next {
            self.enter(next);
        }
        for (group, share) in self.groups.iter_mut().zip(&mut self.claim_shares) {
            *share = share_of(group, *share);
            if group.get(TrustCount::Samples) >= WINDOW_COUNT {
                group.fade();
            }
        }
        debug_assert!(self.claim_shares.iter().all(|share| *share <= SHARES), "above the whole");
    }

    fn next_phase(&self) -> Option<TrustPhase> {
        let total = self.total();
        let right = total.get(TrustCount::GuessRight);
        let wrong = total.get(TrustCount::GuessWrong);
        match self.phase {
            TrustPhase::Unjudged => Some(TrustPhase::Watched),
            TrustPhase::Watched => {
                let is_right = |tally: &TrustTally| {
                    is_sign(tally, TrustCount::GuessRight, TrustCount::Confirmed)
                        && tally.get(TrustCount::GuessRight) >= tally.get(TrustCount::GuessWrong)
                };
                let is_proven = sum(&self.confirmed_runs) >= PROOF_COUNT
                    || sum(&self.phase_samples) >= WATCHED_MAX;
                match self.is_seen(is_right) {
                    true => Some(TrustPhase::FindsMore),
                    false => (is_proven && !self.awaits_answers()).then_some(TrustPhase::Held),
                }
            }
            TrustPhase::Held => {
                let is_more =
                    |tally: &TrustTally| is_sign(tally, TrustCount::More, TrustCount::Samples);
                let is_due = sum(&self.phase_samples) >= self.pause;
                (is_due && self.is_seen(is_more)).then_some(TrustPhase::Watched)
            }
            TrustPhase::FindsMore => {
                let is_wrong = wrong >= WRONG_MIN && wrong > right.saturating_mul(2);
                // Other groups confirm their guesses whatever these groups find.
                let counted = self.confirmed_runs.iter().enumerate();
                let counted = counted.filter(|(group, _)| self.counted_groups & bit(*group) != 0);
                let confirmed = counted.fold(0_u64, |all, (_, run)| all.saturating_add(*run));
                let is_over = is_wrong || confirmed >= RECOVERY_COUNT;
                is_over.then_some(TrustPhase::Watched)
            }
        }
    }

    /// Holds the rule for all answers, or for the answers of a group? An odd worker gets few
    /// requests: its answers are too few among all answers.
    fn is_seen(&self, rule: impl Fn(&TrustTally) -> bool) -> bool {
        rule(&self.total()) || self.groups.iter().any(rule)
    }

    /// Has a group that began the doubt too few answers since then?
    fn awaits_answers(&self) -> bool {
        let samples = self.phase_samples.iter().enumerate();
        let mut doubted = samples.filter(|(group, _)| self.doubted_groups & bit(*group) != 0);
        sum(&self.phase_samples) < DOUBT_ANSWERS * WATCHED_MAX
            && doubted.any(|(_, samples)| *samples < DOUBT_ANSWERS)
    }

    /// Groups with most answers above their events.
    fn odd_groups(&self) -> u8 {
        let groups = self.groups.iter().enumerate();
        let odd = groups.filter(|(_, group)| {
            is_sign(group, TrustCount::More, TrustCount::Samples)
                && group.get(TrustCount::More) * 2 >= group.get(TrustCount::Samples)
        });
        odd.fold(0, |groups, (at, _)| groups | bit(at))
    }

    /// Groups with guesses that count now: groups with signs of their own, and all groups once
    /// enough signs come from other groups than the first.
    fn next_groups(&self, group_count: usize) -> u8 {
        let signs = |group: &TrustTally| group.get(TrustCount::GuessRight);
        let most = self.groups.iter().map(signs).max().unwrap_or(0);
        let elsewhere = self.total().get(TrustCount::GuessRight) - most;
        if group_count <= 1 || elsewhere >= GROUP_SIGNS_MIN {
            return ALL_GROUPS;
        }
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter(|(_, group)| signs(group) >= GROUP_SIGNS_MIN);
        let groups = groups.fold(self.counted_groups, |groups, (at, _)| groups | bit(at));
        if groups.count_ones() > 1 { ALL_GROUPS } else { groups }
    }

    fn enter(&mut self, next: TrustPhase) {
        let before = std::mem::replace(&mut self.phase, next);
        self.doubted_groups = match before {
            TrustPhase::Held => self.odd_groups(),
            _ => 0,
        };
        if next == TrustPhase::Held {
            self.pause = self.pause.saturating_mul(2).clamp(PAUSE_FIRST, PAUSE_MAX);
        }
        if next == TrustPhase::FindsMore {
            self.pause = 0;
        }
        self.phase_samples = [0; TRUST_GROUPS];
        self.confirmed_runs = [0; TRUST_GROUPS];
        // Evidence of the phase before does not count for the next verdict, except for claims.
        if before != TrustPhase::Unjudged {
            for group in &mut self.groups {
                for count in [
                    TrustCount::More,
                    TrustCount::GuessRight,
                    TrustCount::GuessWrong,
                    TrustCount::Confirmed,
                ] {
                    group.set(count, 0);
                }
            }
        }
    }
}

/// Are there enough of these answers among the other answers?
fn is_sign(tally: &TrustTally, count: TrustCount, others: TrustCount) -> bool {
    let signs = tally.get(count);
    signs >= SIGNS_MIN && signs.saturating_mul(ANSWERS_PER_SIGN) >= tally.get(others)
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |all, count| all.saturating_add(*count))
}

/// Part of its claims that a group's engines serve. Small changes leave the share as it is: each
/// change is a new fleet for the shards.
fn share_of(group: &TrustTally, share: u8) -> u8 {
    let claimed = group.get(TrustCount::Claimed);
    let served = group.get(TrustCount::Served).min(claimed);
    let is_whole = share == SHARES;
    if claimed == 0 {
        return share;
    }
    let part = u8::try_from(served.saturating_mul(u64::from(SHARES)) / claimed).unwrap_or(SHARES);
    if is_whole {
        let is_less = served.saturating_mul(4) < claimed.saturating_mul(3);
        let shrinks = is_less && group.get(TrustCount::Less) >= LESS_MIN;
        return if shrinks { part } else { SHARES };
    }
    match part.abs_diff(share) {
        _ if served.saturating_mul(10) >= claimed.saturating_mul(9) => SHARES,
        0 | 1 => share,
        _ => part,
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
