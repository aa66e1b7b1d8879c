//! The rank that stores each response (`/v1/responses`). Each shard has a copy: a lookup stays on
//! the thread. Holds at most [`STORED_RESPONSES_MAX`] entries in two halves of fixed size. When the
//! younger half is full, the older half is dropped. No entry is moved, so no request pays for a
//! table that grows.

use ahash::AHashMap;
use forebay_base::limits::STORED_RESPONSES_MAX;
use forebay_mailbox::{ResponseId, ResponsePlace, StoredResponse};

/// Responses of each half.
const HALF: usize = STORED_RESPONSES_MAX / 2;

#[derive(Debug, Default)]
pub struct StoredResponses {
    younger: AHashMap<ResponseId, ResponsePlace>,
    older: AHashMap<ResponseId, ResponsePlace>,
}

impl StoredResponses {
    /// Records the place of a response. A recorded id keeps its place: an engine that repeats an
    /// id from a client's input must not move another tenant's response.
    pub fn note(&mut self, response: StoredResponse) {
        let StoredResponse { id, place } = response;
        if self.place(&id).is_some() {
            return;
        }
        if self.younger.capacity() < HALF {
            self.younger.reserve(HALF);
        }
        if self.younger.len() >= HALF {
            std::mem::swap(&mut self.younger, &mut self.older);
            self.younger.clear();
            if self.younger.capacity() < HALF {
                self.younger.reserve(HALF);
            }
        }
        self.younger.insert(id, place);
        debug_assert!(self.younger.len() <= HALF && self.older.len() <= HALF);
    }

    #[must_use]
    pub fn place(&self, id: &ResponseId) -> Option<ResponsePlace> {
        self.younger.get(id).or_else(|| self.older.get(id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{ModelIndex, RankIndex, TenantIndex};

    fn response(number: usize, tenant: u16) -> StoredResponse {
        let id = ResponseId::of(format!("resp_{number}").as_bytes()).unwrap();
        let place =
            ResponsePlace { rank: RankIndex(1), model: ModelIndex(0), tenant: TenantIndex(tenant) };
        StoredResponse { id, place }
    }

    #[test]
    fn the_older_half_goes_and_the_memory_stays() {
        let mut kept = StoredResponses::default();
        for number in 0..=2 * HALF {
            kept.note(response(number, 0));
        }
        let capacities = (kept.younger.capacity(), kept.older.capacity());
        let is_known = |number| kept.place(&response(number, 0).id).is_some();
        assert!(!is_known(0) && !is_known(HALF - 1));
        assert!(is_known(HALF) && is_known(2 * HALF));
        for number in 2 * HALF..6 * HALF {
            kept.note(response(number, 0));
        }
        assert_eq!((kept.younger.capacity(), kept.older.capacity()), capacities);
    }

    #[test]
    fn an_id_stays_with_its_first_tenant() {
        let mut kept = StoredResponses::default();
        kept.note(response(1, 1));
        kept.note(response(1, 2));
        assert_eq!(kept.place(&response(1, 0).id).unwrap().tenant, TenantIndex(1));
    }
}
