//! Evidence that the KV events of a rank belong to another rank.

use forebay_base::WorkerIndex;
use std::sync::Arc;

/// Why the KV events that the router follows for a rank may belong to another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedSuspicion {
    /// Endpoint that the router follows.
    pub endpoint: Arc<str>,
    /// The other rank, by the name of its worker.
    pub other: Arc<str>,
    /// Worker of the other rank.
    pub other_worker: WorkerIndex,
    /// Endpoint that the engine of the rank announces, where another engine announces the followed
    /// endpoint. `None`: the router follows the endpoint for both ranks.
    pub announced: Option<Arc<str>>,
}

impl FeedSuspicion {
    /// Both endpoints and the other rank, in words.
    #[must_use]
    pub fn cause(&self) -> String {
        let Self { endpoint, other, announced, .. } = self;
        match announced {
            Some(own) => {
                format!("{endpoint} has the KV events of {other}, this worker announces {own}")
            }
            None => format!("{endpoint} is followed for {other} too"),
        }
    }

    /// What an operator does about it.
    #[must_use]
    pub const fn help(&self) -> &'static str {
        match self.announced {
            Some(_) => {
                "correct `kv_events` and `replay`, or remove both keys: engines announce their \
                 endpoints"
            }
            None => {
                "set `kv_events` of each worker to the endpoint of its own engine, or a `kv_topic` \
                 of its own"
            }
        }
    }

    /// True for the same endpoints, whatever the other rank is called.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint && self.announced == other.announced
    }
}
