//! Verdicts about a model's predictions, as shards use them.

use super::shape::RequestShape;
use super::tally::TRUST_GROUPS;

/// Shares of a claim: `SHARES` is the whole claim.
pub const SHARES: u8 = 8;

/// Use of guesses for ranks with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuessUse {
    /// Events suffice.
    #[default]
    None,
    /// Guesses are stored and compared. The choice of a rank ignores them.
    Compared,
    /// Guesses count beside events.
    Counted,
}

/// Verdict about requests of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeTrust {
    pub guesses: GuessUse,
    /// Part of a claim that counts, of [`SHARES`], by group of the rank's worker.
    pub claim_shares: [u8; TRUST_GROUPS],
}

impl Default for ShapeTrust {
    fn default() -> Self {
        Self { guesses: GuessUse::None, claim_shares: [SHARES; TRUST_GROUPS] }
    }
}

impl ShapeTrust {
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
    pub const fn get(&self, shape: RequestShape) -> ShapeTrust {
        self.0[shape.index()]
    }

    pub const fn set(&mut self, shape: RequestShape, trust: ShapeTrust) {
        self.0[shape.index()] = trust;
    }

    /// Does no shape differ from the default?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
