//! Observations of a rank by the control plane.

use forebay_base::NanosSinceStart;
use forebay_board::FirstBytes;

/// Observations of a rank since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankLook {
    /// Bytes of response bodies arrived.
    pub(super) answers: bool,
    /// Streams wait for the first byte of their body.
    pub(super) awaited: bool,
    /// Time of the last load report that shows progress, if any.
    pub(super) moved_at: Option<NanosSinceStart>,
    pub(super) first_bytes: FirstBytes,
    /// The breaker of the rank is open.
    pub(super) is_restricted: bool,
    /// A request is the trial of the breaker.
    pub(super) is_tried: bool,
}
