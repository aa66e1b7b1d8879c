//! Verdicts about a model's predictions, as shards use them.

use super::shape::RequestShape;
use super::tally::TRUST_GROUPS;
use std::sync::Arc;

/// Shares of a claim: `SHARES` is the whole claim.
pub const SHARES: u8 = 8;

/// Bits of all groups.
pub(super) const ALL_GROUPS: u8 = u8::MAX;
const _: () = assert!(TRUST_GROUPS == u8::BITS as usize);

/// Bit of a group in [`ShapeTrust::counted_groups`].
pub(super) fn bit(group: usize) -> u8 {
    u32::try_from(group).ok().and_then(|group| 1_u8.checked_shl(group)).unwrap_or(0)
}

/// Use of guesses for ranks with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuessUse {
    /// Events alone predict hits.
    #[default]
    None,
    /// Guesses are stored and compared. The choice of a rank ignores them.
    Compared,
    /// Guesses count beside events, for some groups of workers at least.
    Counted,
}

/// Verdict about requests of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeTrust {
    pub guesses: GuessUse,
    /// A bit for each group of workers with guesses that count.
    pub counted_groups: u8,
    /// Part of a claim that counts, of [`SHARES`], by group of the rank's worker.
    pub claim_shares: [u8; TRUST_GROUPS],
    /// The log has a warning about guesses that count.
    pub is_logged: bool,
}

impl Default for ShapeTrust {
    fn default() -> Self {
        Self {
            guesses: GuessUse::None,
            counted_groups: 0,
            claim_shares: [SHARES; TRUST_GROUPS],
            is_logged: false,
        }
    }
}

impl ShapeTrust {
    /// Do guesses about ranks of the group count beside events?
    #[must_use]
    pub fn counts_guess(&self, group: usize) -> bool {
        self.guesses == GuessUse::Counted && self.counted_groups & bit(group) != 0
    }

    /// Do all guesses count?
    #[must_use]
    pub fn counts_all(&self) -> bool {
        self.guesses == GuessUse::Counted && self.counted_groups == ALL_GROUPS
    }

    /// Do guesses count for the group, and not for all groups? The engines of its workers write
    /// prompts unlike the engines of the other groups.
    #[must_use]
    pub fn sets_apart(&self, group: usize) -> bool {
        self.is_logged && self.counts_guess(group) && !self.counts_all()
    }

    /// Do all claims count whole?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.claim_shares == [SHARES; TRUST_GROUPS]
    }

    /// The part of a claim that counts, for ranks of the group.
    #[must_use]
    pub fn share(&self, group: usize, claimed: u32) -> u32 {
        let share = self.claim_shares.get(group).copied().unwrap_or(SHARES).min(SHARES);
        let part = u64::from(claimed) * u64::from(share) / u64::from(SHARES);
        u32::try_from(part).unwrap_or(claimed)
    }
}

/// Verdicts about a model, by shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelTrust([ShapeTrust; RequestShape::ALL.len()]);

impl ModelTrust {
    #[must_use]
    pub fn get(&self, shape: RequestShape) -> ShapeTrust {
        self.0.get(shape.index()).copied().unwrap_or_default()
    }

    pub fn set(&mut self, shape: RequestShape, trust: ShapeTrust) {
        if let Some(place) = self.0.get_mut(shape.index()) {
            *place = trust;
        }
    }

    /// Does no shape differ from the default?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Verdicts of the models, except for default verdicts. Few entries, so a search beats a map.
#[derive(Clone, Debug, Default)]
pub struct ModelTrusts(Vec<(Arc<str>, ModelTrust)>);

impl ModelTrusts {
    /// Adds the verdicts of a model, unless all are the default.
    pub fn add(&mut self, model: &Arc<str>, trust: ModelTrust) {
        if !trust.is_default() {
            self.0.push((Arc::clone(model), trust));
        }
    }

    /// Verdict about requests of the shape to a model.
    #[must_use]
    pub fn of(&self, model: &str, shape: RequestShape) -> ShapeTrust {
        let known = self.0.iter().find(|(name, _)| **name == *model);
        known.map(|(_, trust)| trust.get(shape)).unwrap_or_default()
    }

    /// Do all predictions of all models hold?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
