//! Why a rank was chosen, in a word.

use super::Policy;
use forebay_base::RankIndex;
use forebay_index::Overlaps;

/// The reason of a choice. The name is the label of `forebay_decisions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// No other rank serves the model.
    OnlyCandidate,
    /// It holds most of the prompt, and the policy looks at that.
    Sticky,
    /// Another holds more, and costs more.
    HolderTooBusy,
    /// Nobody holds any of the prompt: it costs least.
    Cheapest,
    /// The policy does not look at caches.
    Load,
    /// It is the anchor of the request's session.
    SessionKept,
    /// The anchor of the request's session has no room, or too much to do.
    SessionMoved,
}

impl Because {
    /// All, in order of their index.
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

    /// Why a rank was chosen that holds `picked_bytes` of the prompt, where the best of the
    /// candidates holds `most_bytes`. `is_kept`: of the session, if there is one.
    #[must_use]
    pub fn of(
        policy: Policy,
        picked_bytes: u32,
        most_bytes: u32,
        is_only: bool,
        is_kept: Option<bool>,
    ) -> Self {
        match policy {
            _ if is_only => Self::OnlyCandidate,
            Policy::Kv if picked_bytes < most_bytes => Self::HolderTooBusy,
            Policy::Kv if most_bytes > 0 => Self::Sticky,
            Policy::Kv => Self::Cheapest,
            Policy::Session if is_kept == Some(true) => Self::SessionKept,
            Policy::Session if is_kept == Some(false) => Self::SessionMoved,
            _ => Self::Load,
        }
    }
}

/// Bytes of the prompt that the best holder has among the ranks that count.
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
        for (index, because) in Because::ALL.into_iter().enumerate() {
            assert_eq!(because as usize, index);
        }
    }

    #[test]
    fn each_choice_has_its_reason() {
        let of = |picked, most| Because::of(Policy::Kv, picked, most, false, Some(false));
        assert_eq!(of(5, 5), Because::Sticky);
        assert_eq!(of(0, 5), Because::HolderTooBusy);
        assert_eq!(of(0, 0), Because::Cheapest);
        assert_eq!(Because::of(Policy::Kv, 5, 5, true, None), Because::OnlyCandidate);
        assert_eq!(Because::of(Policy::Random, 0, 5, false, Some(true)), Because::Load);
        let session = |is_kept| Because::of(Policy::Session, 0, 0, false, is_kept);
        assert_eq!(session(Some(true)), Because::SessionKept);
        assert_eq!(session(Some(false)), Because::SessionMoved);
        assert_eq!(session(None), Because::Load, "without a session");
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
