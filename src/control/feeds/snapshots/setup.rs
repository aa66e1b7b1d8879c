//! What snapshots are made with, and how their threads run.

use forebay_base::Clock;
use forebay_config::IndexConfig;
use forebay_index::{IndexReader, KeySeed};

/// What snapshots are made with.
pub(in crate::control) struct Setup<'a> {
    pub(in crate::control) config: &'a IndexConfig,
    pub(in crate::control) clock: Clock,
    pub(in crate::control) seed: KeySeed,
    pub(in crate::control) shard_count: usize,
    pub(in crate::control) index: IndexReader,
    /// Another process may ask for a copy.
    pub(in crate::control) can_hand_over: bool,
}

/// For the thread that calls it: where it competes with a shard for a core, the shard wins.
pub(super) fn give_way() {
    const NICE: i32 = 10;
    // Not allowed: then they share.
    let _ = rustix::process::nice(NICE);
}
