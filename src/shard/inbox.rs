//! What other threads have for this shard: KV operations for its slice, fleets, commands, hints. One task; it
//! yields after a bounded amount of work, so that requests go on under any flood of events.

use super::matching::cache_bytes;
use super::queues::set_alarm;
use super::state::Shard;
use super::wake::Sleeper;
use crate::account::Count;
use crate::base::limits::APPLY_OPS_PER_TURN;
use crate::base::{NanosSinceStart, RankIndex};
use crate::index::{Expiring, SliceWriter};
use crate::mailbox::{KvBatch, MeshMessage, RoutedPrompt, ShardCommand};
use crate::parse::WishRules;
use crate::ring::{Bell, Consumer, LatestReader, MeshReceiver, Wake};
use crate::worker::FleetSnapshot;
use std::rc::Rc;
use std::sync::Arc;

/// Chunks removed in one turn because their time is over.
const EXPIRE_PER_TURN: u32 = 512;

/// The receiving ends, and the slice that only this shard writes.
pub(super) struct Inbox {
    pub(super) kv: Consumer<KvBatch>,
    pub(super) fleet: LatestReader<Arc<FleetSnapshot>>,
    pub(super) commands: Consumer<ShardCommand>,
    pub(super) mesh: MeshReceiver<MeshMessage>,
    pub(super) bell: Arc<Bell>,
    pub(super) slice: SliceWriter,
    /// When what was stored for routed prompts has to go again.
    pub(super) expiring: Expiring,
}

impl Inbox {
    /// Serves the rings until the process ends.
    pub(super) async fn run(mut self, shard: Rc<Shard>, mut sleeper: Sleeper) {
        let mut buffer = Vec::with_capacity(64);
        loop {
            let more = self.turn(&shard);
            set_alarm(&shard);
            if more {
                // Ring our own bell: the read below then completes in the next turn of the loop, after the I/O
                // that is ready. A task that only woke itself would be run again before it.
                self.bell.wake_action().wake();
            } else {
                self.bell.park();
                if self.has_work(&shard) {
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

    fn has_work(&self, shard: &Shard) -> bool {
        let empty = self.kv.is_empty()
            && self.commands.is_empty()
            && self.mesh.is_empty()
            && self.fleet.is_empty()
            && shard.routed.borrow().is_empty()
            && !shard.has_unsent()
            && !shard.home.borrow().has_news(&shard.board);
        !empty
    }

    /// One bounded round over all rings; true if work is left.
    fn turn(&mut self, shard: &Shard) -> bool {
        if let Some(fleet) = self.fleet.take() {
            self.meet(&fleet, shard.now());
            if !shard.wish_rules.borrow().are_of(&fleet.flow) {
                let rules = WishRules::new(Arc::clone(&fleet.flow), shard.tenant_seed);
                *shard.wish_rules.borrow_mut() = rules;
            }
            *shard.fleet.borrow_mut() = fleet;
            shard.home.borrow_mut().fleet_changed();
            if !shard.ready.is_set() {
                shard.ready.set();
            }
        }
        while let Some(command) = self.commands.pop() {
            match command {
                ShardCommand::Drain { deadline } => {
                    shard.drain_until.set(Some(deadline));
                    shard.draining.set();
                }
            }
        }
        self.slice.tick(shard.now());
        self.apply_events(shard);
        // A budget of their own: a flood of events must not keep the hints waiting until they are worth nothing.
        let mut work = 0;
        while work < APPLY_OPS_PER_TURN {
            let own = shard.routed.borrow_mut().pop_front();
            let Some(prompt) = own else { break };
            work += self.remember(shard, &prompt);
        }
        while work < APPLY_OPS_PER_TURN {
            let Some((_, message)) = self.mesh.receive() else { break };
            work += match message {
                MeshMessage::WorkerFailed { worker } => {
                    shard.forget_connections(worker);
                    1
                }
                MeshMessage::Routed(prompt) => self.remember(shard, &prompt),
                message => {
                    shard.take(message);
                    1
                }
            };
        }
        if self.mesh.is_empty() {
            shard.has_heard_all.set(true);
        }
        shard.serve_home();
        shard.empty_outbox();
        let expiring_left = self.expire(shard);
        expiring_left || self.has_more(shard)
    }

    /// True when a ring that was not emptied for lack of budget has more.
    fn has_more(&self, shard: &Shard) -> bool {
        let empty = self.kv.is_empty()
            && self.mesh.is_empty()
            && shard.routed.borrow().is_empty()
            && !shard.has_unsent();
        !empty
    }

    /// Applies what the feeds say.
    fn apply_events(&mut self, shard: &Shard) {
        let mut applied = 0;
        while applied < APPLY_OPS_PER_TURN {
            let Some(batch) = self.kv.pop() else { break };
            for &op in &batch.ops {
                self.slice.apply(batch.rank, op);
            }
            applied += batch.ops.len().max(1);
        }
        shard.counters.add(Count::KvOpsApplied, u64::try_from(applied).unwrap_or(0));
    }

    /// Notes where a prompt of this slice went; returns how much work it was.
    fn remember(&mut self, shard: &Shard, prompt: &RoutedPrompt) -> usize {
        let slice = &mut self.slice;
        let done = self.expiring.remember(prompt, shard.now(), |rank, op| slice.apply(rank, op));
        let count = |count, amount: u32| shard.counters.add(count, u64::from(amount));
        count(Count::GuessedPromptsDropped, u32::from(!done.kept));
        count(Count::GuessedChunksStored, done.stored);
        count(Count::GuessedChunksEvicted, done.evicted);
        prompt.chunks.len().max(1)
    }

    /// Removes what was not used for its time; true if there is more of it.
    fn expire(&mut self, shard: &Shard) -> bool {
        let slice = &mut self.slice;
        let apply = |rank, op| slice.apply(rank, op);
        let swept = self.expiring.sweep(shard.now(), EXPIRE_PER_TURN, apply);
        shard.counters.add(Count::GuessedChunksExpired, u64::from(swept.removed));
        swept.more
    }

    /// Takes what a new fleet says of the ranks' caches.
    fn meet(&mut self, fleet: &FleetSnapshot, now: NanosSinceStart) {
        for index in (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
            if let Some((_, worker)) = fleet.rank(index) {
                let bytes_max = cache_bytes(fleet, index);
                self.expiring.set_rank(index, worker.cache_generation, bytes_max, now);
            }
        }
    }
}
