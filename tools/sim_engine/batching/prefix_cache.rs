//! Block-level prefix cache of a rank, like vLLM's block pool. Owned by the rank's schedule, on a
//! single thread, without clock or I/O: calls come in, cache events come out.
//!
//! A block is `block_size_tokens` tokens; only full blocks are cached and reported. Blocks have
//! reference counts; unreferenced cached blocks stay until they are evicted, least recently used
//! first and leaves before their parents. Several blocks may have the same content (a prompt that
//! is an exact multiple of the block size computes its last block again each time). Events report
//! each copy by itself, so consumers count. Limit: `capacity_blocks`. The cache never takes a block
//! that a live sequence holds or has reserved.

use std::collections::{BTreeMap, BTreeSet};
use twox_hash::XxHash3_64;

/// Identity of a full block: hash of its tokens and of all tokens before. Opaque to consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// Events of a cache, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Consecutive blocks of a sequence became reusable.
    Stored {
        /// The blocks, in prefix order.
        hashes: Vec<BlockHash>,
        /// Block before the first; `None` at the start of a sequence.
        parent: Option<BlockHash>,
        /// Tokens of all blocks.
        token_ids: Vec<u32>,
        /// Cache salt of the sequence, or empty. On the wire only blocks without a parent have it.
        salt: String,
    },
    /// A block was evicted.
    Removed {
        /// Hash of the block that was removed.
        hash: BlockHash,
    },
    /// Every block is gone.
    Cleared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct BlockId(u32);

#[derive(Debug, Default)]
struct Block {
    hash: Option<BlockHash>,
    reference_count: u32,
    idle_stamp: u64,
}

/// Blocks and tokens of a live request. Must go back through [`PrefixCache::release`].
#[derive(Debug)]
pub struct LiveSequence {
    token_ids: Vec<u32>,
    blocks: Vec<BlockId>,
    stored_blocks: usize,
    last_hash: Option<BlockHash>,
    reserved_blocks: usize,
    salt: String,
}

/// The cache of a rank.
#[derive(Debug)]
pub struct PrefixCache {
    block_size_tokens: usize,
    blocks: Vec<Block>,
    /// Free blocks without content.
    empty: Vec<BlockId>,
    /// Free blocks with content, oldest stamp first.
    idle: BTreeMap<u64, BlockId>,
    /// Blocks by hash; `None` if computed blocks are not cached for later prompts.
    by_hash: Option<BTreeSet<(BlockHash, BlockId)>>,
    next_stamp: u64,
    /// Blocks promised to live sequences for tokens they will generate.
    reserved_blocks: usize,
    events: Vec<CacheEvent>,
}

impl PrefixCache {
    /// An empty cache. A block size of 0 counts as 1.
    #[must_use]
    pub fn new(capacity_blocks: u32, block_size_tokens: u32) -> Self {
        Self {
            block_size_tokens: block_size_tokens.max(1) as usize,
            blocks: (0..capacity_blocks).map(|_| Block::default()).collect(),
            empty: (0..capacity_blocks).rev().map(BlockId).collect(),
            idle: BTreeMap::new(),
            by_hash: Some(BTreeSet::new()),
            next_stamp: 0,
            reserved_blocks: 0,
            events: Vec::new(),
        }
    }

    /// The same, but without caching blocks for later prompts.
    #[must_use]
    pub fn forgetful(mut self) -> Self {
        self.by_hash = None;
        self
    }

