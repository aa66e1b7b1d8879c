//! The honest other way: an index of token blocks. Prompts are tokenized, each block's tokens are
//! hashed into the hash of the path before it, and one flat table says which ranks hold a path. A
//! path is looked up by its depth: ranks hold no block without those before it, so the set of ranks
//! only shrinks along a prompt, and eight-ary search finds where.
//!
//! Built as such an index would be, and no more than this comparison needs: one table, a lock
//! around it.

use crate::flat::{FlatTable, RankSet};
use crate::history::{BLOCK_TOKENS, Event, Kind, Prompt, chain, local_hash};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Depths probed at once.
const PROBES: usize = 7;

/// The table, and for each rank the paths of the engine's hashes.
#[derive(Default)]
pub(crate) struct TokenFeeds {
    table: Arc<RwLock<FlatTable>>,
    ranks: Vec<HashMap<u64, u64, ahash::RandomState>>,
}

/// Reading side; one for each thread.
pub(crate) struct TokenReader {
    table: Arc<RwLock<FlatTable>>,
    /// Blocks of each rank, and the ranks that have any.
    blocks: Vec<u32>,
    held: Vec<u16>,
}

impl TokenFeeds {
    pub(crate) fn reader(&self, rank_count: usize) -> TokenReader {
        let table = Arc::clone(&self.table);
        TokenReader { table, blocks: vec![0; rank_count], held: Vec::with_capacity(rank_count) }
    }

    /// Takes a decoded event.
    pub(crate) fn take(&mut self, prompts: &[Prompt], event: &Event) {
        if self.ranks.len() <= usize::from(event.rank) {
            self.ranks.resize_with(usize::from(event.rank) + 1, HashMap::default);
        }
        let paths = &mut self.ranks[usize::from(event.rank)];
        let prompt = &prompts[event.prompt as usize];
        let blocks = event.blocks.start as usize..event.blocks.end as usize;
        let mut table = self.table.write().expect("nobody panicked");
        match event.kind {
            Kind::Store => {
                let parent = blocks.start.checked_sub(1).map(|parent| prompt.hashes[parent]);
                let mut path = parent.map_or(0, |parent| paths[&parent]);
                for block in blocks {
                    let tokens = &prompt.tokens[block * BLOCK_TOKENS..][..BLOCK_TOKENS];
                    path = chain(path, local_hash(tokens));
                    if paths.insert(prompt.hashes[block], path).is_none() {
                        table.insert(path, event.rank);
                    }
                }
            }
            Kind::Remove => {
                for block in blocks.rev() {
                    if let Some(path) = paths.remove(&prompt.hashes[block]) {
                        table.remove(path, event.rank);
                    }
                }
            }
        }
    }

    /// Leaves the table without its feeds.
    pub(crate) fn into_table(self) -> Arc<RwLock<FlatTable>> {
        self.table
    }
}

/// The path after each whole block.
pub(crate) fn paths_of(tokens: &[u32], paths: &mut Vec<u64>) {
    paths.clear();
    let mut path = 0;
    paths.extend(tokens.chunks_exact(BLOCK_TOKENS).map(|block| {
        path = chain(path, local_hash(block));
        path
    }));
}

impl TokenReader {
    /// Finds how many blocks each rank holds.
    pub(crate) fn find(&mut self, paths: &[u64]) -> &[u16] {
        for rank in self.held.drain(..) {
            self.blocks[usize::from(rank)] = 0;
        }
        let table = Arc::clone(&self.table);
        let table = table.read().expect("nobody panicked");
        let mut from = 0;
        let mut set = paths.first().and_then(|path| table.get(*path));
        while let Some(ranks) = set {
            let last = last_with(&table, paths, from, ranks.len());
            let next = paths.get(last + 1).and_then(|path| table.get(*path));
            ranks.without(next.as_ref(), |rank| {
                self.blocks[usize::from(rank)] = last as u32 + 1;
                self.held.push(rank);
            });
            from = last + 1;
            set = next;
        }
        &self.held
    }

    /// Blocks of each rank, ascending.
    pub(crate) fn found(&mut self, paths: &[u64]) -> Vec<(u16, u32)> {
        self.find(paths);
        let mut found: Vec<_> =
            self.held.iter().map(|rank| (*rank, self.blocks[usize::from(*rank)])).collect();
        found.sort_unstable();
        found
    }
}

/// The last path that as many ranks hold as hold `paths[from]`.
fn last_with(table: &FlatTable, paths: &[u64], from: usize, count: usize) -> usize {
    let mut low = from;
    let mut high = paths.len();
    while high - low > 1 {
        let step = (high - low).div_ceil(PROBES + 1);
        let first = low + step;
        let probes = (0..PROBES).map(|probe| first + probe * step).take_while(|at| *at < high);
        probes.clone().for_each(|at| table.prefetch(paths[at]));
        for at in probes {
            if table.get(paths[at]).as_ref().map_or(0, RankSet::len) == count {
                low = at;
            } else {
                high = at;
                break;
            }
        }
    }
    low
}
