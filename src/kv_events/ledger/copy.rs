//! A copy of a ledger, made at once and read by another thread.

use super::sorted_table::{SortedEntry, SortedTable};
use super::state::EntryState;
use super::{TIERS, Tier};
use forebay_index::BlockKey;
use forebay_snapshot::SnapshotEntry;
use std::collections::HashMap;

const _: () = assert!(TIERS == forebay_snapshot::TIERS);

/// All entries of a ledger, without the key index.
#[derive(Clone, Debug, Default)]
pub struct LedgerCopy {
    table: SortedTable,
    more: HashMap<(u64, Tier), u32, ahash::RandomState>,
}

impl LedgerCopy {
    pub(super) fn new(
        table: &SortedTable,
        more: &HashMap<(u64, Tier), u32, ahash::RandomState>,
    ) -> Self {
        Self { table: table.clone(), more: more.clone() }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// The entries, ascending by id.
    pub fn entries(&self) -> impl Iterator<Item = SnapshotEntry> + '_ {
        self.table.iter().filter_map(|SortedEntry { id, word, state: bits }| {
            let key = BlockKey::from_word(word)?;
            let state = EntryState::from_bits(bits);
            let stores = Tier::ALL.map(|tier| {
                let more = self.more.get(&(id, tier)).copied().unwrap_or(0);
                u32::from(state.count(tier)).saturating_add(more)
            });
            Some(SnapshotEntry { id, key, stores })
        })
    }
}