    /// Takes blocks for a prompt that will grow to at most `tokens_max` tokens. Returns the
    /// sequence and the number of cached prompt tokens: whole blocks, and never the whole prompt
    /// (its last token must be computed to get an answer). Without enough free blocks, `Err`
    /// returns the prompt and changes nothing.
    pub fn begin(
        &mut self,
        prompt: Vec<u32>,
        salt: String,
        tokens_max: usize,
    ) -> Result<(LiveSequence, usize), (Vec<u32>, String)> {
        let (matched, last_hash) = self.longest_match(&prompt, &salt);
        let prompt_blocks = prompt.len().div_ceil(self.block_size_tokens);
        let total_blocks = tokens_max.max(prompt.len()).div_ceil(self.block_size_tokens);
        let matched_idle = matched.iter().filter(|id| self.is_idle(**id)).count();
        let wanted = total_blocks.saturating_sub(matched.len()) + matched_idle;
        if wanted > self.available_blocks() {
            return Err((prompt, salt));
        }
        for id in &matched {
            self.reference(*id);
        }
        let cached_tokens = matched.len() * self.block_size_tokens;
        let mut sequence = LiveSequence {
            token_ids: prompt,
            stored_blocks: matched.len(),
            blocks: matched,
            last_hash,
            reserved_blocks: total_blocks - prompt_blocks,
            salt,
        };
        self.reserved_blocks += sequence.reserved_blocks;
        while sequence.blocks.len() < prompt_blocks {
            let Some(id) = self.take_block() else { break };
            sequence.blocks.push(id);
        }
        self.check_invariants();
        Ok((sequence, cached_tokens))
    }

    /// Makes the full blocks of a computed prompt reusable.
    pub fn prefilled(&mut self, sequence: &mut LiveSequence) {
        self.store_full_blocks(sequence);
        self.check_invariants();
    }

    /// Adds a computed token to a sequence.
    pub fn append(&mut self, sequence: &mut LiveSequence, token_id: u32) {
        sequence.token_ids.push(token_id);
        if sequence.token_ids.len() > sequence.blocks.len() * self.block_size_tokens {
            debug_assert!(sequence.reserved_blocks > 0, "a sequence outgrew what it asked for");
            sequence.reserved_blocks = sequence.reserved_blocks.saturating_sub(1);
            self.reserved_blocks = self.reserved_blocks.saturating_sub(1);
            if let Some(id) = self.take_block() {
                sequence.blocks.push(id);
            }
        }
        self.store_full_blocks(sequence);
        self.check_invariants();
    }

    /// Makes the blocks of a finished request evictable, the last block first.
    pub fn release(&mut self, sequence: LiveSequence) {
        self.reserved_blocks -= sequence.reserved_blocks;
        for id in sequence.blocks.into_iter().rev() {
            self.dereference(id);
        }
        self.check_invariants();
    }

    /// Removes all content. `false`, without a change, while a live sequence holds blocks.
    pub fn clear(&mut self) -> bool {
        if self.used_blocks() > 0 {
            return false;
        }
        self.by_hash.iter_mut().for_each(BTreeSet::clear);
        for (_, id) in std::mem::take(&mut self.idle) {
            if let Some(block) = self.block_mut(id) {
                block.hash = None;
            }
            self.empty.push(id);
        }
        self.events.push(CacheEvent::Cleared);
        self.check_invariants();
        true
    }

