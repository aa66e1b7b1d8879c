//! `GET /metrics`: everything that is counted anywhere, read in place and written as text. Called
//! by the control plane's loop; costs nothing between scrapes. Label sets are bounded: workers,
//! ranks, models (the first 64 have their own label, the rest share `other`), endpoints, reasons.

use super::feeds::Feeds;
use super::kv_events::{
    BatchResult, Dropped, EventKind, FeedCounters, Outcome, ReplayResult, ResetReason, Tier,
};
use super::load::Desk;
use super::metrics_text::{MetricsText, approximate};
use super::replicas::Replicas;
use super::roles;
use super::scrape_flow;
use super::scrape_load::loads;
use super::snapshots::Saving;
use super::watchdog::Watchdog;
use super::workers::engine;
use super::zmq::LossReason;
use crate::account::{
    Count, NO_ENDPOINT, OVERLAP_ERROR_BLOCKS_MAX, ShardCounters, Stage, StageHistograms,
};
use crate::admit::DrainRates;
use crate::base::limits::MODELS_MAX;
use crate::base::{NanosSinceStart, RankIndex, broken_invariant_count};
use crate::index::IndexReader;
use crate::log::dropped_lines_count;
use crate::parse::{Endpoint, Reason};
use crate::worker::{FleetSnapshot, LoadBoard, WorkerState};
use std::sync::Arc;

/// Where the numbers are.
pub(super) struct Sources<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) board: &'a LoadBoard,
    pub(super) index: &'a IndexReader,
    pub(super) counters: &'a [Arc<ShardCounters>],
    pub(super) watchdog: &'a Watchdog,
    pub(super) histograms: &'a StageHistograms,
    pub(super) feeds: &'a Feeds,
    pub(super) saving: Option<&'a Saving>,
    pub(super) desk: &'a Desk,
    pub(super) drain_rates: &'a DrainRates,
    pub(super) replicas: Option<&'a Replicas>,
    pub(super) now: NanosSinceStart,
}

/// Bounds of the latency buckets, in nanoseconds and as the label says them, in seconds.
const STAGE_BOUNDS: [(u64, f64); 24] = [
    (1_000, 1e-6),
    (2_000, 2e-6),
    (5_000, 5e-6),
    (10_000, 1e-5),
    (20_000, 2e-5),
    (50_000, 5e-5),
    (100_000, 1e-4),
    (200_000, 2e-4),
    (500_000, 5e-4),
    (1_000_000, 1e-3),
    (2_000_000, 2e-3),
    (5_000_000, 5e-3),
    (10_000_000, 1e-2),
    (20_000_000, 2e-2),
    (50_000_000, 5e-2),
    (100_000_000, 0.1),
    (200_000_000, 0.2),
    (500_000_000, 0.5),
    (1_000_000_000, 1.0),
    (2_000_000_000, 2.0),
    (5_000_000_000, 5.0),
    (10_000_000_000, 10.0),
    (60_000_000_000, 60.0),
    (600_000_000_000, 600.0),
];
const NANOS_PER_SECOND: f64 = 1e9;

/// All metrics as text.
pub(super) fn render(sources: &Sources<'_>) -> String {
    let mut text = MetricsText::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    text.gauge("build_info", "The version that runs.").sample(&version, 1);
    requests(sources, &mut text);
    rejected(sources, &mut text);
    plain(sources, &mut text);
    ranks(sources, &mut text);
    workers(sources, &mut text);
    loads(sources, &mut text);
    let Sources { fleet, board, drain_rates, now, .. } = *sources;
    scrape_flow::flow(&scrape_flow::Sources { fleet, board, drain_rates, now }, &mut text);
    overlap_errors(sources, &mut text);
    stages(sources, &mut text);
    kv_feeds(sources.feeds.counters(), &mut text);
    index(sources.index, &mut text);
    if let Some(replicas) = sources.replicas {
        replicas.metrics(&mut text);
    }
    if let Some(saving) = sources.saving {
        snapshots(saving, sources, &mut text);
    }
    stalled(sources.watchdog, &mut text);
    let help = "Lines of the log that were dropped: standard error was full, slow or closed.";
    text.counter("log_dropped_total", help).sample(&[], dropped_lines_count());
    let help = "Anything but 0 is a bug: please report.";
    text.counter("broken_invariants_total", help).sample(&[], broken_invariant_count());
    text.finish()
}

