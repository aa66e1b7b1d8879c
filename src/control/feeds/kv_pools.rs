//! KV pools that ranks share, a pool per name and model. A pool lives for as long as a rank shares
//! it: blocks in the pool go with the last rank. Runs on the control plane's thread.

use super::super::fleet::GivenNumbers;
use forebay_admin::KvPoolView;
use forebay_base::limits::KV_POOLS_MAX;
use forebay_kv_events::{Naming, PoolBlocks, SharedPool};
use forebay_text::Vocabulary;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Pools in use, and pools that end.
const PLACES_MAX: usize = 2 * KV_POOLS_MAX;

/// All pools. The place of a pool determines its number. Places of ended pools are free.
#[derive(Default)]
pub(super) struct KvPools {
    known: Vec<KnownPool>,
    /// The log has that no further pool has room.
    refused: bool,
}

struct KnownPool {
    name: Arc<str>,
    model: Arc<str>,
    /// No further rank may share the pool.
    is_over: bool,
    blocks: Weak<RefCell<PoolBlocks<Arc<Vocabulary>>>>,
}

impl KnownPool {
    /// The pool that further ranks of that name may share.
    fn shared(&self, name: &str, model: &str) -> Option<SharedPool> {
        let is_it = *self.name == *name && *self.model == *model && !self.is_over;
        self.blocks.upgrade().filter(|_| is_it)
    }

    fn view(&self) -> Option<KvPoolView<'_>> {
        let blocks = self.blocks.upgrade().filter(|_| !self.is_over)?;
        let blocks = blocks.borrow();
        Some(KvPoolView {
            name: &self.name,
            model: &self.model,
            number: blocks.number(),
            blocks: blocks.block_count(),
            bytes: blocks.byte_count(),
        })
    }
}

/// Name, text and limits of a rank's pool.
pub(super) struct PoolPlan<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) naming: Naming<Arc<Vocabulary>>,
    pub(super) entries_max: usize,
    /// Time that a store counts: `kv.tier_ttl`.
    pub(super) ttl: Duration,
}

impl KvPools {
    /// The pool of that name and model; another text begins another pool. `keep` gets a new pool
    /// and keeps it for as long as ranks share it. `None` where there are too many.
    pub(super) fn of(
        &mut self,
        wanted: PoolPlan<'_>,
        numbers: &GivenNumbers,
        keep: impl FnOnce(SharedPool),
    ) -> Option<SharedPool> {
        let PoolPlan { name, naming, entries_max, ttl } = wanted;
        let mut known = self.known.iter_mut();
        if let Some((known, blocks)) =
            known.find_map(|known| known.shared(name, &naming.model).map(|pool| (known, pool)))
        {
            if naming.text.as_ref().is_none_or(|text| has_text(&blocks, text)) {
                blocks.borrow_mut().set_ttl(ttl);
                return Some(blocks);
            }
            // Its blocks, and further blocks of its ranks, belong to the other text.
            known.is_over = true;
        }
        let place = self.free_place();
        let number = place.and_then(|place| Some((place, numbers.of_kv_pool(place)?)));
        let Some((place, number)) = number else {
            if !std::mem::replace(&mut self.refused, true) {
                warn!(
                    kv_pool = &**name,
                    model = &*naming.model,
                    most = KV_POOLS_MAX,
                    "too many KV pools: this one counts for nothing; \
                     use fewer names, then add its workers again"
                );
            }
            return None;
        };
        let name = Arc::clone(name);
        let model = Arc::clone(&naming.model);
        let blocks = PoolBlocks::new(naming, entries_max, ttl, number);
        let blocks = Rc::new(RefCell::new(blocks));
        let known = KnownPool { name, model, is_over: false, blocks: Rc::downgrade(&blocks) };
        match self.known.get_mut(place) {
            Some(free) => *free = known,
            None => self.known.push(known),
        }
        keep(Rc::clone(&blocks));
        Some(blocks)
    }

    /// Ends all pools: new ranks share no pool, and events of pools are no longer followed.
    pub(super) fn end(&mut self) {
        self.known.iter_mut().for_each(|known| known.is_over = true);
    }

    /// Figures of each pool.
    pub(super) fn views(&self) -> Vec<KvPoolView<'_>> {
        self.known.iter().filter_map(KnownPool::view).collect()
    }

    fn free_place(&self) -> Option<usize> {
        let is_free = |known: &KnownPool| known.blocks.strong_count() == 0;
        let count = self.known.iter().filter(|known| !is_free(known) && !known.is_over).count();
        let place = self.known.iter().position(is_free).unwrap_or(self.known.len());
        (count < KV_POOLS_MAX && place < PLACES_MAX).then_some(place)
    }
}

