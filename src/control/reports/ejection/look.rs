//! What the control plane has seen of a rank.

use forebay_base::NanosSinceStart;
use forebay_fleet::worker::FirstBytes;

/// What was seen of a rank since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::control) struct RankLook {
    /// Bytes of bodies have come.
    pub(in crate::control) answers: bool,
    /// Streams wait for the first byte of their body.
    pub(in crate::control) awaited: bool,
    /// When a report of its load last showed that it works, if any has come.
    pub(in crate::control) moved_at: Option<NanosSinceStart>,
    pub(in crate::control) first_bytes: FirstBytes,
    /// Its breaker keeps requests away.
    pub(in crate::control) is_open: bool,
    /// A request has the trial of its breaker.
    pub(in crate::control) is_tried: bool,
}
