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

/// Lowers the priority of the calling thread: a shard on the same core wins.
pub(super) fn give_way() {
    const NICE: i32 = 10;
    // The system may forbid this (seccomp). The thread then keeps its priority.
    let _ = rustix::process::nice(NICE);
}
