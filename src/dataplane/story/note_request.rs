//! Notes of requests for `forebay record`, while somebody records. A request is noted when it is
//! sent for the first time, and when it has ended.

use crate::exchange::noted_request::NotedSend;
use crate::exchange::slot::Slot;
use crate::overlap::prompt_match::Asked;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::account::Count;
use forebay_fleet::worker::{NoteSink, SentNote, ShardNote};
use forebay_select::noted_keys;

/// The request goes to a rank. Its text is still at hand the first time.
pub(crate) fn sent(
    shard: &Shard,
    slot: &Slot,
    asked: Asked<'_>,
    arrived_at: NanosSinceStart,
    rank: RankIndex,
) {
    let Some(sink) = &asked.fleet.serving.notes else { return };
    if let Some(before) = slot.told.noted.send.get() {
        slot.told.noted.send.set(Some(NotedSend { rank, ..before }));
        return;
    }
    let prompt_bytes = slot.prompt.prompt_bytes();
    if prompt_bytes == 0 {
        return;
    }
    let id = shard.routing.stages.borrow_mut().random.u64(..);
    let ask = asked.request(&shard.routing.index, &slot.request, slot.body());
    let keys = noted_keys(&ask, &slot.prompt);
    let note = SentNote { id, rank, arrived_at, prompt_bytes, keys };
    put(&shard.env, sink, ShardNote::Sent(Box::new(note)));
    slot.told.noted.send.set(Some(NotedSend { id, rank }));
}

/// The request has ended, however it did.
pub(crate) fn ended(shard: &Shard, slot: &Slot) {
    let Some(NotedSend { id, rank }) = slot.told.noted.send.take() else { return };
    if let Some(sink) = &shard.workers.fleet().serving.notes {
        let told = slot.told.noted.usage.get();
        put(&shard.env, sink, ShardNote::Ended { id, rank, told });
    }
}

fn put(env: &Env, sink: &NoteSink, note: ShardNote) {
    if !sink.put(note) {
        env.count(Count::NotesLost);
    }
}
