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
    /// Confirmed guesses since the last other answer.
    confirmed_run: u64,
    /// Compared answers since the phase began.
    phase_samples: u64,
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
            confirmed_run: 0,
            phase_samples: 0,
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
        ShapeTrust { guesses, counted_groups, claim_shares: self.claim_shares }
    }

    /// Adds the counts since the last call. `group_count`: groups of workers that serve the model.
    pub fn observe(&mut self, grown: &[TrustTally; TRUST_GROUPS], group_count: usize) {
        let mut all = TrustTally::default();
        for (group, grown) in self.groups.iter_mut().zip(grown) {
            all.add(grown);
            group.add(grown);
        }
        if all.get(TrustCount::Samples) == 0 {
            return;
        }
        self.phase_samples = self.phase_samples.saturating_add(all.get(TrustCount::Samples));
        let others = all.get(TrustCount::GuessRight) + all.get(TrustCount::More);
        self.confirmed_run = match others {
            0 => self.confirmed_run.saturating_add(all.get(TrustCount::Confirmed)),
            _ => 0,
        };
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
                let confirmed = total.get(TrustCount::Confirmed);
                let is_more = self.is_sign(TrustCount::GuessRight, confirmed);
                let is_proven =
                    self.confirmed_run >= PROOF_COUNT || self.phase_samples >= WATCHED_MAX;
                match is_more && right >= wrong {
                    true => Some(TrustPhase::FindsMore),
                    false => is_proven.then_some(TrustPhase::Held),
                }
            }
            TrustPhase::Held => {
                let samples = total.get(TrustCount::Samples);
                let is_more = self.is_sign(TrustCount::More, samples);
                let is_due = self.phase_samples >= self.pause;
                (is_more && is_due).then_some(TrustPhase::Watched)
            }
            TrustPhase::FindsMore => {
                let is_wrong = wrong >= WRONG_MIN && wrong > right.saturating_mul(2);
                let is_over = is_wrong || self.confirmed_run >= RECOVERY_COUNT;
                is_over.then_some(TrustPhase::Watched)
            }
        }
    }

    /// Are there enough of these answers among that many answers?
    fn is_sign(&self, count: TrustCount, others: u64) -> bool {
        let signs = self.total().get(count);
        signs >= SIGNS_MIN && signs.saturating_mul(ANSWERS_PER_SIGN) >= others
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
        if next == TrustPhase::Held {
            self.pause = self.pause.saturating_mul(2).clamp(PAUSE_FIRST, PAUSE_MAX);
        }
        if next == TrustPhase::FindsMore {
            self.pause = 0;
        }
        self.phase_samples = 0;
        self.confirmed_run = 0;
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
