//! The reason of a choice, as a metric label.

use super::Policy;
use forebay_base::RankIndex;
use forebay_index::Overlaps;

/// The reason of a choice. The name is the label of `forebay_decisions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// No other rank serves the model.
    OnlyCandidate,
    /// The rank has the largest overlap, under a policy that compares overlaps.
    Sticky,
    /// Another rank has a larger overlap, and a higher cost.
    HolderTooBusy,
    /// No rank holds any of the prompt: the rank has the least cost.
    Cheapest,
    /// The policy ignores caches.
    Load,
    /// The rank is the anchor of the session.
    SessionKept,
    /// The anchor of the session has no room, or a longer wait.
    SessionMoved,
}

impl ChoiceReason {
    /// All reasons, in order of their index.
    pub const ALL: [Self; 7] = [
        Self::OnlyCandidate,
        Self::Sticky,
        Self::HolderTooBusy,
        Self::Cheapest,
        Self::Load,
        Self::SessionKept,
        Self::SessionMoved,
    ];

    /// The label of the metric, and the word of `/debug/overlap`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "only_candidate",
            Self::Sticky => "sticky",
            Self::HolderTooBusy => "holder_too_busy",
            Self::Cheapest => "cheapest",
            Self::Load => "load",
            Self::SessionKept => "session_kept",
            Self::SessionMoved => "session_moved",
        }
    }

    /// The reason for a rank that holds `picked_bytes` of the prompt, where the candidate with the
    /// largest overlap holds `most_bytes`. `is_anchor`: of the request's session; `None`: no
    /// session.
    #[must_use]
    pub fn of(
        policy: Policy,
        picked_bytes: u32,
        most_bytes: u32,
        is_only: bool,
        is_anchor: Option<bool>,
    ) -> Self {
        match policy {
            _ if is_only => Self::OnlyCandidate,
            Policy::Kv if picked_bytes < most_bytes => Self::HolderTooBusy,
            Policy::Kv if most_bytes > 0 => Self::Sticky,
            Policy::Kv => Self::Cheapest,
            Policy::Session if is_anchor == Some(true) => Self::SessionKept,
            Policy::Session if is_anchor == Some(false) => Self::SessionMoved,
            _ => Self::Load,
        }
    }
}

/// Largest overlap in bytes among the ranks that count.
#[must_use]
pub fn most_held(overlaps: &Overlaps, counts: impl Fn(RankIndex) -> bool) -> u32 {
    let held = overlaps.iter_held().filter(|(rank, _)| counts(*rank));
    held.map(|(_, overlap)| overlap.bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_index::Overlap;

    #[test]
    fn reasons_stand_at_their_index() {
        for (index, because) in ChoiceReason::ALL.into_iter().enumerate() {
            assert_eq!(because as usize, index);
        }
    }

    #[test]
    fn each_choice_has_its_reason() {
        let of = |picked, most| ChoiceReason::of(Policy::Kv, picked, most, false, Some(false));
        assert_eq!(of(5, 5), ChoiceReason::Sticky);
        assert_eq!(of(0, 5), ChoiceReason::HolderTooBusy);
        assert_eq!(of(0, 0), ChoiceReason::Cheapest);
        assert_eq!(ChoiceReason::of(Policy::Kv, 5, 5, true, None), ChoiceReason::OnlyCandidate);
        assert_eq!(ChoiceReason::of(Policy::Random, 0, 5, false, Some(true)), ChoiceReason::Load);
        let session = |is_anchor| ChoiceReason::of(Policy::Session, 0, 0, false, is_anchor);
        assert_eq!(session(Some(true)), ChoiceReason::SessionKept);
        assert_eq!(session(Some(false)), ChoiceReason::SessionMoved);
        assert_eq!(session(None), ChoiceReason::Load, "without a session");
    }

    #[test]
    fn only_ranks_that_count_hold_most() {
        let mut overlaps = Overlaps::new(8);
        overlaps.record(RankIndex(1), Overlap { blocks: 1, bytes: 10 });
        overlaps.record(RankIndex(2), Overlap { blocks: 2, bytes: 20 });
        assert_eq!(most_held(&overlaps, |_| true), 20);
        assert_eq!(most_held(&overlaps, |rank| rank == RankIndex(1)), 10);
        assert_eq!(most_held(&overlaps, |_| false), 0);
    }
}
