//! What one run looks like: drawn from its seed, from idle to drowned.

use fastrand::Rng;
use forebay_config::{Fallback, FlowConfig, Policy, QueueMode, Word};
use forebay_fleet::worker::RoomLimits;
use std::time::Duration;

pub(crate) const MS: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) shards: usize,
    pub(crate) ring_slots: usize,
    pub(crate) policy: Policy,
    pub(crate) requests: usize,
    /// Requests come within this time, in bursts or evenly.
    pub(crate) span_ns: u64,
    pub(crate) bursty: bool,
    /// Longest service time.
    pub(crate) service_ns: u64,
    /// Largest prompt.
    pub(crate) prompt_bytes: u64,
    /// One step in so many lets time pass although there is work: shards are late.
    pub(crate) patience: u32,
    /// Chance of a shard to be chosen, relative to the others.
    pub(crate) weights: Vec<u32>,
    /// In per cent of the requests.
    pub(crate) leavers: u32,
    pub(crate) refusers: u32,
    pub(crate) failers: u32,
    pub(crate) fleet_changes: usize,
    pub(crate) reports: usize,
    pub(crate) stalls: usize,
    pub(crate) drains: bool,
}

impl Plan {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let shards = random.usize(1..=4);
        let policies = Policy::WORDS;
        let some = |random: &mut Rng, most: u32| if random.bool() { 0 } else { random.u32(..most) };
        Self {
            shards,
            ring_slots: [1, 1, 2, 64][random.usize(..4)],
            policy: policies[random.usize(..policies.len())].1,
            requests: random.usize(4..50),
            span_ns: random.u64(1..=200) * MS,
            bursty: random.bool(),
            service_ns: random.u64(1..=60) * MS,
            prompt_bytes: random.u64(40..20_000),
            patience: [3, 10, 50, 400][random.usize(..4)],
            weights: (0..shards).map(|_| [1, 8, 8, 8][random.usize(..4)]).collect(),
            leavers: some(random, 40),
            refusers: some(random, 40),
            failers: some(random, 30),
            fleet_changes: if random.bool() { 0 } else { random.usize(..8) },
            reports: if random.bool() { 0 } else { random.usize(..20) },
            stalls: if random.bool() { 0 } else { random.usize(..6) },
            drains: random.u32(..8) == 0,
        }
    }
}

/// Limits and queues. The mode is fixed for a process; the rest may be loaded anew.
pub(crate) fn flow(random: &mut Rng, mode: QueueMode) -> FlowConfig {
    let mut flow = FlowConfig::default();
    let ms =
        |random: &mut Rng, least: u64, most: u64| Duration::from_millis(random.u64(least..=most));
    flow.rejection_window = if random.bool() { Duration::ZERO } else { ms(random, 1, 300) };
    flow.rejection.share_percent = [100, 100, 50, 0][random.usize(..4)];
    flow.rejection.low_water_percent = random.u32(0..=90);
    flow.kv_demand_percent = [0, 100, 125, 300][random.usize(..4)];
    let queue = &mut flow.queue;
    queue.mode = mode;
    queue.depth_max = [1, 2, 5, 20, 1_000][random.usize(..5)];
    queue.bytes_max = if random.bool() { 1 << 20 } else { 100 << 20 };
    queue.wait_max = ms(random, 5, 500);
    queue.stale_after = ms(random, 1, 80);
    queue.hops_max = random.u32(..4);
    queue.promote_after = if random.bool() { Duration::ZERO } else { ms(random, 1, 60) };
    queue.kv_use_percent = [0, 95, 95, 50][random.usize(..4)];
    queue.overtaken_max = [0, 1, 7, 16][random.usize(..4)];
    let pairs = &mut flow.disaggregation;
    pairs.fallback =
        [Fallback::DecodeOnly, Fallback::TwoPhase, Fallback::Reject][random.usize(..3)];
    pairs.uncached_tokens_min = [0, 0, 5, 500][random.usize(..4)];
    pairs.prefill_kv_use_percent = [None, None, Some(0), Some(100)][random.usize(..4)];
    pairs.decode_kv_use_percent = [None, None, Some(0), Some(100)][random.usize(..4)];
    flow
}

pub(crate) fn mode(random: &mut Rng) -> QueueMode {
    [QueueMode::Pool, QueueMode::Pool, QueueMode::Endpoint, QueueMode::Off][random.usize(..4)]
}

/// Limits of one rank. The bound on prefill is the same for all and for the whole run.
pub(crate) fn room(random: &mut Rng, prefill_tokens_max: u64) -> RoomLimits {
    RoomLimits {
        places_max: [1, 1, 2, 4, 0][random.usize(..5)],
        kv_tokens_max: [0, random.u64(100..1_000), random.u64(100..10_000)][random.usize(..3)],
        prefill_tokens_max,
    }
}