fn total(counters: &[Arc<ShardCounters>], read: impl Fn(&ShardCounters) -> u64) -> u64 {
    counters.iter().map(|shard| read(shard)).sum()
}

fn requests(sources: &Sources<'_>, text: &mut MetricsText) {
    let mut family = text.counter("requests_total", "Answered requests by endpoint and status.");
    for (position, endpoint) in endpoints() {
        for code in 100..600 {
            let count = total(sources.counters, |shard| shard.answered_count(position, code));
            if count > 0 {
                let labels = [("endpoint", endpoint), ("code", &code.to_string())];
                family.sample(&labels, count);
            }
        }
    }
}

/// Indices and names, that of requests which reached no endpoint among them.
fn endpoints() -> impl Iterator<Item = (usize, &'static str)> {
    let named = Endpoint::ALL.into_iter().map(Endpoint::name).enumerate();
    named.chain([(NO_ENDPOINT, "none")])
}

/// Label of what stands in the body of a request that was refused before it was read.
const UNKNOWN: &str = "unknown";
const KINDS: [(Option<bool>, &str); 3] =
    [(Some(false), "unary"), (Some(true), "stream"), (None, UNKNOWN)];

fn rejected(sources: &Sources<'_>, text: &mut MetricsText) {
    let mut family = text.counter("rejected_total", "Requests that the router itself refused.");
    for (reason_index, reason) in Reason::ALL.iter().enumerate() {
        for (endpoint_index, endpoint) in endpoints() {
            for (stream, kind) in KINDS {
                for model_index in 0..=MODELS_MAX {
                    let read = |shard: &ShardCounters| {
                        shard.refused_count(reason_index, endpoint_index, stream, model_index)
                    };
                    let count = total(sources.counters, read);
                    if count == 0 {
                        continue;
                    }
                    let model = sources.fleet.models.get(model_index);
                    let model = model.filter(|_| model_index < MODELS_MAX);
                    let unnamed = if stream.is_none() { UNKNOWN } else { "other" };
                    let labels = [
                        ("reason", reason.as_str()),
                        ("endpoint", endpoint),
                        ("model", model.map_or(unnamed, |model| &*model.name)),
                        ("type", kind),
                    ];
                    family.sample(&labels, count);
                }
            }
        }
    }
}

fn plain(sources: &Sources<'_>, text: &mut MetricsText) {
    for (count, name) in Count::ALL {
        let name = format!("{name}_total");
        let value = total(sources.counters, |shard| shard.value(count));
        text.counter(&name, help(count)).sample(&[], value);
    }
}

fn stalled(watchdog: &Watchdog, text: &mut MetricsText) {
    let mut family = text.gauge("shard_stalled", "1 while a shard makes no progress.");
    for (shard, is_stalled) in watchdog.are_stalled().enumerate() {
        family.sample(&[("shard", &shard.to_string())], u64::from(is_stalled));
    }
}

