//! When a draining shard may end. Requests of other shards wait in queues that are at home here,
//! and their prefill legs are sent from here; so a shard that has nothing left itself stays until
//! all have served their last connection.

use super::state::Shard;
use forebay_base::ShardIndex;
use forebay_fleet::account::ShardPhase;

/// How far one shard is with its end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Nobody has a connection any more: what the others still had to say is in the rings.
    all_idle: bool,
}

impl Ending {
    /// True when the shard may end. To be asked again and again while it drains.
    pub(super) fn is_reached(&mut self, shard: &Shard) -> bool {
        let has_stopped = shard.counters.phase() == ShardPhase::Draining;
        if has_stopped && shard.connections.get() == 0 && !shard.has_unsent() {
            shard.counters.set_phase(ShardPhase::Idle);
        }
        if !self.all_idle {
            let mut phases = shard.shards.iter().map(|counters| counters.phase());
            if phases.all(|phase| phase >= ShardPhase::Idle) {
                self.all_idle = true;
                shard.has_heard_all.set(false);
                shard.ring(shard.number);
            }
            return false;
        }
        // Requests have ended: waiters leave and legs are cancelled as soon as that is read.
        shard.has_heard_all.get()
            && shard.home.borrow().is_empty()
            && shard.prefills.borrow().is_empty()
            && shard.aborting.get() == 0
    }
}

impl Shard {
    /// True for a shard whose thread is gone: nobody reads what it is sent.
    pub(super) fn has_ended(&self, shard: ShardIndex) -> bool {
        let phase = self.shards.get(shard.index()).map(|counters| counters.phase());
        phase == Some(ShardPhase::Ended)
    }
}
