//! The KV pools that ranks share, one per name and model. A pool stays for the life of the process:
//! ranks come and go, and what they stored there does not go with them. Runs on the control plane's
//! thread.

use super::tier_numbers::GivenNumbers;
use forebay_admin::KvPoolView;
use forebay_base::limits::KV_POOLS_MAX;
use forebay_kv_events::{Naming, PoolBlocks, SharedPool};
use forebay_text::Vocabulary;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// All that were ever asked for.
#[derive(Default)]
pub(super) struct KvPools {
    known: Vec<KnownPool>,
    /// It was said that there is no room for one more.
    refused: bool,
}

struct KnownPool {
    name: Arc<str>,
    model: Arc<str>,
    has_text: bool,
    ttl: Duration,
    blocks: SharedPool,
}

impl KnownPool {
    fn view(&self) -> KvPoolView<'_> {
        let blocks = self.blocks.borrow();
        KvPoolView {
            name: &self.name,
            model: &self.model,
            number: blocks.number(),
            blocks: blocks.block_count(),
            bytes: blocks.byte_count(),
        }
    }
}

/// What a rank's pool has to be.
pub(super) struct PoolWanted<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) naming: Naming<Arc<Vocabulary>>,
    pub(super) entries_max: usize,
    /// How long a store is believed: `kv.tier_ttl`.
    pub(super) ttl: Duration,
}

impl KvPools {
    /// The pool of that name and model. `None` where there are too many.
    pub(super) fn of(
        &mut self,
        wanted: PoolWanted<'_>,
        numbers: &GivenNumbers,
    ) -> Option<SharedPool> {
        let PoolWanted { name, naming, entries_max, ttl } = wanted;
        let is_it = |known: &&mut KnownPool| known.name == *name && known.model == naming.model;
        if let Some(known) = self.known.iter_mut().find(is_it) {
            let gains_text = naming.text.is_some() && !known.has_text;
            if gains_text || known.ttl != ttl {
                (known.has_text, known.ttl) = (naming.text.is_some(), ttl);
                known.blocks.borrow_mut().begin_again(naming, ttl);
            }
            return Some(Rc::clone(&known.blocks));
        }
        let has_room = self.known.len() < KV_POOLS_MAX;
        let number = has_room.then(|| numbers.of_kv_pool(self.known.len())).flatten();
        let Some(number) = number else {
            if !std::mem::replace(&mut self.refused, true) {
                warn!(
                    kv_pool = &**name,
                    model = &*naming.model,
                    most = KV_POOLS_MAX,
                    "too many KV pools: what is in this one counts for nothing; use fewer names"
                );
            }
            return None;
        };
        let (model, has_text) = (Arc::clone(&naming.model), naming.text.is_some());
        let blocks = PoolBlocks::new(naming, entries_max, ttl, number);
        let blocks = Rc::new(RefCell::new(blocks));
        let name = Arc::clone(name);
        self.known.push(KnownPool { name, model, has_text, ttl, blocks: Rc::clone(&blocks) });
        Some(blocks)
    }

    /// What each of them holds.
    pub(super) fn views(&self) -> Vec<KvPoolView<'_>> {
        self.known.iter().map(KnownPool::view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::RankIndex;
    use forebay_index::{KeySeed, slice_of};
    use forebay_kv_events::test_support::vocabulary;

    fn wanted<'a>(name: &'a Arc<str>, model: &str, ttl: u64) -> PoolWanted<'a> {
        let naming = Naming {
            seed: KeySeed(1),
            model: model.into(),
            text: Some(Arc::new(vocabulary())),
            slice_of,
            shard_count: 1,
        };
        PoolWanted { name, naming, entries_max: 100, ttl: Duration::from_secs(ttl) }
    }

    #[test]
    fn ranks_of_one_name_and_model_share_a_pool() {
        let (mut pools, numbers) = (KvPools::default(), GivenNumbers::default());
        let names: [Arc<str>; 2] = ["a".into(), "b".into()];
        let mut of = |name: usize, model: &str, ttl| {
            let pool = pools.of(wanted(&names[name], model, ttl), &numbers).unwrap();
            let number: RankIndex = pool.borrow().number();
            (pool, number)
        };
        let first = of(0, "m", 9);
        let same = of(0, "m", 9);
        assert!(Rc::ptr_eq(&first.0, &same.0));
        let others = [of(1, "m", 9).1, of(0, "n", 9).1];
        assert!(!others.contains(&first.1) && others[0] != others[1], "{others:?}");
        assert_eq!(of(0, "m", 8).1, first.1, "another time, the same number");
        assert_eq!(pools.views().len(), 3);
    }

    #[test]
    fn there_are_only_so_many() {
        let (mut pools, numbers) = (KvPools::default(), GivenNumbers::default());
        let names: Vec<Arc<str>> = (0..=KV_POOLS_MAX).map(|name| name.to_string().into()).collect();
        let found = names.iter().filter(|name| pools.of(wanted(name, "m", 9), &numbers).is_some());
        assert_eq!(found.count(), KV_POOLS_MAX);
    }
}