fn help(count: Count) -> &'static str {
    match count {
        Count::ConnectionsAccepted => "Client connections accepted.",
        Count::ConnectionsClosed => "Client connections closed.",
        Count::ConnectionsRefused => "Client connections refused at limits.connections_max.",
        Count::OutOfSockets => {
            "Connections not opened or accepted for lack of descriptors, ports or memory."
        }
        Count::UpstreamConnects => "Connections opened to workers.",
        Count::UpstreamReused => "Requests sent on a pooled connection.",
        Count::Resends => "Requests sent again because a pooled connection had died.",
        Count::Retries => "Requests sent to another rank before the first byte.",
        Count::ClientGone => "Requests whose client left before the end.",
        Count::CutMidStream => "Answers cut because the worker died in the middle.",
        Count::RenderedPlan => "Prompts rendered by the fast path.",
        Count::RenderedFull => {
            "Prompts rendered by the full template, or plain text and token ids."
        }
        Count::Unrenderable => {
            "Prompts that could not be rendered and were matched by guesses only."
        }
        Count::RendersGivenUp => {
            "Prompts whose chat template took too many steps, or waited too long to be run."
        }
        Count::PromptBytes => "Prompt bytes walked through the index.",
        Count::OverlapBytes => "Prompt bytes that the chosen rank already held.",
        Count::GuessedBytes => {
            "Prompt bytes that the chosen rank is believed to hold by where earlier prompts went."
        }
        Count::GuessedChunksStored => "Chunks of routed prompts stored in the index.",
        Count::GuessedChunksExpired => {
            "Chunks of routed prompts removed after their time or with their worker's cache."
        }
        Count::GuessedChunksEvicted => "Chunks of routed prompts removed to make room.",
        Count::GuessedPromptsDropped => "Routed prompts not remembered: no room, or too late.",
        Count::KvOpsApplied => "Index operations applied.",
        Count::MeshDropped => "Hints between shards dropped because a ring was full.",
        Count::QueueTurns => "Times that a home looked at its queues.",
        Count::QueueGrants => "Requests that left a queue with a place on a rank.",
        Count::QueueReroutes => {
            "Requests that left a queue to choose again: stale, or their workers had gone."
        }
        Count::GrantsReturned => "Places that came for a request which had given up meanwhile.",
        Count::QueueLeft => "Requests that left a queue because their client did.",
        Count::QueueExpired => "Requests that left a queue because their time was over.",
        Count::EngineRefusals => "Refusals of engines (429, 503, 529) that no client saw.",
        Count::PrefillLegsLocal => {
            "Prefill legs sent by the shard that has the request, which is home to their rank too."
        }
        Count::PrefillLegsMesh => "Prefill legs that travelled to their rank's home shard.",
        Count::PrefillLegsFailed => "Prefill legs that failed.",
        Count::PrefillLegsCancelled => "Prefill legs cancelled because their request had ended.",
        Count::Aborts => "Engines told that a request of theirs is not wanted any more.",
        Count::AbortsFailed => "Engines that could not be told so.",
        Count::SentWhole => "Requests of a model with prefill ranks that were sent whole.",
        Count::TasksPanicked => "Tasks that panicked. Anything but 0 is a bug: please report.",
        Count::ResponseBytes => "Response body bytes relayed.",
    }
}

