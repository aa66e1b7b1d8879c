//! An engine's refusals for lack of room, as a word of the rank's cell: the model, and the number
//! of holds in a row.

use super::tag::Tag;
use forebay_base::ModelIndex;
use std::time::Duration;

/// The first hold. Each further hold is twice as long.
const HOLD_FIRST: Duration = Duration::from_millis(50);
/// Up to this number, each hold is longer than the hold before: 1.6 s at most.
const HOLDS_MAX: u16 = 6;

/// Refusals of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusalNote {
    /// The refused model, or several.
    model: Tag,
    /// Holds in a row.
    count: u16,
}

impl RefusalNote {
    pub(crate) fn of(word: u32) -> Self {
        Self { model: Tag::of(word), count: u16::try_from(word >> u16::BITS).unwrap_or(HOLDS_MAX) }
    }

    pub(crate) fn word(self) -> u32 {
        u32::from(self.count) << u16::BITS | self.model.bits()
    }

    /// Adds a refusal. `is_recent`: earlier refusals still count. `is_held`: the refused request
    /// was sent before the running hold.
    pub(crate) fn with(self, model: ModelIndex, is_recent: bool, is_held: bool) -> Self {
        let model = Tag::of_model(model);
        if !is_recent {
            return Self { model, count: 1 };
        }
        let count = if is_held { self.count } else { self.count.saturating_add(1).min(HOLDS_MAX) };
        Self { model: self.model.with(model), count: count.max(1) }
    }

    /// A request was served: the next hold has the first length again.
    pub(crate) const fn without_count(self) -> Self {
        Self { count: 0, ..self }
    }

    pub(crate) fn is_of_one(self) -> bool {
        self.model != Tag::SEVERAL
    }

    pub(crate) fn speaks_of(self, model: ModelIndex) -> bool {
        self.model.covers(Tag::of_model(model))
    }

    pub(crate) fn hold(self) -> Duration {
        HOLD_FIRST.saturating_mul(1 << self.count.saturating_sub(1).min(HOLDS_MAX - 1))
    }
}
