//! What a KV transfer has to know of a body: looked for once, and only when a pair may serve it.

use forebay_disagg::{Obstacle, Wanted, inspect};
use forebay_fleet::worker::KvTransfer;
use forebay_prompt::parse::Endpoint;

/// The places of a body that a KV transfer changes.
#[derive(Debug, Default)]
pub struct Split {
    /// Apart: each connection holds the place for it, and only pairs fill it.
    wanted: Option<Box<Wanted>>,
    /// It was looked for; what was not found cannot be split.
    is_inspected: bool,
}

impl Split {
    /// What was found elsewhere, or nothing.
    #[must_use]
    pub fn known(wanted: Option<Wanted>) -> Self {
        Self { wanted: wanted.map(Box::new), is_inspected: true }
    }

    /// Looks at the body, the first time only.
    pub fn look(&mut self, body: &[u8], endpoint: Endpoint) {
        // Once: a retry has the same body, and each pass reads all of it.
        if !std::mem::replace(&mut self.is_inspected, true) {
            // The body has been scanned; what this pass does not like besides cannot be split.
            self.wanted = inspect(body, endpoint).ok().map(Box::new);
        }
    }

    /// May the request be split that way?
    #[must_use]
    pub fn can_split(&self, kv_transfer: &KvTransfer) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.can_split(kv_transfer))
    }

    /// What keeps it from that.
    #[must_use]
    pub fn obstacle(&self, kv_transfer: &KvTransfer) -> Option<Obstacle> {
        self.wanted.as_ref()?.obstacle(kv_transfer)
    }

    /// Takes out what was found, for the legs of one attempt; [`Self::put_back`] follows.
    pub fn take(&mut self) -> Option<Wanted> {
        self.wanted.take().map(|wanted| *wanted)
    }

    /// Puts back what was taken out.
    pub fn put_back(&mut self, wanted: Wanted) {
        debug_assert!(self.is_inspected && self.wanted.is_none(), "put back twice");
        self.wanted = Some(Box::new(wanted));
    }
}
