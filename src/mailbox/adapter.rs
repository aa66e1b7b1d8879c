//! Adapters that requests wait for.

use std::sync::{Arc, OnceLock};

/// A request for an adapter that no worker serves. The next fleet snapshot has the adapter once it
/// is loaded.
#[derive(Debug)]
pub struct AdapterRequest {
    /// Name of its adapter table.
    pub name: Arc<str>,
    /// Receives the reason if all workers refuse the adapter.
    pub refused: AdapterRefusal,
}

/// Set once, by the control plane. A waiting request holds a clone.
#[derive(Clone, Debug, Default)]
pub struct AdapterRefusal(Arc<OnceLock<Arc<str>>>);

impl AdapterRefusal {
    /// Errors of the workers, once all have refused.
    #[must_use]
    pub fn why(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }

    /// Ends the wait of the request.
    pub fn refuse(&self, why: &Arc<str>) {
        // Only the first refusal counts.
        let _ = self.0.set(Arc::clone(why));
    }

    /// Has every waiting request gone?
    #[must_use]
    pub fn is_left(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
