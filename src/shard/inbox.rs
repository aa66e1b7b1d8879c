//! What other threads have for this shard: KV operations for its slice, fleets, commands, hints. One task; it
//! yields after a bounded amount of work, so that requests go on under any flood of events.

use super::state::Shard;
use super::wake::Sleeper;
use crate::account::Count;
use crate::base::NanosSinceStart;
use crate::base::limits::APPLY_OPS_PER_TURN;
use crate::index::SliceWriter;
use crate::mailbox::{KvBatch, MeshMessage, ShardCommand};
use crate::ring::{Bell, Consumer, LatestReader, MeshReceiver, Wake};
use crate::worker::FleetSnapshot;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// The receiving ends, and the slice that only this shard writes.
pub(super) struct Inbox {
    pub(super) kv: Consumer<KvBatch>,
    pub(super) fleet: LatestReader<Arc<FleetSnapshot>>,
    pub(super) commands: Consumer<ShardCommand>,
    pub(super) mesh: MeshReceiver<MeshMessage>,
    pub(super) bell: Arc<Bell>,
    pub(super) slice: SliceWriter,
}

impl Inbox {
    /// Serves the rings until the process ends. `drain_until` is set when the command comes.
    pub(super) async fn run(
        mut self,
        shard: Rc<Shard>,
        mut sleeper: Sleeper,
        drain_until: Rc<Cell<Option<NanosSinceStart>>>,
    ) {
        let mut buffer = Vec::with_capacity(64);
        loop {
            let more = self.turn(&shard, &drain_until);
            if more {
                // Ring our own bell: the read below then completes in the next turn of the loop, after the I/O
                // that is ready. A task that only woke itself would be run again before it.
                self.bell.wake_action().wake();
            } else {
                self.bell.park();
                if self.has_work() {
                    self.bell.unpark();
                    continue;
                }
            }
            buffer.clear();
            let (result, returned) = sleeper.sleep(buffer).await;
            self.bell.unpark();
            buffer = returned;
            if result.is_err() {
                // Cannot happen while the bell lives; were it to, a pause is better than a spin.
                monoio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    }

    fn has_work(&self) -> bool {
        let empty = self.kv.is_empty()
            && self.commands.is_empty()
            && self.mesh.is_empty()
            && self.fleet.is_empty();
        !empty
    }

    /// One bounded round over all rings; true if KV operations are left.
    fn turn(&mut self, shard: &Shard, drain_until: &Cell<Option<NanosSinceStart>>) -> bool {
        if let Some(fleet) = self.fleet.take() {
            *shard.fleet.borrow_mut() = fleet;
            if !shard.ready.is_set() {
                shard.ready.set();
            }
        }
        while let Some(command) = self.commands.pop() {
            match command {
                ShardCommand::Drain { deadline } => {
                    drain_until.set(Some(deadline));
                    shard.draining.set();
                }
            }
        }
        while let Some((_, message)) = self.mesh.receive() {
            match message {
                MeshMessage::WorkerFailed { worker } => shard.forget_connections(worker),
            }
        }
        let mut applied = 0;
        while applied < APPLY_OPS_PER_TURN {
            let Some(batch) = self.kv.pop() else { break };
            for &op in &batch.ops {
                self.slice.apply(batch.rank, op);
            }
            applied += batch.ops.len().max(1);
        }
        shard.counters.add(Count::KvOpsApplied, u64::try_from(applied).unwrap_or(0));
        !self.kv.is_empty()
    }
}