    /// Takes the events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks held by live sequences.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        self.blocks.len() - self.empty.len() - self.idle.len()
    }

    /// Number of leading full blocks of a prompt in the cache, up to the whole prompt.
    #[must_use]
    pub fn held_blocks(&self, prompt: &[u32], salt: &str) -> usize {
        let mut last_hash = None;
        let held = prompt.chunks_exact(self.block_size_tokens).take_while(|tokens| {
            let hash = hash_block(last_hash, salt, tokens);
            last_hash = Some(hash);
            self.find(hash).is_some()
        });
        held.count()
    }

    /// Capacity of the cache in blocks.
    #[must_use]
    pub fn capacity_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn longest_match(&self, prompt: &[u32], salt: &str) -> (Vec<BlockId>, Option<BlockHash>) {
        let mut matched = Vec::new();
        let mut last_hash = None;
        let hit_blocks_max = prompt.len().saturating_sub(1) / self.block_size_tokens;
        for tokens in prompt.chunks_exact(self.block_size_tokens).take(hit_blocks_max) {
            let hash = hash_block(last_hash, salt, tokens);
            let Some(id) = self.find(hash) else { break };
            matched.push(id);
            last_hash = Some(hash);
        }
        (matched, last_hash)
    }

    fn find(&self, hash: BlockHash) -> Option<BlockId> {
        let range = (hash, BlockId(0))..=(hash, BlockId(u32::MAX));
        self.by_hash.as_ref()?.range(range).next().map(|(_, id)| *id)
    }

    fn store_full_blocks(&mut self, sequence: &mut LiveSequence) {
        let size = self.block_size_tokens;
        let full_blocks = sequence.token_ids.len() / size;
        if full_blocks <= sequence.stored_blocks || self.by_hash.is_none() {
            return;
        }
        let parent = sequence.last_hash;
        let first_token = sequence.stored_blocks * size;
        let tokens = sequence.token_ids.get(first_token..full_blocks * size).unwrap_or_default();
        let ids = sequence.blocks.get(sequence.stored_blocks..full_blocks).unwrap_or_default();
        let mut hashes = Vec::with_capacity(ids.len());
        for (tokens, id) in tokens.chunks_exact(size).zip(ids) {
            let hash = hash_block(sequence.last_hash, &sequence.salt, tokens);
            sequence.last_hash = Some(hash);
            if let Some(block) = self.block_mut(*id) {
                block.hash = Some(hash);
            }
            self.by_hash.get_or_insert_default().insert((hash, *id));
            hashes.push(hash);
        }
        sequence.stored_blocks = full_blocks;
        let token_ids = tokens.to_vec();
        let salt = sequence.salt.clone();
        self.events.push(CacheEvent::Stored { hashes, parent, token_ids, salt });
    }

    /// A block for new content: a block without content, else the least recently used block.
    fn take_block(&mut self) -> Option<BlockId> {
        let id = match self.empty.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        if let Some(block) = self.block_mut(id) {
            debug_assert_eq!(block.reference_count, 0, "block taken while it is held");
            block.reference_count = 1;
        }
        Some(id)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.idle.pop_first()?;
        let hash = self.block_mut(id).and_then(|block| block.hash.take())?;
        if let Some(kept) = &mut self.by_hash {
            kept.remove(&(hash, id));
        }
        self.events.push(CacheEvent::Removed { hash });
        Some(id)
    }

    fn reference(&mut self, id: BlockId) {
        let Some(block) = self.block_mut(id) else { return };
        block.reference_count += 1;
        if block.reference_count == 1 {
            let stamp = block.idle_stamp;
            self.idle.remove(&stamp);
        }
    }

    fn dereference(&mut self, id: BlockId) {
        let stamp = self.next_stamp;
        let Some(block) = self.block_mut(id) else { return };
        debug_assert!(block.reference_count > 0, "block returned twice");
        block.reference_count = block.reference_count.saturating_sub(1);
        if block.reference_count > 0 {
            return;
        }
        block.idle_stamp = stamp;
        if block.hash.is_some() {
            self.idle.insert(stamp, id);
        } else {
            self.empty.push(id);
        }
        self.next_stamp += 1;
    }

    fn is_idle(&self, id: BlockId) -> bool {
        self.blocks.get(id.0 as usize).is_some_and(|block| block.reference_count == 0)
    }

    fn available_blocks(&self) -> usize {
        (self.empty.len() + self.idle.len()).saturating_sub(self.reserved_blocks)
    }

    fn block_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut(id.0 as usize)
    }

    fn check_invariants(&self) {
        debug_assert!(self.empty.len() + self.idle.len() <= self.blocks.len());
        debug_assert!(self.reserved_blocks <= self.empty.len() + self.idle.len());
        let kept = self.by_hash.as_ref().map_or(0, BTreeSet::len);
        debug_assert!(kept >= self.idle.len());
        debug_assert!(kept <= self.blocks.len() - self.empty.len());
    }
}

