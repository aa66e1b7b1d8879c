//! Setup of snapshots, and the priority of their threads.

use forebay_base::Clock;
use forebay_config::IndexConfig;
use forebay_index::{IndexReader, KeySeed};

/// Parts that snapshots are made of.
pub(in super::super) struct SnapshotSetup<'a> {
    pub(in super::super) config: &'a IndexConfig,
    pub(in super::super) clock: Clock,
    pub(in super::super) seed: KeySeed,
    pub(in super::super) shard_count: usize,
    pub(in super::super) index: IndexReader,
    /// Another process may ask for a copy.
    pub(in super::super) can_hand_over: bool,
}

/// For the thread that calls it: where it competes with a shard for a core, the shard wins.
pub(super) fn give_way() {
    const NICE: i32 = 10;
    // Not allowed: then they share.
    let _ = rustix::process::nice(NICE);
}
