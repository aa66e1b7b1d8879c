//! Ranks that part from a walk, recorded with what they hold.

use super::overlap::Overlap;
use super::overlaps::Overlaps;
use super::ranks::{Ranks, bit_ranks};
use super::table::Seen;
use super::words::{lane_rank, lanes};

impl Ranks {
    /// Keeps the ranks that hold all that is matched of a run, if that is all of the run; the
    /// others are recorded with what they hold. False when none is left. `before` is what was found
    /// before the run.
    #[inline]
    pub(super) fn narrow(&mut self, seen: &Seen, before: Overlap, out: &mut Overlaps) -> bool {
        debug_assert!((1..=seen.block_count).contains(&seen.matched), "no block was entered");
        let goes_on = seen.matched == seen.block_count;
        let end = depth(seen, before, seen.matched);
        if let (Self::Few(word), true, true) = (&*self, seen.partial.is_empty(), goes_on)
            && *word == seen.ranks
        {
            // Most runs of a path have the holders of the run before: then nothing is compared.
            return true;
        }
        let (whole, left) = self.part(seen);
        left.record_parts(seen, before, out);
        if !goes_on {
            whole.record(end, out);
            return false;
        }
        *self = whole;
        !self.is_empty()
    }

    /// All of them end here.
    pub(super) fn record(&self, found: Overlap, out: &mut Overlaps) {
        match self {
            Self::All => {}
            Self::Few(word) => lanes(*word).for_each(|lane| out.record(lane_rank(lane), found)),
            Self::Many(bits) => bit_ranks(bits).for_each(|rank| out.record(rank, found)),
        }
    }

    /// Records these ranks, none of which holds all of the run, with what they hold of it.
    fn record_parts(mut self, seen: &Seen, before: Overlap, out: &mut Overlaps) {
        if self.is_empty() {
            return;
        }
        for (lane, mask) in &seen.partial {
            if self.take(*lane) {
                let held = usize::try_from(mask.trailing_ones()).unwrap_or(0).min(seen.matched);
                let found = depth(seen, before, held);
                if found.bytes > 0 {
                    out.record(lane_rank(*lane), found);
                }
            }
        }
        self.record(before, out);
    }
}

/// What a rank has that holds that many of the matched blocks.
#[inline]
fn depth(seen: &Seen, before: Overlap, held: usize) -> Overlap {
    let end = held.checked_sub(1).and_then(|last| seen.steps.get(last));
    end.map_or(before, |step| Overlap {
        blocks: before.blocks + u32::try_from(held).unwrap_or(0),
        bytes: step.end,
    })
}
