//! Entries of a tier that has announced no removal, by the time of their last store. Some
//! publishers tell what they store and never what they evict: such an entry is believed for a
//! while, then leaves. One [`Ages`] per rank and tier. Ids stand in generations of a quarter of
//! that while, so an entry leaves between three quarters of it and all of it after its last store.

use std::collections::{HashSet, VecDeque, hash_set};
use std::time::Duration;
use tokio::time::Instant;

/// Generations that a time to live is cut into. More of them are more exact, and an entry that is
/// stored again and again is in each.
const GENERATIONS: u32 = 4;

type Ids = HashSet<u64, ahash::RandomState>;

/// Ids by age; empty for ever once the tier is trusted.
#[derive(Debug, Default)]
pub(super) struct Ages {
    is_trusted: bool,
    /// The present generation.
    fresh: Ids,
    /// Its start: the first look at the time with something in it.
    since: Option<Instant>,
    /// Earlier generations with their start, oldest first.
    closed: VecDeque<(Instant, Ids)>,
    /// Too old, unless a later generation has them.
    leaving: Option<hash_set::IntoIter<u64>>,
}

impl Ages {
    /// The tier has stored the entry.
    pub(super) fn note(&mut self, id: u64) {
        if !self.is_trusted {
            self.fresh.insert(id);
        }
    }

    /// The tier announces removals: nothing leaves by itself from now on.
    pub(super) fn trust(&mut self) {
        *self = Self { is_trusted: true, ..Self::default() };
    }

    /// When a generation is too old, as far as that is known.
    pub(super) fn due(&self, ttl: Duration) -> Option<Instant> {
        let oldest = self.closed.front().map(|(since, _)| *since).or(self.since);
        oldest.and_then(|since| since.checked_add(ttl))
    }

    /// The next id that is too old. Each id that is looked at takes one of `work`; with none left
    /// there may be more.
    pub(super) fn next(&mut self, now: Instant, ttl: Duration, work: &mut usize) -> Option<u64> {
        self.close(now, ttl);
        while *work > 0 {
            if let Some(id) = self.leaving.as_mut().and_then(Iterator::next) {
                *work -= 1;
                if !self.is_renewed(id) {
                    return Some(id);
                }
                continue;
            }
            self.leaving = None;
            let (since, _) = self.closed.front()?;
            if now.saturating_duration_since(*since) < ttl {
                return None;
            }
            self.leaving = self.closed.pop_front().map(|(_, ids)| ids.into_iter());
        }
        None
    }

    /// Bytes allocated, roughly.
    pub(super) fn bytes(&self) -> usize {
        let closed = self.closed.iter().map(|(_, ids)| ids.capacity()).sum::<usize>();
        let leaving = self.leaving.as_ref().map_or(0, ExactSizeIterator::len);
        // A byte of the table beside each id, and an eighth of the slots stays free.
        (self.fresh.capacity() + closed + leaving) * (size_of::<u64>() + 1) * 8 / 7
    }

    /// Ends the present generation when it has lasted its share.
    fn close(&mut self, now: Instant, ttl: Duration) {
        if self.fresh.is_empty() {
            return;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= ttl / GENERATIONS {
            self.closed.push_back((since, std::mem::take(&mut self.fresh)));
            self.since = None;
        }
    }

    fn is_renewed(&self, id: u64) -> bool {
        self.fresh.contains(&id) || self.closed.iter().any(|(_, ids)| ids.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(100);

    /// What leaves at a second.
    fn leaving(ages: &mut Ages, start: Instant, second: u64) -> Vec<u64> {
        let (now, mut work) = (start + Duration::from_secs(second), 1_000);
        let mut ids: Vec<u64> = std::iter::from_fn(|| ages.next(now, TTL, &mut work)).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn ids_leave_at_the_end_of_their_time_unless_stored_again() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        assert_eq!(ages.due(TTL), None);
        (1..=3).for_each(|id| ages.note(id));
        assert!(leaving(&mut ages, start, 0).is_empty());
        assert_eq!(ages.due(TTL), Some(start + TTL));
        assert!(leaving(&mut ages, start, 60).is_empty());
        ages.note(2);
        assert!(leaving(&mut ages, start, 60).is_empty());
        assert!(leaving(&mut ages, start, 99).is_empty());
        assert_eq!(leaving(&mut ages, start, 100), [1, 3]);
        assert!(leaving(&mut ages, start, 159).is_empty());
        assert_eq!(leaving(&mut ages, start, 160), [2]);
        assert_eq!((ages.due(TTL), ages.bytes()), (None, 0));
    }

    #[test]
    fn one_turn_looks_at_so_many_and_an_id_may_come_back_meanwhile() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        (0..10).for_each(|id| ages.note(id));
        assert!(leaving(&mut ages, start, 0).is_empty());
        let (now, mut work) = (start + TTL, 4);
        let first: Vec<u64> = std::iter::from_fn(|| ages.next(now, TTL, &mut work)).collect();
        assert_eq!((first.len(), work), (4, 0));
        (0..10).filter(|id| !first.contains(id)).take(1).for_each(|id| ages.note(id));
        assert_eq!(leaving(&mut ages, start, 101).len(), 5, "all others but the one");
    }

    #[test]
    fn a_trusted_tier_remembers_nothing() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        (0..10).for_each(|id| ages.note(id));
        assert!(leaving(&mut ages, start, 0).is_empty() && ages.bytes() > 0);
        ages.trust();
        ages.note(11);
        assert!(leaving(&mut ages, start, 1_000).is_empty());
        assert_eq!((ages.due(TTL), ages.bytes()), (None, 0));
    }

    #[test]
    fn a_time_without_end_overflows_nothing() {
        let (mut ages, start, mut work) = (Ages::default(), Instant::now(), 10);
        ages.note(1);
        assert_eq!(ages.next(start, Duration::MAX, &mut work), None);
        assert_eq!(ages.due(Duration::MAX), None);
    }
}