fn ranks(sources: &Sources<'_>, text: &mut MetricsText) {
    type Read = fn(&Sources<'_>, RankIndex) -> Option<u64>;
    let gauges: [(&str, &str, Read); 7] = [
        ("in_flight", "Requests in flight on a rank from this router.", |sources, rank| {
            sources.board.rank(rank).map(|load| u64::from(load.in_flight()))
        }),
        ("prefill_tokens", "Prompt tokens sent and not answered yet.", |sources, rank| {
            sources.board.rank(rank).map(|load| load.prefill_tokens())
        }),
        ("decode_tokens", "Tokens held by requests in flight.", |sources, rank| {
            sources.board.rank(rank).map(|load| load.decode_tokens())
        }),
        ("breaker_open", "1 while the rank's breaker keeps requests away.", |sources, rank| {
            sources.board.rank(rank).map(|load| u64::from(load.is_open()))
        }),
        ("kv_feed_live", "1 while the rank's KV events are followed.", |sources, rank| {
            sources.fleet.rank(rank).map(|(rank, _)| u64::from(rank.kv_feed_live))
        }),
        ("kv_rank_blocks", "Blocks of a rank known by its engine's hashes.", |sources, rank| {
            sources.feeds.status(rank).map(|feed| u64::try_from(feed.blocks()).unwrap_or(u64::MAX))
        }),
        ("kv_quiet_seconds", "Time since the rank's last KV event batch.", |sources, rank| {
            sources.feeds.status(rank)?.quiet().map(|quiet| quiet.as_secs())
        }),
    ];
    for (name, help, read) in gauges {
        let mut family = text.gauge(name, help);
        for (index, rank, worker) in sources.fleet.present() {
            let Some(value) = read(sources, index) else { continue };
            let dp_rank = rank.dp_rank.0.to_string();
            family.sample(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
        }
    }
}

fn workers(sources: &Sources<'_>, text: &mut MetricsText) {
    let mut family = text.gauge("worker_up", "1 while the worker passes its health checks.");
    for worker in &sources.fleet.workers {
        let labels = [("worker", &*worker.name), ("engine", engine(worker.dialect))];
        family.sample(&labels, u64::from(worker.state == WorkerState::Up));
    }
    let help = "Workers by what they serve and how they are; registering: up, and waited for.";
    let mut family = text.gauge("workers", help);
    for (role, state, count) in roles::census(sources.fleet) {
        let labels = [("role", role), ("state", state)];
        family.sample(&labels, u64::try_from(count).unwrap_or(u64::MAX));
    }
    let help = "Counts up with every change of the fleet.";
    text.gauge("fleet_generation", help).sample(&[], sources.fleet.generation);
}

fn overlap_errors(sources: &Sources<'_>, text: &mut MetricsText) {
    let help = "How far the predicted overlap was from the engine's own count, in blocks.";
    let mut family = text.histogram("overlap_error_blocks", help);
    let count_of = |error: i64| -> u64 {
        let of_shard = |shard: &ShardCounters| -> u64 {
            let same = shard.overlap_errors().filter(|(blocks, _)| blocks.abs() == error);
            same.map(|(_, count)| count).sum()
        };
        total(sources.counters, of_shard)
    };
    let mut below = 0;
    // Errors of the last bucket are that large or larger: they count under +Inf alone.
    let bounds = 0..OVERLAP_ERROR_BLOCKS_MAX;
    let cumulative: Vec<(f64, u64)> = bounds
        .zip(0_u32..)
        .map(|(error, bound)| {
            below += count_of(error);
            (f64::from(bound), below)
        })
        .collect();
    let count = below + count_of(OVERLAP_ERROR_BLOCKS_MAX);
    let sum = total(sources.counters, ShardCounters::overlap_error_blocks_sum);
    family.buckets(&[], cumulative.into_iter(), (count, approximate(sum)));
}

fn stages(sources: &Sources<'_>, text: &mut MetricsText) {
    let help = "Time per stage: parse to dispatch are the router's own, first_byte and total include the worker.";
    let mut family = text.histogram("stage_seconds", help);
    for (stage, name) in Stage::ALL {
        let Some(histogram) = sources.histograms.stage(stage) else { continue };
        let mut cumulative = Vec::with_capacity(STAGE_BOUNDS.len());
        let (mut below, mut from) = (0_u64, 0_u64);
        for (bound_ns, bound) in STAGE_BOUNDS {
            below += histogram.count_between(from, bound_ns);
            from = bound_ns + 1;
            cumulative.push((bound, below));
        }
        let count = histogram.len();
        // Neighbouring buckets can share the histogram's own cells: never above the whole.
        let cumulative = cumulative.into_iter().map(|(bound, below)| (bound, below.min(count)));
        let sum = histogram.mean() * approximate(count) / NANOS_PER_SECOND;
        family.buckets(&[("stage", name)], cumulative, (count, sum));
    }
}

fn kv_feeds(feeds: &FeedCounters, text: &mut MetricsText) {
    let mut family = text.counter("kv_batches_total", "KV event batches received.");
    for (result, label) in BatchResult::ALL {
        family.sample(&[("result", label)], feeds.batch_count(result));
    }
    let mut family = text.counter("kv_events_total", "KV events by what became of them.");
    for (kind, kind_label) in EventKind::ALL {
        for (outcome, label) in Outcome::ALL {
            let count = feeds.event_count(kind, outcome);
            if count > 0 || outcome == Outcome::Applied {
                family.sample(&[("kind", kind_label), ("result", label)], count);
            }
        }
    }
    let help = "Times a rank's blocks were forgotten because its event stream was not whole.";
    let mut family = text.counter("kv_resets_total", help);
    for (reason, label) in ResetReason::ALL {
        family.sample(&[("reason", label)], feeds.reset_count(reason));
    }
    let mut family = text.counter("kv_replays_total", "Replays of missed KV event batches.");
    for (result, label) in ReplayResult::ALL {
        family.sample(&[("result", label)], feeds.replay_count(result));
    }
    let help = "KV event batches lost between two others that no replay brought.";
    text.counter("kv_missed_batches_total", help).sample(&[], feeds.missed_count());
    let help = "Connections for KV events that ended; each is opened again.";
    let mut family = text.counter("kv_connections_lost_total", help);
    for (reason, label) in LossReason::ALL {
        family.sample(&[("reason", label)], feeds.loss_count(reason));
    }
    text.counter("kv_feed_stalled_total", "Waits of feeds for a full ring.")
        .sample(&[], feeds.stall_count());
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    text.gauge("kv_tracked_blocks", "Blocks known by the engines' hashes.")
        .sample(&[], wide(feeds.block_count()));
    let help = "Blocks that a storage tier holds; one may be in several.";
    let mut family = text.gauge("kv_tier_blocks", help);
    for tier in Tier::ALL {
        family.sample(&[("tier", tier.label())], wide(feeds.tier_block_count(tier)));
    }
    let help = "Blocks of tiers without removals that were stored longer ago than kv.tier_ttl.";
    let mut family = text.counter("kv_expired_blocks_total", help);
    for tier in [Tier::Host, Tier::Disk] {
        family.sample(&[("tier", tier.label())], feeds.expired_count(tier));
    }
    text.gauge("kv_tracked_bytes", "Memory of the feeds' maps.")
        .sample(&[], wide(feeds.byte_count()));
    kv_orphans(feeds, text);
}

fn kv_orphans(feeds: &FeedCounters, text: &mut MetricsText) {
    let waiting = u64::try_from(feeds.orphan_count()).unwrap_or(u64::MAX);
    let help = "Blocks kept until the event of the block before them comes.";
    text.gauge("kv_orphan_blocks", help).sample(&[], waiting);
    let gone = feeds.orphans_gone_count();
    let help = "Blocks that do not wait for the block before them any more.";
    let mut family = text.counter("kv_orphans_total", help);
    for (label, count) in
        [("applied", gone.applied), ("dropped", gone.dropped), ("removed", gone.removed)]
    {
        family.sample(&[("result", label)], u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn index(index: &IndexReader, text: &mut MetricsText) {
    text.gauge("index_entries", "Blocks in the index.").sample(&[], index.entry_count());
    text.gauge("index_runs", "Runs that the blocks of the index lie in.")
        .sample(&[], index.run_count());
    text.gauge("index_bytes", "Memory of the index.").sample(&[], index.memory_bytes());
    text.counter("index_refused_total", "Stores refused: over a limit, or without memory.")
        .sample(&[], index.refused_count());
    text.counter("index_evicted_total", "Blocks evicted at limits.index_bytes_max, coldest first.")
        .sample(&[], index.evicted_count());
}

fn snapshots(saving: &Saving, sources: &Sources<'_>, text: &mut MetricsText) {
    let mut family = text.counter("snapshot_writes_total", "Snapshots of the caches' contents.");
    for (whole, label) in [(true, "written"), (false, "failed")] {
        family.sample(&[("result", label)], saving.count(whole));
    }
    if let Some(last) = saving.last() {
        let age_ns = sources.now.since(last.ended_at);
        text.gauge("snapshot_age_seconds", "Since the last snapshot.").seconds(&[], age_ns);
        text.gauge("snapshot_bytes", "Size of the last snapshot.").sample(&[], last.bytes);
        text.gauge("snapshot_blocks", "Blocks in the last snapshot.").sample(&[], last.blocks);
        let help = "Time that the last snapshot took.";
        text.gauge("snapshot_write_seconds", help).seconds(&[], last.took_ns);
        let help = "Longest time that one rank's copy kept the control plane.";
        text.gauge("snapshot_copy_seconds", help).seconds(&[], last.copy_ns_max);
    }
    let help = "Blocks that came from a snapshot, confirmed or not.";
    let restored = sources.feeds.counters().restored_count();
    text.counter("snapshot_restored_blocks_total", help).sample(&[], restored);
    let help = "Blocks of a snapshot that are not held, or not any more, unconfirmed.";
    let mut family = text.counter("snapshot_dropped_blocks_total", help);
    for (reason, label) in Dropped::ALL {
        family.sample(&[("reason", label)], sources.feeds.counters().dropped_count(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_reasons_stand_at_their_counters() {
        for (position, endpoint) in Endpoint::ALL.iter().enumerate() {
            assert_eq!(*endpoint as usize, position);
        }
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, position);
        }
    }
}
