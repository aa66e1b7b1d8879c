//! Observations of a rank by the control plane.

use forebay_base::NanosSinceStart;
use forebay_fleet::worker::FirstBytes;

/// Observations of a rank since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankLook {
    /// Bytes of bodies have come.
    pub(super) answers: bool,
    /// Streams wait for the first byte of their body.
    pub(super) awaited: bool,
    /// When a report of its load last showed that it works, if any has come.
    pub(super) moved_at: Option<NanosSinceStart>,
    pub(super) first_bytes: FirstBytes,
    /// Its breaker keeps requests away.
    pub(super) is_open: bool,
    /// A request has the trial of its breaker.
    pub(super) is_tried: bool,
}
