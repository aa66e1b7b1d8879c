//! Requests on a rank that are no leases of the rank: of other replicas, and of another worker of
//! the same engine.

use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};

/// Origin of requests on a rank that are no leases of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignOrigin {
    /// Other replicas of this router.
    Replicas,
    /// Another worker of the same engine, which leaves.
    SameEngine,
}

/// Requests on a rank that are no leases of the rank, by origin. Only the control plane uses this.
#[derive(Debug, Default)]
pub(crate) struct ForeignRequests {
    of_replicas: ForeignCell,
    of_same_engine: ForeignCell,
}

/// Requests of an origin, and the KV tokens that they hold.
#[derive(Debug, Default)]
struct ForeignCell {
    places: AtomicU32,
    kv_tokens: AtomicU64,
}

impl ForeignRequests {
    pub(crate) fn set(&self, origin: ForeignOrigin, places: u32, kv_tokens: u64) {
        let cell = match origin {
            ForeignOrigin::Replicas => &self.of_replicas,
            ForeignOrigin::SameEngine => &self.of_same_engine,
        };
        // ordering: a single thread writes and reads; pairs with nothing.
        cell.places.store(places, Ordering::Relaxed);
        // ordering: as above.
        cell.kv_tokens.store(kv_tokens, Ordering::Relaxed);
    }

    /// Places and KV tokens of all origins.
    pub(crate) fn sum(&self) -> (u32, u64) {
        let cells = [&self.of_replicas, &self.of_same_engine];
        // ordering: a single thread writes and reads; pairs with nothing.
        let places = cells.map(|cell| cell.places.load(Ordering::Relaxed));
        // ordering: as above.
        let tokens = cells.map(|cell| cell.kv_tokens.load(Ordering::Relaxed));
        let [replicas, same_engine] = tokens;
        (
            places.iter().fold(0, |sum, more| sum.saturating_add(*more)),
            replicas.saturating_add(same_engine),
        )
    }
}
