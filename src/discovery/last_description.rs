//! Age of a worker's description, and when the worker is described again.

use forebay_fleet::worker::Dialect;
use std::time::Duration;
use tokio::time::Instant;

/// Adapters change while a worker is up: its description is renewed this often.
const DESCRIPTION_AGE_MAX: Duration = Duration::from_secs(30);
/// A worker that may have restarted is described again at once, but no more often than this.
pub(super) const DESCRIPTION_AGE_MIN: Duration = Duration::from_secs(1);

/// The last description of a worker that is up.
#[derive(Debug)]
pub(super) struct LastDescription {
    pub(super) dialect: Dialect,
    /// When the description was requested.
    pub(super) at: Instant,
    /// A sign of a restart came since, or the list of models is missing.
    pub(super) doubted: bool,
}

impl LastDescription {
    pub(super) fn is_due(&self) -> bool {
        let age = self.at.elapsed();
        age >= DESCRIPTION_AGE_MAX || self.doubted && age >= DESCRIPTION_AGE_MIN
    }
}
