//! Slice of the index that only this shard writes: reported KV events, and routed prompts until
//! they expire. A panic during a write may leave the slice half written. Readers tolerate that as
//! they tolerate a concurrent write, but further writes would build on it. The slice is therefore
//! frozen until the router restarts.

use crate::overlap::prompt_match::cache_bytes;
use crate::state::env::Env;
use forebay_base::limits::APPLY_OPS_PER_TURN;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::Count;
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::{ExpiringChunks, ExpiringLimits, KvBatch, RoutedPrompt, SliceWriter};
use forebay_ring::Consumer;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Expired chunks removed per turn.
const EXPIRE_PER_TURN: u32 = 512;

/// The slice and the expiry times of its routed prompts.
pub(crate) struct OwnSlice {
    writer: SliceWriter,
    /// Expiry times of chunks stored for routed prompts.
    expiring: ExpiringChunks,
    is_broken: bool,
}

impl OwnSlice {
    pub(crate) const fn new(writer: SliceWriter, expiring: ExpiringChunks) -> Self {
        Self { writer, expiring, is_broken: false }
    }

    pub(crate) const fn set_limits(&mut self, limits: ExpiringLimits) {
        self.expiring.set_limits(limits);
    }

    pub(crate) fn tick(&mut self, env: &Env) {
        let now = env.now();
        self.write(env, |writer, _| writer.tick(now));
    }

    /// Applies KV events of the feeds.
    pub(crate) fn apply_events(&mut self, env: &Env, kv: &mut Consumer<KvBatch>) {
        let mut applied = 0;
        while applied < APPLY_OPS_PER_TURN {
            let Some(batch) = kv.pop() else { break };
            self.write(env, |writer, _| {
                for &op in &batch.ops {
                    writer.apply(batch.rank, op);
                }
            });
            applied += batch.ops.len().max(1);
        }
        env.counters.add(Count::KvOpsApplied, u64::try_from(applied).unwrap_or(0));
    }

    /// Stores the rank that a prompt was routed to. Returns the amount of work.
    pub(crate) fn remember(&mut self, env: &Env, prompt: &RoutedPrompt) -> usize {
        let now = env.now();
        let done = self.write(env, |writer, expiring| {
            Some(expiring.remember(prompt, now, |rank, op| writer.apply(rank, op)))
        });
        let count = |count, amount: u32| env.counters.add(count, u64::from(amount));
        match done {
            Some(done) => {
                count(Count::GuessedPromptsDropped, u32::from(!done.kept));
                count(Count::GuessedChunksStored, done.stored);
                count(Count::GuessedChunksEvicted, done.evicted);
            }
            None => count(Count::GuessedPromptsDropped, 1),
        }
        prompt.chunks.len().max(1)
    }

    /// Removes expired chunks. True if more are left.
    pub(crate) fn expire(&mut self, env: &Env) -> bool {
        let now = env.now();
        let swept = self.write(env, |writer, expiring| {
            Some(expiring.sweep(now, EXPIRE_PER_TURN, |rank, op| writer.apply(rank, op)))
        });
        let Some(swept) = swept else { return false };
        env.counters.add(Count::GuessedChunksExpired, u64::from(swept.removed));
        swept.more
    }

    /// Applies cache sizes and cache generations of a new fleet.
    pub(crate) fn meet(&mut self, env: &Env, fleet: &FleetSnapshot, now: NanosSinceStart) {
        self.write(env, |_, expiring| {
            for index in (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
                if let Some((_, worker)) = fleet.rank(index) {
                    let bytes_max = cache_bytes(fleet, index);
                    expiring.set_rank(index, worker.generation.cache, bytes_max, now);
                }
            }
        });
    }

    fn write<T: Default>(
        &mut self,
        env: &Env,
        work: impl FnOnce(&mut SliceWriter, &mut ExpiringChunks) -> T,
    ) -> T {
        if self.is_broken {
            return T::default();
        }
        // Catch per write, not per turn: the inbox continues with its other work.
        let Self { writer, expiring, .. } = self;
        catch_unwind(AssertUnwindSafe(|| work(writer, expiring))).unwrap_or_else(|_| {
            self.is_broken = true;
            env.panicked("writing to the index panicked; its part stays as it is until a restart");
            T::default()
        })
    }
}