/// True if the pool's blocks are read by that text, or by an equal text.
fn has_text(pool: &SharedPool, text: &Arc<Vocabulary>) -> bool {
    let is_equal =
        |own: &Arc<Vocabulary>| Arc::ptr_eq(own, text) || own.fingerprint() == text.fingerprint();
    pool.borrow().text().is_some_and(is_equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::RankIndex;
    use forebay_index::{KeySeed, slice_of};
    use forebay_kv_events::test_support::vocabulary;
    use serde_json::json;

    fn wanted<'a>(name: &'a Arc<str>, model: &str, ttl: u64) -> PoolPlan<'a> {
        let naming = Naming {
            seed: KeySeed(1),
            model: model.into(),
            text: Some(Arc::new(vocabulary())),
            slice_of,
            shard_count: 1,
        };
        PoolPlan { name, naming, entries_max: 100, ttl: Duration::from_secs(ttl) }
    }

    #[test]
    fn ranks_of_one_name_and_model_share_a_pool() {
        let mut pools = KvPools::default();
        let numbers = GivenNumbers::default();
        let names: [Arc<str>; 2] = ["a".into(), "b".into()];
        let mut of = |name: usize, model: &str, ttl| {
            let pool = pools.of(wanted(&names[name], model, ttl), &numbers, drop).unwrap();
            let number: RankIndex = pool.borrow().number();
            (pool, number)
        };
        let first = of(0, "m", 9);
        let same = of(0, "m", 9);
        assert!(Rc::ptr_eq(&first.0, &same.0));
        let others = [of(1, "m", 9), of(0, "n", 9)];
        let numbers = [first.1, others[0].1, others[1].1];
        assert!(
            numbers.iter().all(|one| numbers.iter().filter(|other| *other == one).count() == 1)
        );
        assert_eq!(of(0, "m", 8).1, first.1, "another time, the same number");
        assert_eq!(pools.views().len(), 3);
    }

    #[test]
    fn another_text_begins_another_pool() {
        let mut pools = KvPools::default();
        let numbers = GivenNumbers::default();
        let name: Arc<str> = "a".into();
        let mut of = |text: Option<&str>| {
            let mut wanted = wanted(&name, "m", 9);
            let of_token = |token: &str| {
                let json = json!({"model": {"type": "BPE", "vocab": {token: 0}, "merges": []}});
                Vocabulary::from_tokenizer_json(&json.to_string()).unwrap()
            };
            wanted.naming.text = text.map(|token| Arc::new(of_token(token)));
            pools.of(wanted, &numbers, drop).unwrap()
        };
        let first = of(Some("a"));
        assert!(Rc::ptr_eq(&first, &of(Some("a"))) && Rc::ptr_eq(&first, &of(None)));
        let other = of(Some("b"));
        assert_ne!(first.borrow().number(), other.borrow().number());
        assert!(Rc::ptr_eq(&other, &of(Some("b"))));
        let shown: Vec<RankIndex> = pools.views().iter().map(|view| view.number).collect();
        assert_eq!(shown, [other.borrow().number()], "the first ends with its ranks");
    }

    #[test]
    fn nothing_is_shared_that_was_not_followed_for_a_while() {
        let mut pools = KvPools::default();
        let numbers = GivenNumbers::default();
        let name: Arc<str> = "a".into();
        let first = pools.of(wanted(&name, "m", 9), &numbers, drop).unwrap();
        pools.end();
        let next = pools.of(wanted(&name, "m", 9), &numbers, drop).unwrap();
        assert!(!Rc::ptr_eq(&first, &next));
        assert_ne!(first.borrow().number(), next.borrow().number());
    }

    #[test]
    fn there_are_only_so_many_at_a_time() {
        let mut pools = KvPools::default();
        let numbers = GivenNumbers::default();
        let names: Vec<Arc<str>> = (0..=KV_POOLS_MAX).map(|name| name.to_string().into()).collect();
        let mut of = |name: &Arc<str>| pools.of(wanted(name, "m", 9), &numbers, drop);
        let mut found: Vec<SharedPool> = names.iter().filter_map(&mut of).collect();
        assert_eq!(found.len(), KV_POOLS_MAX);
        // Unshared pools free their places and numbers.
        let gone = found.swap_remove(3).borrow().number();
        let last = of(&names[KV_POOLS_MAX]).unwrap();
        assert_eq!(last.borrow().number(), gone);
        assert!(Rc::ptr_eq(&last, &of(&names[KV_POOLS_MAX]).unwrap()), "one pool for one name");
        assert!(of(&names[3]).is_none());
        // A name may come back while its old place is free, and takes another place.
        let first = found.remove(0).borrow().number();
        drop(last);
        let back = of(&names[KV_POOLS_MAX]).unwrap();
        assert_eq!(back.borrow().number(), first);
        assert!(Rc::ptr_eq(&back, &of(&names[KV_POOLS_MAX]).unwrap()));
    }
}
