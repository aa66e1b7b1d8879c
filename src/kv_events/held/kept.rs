//! A copy of what a rank holds, made in one go and read by another thread.

use super::ordered::{Ordered, OrderedEntry};
use super::state::HeldState;
use super::{TIERS, Tier};
use forebay_index::BlockKey;
use forebay_snapshot::SnapshotEntry;
use std::collections::HashMap;

const _: () = assert!(TIERS == forebay_snapshot::TIERS);

/// All entries, without the ways to find them by key.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    table: Ordered,
    more: HashMap<(u64, Tier), u32, ahash::RandomState>,
}

impl Kept {
    pub(super) fn new(
        table: &Ordered,
        more: &HashMap<(u64, Tier), u32, ahash::RandomState>,
    ) -> Self {
        Self { table: table.clone(), more: more.clone() }
    }

    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// The entries, ascending by id.
    pub fn entries(&self) -> impl Iterator<Item = SnapshotEntry> + '_ {
        self.table.iter().filter_map(|OrderedEntry { id, word, state: bits }| {
            let key = BlockKey::from_word(word)?;
            let state = HeldState::from_bits(bits);
            let stores = Tier::ALL.map(|tier| {
                let more = self.more.get(&(id, tier)).copied().unwrap_or(0);
                u32::from(state.count(tier)).saturating_add(more)
            });
            Some(SnapshotEntry { id, key, stores })
        })
    }
}