fn hash_block(parent: Option<BlockHash>, salt: &str, token_ids: &[u32]) -> BlockHash {
    let seed = match parent {
        Some(BlockHash(word)) => word,
        None => XxHash3_64::oneshot_with_seed(ROOT_SEED, salt.as_bytes()),
    };
    let mut bytes = Vec::with_capacity(token_ids.len() * 4);
    for token_id in token_ids {
        bytes.extend_from_slice(&token_id.to_le_bytes());
    }
    BlockHash(XxHash3_64::oneshot_with_seed(seed, &bytes))
}

/// Seed of all hashes, fixed so that equal prompts have equal hashes in every engine and run.
const ROOT_SEED: u64 = 0x666f_7265_6261_7901;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SIZE: u32 = 4;

    fn run(cache: &mut PrefixCache, prompt: &[u32], output: &[u32]) -> usize {
        let (mut sequence, cached) =
            cache.begin(prompt.to_vec(), String::new(), prompt.len() + output.len()).expect("fits");
        cache.prefilled(&mut sequence);
        for token in output {
            cache.append(&mut sequence, *token);
        }
        cache.release(sequence);
        cached
    }

    fn tokens(count: u32) -> Vec<u32> {
        (1..=count).collect()
    }

    #[test]
    fn second_turn_hits_all_full_blocks_of_the_first() {
        let mut cache = PrefixCache::new(16, SIZE);
        assert_eq!(run(&mut cache, &tokens(10), &[11, 12, 13]), 0);
        // 13 tokens were computed: 3 full blocks.
        assert_eq!(run(&mut cache, &tokens(20), &[]), 12);
    }

    #[test]
    fn exact_multiple_stores_its_last_block_again_and_each_copy_is_removed() {
        let mut cache = PrefixCache::new(3, SIZE);
        run(&mut cache, &tokens(8), &[]);
        cache.take_events();
        assert_eq!(run(&mut cache, &tokens(8), &[]), 4);
        let events = cache.take_events();
        let [CacheEvent::Stored { hashes, parent, token_ids, .. }] = events.as_slice() else {
            panic!("one store expected: {events:?}");
        };
        assert_eq!((hashes.len(), token_ids.as_slice()), (1, &[5, 6, 7, 8][..]));
        assert!(parent.is_some());
        // Three other blocks push out both copies of the leaf before the root.
        run(&mut cache, &[100; 12], &[]);
        let removed: Vec<_> = cache
            .take_events()
            .into_iter()
            .filter_map(|event| match event {
                CacheEvent::Removed { hash } => Some(hash),
                _ => None,
            })
            .collect();
        assert_eq!(removed.len(), 3);
        assert_eq!(removed[0], removed[1]);
        assert_eq!(Some(removed[2]), *parent);
    }

    #[test]
    fn salt_separates_equal_prompts() {
        let mut cache = PrefixCache::new(16, SIZE);
        run(&mut cache, &tokens(9), &[]);
        let (sequence, cached) = cache.begin(tokens(9), "other".into(), 9).expect("fits");
        assert_eq!(cached, 0);
        cache.release(sequence);
    }

    #[test]
    fn blocks_of_live_requests_are_never_taken() {
        let mut cache = PrefixCache::new(4, SIZE);
        let (sequence, _) = cache.begin(tokens(8), String::new(), 12).expect("fits");
        // Two held, one reserved, one free.
        assert!(cache.begin(vec![50; 5], String::new(), 5).is_err());
        let (other, _) = cache.begin(vec![50; 4], String::new(), 4).expect("one block fits");
        assert!(!cache.clear());
        cache.release(other);
        cache.release(sequence);
        assert!(cache.clear());
        assert_eq!(cache.used_blocks(), 0);
    }

    /// What a consumer that counts references holds after the events, and each block's parent.
    #[derive(Default)]
    struct Consumer {
        held: HashMap<BlockHash, i64>,
        parents: HashMap<BlockHash, Option<BlockHash>>,
    }

    fn replay(consumer: &mut Consumer, events: &[CacheEvent]) {
        let Consumer { held, parents } = consumer;
        for event in events {
            match event {
                CacheEvent::Stored { hashes, parent, token_ids, .. } => {
                    assert_eq!(token_ids.len(), hashes.len() * SIZE as usize);
                    assert!(parent.is_none_or(|hash| held.contains_key(&hash)), "orphan");
                    let mut parent = *parent;
                    for hash in hashes {
                        *held.entry(*hash).or_default() += 1;
                        parents.insert(*hash, parent.replace(*hash));
                    }
                }
                CacheEvent::Removed { hash } => {
                    let count = held.get_mut(hash).expect("removed what was never stored");
                    *count -= 1;
                    if *count == 0 {
                        held.remove(hash);
                    }
                }
                CacheEvent::Cleared => held.clear(),
            }
        }
    }

    fn content(cache: &PrefixCache) -> HashMap<BlockHash, i64> {
        let mut held = HashMap::new();
        for (hash, _) in cache.by_hash.iter().flatten() {
            *held.entry(*hash).or_default() += 1;
        }
        held
    }

    #[derive(Clone, Debug)]
    enum Op {
        Begin { prompt: Vec<u32>, output_tokens: usize },
        Append { at: usize },
        Release { at: usize },
        Clear,
    }

    fn op() -> impl Strategy<Value = Op> {
        let prompt = proptest::collection::vec(0..3_u32, 1..24);
        prop_oneof![
            4 => (prompt, 0..12_usize)
                .prop_map(|(prompt, output_tokens)| Op::Begin { prompt, output_tokens }),
            8 => (0..8_usize).prop_map(|at| Op::Append { at }),
            4 => (0..8_usize).prop_map(|at| Op::Release { at }),
            1 => Just(Op::Clear),
        ]
    }

    proptest! {
        #[test]
        fn events_tell_the_content_and_capacity_holds(
            ops in proptest::collection::vec(op(), 1..120),
            capacity in 1..24_u32,
        ) {
            let mut cache = PrefixCache::new(capacity, SIZE);
            let mut live: Vec<(LiveSequence, usize)> = Vec::new();
            let mut consumer = Consumer::default();
            for op in ops {
                match op {
                    Op::Begin { prompt, output_tokens } => {
                        let length = prompt.len();
                        let begun = cache.begin(prompt, String::new(), length + output_tokens);
                        if let Ok((mut sequence, cached)) = begun {
                            prop_assert!(cached < length && cached.is_multiple_of(SIZE as usize));
                            cache.prefilled(&mut sequence);
                            live.push((sequence, output_tokens));
                        }
                    }
                    Op::Append { at } => {
                        if let Some((sequence, left)) = live.get_mut(at)
                            && *left > 0
                        {
                            *left -= 1;
                            cache.append(sequence, 1);
                        }
                    }
                    Op::Release { at } => {
                        if at < live.len() {
                            cache.release(live.swap_remove(at).0);
                        }
                    }
                    Op::Clear => prop_assert_eq!(cache.clear(), live.is_empty()),
                }
                prop_assert!(cache.by_hash.iter().flatten().count() <= capacity as usize);
                replay(&mut consumer, &cache.take_events());
                prop_assert_eq!(&consumer.held, &content(&cache));
                for hash in consumer.held.keys() {
                    let parent = consumer.parents.get(hash).copied().flatten();
                    let leaf_first =
                        parent.is_none_or(|parent| consumer.held.contains_key(&parent));
                    prop_assert!(leaf_first, "a parent went before its child");
                }
                for (sequence, _) in &live {
                    prop_assert_eq!(
                        sequence.blocks.len(),
                        sequence.token_ids.len().div_ceil(SIZE as usize)
                    );
                }
            }
            for (sequence, _) in live {
                cache.release(sequence);
            }
            prop_assert_eq!(cache.used_blocks(), 0);
            prop_assert_eq!(cache.reserved_blocks, 0);
            prop_assert!(cache.blocks.iter().all(|block| block.reference_count == 0));
        }
    }
}
