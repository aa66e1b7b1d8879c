//! The rings between the planes, built once at start. What each carries, its capacity and what
//! happens when it is full stand in `base::limits` and in docs/internals/threads.md.

use crate::account::{ShardCounters, StageHistograms};
use crate::mailbox::{AdapterAsk, MeshMessage, ShardCommand, Traced};
use crate::worker::{FleetSnapshot, LoadReport};
use forebay_base::ShardIndex;
use forebay_base::limits::{
    ADAPTER_ASKS_MAX, COMMAND_RING_MAX, HISTOGRAM_RING_MAX, KV_RING_BATCHES_MAX, LOAD_RING_MAX,
    MESH_RING_MAX, TRACE_RING_MAX,
};
use forebay_index::KvBatch;
use forebay_ring::{
    Bell, Consumer, LatestReader, LatestWriter, MeshPort, Producer, latest, mesh, spsc,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The control plane's side of everything.
#[derive(Debug)]
pub struct ControlEnd {
    /// One port per shard, in shard order.
    pub shards: Vec<ShardPort>,
    /// Adapters that requests wait for. No bell: control looks at each tick.
    pub adapters: Receiver<AdapterAsk>,
}

/// The control plane's side of one shard.
#[derive(Debug)]
pub struct ShardPort {
    /// Index operations for the slice that the shard owns.
    pub kv: Producer<KvBatch>,
    /// The newest fleet; an unread one is replaced.
    pub fleet: LatestWriter<Arc<FleetSnapshot>>,
    /// What engines say of their load. No bell: a shard looks before it chooses a rank.
    pub reports: Producer<LoadReport>,
    /// Commands.
    pub commands: Producer<ShardCommand>,
    /// Latencies, once per second.
    pub histograms: Consumer<Box<StageHistograms>>,
    /// Traces of sampled requests. No bell: control looks at each tick.
    pub traces: Consumer<Traced>,
    /// Wakes the shard after a push.
    pub bell: Arc<Bell>,
    /// What the shard counts.
    pub counters: Arc<ShardCounters>,
}

/// One shard's side of everything.
#[derive(Debug)]
pub struct ShardEnd {
    /// Which shard this is.
    pub index: ShardIndex,
    /// Index operations for its slice.
    pub kv: Consumer<KvBatch>,
    /// The newest fleet.
    pub fleet: LatestReader<Arc<FleetSnapshot>>,
    /// What engines say of their load.
    pub reports: Consumer<LoadReport>,
    /// Commands.
    pub commands: Consumer<ShardCommand>,
    /// What it tells the control plane.
    pub to_control: ToControl,
    /// What it counts.
    pub counters: Arc<ShardCounters>,
    /// The other shards, and the ways to them.
    pub peers: ShardPeers,
}

/// What one shard tells the control plane, beside what it counts.
#[derive(Debug)]
pub struct ToControl {
    /// Latencies, once per second.
    pub histograms: Producer<Box<StageHistograms>>,
    /// Traces of sampled requests.
    pub traces: Producer<Traced>,
    /// Adapters that requests wait for.
    pub adapters: SyncSender<AdapterAsk>,
}

/// All shards, as one of them reaches them. The vectors go by [`ShardIndex`], and hold the shard
/// itself too.
#[derive(Debug)]
pub struct ShardPeers {
    /// Messages to and from the other shards.
    pub mesh: MeshPort<MeshMessage>,
    /// Wake a shard after a message.
    pub bells: Vec<Arc<Bell>>,
    /// What each shard counts.
    pub counters: Vec<Arc<ShardCounters>>,
}

/// Builds every ring for the shards whose wake-up descriptors are given, in shard order.
#[must_use]
pub fn wire(wakes: Vec<OwnedFd>) -> (ControlEnd, Vec<ShardEnd>) {
    let bells: Vec<Arc<Bell>> = wakes.into_iter().map(|wake| Arc::new(Bell::new(wake))).collect();
    let (adapters, adapters_out) = sync_channel(ADAPTER_ASKS_MAX);
    let mut control =
        ControlEnd { shards: Vec::with_capacity(bells.len()), adapters: adapters_out };
    let mut shards = Vec::with_capacity(bells.len());
    let ports = mesh(bells.len(), MESH_RING_MAX);
    let all_counters: Vec<_> = bells.iter().map(|_| Arc::new(ShardCounters::new())).collect();
    let parts = bells.iter().zip(&all_counters).zip(ports).enumerate();
    for (number, ((bell, counters), mesh)) in parts {
        let Some(index) = ShardIndex::try_from_index(number) else { break };
        let (kv_in, kv) = spsc(KV_RING_BATCHES_MAX);
        let (fleet_in, fleet) = latest();
        let (reports_in, reports) = spsc(LOAD_RING_MAX);
        let (commands_in, commands) = spsc(COMMAND_RING_MAX);
        let (histograms, histograms_out) = spsc(HISTOGRAM_RING_MAX);
        let (traces, traces_out) = spsc(TRACE_RING_MAX);
        control.shards.push(ShardPort {
            kv: kv_in,
            fleet: fleet_in,
            reports: reports_in,
            commands: commands_in,
            histograms: histograms_out,
            traces: traces_out,
            bell: Arc::clone(bell),
            counters: Arc::clone(counters),
        });
        shards.push(ShardEnd {
            index,
            kv,
            fleet,
            reports,
            commands,
            to_control: ToControl { histograms, traces, adapters: adapters.clone() },
            counters: Arc::clone(counters),
            peers: ShardPeers { mesh, bells: bells.clone(), counters: all_counters.clone() },
        });
    }
    (control, shards)
}
