//! When a draining shard may end. Requests of other shards wait in queues that are at home here,
//! and their prefill legs are sent from here; so a shard that has nothing left itself stays until
//! all have served their last connection.

use crate::state::shard::Shard;
use forebay_fleet::account::ShardPhase;

/// How far one shard is with its end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Nobody has a connection any more: what the others still had to say is in the rings.
    all_idle: bool,
}

impl Ending {
    /// True when the shard may end. To be asked again and again while it drains.
    pub(crate) fn is_reached(&mut self, shard: &Shard) -> bool {
        let has_stopped = shard.env.counters.phase() == ShardPhase::Draining;
        if has_stopped && shard.intake.connections.get() == 0 && !shard.links.has_unsent() {
            shard.env.counters.set_phase(ShardPhase::Idle);
        }
        if !self.all_idle {
            let mut phases = shard.links.shards.iter().map(|counters| counters.phase());
            if phases.all(|phase| phase >= ShardPhase::Idle) {
                self.all_idle = true;
                shard.links.has_heard_all.set(false);
                shard.links.ring(shard.env.number);
            }
            return false;
        }
        // Requests have ended: waiters leave and legs are cancelled as soon as that is read.
        shard.links.has_heard_all.get()
            && shard.queues.home.borrow().is_empty()
            && shard.queues.prefills.borrow().is_empty()
            && shard.io.aborting.get() == 0
    }
}
