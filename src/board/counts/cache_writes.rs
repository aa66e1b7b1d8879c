//! KV tokens that requests have recently written to the cache of a rank and found there. Leases add
//! to the counts, and the control plane lets them fade. The faded count of writes estimates the
//! part of the cache that requests may reuse.

use crate::LoadBoard;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::{FleetSnapshot, WorkerGeneration};

/// After this time, 37 % are left. Turns of a conversation or an agent are seconds to minutes
/// apart.
const FADE_NS: u64 = 600_000_000_000;
/// Time between two steps. In shorter steps, the faded part of a small count rounds to 0.
const STEP_NS: u64 = 1_000_000_000;
const _: () = assert!(STEP_NS * 10 < FADE_NS);

/// Fades the counts. Owned by the control plane.
#[derive(Debug, Default)]
pub struct CacheWrites {
    at: NanosSinceStart,
    /// By rank: generation that the counts belong to.
    generations: Vec<Option<WorkerGeneration>>,
}

impl CacheWrites {
    /// Fades the writes of all ranks. Forgets the writes of a cache that was lost, and with another
    /// engine the speeds. Cheap when called often.
    pub fn fade(&mut self, fleet: &FleetSnapshot, board: &LoadBoard, now: NanosSinceStart) {
        let elapsed_ns = now.since(self.at);
        if elapsed_ns < STEP_NS {
            return;
        }
        self.at = now;
        self.generations.resize(fleet.ranks.len(), None);
        for (number, known) in self.generations.iter_mut().enumerate() {
            let Some(index) = RankIndex::try_from_index(number) else { continue };
            let (Some(past), Some((_, worker))) = (board.past(index), fleet.rank(index)) else {
                continue;
            };
            let found = worker.generation;
            // Writes before the first step belong to the generation that the step finds.
            let Some(before) = known.replace(found) else { continue };
            if before.engine != found.engine {
                past.forget();
            } else if before.cache != found.cache {
                past.forget_writes();
            } else {
                past.fade(|all| faded(all, elapsed_ns));
            }
        }
    }
}

/// Part of `all` that fades in that time.
fn faded(all: u32, elapsed_ns: u64) -> u32 {
    let part = u128::from(all) * u128::from(elapsed_ns.min(FADE_NS)) / u128::from(FADE_NS);
    debug_assert!(part <= u128::from(all), "more fades than there is");
    u32::try_from(part).unwrap_or(all)
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::RankPast;
    use forebay_fleet::worker::test_support::{rank, worker};

    const RANK: RankIndex = RankIndex(1);

    fn two_workers() -> FleetSnapshot {
        FleetSnapshot {
            workers: vec![worker(), worker()],
            ranks: vec![rank(0), rank(1)],
            ..FleetSnapshot::default()
        }
    }

    #[test]
    fn what_was_written_long_ago_has_faded() {
        let fleet = two_workers();
        let board = LoadBoard::new();
        let mut writes = CacheWrites::default();
        let mut at_second = |second: u64| {
            writes.fade(&fleet, &board, NanosSinceStart(second * 1_000_000_000));
            let past = board.past(RANK).unwrap();
            // The tokens that are rounded away in each second are less than a token.
            assert!(past.reused_tokens().abs_diff(past.written_tokens() * 2) < 700);
            past.written_tokens()
        };
        assert_eq!(at_second(1), 0);
        board.past(RANK).unwrap().add(1_000_000, 2_000_000);
        let left: Vec<u64> = (2..=602).map(&mut at_second).collect();
        assert!((360_000..370_000).contains(&left[599]), "{}", left[599]);
        assert_eq!(at_second(602), left[600], "no time has passed");
        assert_eq!(at_second(100_000), 0, "one long step");
    }

    #[test]
    fn an_empty_cache_has_seen_no_writes() {
        let mut fleet = two_workers();
        let board = LoadBoard::new();
        let mut writes = CacheWrites::default();
        writes.fade(&fleet, &board, NanosSinceStart(2_000_000_000));
        board.past(RANK).unwrap().add(5_000, 6_000);
        board.past(RankIndex(0)).unwrap().add(5_000, 6_000);
        let [other, own] = [RankIndex(0), RANK].map(|rank| board.past(rank).unwrap());
        own.prefill_began(1_000, NanosSinceStart(2_000_000_000));
        own.prefill_ended(1_000, 0, NanosSinceStart(2_500_000_000));
        (0..100).for_each(|_| own.waited(8_000, 1_000_000_000));
        own.decoded(1_000, 10_000_000_000);
        let speeds = || {
            let prefill = (own.prefill_tokens_per_s(), own.wait_tokens_per_s());
            (prefill, own.prefill_time(8_000), own.decoded_in(1_000_000_000))
        };
        let known = speeds();
        assert!(known.0.0.is_some() && known.0.1.is_some() && known.2 == 100, "{known:?}");

        fleet.workers[1].generation = fleet.workers[1].generation.with_empty_caches();
        writes.fade(&fleet, &board, NanosSinceStart(4_000_000_000));
        assert_eq!((own.written_tokens(), own.reused_tokens()), (0, 0));
        assert!(other.written_tokens() > 4_900 && other.reused_tokens() > 5_900);
        assert_eq!(speeds(), known, "the engine is the same");

        own.add(5_000, 6_000);
        fleet.workers[1].generation = fleet.workers[1].generation.with_other_engine();
        writes.fade(&fleet, &board, NanosSinceStart(6_000_000_000));
        assert_eq!((own.written_tokens(), own.reused_tokens()), (0, 0));
        assert_eq!(speeds().0, (None, None), "another engine");
    }

    #[test]
    fn what_came_before_the_first_look_is_kept() {
        let fleet = two_workers();
        let board = LoadBoard::new();
        let past = board.past(RANK).unwrap();
        past.add(5_000, 6_000);
        past.prefill_began(1_000, NanosSinceStart(0));
        past.prefill_ended(1_000, 0, NanosSinceStart(500_000_000));
        CacheWrites::default().fade(&fleet, &board, NanosSinceStart(2_000_000_000));
        assert_eq!((past.written_tokens(), past.reused_tokens()), (5_000, 6_000));
        assert_eq!(past.prefill_tokens_per_s(), Some(2_000));
    }

    #[test]
    fn no_more_is_taken_off_than_is_there() {
        let past = RankPast::default();
        past.add(10, 5);
        past.sub(11, 3);
        assert_eq!((past.written_tokens(), past.reused_tokens()), (0, 2));
    }
}
