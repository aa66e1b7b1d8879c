//! The metrics of the control plane. An entry is all of a metric: name, type, labels, help, and how
//! a scrape reads its samples. `/metrics`, the reference page and the live page follow the list.
//! The plain counters of shards are in [`Count`](forebay_board::account::Count).

use super::samples::Samples::{self, Labelled, Maybe, Nanos, One, RankFractions, Ranks};
use super::samples::{load, wide};
use super::scrape::{self, by};
use super::scrape_choices::{self, rank_counts};
use super::scrape_flow::{self, queues, room};
use super::scrape_load::{self, report};
use super::scrape_replicas::{self, replica_share};
use super::{scrape_kv, scrape_process, scrape_tenants};
use forebay_base::{broken_invariant_count, process_cpu_ns};
use forebay_board::account::{Count, Metric, MetricKind, RankCount};
use forebay_board::{QueueCell, RankLoad};
use forebay_kv_events::{BatchResult, ReplayResult, ResetReason};
use forebay_zmq::LossReason;

/// Makes a static for each metric, and the list of them. Sections are headings of the page.
macro_rules! catalogue {
    ($($section:literal { $(
        $(#[doc = $help:literal])+
        $metric:ident = $kind:ident $name:literal [$($label:literal),*] $samples:expr;
    )+ })+) => {
        $($(
            $(#[doc = $help])+
            pub(crate) static $metric: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                labels: &[$($label),*],
                section: $section,
                help: concat!($($help),+),
            };
        )+)+

        pub(crate) static OF_CONTROL: &[(&Metric, Samples)] = &[$($((&$metric, $samples),)+)+];
    };
}

/// Every metric that `GET /metrics` may have.
pub fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    OF_CONTROL.iter().map(|(metric, _)| *metric).chain(Count::ALL.iter().map(|(_, metric)| metric))
}

