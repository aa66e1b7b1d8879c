//! The rings between the planes, built once at start. `base::limits` and docs/internals/threads.md
//! list the content of each ring, its capacity, and the behavior of a full ring.

use crate::{AdapterRequest, MeshMessage, ShardCommand, TraceRecord};
use forebay_base::ShardIndex;
use forebay_base::limits::{
    ADAPTER_REQUESTS_MAX, COMMAND_RING_MAX, HISTOGRAM_RING_MAX, KV_RING_BATCHES_MAX, LOAD_RING_MAX,
    MESH_RING_MAX, TRACE_RING_MAX,
};
use forebay_board::LoadReport;
use forebay_board::account::{ShardCounters, StageHistograms};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::KvBatch;
use forebay_ring::{
    Bell, Consumer, LatestReader, LatestWriter, MeshPort, Producer, latest, mesh, spsc,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The control plane's ends of all rings.
#[derive(Debug)]
pub struct ControlEnd {
    /// Ports of all shards, indexed by [`ShardIndex`].
    pub shards: Vec<ShardPort>,
    /// Adapters that requests wait for. No bell: control polls at each tick.
    pub adapters: Receiver<AdapterRequest>,
}

/// The control plane's ends of the rings of a shard.
#[derive(Debug)]
pub struct ShardPort {
    /// Index operations for the slice that the shard owns.
    pub kv: Producer<KvBatch>,
    /// The newest fleet; an unread fleet is replaced.
    pub fleet: LatestWriter<Arc<FleetSnapshot>>,
    /// Load that engines report. No bell: a shard polls before it chooses a rank.
    pub reports: Producer<LoadReport>,
    pub commands: Producer<ShardCommand>,
    /// Latencies, once per second.
    pub histograms: Consumer<Box<StageHistograms>>,
    /// Traces of sampled requests. No bell: control polls at each tick.
    pub traces: Consumer<TraceRecord>,
    /// Wakes the shard after a push.
    pub bell: Arc<Bell>,
    pub counters: Arc<ShardCounters>,
}

/// A shard's ends of all rings.
#[derive(Debug)]
pub struct ShardEnd {
    pub index: ShardIndex,
    /// Index operations for its slice.
    pub kv: Consumer<KvBatch>,
    pub fleet: LatestReader<Arc<FleetSnapshot>>,
    /// Load that engines report.
    pub reports: Consumer<LoadReport>,
    pub commands: Consumer<ShardCommand>,
    pub to_control: ToControl,
    pub counters: Arc<ShardCounters>,
    /// The other shards, and the rings to them.
    pub peers: ShardPeers,
}

/// Messages of a shard to the control plane, apart from its counters.
#[derive(Debug)]
pub struct ToControl {
    /// Latencies, once per second.
    pub histograms: Producer<Box<StageHistograms>>,
    /// Traces of sampled requests.
    pub traces: Producer<TraceRecord>,
    /// Adapters that requests wait for.
    pub adapters: SyncSender<AdapterRequest>,
}

/// All shards, as a shard reaches them. The vectors are indexed by [`ShardIndex`] and include the
/// shard itself.
#[derive(Debug)]
pub struct ShardPeers {
    /// Messages to and from the other shards.
    pub mesh: MeshPort<MeshMessage>,
    /// Bells that wake a shard after a message.
    pub bells: Vec<Arc<Bell>>,
    pub counters: Vec<Arc<ShardCounters>>,
}

/// Builds every ring for the shards of the given wake-up descriptors, in shard order.
#[must_use]
pub fn wire(wakes: Vec<OwnedFd>) -> (ControlEnd, Vec<ShardEnd>) {
    let bells: Vec<Arc<Bell>> = wakes.into_iter().map(|wake| Arc::new(Bell::new(wake))).collect();
    let (adapters, adapters_out) = sync_channel(ADAPTER_REQUESTS_MAX);
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
