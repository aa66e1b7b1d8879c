//! Records the overlap of ranks that a walk can no longer follow.

use super::overlap::Overlap;
use super::overlaps::Overlaps;
use super::ranks::{Ranks, bit_ranks};
use super::table::RunView;
use super::words::{lane_rank, lanes};

impl Ranks {
    /// Keeps the ranks that hold the whole run, if the whole run is matched. All other ranks are
    /// recorded with their overlap. False if no rank is left. `before`: overlap before the run.
    #[inline]
    pub(super) fn narrow(&mut self, view: &RunView, before: Overlap, out: &mut Overlaps) -> bool {
        debug_assert!((1..=view.block_count).contains(&view.matched), "no block was entered");
        let is_whole_run = view.matched == view.block_count;
        let end = depth(view, before, view.matched);
        if let (Self::Few(word), true, true) = (&*self, view.partial.is_empty(), is_whole_run)
            && *word == view.ranks
        {
            // Most runs of a path have the same holders as the run before: no set is compared then.
            return true;
        }
        let (whole, left) = self.split(view);
        left.record_parts(view, before, out);
        if !is_whole_run {
            whole.record(end, out);
            return false;
        }
        *self = whole;
        !self.is_empty()
    }

    /// Records the same overlap for all of these ranks.
    pub(super) fn record(&self, found: Overlap, out: &mut Overlaps) {
        match self {
            Self::All => {}
            Self::Few(word) => lanes(*word).for_each(|lane| out.record(lane_rank(lane), found)),
            Self::Many(bits) => bit_ranks(bits).for_each(|rank| out.record(rank, found)),
        }
    }

    /// Records the overlap of these ranks, each of which holds at most a part of the run.
    fn record_parts(mut self, view: &RunView, before: Overlap, out: &mut Overlaps) {
        if self.is_empty() {
            return;
        }
        for (lane, mask) in &view.partial {
            if self.remove(*lane) {
                let held = usize::try_from(mask.trailing_ones()).unwrap_or(0).min(view.matched);
                let found = depth(view, before, held);
                if found.bytes > 0 {
                    out.record(lane_rank(*lane), found);
                }
            }
        }
        self.record(before, out);
    }
}

/// Overlap of a rank that holds the first `held` matched blocks.
#[inline]
fn depth(view: &RunView, before: Overlap, held: usize) -> Overlap {
    let end = held.checked_sub(1).and_then(|last| view.steps.get(last));
    end.map_or(before, |step| Overlap {
        blocks: before.blocks + u32::try_from(held).unwrap_or(0),
        bytes: step.end,
    })
}
