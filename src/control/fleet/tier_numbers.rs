//! Numbers for the lower tiers of ranks, for the windows of hybrid models, and for shared KV pools.
//! In the index each number is like a rank of its own: a tier holds the blocks of itself and nearer
//! tiers, a window the window's blocks, a pool the pool's blocks. A single walk finds all of them.
//! Numbers are given from the highest rank number down, so that they never meet the fleet's ranks.
//! Like rank numbers, they keep their meaning.

use forebay_base::RankIndex;
use forebay_base::limits::RANKS_MAX;
use forebay_kv_events::{TierNumbers, Tree};
use std::cell::{Cell, RefCell};

/// All assigned numbers, on the control plane's thread.
#[derive(Debug, Default)]
pub(crate) struct GivenNumbers {
    /// The position is the number's distance from the highest.
    given: RefCell<Vec<NumberFor>>,
    rank_count: Cell<usize>,
}

/// Meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberFor {
    /// A tree of a rank.
    Tree(RankIndex, Tree),
    /// A KV pool, by its place among all.
    KvPool(usize),
}

impl GivenNumbers {
    /// Most ranks that the fleet may have now.
    pub(crate) fn ranks_max(&self) -> usize {
        RANKS_MAX - self.given.borrow().len()
    }

    /// Takes the rank count of the fleet.
    pub(crate) fn set_rank_count(&self, rank_count: usize) {
        self.rank_count.set(rank_count);
    }

    /// The number of a KV pool; the same for the same place. `None` when all numbers are given.
    pub(crate) fn of_kv_pool(&self, place: usize) -> Option<RankIndex> {
        self.give(NumberFor::KvPool(place))
    }

    fn give(&self, wanted: NumberFor) -> Option<RankIndex> {
        let mut given = self.given.borrow_mut();
        let known = given.iter().position(|other| *other == wanted);
        let position = known.unwrap_or(given.len());
        if known.is_none() {
            if self.rank_count.get() + given.len() >= RANKS_MAX {
                return None;
            }
            given.push(wanted);
        }
        RankIndex::try_from_index((RANKS_MAX - 1).checked_sub(position)?)
    }
}

impl TierNumbers for GivenNumbers {
    fn number(&self, rank: RankIndex, tree: Tree) -> Option<RankIndex> {
        self.give(NumberFor::Tree(rank, tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Tree = Tree::Tier(forebay_kv_events::Tier::Host);

    #[test]
    fn numbers_are_stable_and_never_a_rank() {
        let numbers = GivenNumbers::default();
        numbers.set_rank_count(RANKS_MAX - 2);
        let highest = u16::try_from(RANKS_MAX - 1).unwrap();
        let first = numbers.number(RankIndex(5), HOST);
        assert_eq!(first, Some(RankIndex(highest)));
        assert_eq!(numbers.number(RankIndex(5), Tree::Window(1)), Some(RankIndex(highest - 1)));
        assert_eq!(numbers.number(RankIndex(6), HOST), None, "no room");
        assert_eq!(numbers.number(RankIndex(5), HOST), first);
        assert_eq!(numbers.ranks_max(), RANKS_MAX - 2);
    }
}