catalogue! {
    "Requests" {
        /// Answered requests by endpoint and status.
        REQUESTS = Counter "requests_total" ["endpoint", "code"] Labelled(scrape::requests);
        /// Requests that the router itself refused.
        REJECTED = Counter "rejected_total" ["reason", "endpoint", "model", "type"]
            Labelled(scrape::rejected);
        /// Refusals and failures of workers, by what they are held against.
        REFUSALS = Counter "refusals_total" ["against"] Labelled(scrape::refusals);
        /// Streams cut because no other worker went on with them; only with `retry.mid_stream`.
        STREAMS_NOT_CONTINUED = Counter "streams_not_continued_total" ["reason"]
            Labelled(scrape::not_continued);
        /// Tokens that engines have computed, by tenant, as engines count them, else estimated;
        /// `prompt` includes `cached`.
        TENANT_TOKENS = Counter "tenant_tokens_total" ["tenant", "model", "kind"]
            Labelled(scrape_tenants::tokens);
        /// Requests by tenant: answered (engine refusals too), refused, invalid (router: key,
        /// model, form), failed (5xx or cut), left by the client. `*`: no table.
        TENANT_REQUESTS = Counter "tenant_requests_total" ["tenant", "result"]
            Labelled(scrape_tenants::requests);
        /// Requests that a tenant with `requests_per_minute` may send now.
        TENANT_REQUESTS_LEFT = Gauge "tenant_requests_left" ["tenant"]
            Labelled(|s, family| scrape_tenants::limits(s, family, |cell, quota, now| {
                Some(cell.requests(quota.requests?, now).remaining)
            }));
        /// Tokens that a tenant with `tokens_per_minute` may use now.
        TENANT_TOKENS_LEFT = Gauge "tenant_tokens_left" ["tenant"]
            Labelled(|s, family| scrape_tenants::limits(s, family, |cell, quota, now| {
                Some(cell.tokens(quota.tokens?, now).remaining)
            }));
        /// Requests in flight of tenants with `in_flight_max`.
        TENANT_IN_FLIGHT = Gauge "tenant_in_flight" ["tenant"]
            Labelled(|s, family| scrape_tenants::limits(s, family, |cell, quota, _| {
                (quota.in_flight_max > 0).then(|| cell.in_flight().get().into())
            }));
        /// Time per stage.
        STAGE_SECONDS = Histogram "stage_seconds" ["stage"] Labelled(scrape::stages);
        /// Answers cut because the rank failed in the middle, by rank.
        RANK_CUTS = Counter "rank_cuts_total" ["worker", "dp_rank"]
            Labelled(|s, family| rank_counts(s, family, RankCount::CutAnswers));
        /// Time from the end of a request to the first byte of its stream, by model.
        TTFT_SECONDS = Histogram "ttft_seconds" ["model"] Labelled(scrape_choices::first_bytes);
        /// The same by rank, without buckets.
        RANK_TTFT_SECONDS = Histogram "rank_ttft_seconds" ["worker", "dp_rank"]
            Labelled(scrape_choices::rank_first_bytes);
        /// Requests in flight on a rank from this router.
        IN_FLIGHT = Gauge "in_flight" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(|load| load.in_flight().into()));
        /// Requests in flight in all shards; only with `limits.router_in_flight_max`.
        ROUTER_IN_FLIGHT = Gauge "router_in_flight" [] Maybe(scrape_flow::router_in_flight);
    }
    "TLS" {
        /// When the first certificate expires, in seconds since 1970; only with TLS.
        TLS_EXPIRES_TIMESTAMP_SECONDS = Gauge "tls_expires_timestamp_seconds" []
            Maybe(|s| Some(s.fleet.fleet.serving.acceptor.as_ref()?.expires_at()?.as_secs()));
    }
    "Prompts and matches" {
        /// Prompt bytes that the chosen rank held by its KV events.
        OVERLAP_BYTES = Counter "overlap_bytes_total" ["worker", "dp_rank"]
            Labelled(|s, family| rank_counts(s, family, RankCount::OverlapBytes));
        /// Prompt tokens found in a rank's cache, as engines say in `usage`; pairs do not count.
        CACHED_TOKENS = Counter "cached_tokens_total" ["worker", "dp_rank"]
            Labelled(|s, family| rank_counts(s, family, RankCount::CachedTokens));
        /// Prompt tokens that a rank computed, of the same answers.
        COMPUTED_TOKENS = Counter "computed_tokens_total" ["worker", "dp_rank"]
            Labelled(|s, family| rank_counts(s, family, RankCount::ComputedTokens));
        /// Choices of a rank by their reason.
        DECISIONS = Counter "decisions_total" ["reason"] Labelled(scrape_choices::decisions);
        /// Prompt tokens of answers with the engine's own count, predicted or found in caches.
        COMPARED_TOKENS = Counter "compared_tokens_total" ["model", "shape", "by"]
            Labelled(scrape_choices::compared);
        /// 1 while engines find more (or less) of these prompts in caches than events predict.
        PREDICTIONS_OFF = Gauge "predictions_off" ["model", "shape", "found"]
            Labelled(scrape_choices::predictions_off);
        /// How far the predicted overlap was from the engine's own count, in blocks.
        OVERLAP_ERROR_BLOCKS = Histogram "overlap_error_blocks" [] Labelled(scrape::overlap_errors);
    }
    "KV events" {
        /// 1 while the rank's KV events are followed; left out for a rank that never had events.
        KV_FEED_LIVE = Gauge "kv_feed_live" ["worker", "dp_rank"]
            Ranks(|s, index| {
                let (rank, _) = s.fleet.fleet.rank(index)?;
                let had_events = rank.lost_kv_events().is_some();
                (had_events || s.feeds.status(index).is_some()).then(|| rank.kv_feed_live.into())
            });
        /// 1 while endpoints or batches show that a rank's KV events are another's or do not come.
        KV_FEED_SUSPECT = Gauge "kv_feed_suspect" ["worker", "dp_rank"]
            Ranks(|s, rank| {
                s.feeds.status(rank)?;
                s.fleet.fleet.rank(rank).map(|(rank, _)| rank.feed_suspicion.is_some().into())
            });
        /// 1 while the overlap predicted for a rank is an upper bound: hybrid models, KV pools.
        KV_OVERLAP_UPPER_BOUND = Gauge "kv_overlap_upper_bound" ["worker", "dp_rank"]
            Ranks(|s, rank| {
                s.fleet.fleet.rank(rank).map(|(rank, _)| rank.tiers.is_upper_bound().into())
            });
        /// Blocks of a rank known by its engine's hashes.
        KV_RANK_BLOCKS = Gauge "kv_rank_blocks" ["worker", "dp_rank"]
            Ranks(|s, rank| s.feeds.status(rank).map(|feed| wide(feed.blocks())));
        /// Time since the rank's last KV event batch; before the first, since events are followed.
        KV_QUIET_SECONDS = Gauge "kv_quiet_seconds" ["worker", "dp_rank"]
            Ranks(|s, rank| Some(s.feeds.status(rank)?.quiet()?.as_secs()));
        /// KV event batches received.
        KV_BATCHES = Counter "kv_batches_total" ["result"]
            Labelled(|s, family| {
                by("result", BatchResult::ALL, family, |of| s.feeds.counters.batch_count(of));
            });
        /// KV events by what became of them.
        KV_EVENTS = Counter "kv_events_total" ["kind", "result"] Labelled(scrape_kv::events);
        /// Times a rank's blocks were forgotten because its event stream was not whole.
        KV_RESETS = Counter "kv_resets_total" ["reason"]
            Labelled(|s, family| {
                by("reason", ResetReason::ALL, family, |of| s.feeds.counters.reset_count(of));
            });
        /// Replays of missed KV event batches.
        KV_REPLAYS = Counter "kv_replays_total" ["result"]
            Labelled(|s, family| {
                by("result", ReplayResult::ALL, family, |of| s.feeds.counters.replay_count(of));
            });
        /// Missing KV event batches that no replay brought.
        KV_MISSED_BATCHES = Counter "kv_missed_batches_total" []
            One(|s| s.feeds.counters.missed_count());
        /// Connections for KV events that ended; each is opened again.
        KV_CONNECTIONS_LOST = Counter "kv_connections_lost_total" ["reason"]
            Labelled(|s, family| {
                by("reason", LossReason::ALL, family, |of| s.feeds.counters.loss_count(of));
            });
        /// Times that a feed waited for a full ring.
        KV_FEED_STALLED = Counter "kv_feed_stalled_total" []
            One(|s| s.feeds.counters.stall_count());
        /// Blocks known by the engines' hashes.
        KV_TRACKED_BLOCKS = Gauge "kv_tracked_blocks" []
            One(|s| wide(s.feeds.counters.block_count()));
        /// Blocks that a storage tier holds; a block may be in several tiers.
        KV_TIER_BLOCKS = Gauge "kv_tier_blocks" ["tier"] Labelled(scrape_kv::tiers);
        /// Blocks that a KV pool is believed to hold.
        KV_POOL_BLOCKS = Gauge "kv_pool_blocks" ["kv_pool", "model"] Labelled(scrape_kv::pools);
        /// Blocks of tiers without removals, older than `kv.tier_ttl`.
        KV_EXPIRED_BLOCKS = Counter "kv_expired_blocks_total" ["tier"] Labelled(scrape_kv::expired);
        /// Memory of the maps of all KV feeds.
        KV_TRACKED_BYTES = Gauge "kv_tracked_bytes" [] One(scrape_kv::tracked_bytes);
        /// Blocks that wait for the event of the block before them.
        KV_ORPHAN_BLOCKS = Gauge "kv_orphan_blocks" []
            One(|s| wide(s.feeds.counters.orphan_count()));
        /// Blocks that stopped waiting for the block before them.
        KV_ORPHANS = Counter "kv_orphans_total" ["result"] Labelled(scrape_kv::orphans);
    }
    "Index and snapshot" {
        /// Blocks in the index.
        INDEX_ENTRIES = Gauge "index_entries" [] One(|s| s.index.entry_count());
        /// Runs that the blocks of the index lie in.
        INDEX_RUNS = Gauge "index_runs" [] One(|s| s.index.run_count());
        /// Memory of the index.
        INDEX_BYTES = Gauge "index_bytes" [] One(|s| s.index.memory_bytes());
        /// Blocks that the index refused: a limit, or no memory.
        INDEX_REFUSED = Counter "index_refused_total" [] One(|s| s.index.refused_count());
        /// Blocks evicted at `limits.index_bytes_max`, coldest first.
        INDEX_EVICTED = Counter "index_evicted_total" [] One(|s| s.index.evicted_count());
        /// Time since the last snapshot.
        SNAPSHOT_AGE_SECONDS = Gauge "snapshot_age_seconds" []
            Nanos(|s| Some(s.fleet.now.since(s.last_snapshot()?.ended_at)));
        /// Size of the last snapshot.
        SNAPSHOT_BYTES = Gauge "snapshot_bytes" [] Maybe(|s| Some(s.last_snapshot()?.bytes));
        /// Blocks in the last snapshot.
        SNAPSHOT_BLOCKS = Gauge "snapshot_blocks" [] Maybe(|s| Some(s.last_snapshot()?.blocks));
        /// Time that the last snapshot took.
        SNAPSHOT_WRITE_SECONDS = Gauge "snapshot_write_seconds" []
            Nanos(|s| Some(s.last_snapshot()?.took_ns));
        /// Longest time that one rank's copy held the control plane.
        SNAPSHOT_COPY_SECONDS = Gauge "snapshot_copy_seconds" []
            Nanos(|s| Some(s.last_snapshot()?.copy_ns_max));
        /// Blocks that came from a snapshot.
        SNAPSHOT_RESTORED_BLOCKS = Counter "snapshot_restored_blocks_total" []
            Maybe(|s| s.snapshots.as_ref().map(|_| s.feeds.counters.restored_count()));
        /// Snapshots that were written or failed.
        SNAPSHOT_WRITES = Counter "snapshot_writes_total" ["result"]
            Labelled(scrape_kv::snapshot_writes);
        /// Blocks of a snapshot that were dropped.
        SNAPSHOT_DROPPED_BLOCKS = Counter "snapshot_dropped_blocks_total" ["reason"]
            Labelled(scrape_kv::snapshot_drops);
    }
    "Ranks and workers" {
        /// 1 while the worker passes its health checks.
        WORKER_UP = Gauge "worker_up" ["worker", "engine"] Labelled(scrape::workers_up);
        /// 1 while the worker gets nothing new, by a call of the admin API.
        WORKER_DRAINING = Gauge "worker_draining" ["worker"] Labelled(scrape::workers_draining);
        /// Restarts of the worker's engine that its load reports or its KV events have shown.
        WORKER_RESTARTS = Counter "worker_restarts_total" ["worker"]
            Labelled(scrape_load::restarts);
        /// Workers by role and state; `registering`: waits for its registry; `unused`: another
        /// worker is the same engine.
        WORKERS = Gauge "workers" ["role", "state"] Labelled(scrape::workers);
        /// 1 while no worker serves a model that a worker served before: the worker lists other
        /// models now.
        MODEL_DROPPED = Gauge "model_dropped" ["model"] Labelled(scrape::models_dropped);
        /// 1 while a source of workers (a file, or a DNS name) cannot be read, or its workers find
        /// no place.
        SOURCE_FAILING = Gauge "source_failing" ["source"] Labelled(scrape::sources_failing);
        /// Requests that a rank may have in flight; 0: no limit.
        RANK_PLACES_MAX = Gauge "rank_places_max" ["worker", "dp_rank"]
            Ranks(scrape_flow::places_max);
        /// 1 for the source of that limit: `configured`, `declared`, `learned`,
        /// `slow_start`, or `none`.
        RANK_PLACES_SOURCE = Gauge "rank_places_source" ["worker", "dp_rank", "source"]
            Labelled(scrape_flow::places_source);
        /// KV tokens that requests in flight hold, or will. Shared prefixes count once.
        RANK_KV_TOKENS = Gauge "rank_kv_tokens" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(RankLoad::kv_tokens));
        /// KV tokens that requests in flight may hold; 0: no limit.
        RANK_KV_TOKENS_MAX = Gauge "rank_kv_tokens_max" ["worker", "dp_rank"]
            Ranks(|s, rank| room(s, rank).map(|room| room.kv_tokens_max));
        /// Prompt tokens yet to compute that a rank may have; 0: no limit.
        RANK_PREFILL_TOKENS_MAX = Gauge "rank_prefill_tokens_max" ["worker", "dp_rank"]
            Ranks(|s, rank| room(s, rank).map(|room| room.prefill_tokens_shown()));
        /// Places that other replicas have or may have, or that a worker had which left the engine.
        RANK_PLACES_ELSEWHERE = Gauge "rank_places_elsewhere" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(|load| load.places_elsewhere().into()));
        /// 1 while a rank gets nothing because its engine refused work.
        RANK_BUSY = Gauge "rank_busy" ["worker", "dp_rank"]
            Ranks(|s, rank| {
                load(s, rank).map(|load| (load.busy_until(None) > s.fleet.now).into())
            });
        /// Requests that a rank took and that ended. Failures and refusals do not count.
        RANK_ENDED = Counter "rank_ended_total" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(RankLoad::ended));
        /// Prompt tokens sent to a rank and not computed yet, by first tokens and by time.
        PREFILL_TOKENS = Gauge "prefill_tokens" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(RankLoad::prefill_tokens));
        /// Prompt tokens that a rank computes in a second, by first tokens and by prompts that are
        /// taken for computed.
        PREFILL_TOKENS_PER_SECOND = Gauge "prefill_tokens_per_second" ["worker", "dp_rank"]
            Ranks(|s, rank| s.fleet.board.past(rank)?.prefill_tokens_per_s());
        /// Prompt tokens over the wait for their first token; none below 32 recent waits. Policies
        /// `kv` and `session` compare unequal ranks by it.
        WAIT_TOKENS_PER_SECOND = Gauge "wait_tokens_per_second" ["worker", "dp_rank"]
            Ranks(|s, rank| s.fleet.board.past(rank)?.wait_tokens_per_s());
        /// Tokens held by requests in flight.
        DECODE_TOKENS = Gauge "decode_tokens" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(RankLoad::kv_tokens));
        /// 1 while the rank's breaker keeps requests away, or the rank is ejected.
        BREAKER_OPEN = Gauge "breaker_open" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(|load| load.is_restricted().into()));
        /// 1 while every request on the rank has failed, or was refused with 4xx, for ten seconds.
        RANK_FAILING = Gauge "rank_failing" ["worker", "dp_rank"]
            Ranks(|s, rank| load(s, rank).map(|load| load.is_failing().into()));
        /// Times that the rank was ejected: it stood still, or was far slower than its pool.
        RANK_EJECTIONS = Counter "rank_ejections_total" ["worker", "dp_rank", "reason"]
            Labelled(scrape::ejections);
        /// Counts up with every change of the fleet.
        FLEET_GENERATION = Gauge "fleet_generation" [] One(|s| s.fleet.fleet.generation);
    }
    "Load reports" {
        /// Requests in the engine's batch, as it reports.
        REPORTED_RUNNING = Gauge "reported_running" ["worker", "dp_rank"]
            RankFractions(|s, rank| Some(report(s, rank)?.running.into()));
        /// Requests that wait in the engine, as it reports.
        REPORTED_WAITING = Gauge "reported_waiting" ["worker", "dp_rank"]
            RankFractions(|s, rank| Some(report(s, rank)?.waiting.into()));
        /// Reported requests that this router did not send.
        REPORTED_FOREIGN = Gauge "reported_foreign" ["worker", "dp_rank"]
            RankFractions(|s, rank| Some(report(s, rank)?.foreign.requests.into()));
        /// Share of the KV cache held by live requests.
        REPORTED_KV_USAGE = Gauge "reported_kv_usage" ["worker", "dp_rank"]
            RankFractions(|s, rank| Some(f64::from(report(s, rank)?.kv_permille?) / 1e3));
        /// Age of the rank's last load report.
        LOAD_REPORT_AGE_SECONDS = Gauge "load_report_age_seconds" ["worker", "dp_rank"]
            Labelled(scrape_load::ages);
        /// Time of one question to an engine about its load, with the answer.
        LOAD_SCRAPE_SECONDS = Histogram "load_scrape_seconds" [] Labelled(scrape_load::scrapes);
        /// Load reports that a shard had no room for.
        LOAD_REPORTS_DROPPED = Counter "load_reports_dropped_total" []
            One(|s| s.fleet.loads.dropped_count());
        /// Load reports, or parts of reports, that did not come or were not taken.
        LOAD_REPORT_ERRORS = Counter "load_report_errors_total" ["worker", "reason"]
            Labelled(scrape_load::faults);
    }
    "Queues and windows" {
        /// Requests that wait for a rank.
        QUEUE_DEPTH = Gauge "queue_depth" ["model", "leg", "worker", "dp_rank"]
            Labelled(|s, family| queues(s, family, |queue| queue.waiting().into()));
        /// Requests that one queue may hold, `queue.depth_max`.
        QUEUE_LIMIT = Gauge "queue_limit" [] Maybe(scrape_flow::queue_limit);
        /// Bytes of the bodies that wait.
        QUEUE_BYTES = Gauge "queue_bytes" ["model", "leg", "worker", "dp_rank"]
            Labelled(|s, family| queues(s, family, QueueCell::waiting_bytes));
        /// KV tokens that waiting requests want.
        QUEUE_KV_TOKENS = Gauge "queue_kv_tokens" ["model", "leg", "worker", "dp_rank"]
            Labelled(|s, family| queues(s, family, QueueCell::waiting_tokens));
        /// 1 while the pool's rejection window is open; `by` says whose window.
        WINDOW_OPEN = Gauge "window_open" ["model", "leg", "by"]
            Labelled(scrape_flow::windows_open);
        /// Times that the pool's rejection window was opened.
        WINDOW_OPENINGS = Counter "window_openings_total" ["model", "leg"]
            Labelled(scrape_flow::window_openings);
        /// Requests that end per second while the pool is full; left out until a full pool has
        /// ended some, and after a minute with room.
        DRAIN_RATE = Gauge "drain_rate" ["model", "leg"] Labelled(scrape_flow::drain_rates);
    }
    "Replicas" {
        /// 1 while the router is connected to NATS.
        NATS_CONNECTED = Gauge "nats_connected" []
            Maybe(|s| s.replicas.as_ref()?.is_nats_connected.map(u64::from));
        /// 1 while messages of a peer come; one sample for each URL of `replicas.peers` but the
        /// router's own.
        PEER_CONNECTED = Gauge "peer_connected" ["peer"] Labelled(scrape_replicas::peers);
        /// Replicas that are alive, this router included.
        REPLICAS = Gauge "replicas" []
            Maybe(|s| s.replicas.as_ref().map(|figures| figures.replica_count));
        /// Messages to and from other replicas, and what became of them.
        REPLICA_MESSAGES = Counter "replica_messages_total" ["kind", "direction", "result"]
            Labelled(scrape_replicas::messages);
        /// Fields of messages that this version does not know.
        REPLICA_UNKNOWN_FIELDS = Counter "replica_unknown_fields_total" []
            Maybe(|s| s.replicas.as_ref().map(|figures| figures.unknown_fields));
        /// Requests that other replicas have on a rank, as they report.
        REPLICA_IN_FLIGHT = Gauge "replica_in_flight" ["worker", "dp_rank"]
            Labelled(|s, family| replica_share(s, family, |rank| Some(rank.in_flight)));
        /// KV tokens that other replicas have on a rank, as they report.
        REPLICA_KV_TOKENS = Gauge "replica_kv_tokens" ["worker", "dp_rank"]
            Labelled(|s, family| replica_share(s, family, |rank| Some(rank.kv_tokens)));
        /// Requests that this replica may have on a rank with a limit.
        REPLICA_PLACES_ALLOWED = Gauge "replica_places_allowed" ["worker", "dp_rank"]
            Labelled(|s, family| replica_share(s, family, |rank| rank.places_allowed));
        /// 1 for ranks whose places this replica gives out.
        REPLICA_STEWARDED = Gauge "replica_stewarded" ["worker", "dp_rank"]
            Labelled(|s, family| replica_share(s, family, |rank| Some(rank.is_stewarded.into())));
    }
    "Traces" {
        /// Spans that the collector took.
        TRACE_SPANS = Counter "trace_spans_total" [] One(|s| s.process.spans.exported);
        /// Spans lost: too many waited, or the collector refused them or did not answer.
        TRACE_SPANS_DROPPED = Counter "trace_spans_dropped_total" ["reason"]
            Labelled(scrape::spans_dropped);
    }
    "The process" {
        /// The version that runs.
        BUILD_INFO = Gauge "build_info" ["version"]
            Labelled(|_, family| family.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1));
        /// 0 after a refused reload: the router runs the configuration of before, and a restart
        /// would fail.
        CONFIG_LAST_RELOAD_SUCCESSFUL = Gauge "config_last_reload_successful" []
            One(|s| u64::from(!s.process.reload.is_refused));
        /// When the configuration was last taken over, in seconds since 1970; the start counts.
        CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS = Gauge
            "config_last_reload_success_timestamp_seconds" []
            One(|s| s.process.reload.succeeded_at.as_secs());
        /// Large requests that the thread beside a shard reads, renders or matches.
        OFFLOADED = Gauge "offloaded" ["shard"] Labelled(scrape::offloaded);
        /// 1 while a shard, or the thread beside it, makes no progress.
        SHARD_STALLED = Gauge "shard_stalled" ["shard"] Labelled(scrape::stalled);
        /// CPU time of all threads.
        CPU_SECONDS = Counter "cpu_seconds_total" [] Nanos(|_| Some(process_cpu_ns()));
        /// CPU time of shards, of the threads beside them and of the control thread.
        THREAD_CPU_SECONDS = Counter "thread_cpu_seconds_total" ["thread"]
            Labelled(scrape_process::threads);
        /// Memory that the process holds.
        RESIDENT_BYTES = Gauge "resident_bytes" [] Maybe(|_| scrape_process::resident_bytes());
        /// Lines of the log that standard error did not take.
        LOG_DROPPED = Counter "log_dropped_total" [] One(|s| s.process.log_dropped);
        /// Writes of `workers_state` that succeeded or failed.
        WORKERS_STATE_WRITES = Counter "workers_state_writes_total" ["result"]
            Labelled(scrape_process::state_writes);
        /// Not 0: a bug, please report.
        BROKEN_INVARIANTS = Counter "broken_invariants_total" [] One(|_| broken_invariant_count());
    }
}
