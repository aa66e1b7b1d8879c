//! Entries of a tier by the time of their last store. Some publishers report stores but never
//! evictions, so their entries expire. An [`Ages`] per rank and tier. Ids are in generations that
//! each cover a quarter of the time to live. A store moves an id into the present generation, so an
//! entry expires after three quarters to four quarters of the time to live.
//!
//! | | a tier of a rank | a pool |
//! |---|---|---|
//! | the first removal | ends expiry until the next clear | changes nothing |
//! | a generation ends by | its time | its time or its size |
//! | no room | new entries are refused | the oldest generation makes room |

use std::collections::{HashSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Generations in a time to live. More are more exact, and slower to search.
const GENERATIONS: u32 = 4;
/// Generations of a full pool. With so many closed generations, size ends no further generation.
const GENERATIONS_OF_POOL: usize = 8;

type Ids = HashSet<u64, ahash::RandomState>;

/// Ids by age; stays empty once the tier is trusted.
#[derive(Debug, Default)]
pub(super) struct Ages {
    is_trusted: bool,
    /// Most entries of a pool; `None` for a rank.
    pool_max: Option<usize>,
    fresh: Generation,
    /// Earlier generations, oldest first.
    closed: VecDeque<Generation>,
}

/// Ids with a last store at about the same time.
#[derive(Debug, Default)]
struct Generation {
    /// The first known time at which the generation had ids.
    since: Option<Instant>,
    ids: Ids,
}

impl Ages {
    /// Ages of a pool with at most `entries_max` entries.
    pub(super) fn of_pool(entries_max: usize) -> Self {
        Self { pool_max: Some(entries_max), ..Self::default() }
    }

    /// Adds an id that is in no generation.
    pub(super) fn add(&mut self, id: u64) {
        if self.is_trusted {
            return;
        }
        if self.fresh.ids.is_empty() {
            self.fresh.since = None;
        }
        self.fresh.ids.insert(id);
        let is_full = |max: usize| self.fresh.ids.len() > max / GENERATIONS_OF_POOL;
        if self.pool_max.is_some_and(is_full) && self.closed.len() < GENERATIONS_OF_POOL {
            self.close();
        }
    }

    /// Moves an id into the present generation, or adds it.
    pub(super) fn renew(&mut self, id: u64) {
        if !self.fresh.ids.contains(&id) {
            self.forget(id);
            self.add(id);
        }
    }

    /// Removes the id of an entry that is gone.
    pub(super) fn forget(&mut self, id: u64) {
        let mut all = self.closed.iter_mut().chain([&mut self.fresh]);
        all.any(|generation| generation.ids.remove(&id));
    }

    /// Ends expiry, because the tier reports removals. A pool is never trusted: a gap, restart or
    /// clear of a rank does not show unreported removals by the other ranks.
    pub(super) fn trust(&mut self) {
        if self.pool_max.is_none() {
            *self = Self { is_trusted: true, ..Self::default() };
        }
    }

    /// Time at which the oldest generation expires, if its start is known.
    pub(super) fn due(&self, ttl: Duration) -> Option<Instant> {
        let mut all = self.closed.iter().chain([&self.fresh]);
        let oldest = all.find(|generation| !generation.ids.is_empty())?;
        oldest.since?.checked_add(ttl)
    }

    /// Takes at most `most` expired ids.
    pub(super) fn take_old(&mut self, now: Instant, ttl: Duration, most: usize) -> Vec<u64> {
        for generation in &mut self.closed {
            generation.since.get_or_insert(now);
        }
        if !self.fresh.ids.is_empty() {
            let since = *self.fresh.since.get_or_insert(now);
            if now.saturating_duration_since(since) >= ttl / GENERATIONS {
                self.close();
            }
        }
        let is_old = |since: Instant| now.saturating_duration_since(since) >= ttl;
        self.take(most, |since| since.is_some_and(is_old))
    }

    /// Takes at most `most` ids, the oldest stores first, expired or not.
    pub(super) fn take_oldest(&mut self, most: usize) -> Vec<u64> {
        if self.closed.iter().all(|generation| generation.ids.is_empty()) {
            self.close();
        }
        self.take(most, |_| true)
    }

    fn take(&mut self, most: usize, is_due: impl Fn(Option<Instant>) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(oldest) = self.closed.front_mut().filter(|oldest| is_due(oldest.since))
        {
            let from = taken.len();
            taken.extend(oldest.ids.iter().take(most - from));
            taken.iter().skip(from).for_each(|id| {
                oldest.ids.remove(id);
            });
            if oldest.ids.is_empty() {
                self.closed.pop_front();
            }
        }
        taken
    }

    /// Approximate bytes of the sets.
    pub(super) fn bytes(&self) -> usize {
        let all = self.closed.iter().chain([&self.fresh]);
        let slots = all.map(|generation| generation.ids.capacity()).sum::<usize>();
        // A hash table has a control byte beside each id, and an eighth of its slots stays free.
        slots * (size_of::<u64>() + 1) * 8 / 7
    }

    /// Ends the present generation.
    fn close(&mut self) {
        self.closed.retain(|generation| !generation.ids.is_empty());
        self.closed.push_back(std::mem::take(&mut self.fresh));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(100);

    /// What leaves at a second.
    fn leaving(ages: &mut Ages, start: Instant, second: u64) -> Vec<u64> {
        let mut ids = ages.take_old(start + Duration::from_secs(second), TTL, 1_000);
        ids.sort_unstable();
        ids
    }

    #[test]
    fn ids_leave_at_the_end_of_their_time_unless_stored_again() {
        let mut ages = Ages::default();
        let start = Instant::now();
        assert_eq!(ages.due(TTL), None);
        (1..=3).for_each(|id| ages.add(id));
        assert!(leaving(&mut ages, start, 0).is_empty());
        assert_eq!(ages.due(TTL), Some(start + TTL));
        assert!(leaving(&mut ages, start, 60).is_empty());
        ages.renew(2);
        assert!(leaving(&mut ages, start, 60).is_empty());
        assert!(leaving(&mut ages, start, 99).is_empty());
        assert_eq!(leaving(&mut ages, start, 100), [1, 3]);
        assert!(leaving(&mut ages, start, 159).is_empty());
        assert_eq!(leaving(&mut ages, start, 160), [2]);
        assert_eq!((ages.due(TTL), ages.bytes()), (None, 0));
    }

    #[test]
    fn one_turn_takes_so_many_and_an_id_may_come_back_meanwhile() {
        let mut ages = Ages::default();
        let start = Instant::now();
        (0..10).for_each(|id| ages.add(id));
        assert!(leaving(&mut ages, start, 0).is_empty());
        let first = ages.take_old(start + TTL, TTL, 4);
        assert_eq!(first.len(), 4);
        assert_eq!(ages.due(TTL), Some(start + TTL), "the others are due");
        (0..10).filter(|id| !first.contains(id)).take(1).for_each(|id| ages.renew(id));
        assert_eq!(leaving(&mut ages, start, 101).len(), 5, "all others but the one");
    }

    #[test]
    fn a_trusted_tier_remembers_nothing() {
        let mut ages = Ages::default();
        let start = Instant::now();
        (0..10).for_each(|id| ages.add(id));
        assert!(leaving(&mut ages, start, 0).is_empty() && ages.bytes() > 0);
        ages.trust();
        ages.renew(11);
        assert!(leaving(&mut ages, start, 1_000).is_empty());
        assert_eq!((ages.due(TTL), ages.bytes()), (None, 0));
    }

    #[test]
    fn a_pool_is_never_trusted() {
        let mut ages = Ages::of_pool(100);
        let start = Instant::now();
        ages.add(1);
        ages.trust();
        ages.add(2);
        assert!(leaving(&mut ages, start, 0).is_empty());
        assert_eq!(leaving(&mut ages, start, 100), [1, 2]);
    }

    #[test]
    fn the_oldest_ids_of_a_pool_make_room() {
        let mut ages = Ages::of_pool(80);
        (0..80).for_each(|id| ages.add(id));
        assert!(ages.take_oldest(5).iter().chain(&ages.take_oldest(6)).all(|id| *id < 11));
        ages.renew(11);
        ages.forget(12);
        let mut next = ages.take_oldest(9);
        next.sort_unstable();
        assert_eq!(next, (13..22).collect::<Vec<_>>(), "11 is young, 12 is gone");
        let rest = [ages.take_oldest(1_000).len(), ages.take_oldest(1_000).len()];
        assert_eq!(rest, [80 - 5 - 6 - 1 - 9 - 4, 4], "the present generation by itself");
        assert!(ages.take_oldest(1).is_empty());
    }

    #[test]
    fn a_pool_has_few_generations_however_often_ids_are_stored_again() {
        let mut ages = Ages::of_pool(80);
        // Ten ids again and again, and one each time that stays behind.
        for left in 10..70 {
            (0..10).chain([left]).for_each(|id| ages.renew(id));
        }
        assert_eq!(ages.closed.len(), GENERATIONS_OF_POOL);
        let all = ages.closed.iter().chain([&ages.fresh]).map(|one| one.ids.len()).sum::<usize>();
        assert_eq!(all, 70, "each id in one generation");
    }

    #[test]
    fn a_time_without_end_overflows_nothing() {
        let mut ages = Ages::default();
        let start = Instant::now();
        ages.add(1);
        assert!(ages.take_old(start, Duration::MAX, 10).is_empty());
        assert_eq!(ages.due(Duration::MAX), None);
    }
}
