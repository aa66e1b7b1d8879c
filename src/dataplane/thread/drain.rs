//! When a draining shard may end. Requests of other shards wait in queues that this shard owns, and
//! this shard sends their prefill legs. An idle shard therefore runs until every shard has served
//! its last connection.

use crate::state::shard::Shard;
use forebay_board::account::ShardPhase;

/// Drain progress of a shard.
#[derive(Debug, Default)]
pub(crate) struct DrainProgress {
    /// No shard has a connection left. Remaining messages of other shards are in the rings.
    all_idle: bool,
}

impl DrainProgress {
    /// Advances the drain. True when the shard may end. Sets the phase `Idle`, and rings the own
    /// bell once when all shards are idle, so that the inbox is read again. The tick calls this
    /// repeatedly.
    pub(crate) fn advance(&mut self, shard: &Shard) -> bool {
        let is_accept_over = shard.env.counters.phase() == ShardPhase::Draining;
        if is_accept_over && shard.intake.connection_count() == 0 && !shard.links.has_unsent() {
            shard.env.counters.set_phase(ShardPhase::Idle);
        }
        if !self.all_idle {
            let mut phases = shard.links.shard_counters.iter().map(|counters| counters.phase());
            if phases.all(|phase| phase >= ShardPhase::Idle) {
                self.all_idle = true;
                shard.links.has_read_mesh.set(false);
                shard.links.ring_bell(shard.env.number);
            }
            return false;
        }
        // All requests have ended. Their leave and cancel messages take effect once the inbox has
        // read them. Abort calls to engines may still be under way.
        shard.links.has_read_mesh.get()
            && shard.queues.home.borrow().is_empty()
            && shard.queues.prefills.borrow().is_empty()
            && shard.io.aborting.get() == 0
    }
}
