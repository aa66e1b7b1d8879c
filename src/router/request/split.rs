//! Fields of a body that a KV transfer changes: found once, and only when a pair may serve it.

use forebay_disagg::{Obstacle, SplitRequest, inspect};
use forebay_fleet::worker::KvTransfer;
use forebay_prompt::parse::Endpoint;

/// The places of a body that a KV transfer changes.
#[derive(Debug, Default)]
pub struct Split {
    /// Boxed: each connection holds this field, and only pairs fill it.
    wanted: Option<Box<SplitRequest>>,
    /// The body has been inspected. Without `wanted` the request cannot be split.
    is_inspected: bool,
}

impl Split {
    /// The result of an inspection by the caller.
    #[must_use]
    pub fn known(wanted: Option<SplitRequest>) -> Self {
        Self { wanted: wanted.map(Box::new), is_inspected: true }
    }

    /// Inspects the body on the first call.
    pub fn look(&mut self, body: &[u8], endpoint: Endpoint) {
        // Once: a retry has the same body, and each inspection reads all of the body.
        if !std::mem::replace(&mut self.is_inspected, true) {
            // The scan accepted the body. A body that this pass rejects can still be served whole.
            self.wanted = inspect(body, endpoint).ok().map(Box::new);
        }
    }

    #[must_use]
    pub fn can_split(&self, kv_transfer: &KvTransfer) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.can_split(kv_transfer))
    }

    /// Why the request cannot be split for this transfer.
    #[must_use]
    pub fn obstacle(&self, kv_transfer: &KvTransfer) -> Option<Obstacle> {
        self.wanted.as_ref()?.obstacle(kv_transfer)
    }

    /// Lends the inspection's result to the legs of an attempt, until [`Self::put_back`].
    pub fn take(&mut self) -> Option<SplitRequest> {
        self.wanted.take().map(|wanted| *wanted)
    }

    pub fn put_back(&mut self, wanted: SplitRequest) {
        debug_assert!(self.is_inspected && self.wanted.is_none(), "put back twice");
        self.wanted = Some(Box::new(wanted));
    }
}
