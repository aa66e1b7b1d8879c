//! Adapters that requests wait for.

use std::sync::{Arc, OnceLock};

/// A request for an adapter that no worker has. That it is loaded shows in the next fleet.
#[derive(Debug)]
pub struct AdapterAsk {
    /// The `name` of its table.
    pub name: Arc<str>,
    /// Where a request hears why it waits in vain.
    pub refused: AdapterRefused,
}

/// Set once, by the control plane. Who waits holds a copy.
#[derive(Clone, Debug, Default)]
pub struct AdapterRefused(Arc<OnceLock<Arc<str>>>);

impl AdapterRefused {
    /// What workers said, once all have refused.
    #[must_use]
    pub fn why(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }

    /// Ends the wait of the request.
    pub fn refuse(&self, why: &Arc<str>) {
        // A second refusal says nothing new.
        let _ = self.0.set(Arc::clone(why));
    }

    /// Does nobody wait any more?
    #[must_use]
    pub fn is_left(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
