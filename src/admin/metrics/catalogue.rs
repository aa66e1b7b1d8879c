//! The metrics of the control plane: one entry each, the source of `/metrics` and of the reference
//! page. The plain counters of shards are in [`Count`](forebay_board::account::Count).

use forebay_board::account::{Count, Metric, MetricKind};

/// Makes a static for each metric, and the list of them. Sections are headings of the page.
macro_rules! catalogue {
    ($($section:literal { $(
        $(#[doc = $help:literal])+
        $metric:ident = $kind:ident $name:literal [$($label:literal),*];
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

        static OF_CONTROL: &[&Metric] = &[$($(&$metric,)+)+];
    };
}

/// Every metric that `GET /metrics` may have.
pub fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    OF_CONTROL.iter().copied().chain(Count::ALL.iter().map(|(_, metric)| metric))
}

catalogue! {
    "Requests" {
        /// Answered requests by endpoint and status.
        REQUESTS = Counter "requests_total" ["endpoint", "code"];
        /// Requests that the router itself refused.
        REJECTED = Counter "rejected_total" ["reason", "endpoint", "model", "type"];
        /// Refusals and failures of workers, by what they are held against.
        REFUSALS = Counter "refusals_total" ["against"];
        /// Streams cut because no other worker went on with them; only with `retry.mid_stream`.
        STREAMS_NOT_CONTINUED = Counter "streams_not_continued_total" ["reason"];
        /// Tokens that engines have computed, by tenant, as engines count them, else estimated;
        /// `prompt` includes `cached`.
        TENANT_TOKENS = Counter "tenant_tokens_total" ["tenant", "model", "kind"];
        /// Requests by tenant: answered, refused with 429, failed (5xx or cut), or left by the
        /// client. `*` stands for tenants without a table.
        TENANT_REQUESTS = Counter "tenant_requests_total" ["tenant", "result"];
        /// Requests that a tenant with `requests_per_minute` may send now.
        TENANT_REQUESTS_LEFT = Gauge "tenant_requests_left" ["tenant"];
        /// Tokens that a tenant with `tokens_per_minute` may use now.
        TENANT_TOKENS_LEFT = Gauge "tenant_tokens_left" ["tenant"];
        /// Requests in flight of tenants with `in_flight_max`.
        TENANT_IN_FLIGHT = Gauge "tenant_in_flight" ["tenant"];
        /// Time per stage.
        STAGE_SECONDS = Histogram "stage_seconds" ["stage"];
        /// Answers cut because the rank failed in the middle, by rank.
        RANK_CUTS = Counter "rank_cuts_total" ["worker", "dp_rank"];
        /// Time from the end of a request to the first byte of its stream, by model.
        TTFT_SECONDS = Histogram "ttft_seconds" ["model"];
        /// The same by rank, without buckets.
        RANK_TTFT_SECONDS = Histogram "rank_ttft_seconds" ["worker", "dp_rank"];
        /// Requests in flight on a rank from this router.
        IN_FLIGHT = Gauge "in_flight" ["worker", "dp_rank"];
        /// Requests in flight in all shards; only with `limits.router_in_flight_max`.
        ROUTER_IN_FLIGHT = Gauge "router_in_flight" [];
    }
    "TLS" {
        /// When the first certificate expires, in seconds since 1970; only with TLS.
        TLS_EXPIRES_TIMESTAMP_SECONDS = Gauge "tls_expires_timestamp_seconds" [];
    }
    "Prompts and matches" {
        /// Prompt bytes that the chosen rank held by its KV events.
        OVERLAP_BYTES = Counter "overlap_bytes_total" ["worker", "dp_rank"];
        /// Prompt tokens found in a rank's cache, as engines say in `usage`; pairs do not count.
        CACHED_TOKENS = Counter "cached_tokens_total" ["worker", "dp_rank"];
        /// Prompt tokens that a rank computed, of the same answers.
        COMPUTED_TOKENS = Counter "computed_tokens_total" ["worker", "dp_rank"];
        /// Choices of a rank by their reason.
        DECISIONS = Counter "decisions_total" ["reason"];
        /// Prompt tokens of answers with the engine's own count, predicted or found in caches.
        COMPARED_TOKENS = Counter "compared_tokens_total" ["model", "shape", "by"];
        /// 1 while engines find more (or less) of these prompts in caches than events predict.
        PREDICTIONS_OFF = Gauge "predictions_off" ["model", "shape", "found"];
        /// How far the predicted overlap was from the engine's own count, in blocks.
        OVERLAP_ERROR_BLOCKS = Histogram "overlap_error_blocks" [];
    }
    "KV events" {
        /// 1 while the rank's KV events are followed.
        KV_FEED_LIVE = Gauge "kv_feed_live" ["worker", "dp_rank"];
        /// 1 while the overlap predicted for a rank is an upper bound: hybrid models, KV pools.
        KV_OVERLAP_UPPER_BOUND = Gauge "kv_overlap_upper_bound" ["worker", "dp_rank"];
        /// Blocks of a rank known by its engine's hashes.
        KV_RANK_BLOCKS = Gauge "kv_rank_blocks" ["worker", "dp_rank"];
        /// Time since the rank's last KV event batch.
        KV_QUIET_SECONDS = Gauge "kv_quiet_seconds" ["worker", "dp_rank"];
        /// KV event batches received.
        KV_BATCHES = Counter "kv_batches_total" ["result"];
        /// KV events by what became of them.
        KV_EVENTS = Counter "kv_events_total" ["kind", "result"];
        /// Times a rank's blocks were forgotten because its event stream was not whole.
        KV_RESETS = Counter "kv_resets_total" ["reason"];
        /// Replays of missed KV event batches.
        KV_REPLAYS = Counter "kv_replays_total" ["result"];
        /// Missing KV event batches that no replay brought.
        KV_MISSED_BATCHES = Counter "kv_missed_batches_total" [];
        /// Connections for KV events that ended; each is opened again.
        KV_CONNECTIONS_LOST = Counter "kv_connections_lost_total" ["reason"];
        /// Times that a feed waited for a full ring.
        KV_FEED_STALLED = Counter "kv_feed_stalled_total" [];
        /// Blocks known by the engines' hashes.
        KV_TRACKED_BLOCKS = Gauge "kv_tracked_blocks" [];
        /// Blocks that a storage tier holds; a block may be in several tiers.
        KV_TIER_BLOCKS = Gauge "kv_tier_blocks" ["tier"];
        /// Blocks that a KV pool is believed to hold.
        KV_POOL_BLOCKS = Gauge "kv_pool_blocks" ["kv_pool", "model"];
        /// Blocks of tiers without removals, older than `kv.tier_ttl`.
        KV_EXPIRED_BLOCKS = Counter "kv_expired_blocks_total" ["tier"];
        /// Memory of the maps of all KV feeds.
        KV_TRACKED_BYTES = Gauge "kv_tracked_bytes" [];
        /// Blocks that wait for the event of the block before them.
        KV_ORPHAN_BLOCKS = Gauge "kv_orphan_blocks" [];
        /// Blocks that stopped waiting for the block before them.
        KV_ORPHANS = Counter "kv_orphans_total" ["result"];
    }
    "Index and snapshot" {
        /// Blocks in the index.
        INDEX_ENTRIES = Gauge "index_entries" [];
        /// Runs that the blocks of the index lie in.
        INDEX_RUNS = Gauge "index_runs" [];
        /// Memory of the index.
        INDEX_BYTES = Gauge "index_bytes" [];
        /// Blocks that the index refused: a limit, or no memory.
        INDEX_REFUSED = Counter "index_refused_total" [];
        /// Blocks evicted at `limits.index_bytes_max`, coldest first.
        INDEX_EVICTED = Counter "index_evicted_total" [];
        /// Time since the last snapshot.
        SNAPSHOT_AGE_SECONDS = Gauge "snapshot_age_seconds" [];
        /// Size of the last snapshot.
        SNAPSHOT_BYTES = Gauge "snapshot_bytes" [];
        /// Blocks in the last snapshot.
        SNAPSHOT_BLOCKS = Gauge "snapshot_blocks" [];
        /// Time that the last snapshot took.
        SNAPSHOT_WRITE_SECONDS = Gauge "snapshot_write_seconds" [];
        /// Longest time that one rank's copy held the control plane.
        SNAPSHOT_COPY_SECONDS = Gauge "snapshot_copy_seconds" [];
        /// Blocks that came from a snapshot.
        SNAPSHOT_RESTORED_BLOCKS = Counter "snapshot_restored_blocks_total" [];
        /// Snapshots that were written or failed.
        SNAPSHOT_WRITES = Counter "snapshot_writes_total" ["result"];
        /// Blocks of a snapshot that were dropped.
        SNAPSHOT_DROPPED_BLOCKS = Counter "snapshot_dropped_blocks_total" ["reason"];
    }
    "Ranks and workers" {
        /// 1 while the worker passes its health checks.
        WORKER_UP = Gauge "worker_up" ["worker", "engine"];
        /// 1 while the worker gets nothing new: by a call of the admin API, or as a second address
        /// of an engine.
        WORKER_DRAINING = Gauge "worker_draining" ["worker"];
        /// Workers by role and state; `registering`: waits for its registry.
        WORKERS = Gauge "workers" ["role", "state"];
        /// Requests that a rank may have in flight; 0: no limit.
        RANK_PLACES_MAX = Gauge "rank_places_max" ["worker", "dp_rank"];
        /// 1 for the source of that limit: `configured`, `declared`, `learned`, or `none`.
        RANK_PLACES_SOURCE = Gauge "rank_places_source" ["worker", "dp_rank", "source"];
        /// KV tokens that requests in flight hold, or will. Shared prefixes count once.
        RANK_KV_TOKENS = Gauge "rank_kv_tokens" ["worker", "dp_rank"];
        /// KV tokens that requests in flight may hold; 0: no limit.
        RANK_KV_TOKENS_MAX = Gauge "rank_kv_tokens_max" ["worker", "dp_rank"];
        /// Prompt tokens yet to compute that a rank may have; 0: no limit.
        RANK_PREFILL_TOKENS_MAX = Gauge "rank_prefill_tokens_max" ["worker", "dp_rank"];
        /// Places of a rank that are not for this router: other replicas have them, or may.
        RANK_PLACES_ELSEWHERE = Gauge "rank_places_elsewhere" ["worker", "dp_rank"];
        /// 1 while a rank gets nothing because its engine refused work.
        RANK_BUSY = Gauge "rank_busy" ["worker", "dp_rank"];
        /// Requests that a rank took and that ended. Failures and refusals do not count.
        RANK_ENDED = Counter "rank_ended_total" ["worker", "dp_rank"];
        /// Prompt tokens sent to a rank and not computed yet, by first tokens and by time.
        PREFILL_TOKENS = Gauge "prefill_tokens" ["worker", "dp_rank"];
        /// Prompt tokens that a rank computes in a second, by first tokens and by prompts that are
        /// taken for computed.
        PREFILL_TOKENS_PER_SECOND = Gauge "prefill_tokens_per_second" ["worker", "dp_rank"];
        /// Prompt tokens over the wait for their first token; none below 32 recent waits. Policies
        /// `kv` and `session` compare unequal ranks by it.
        WAIT_TOKENS_PER_SECOND = Gauge "wait_tokens_per_second" ["worker", "dp_rank"];
        /// Tokens held by requests in flight.
        DECODE_TOKENS = Gauge "decode_tokens" ["worker", "dp_rank"];
        /// 1 while the rank's breaker keeps requests away, or the rank is ejected.
        BREAKER_OPEN = Gauge "breaker_open" ["worker", "dp_rank"];
        /// Times that the rank was ejected: it stood still, or was far slower than its pool.
        RANK_EJECTIONS = Counter "rank_ejections_total" ["worker", "dp_rank", "reason"];
        /// Counts up with every change of the fleet.
        FLEET_GENERATION = Gauge "fleet_generation" [];
    }
    "Load reports" {
        /// Requests in the engine's batch, as it reports.
        REPORTED_RUNNING = Gauge "reported_running" ["worker", "dp_rank"];
        /// Requests that wait in the engine, as it reports.
        REPORTED_WAITING = Gauge "reported_waiting" ["worker", "dp_rank"];
        /// Reported requests that this router did not send.
        REPORTED_FOREIGN = Gauge "reported_foreign" ["worker", "dp_rank"];
        /// Share of the KV cache held by live requests.
        REPORTED_KV_USAGE = Gauge "reported_kv_usage" ["worker", "dp_rank"];
        /// Age of the rank's last load report.
        LOAD_REPORT_AGE_SECONDS = Gauge "load_report_age_seconds" ["worker", "dp_rank"];
        /// Time of one question to an engine about its load, with the answer.
        LOAD_SCRAPE_SECONDS = Histogram "load_scrape_seconds" [];
        /// Load reports that a shard had no room for.
        LOAD_REPORTS_DROPPED = Counter "load_reports_dropped_total" [];
        /// Load reports, or parts of reports, that did not come or were not taken.
        LOAD_REPORT_ERRORS = Counter "load_report_errors_total" ["worker", "reason"];
    }
    "Queues and windows" {
        /// Requests that wait for a rank.
        QUEUE_DEPTH = Gauge "queue_depth" ["model", "leg", "worker", "dp_rank"];
        /// Requests that one queue may hold, `queue.depth_max`.
        QUEUE_LIMIT = Gauge "queue_limit" [];
        /// Bytes of the bodies that wait.
        QUEUE_BYTES = Gauge "queue_bytes" ["model", "leg", "worker", "dp_rank"];
        /// KV tokens that waiting requests want.
        QUEUE_KV_TOKENS = Gauge "queue_kv_tokens" ["model", "leg", "worker", "dp_rank"];
        /// 1 while the pool's rejection window is open; `by` says whose window.
        WINDOW_OPEN = Gauge "window_open" ["model", "leg", "by"];
        /// Times that the pool's rejection window was opened.
        WINDOW_OPENINGS = Counter "window_openings_total" ["model", "leg"];
        /// Requests of the pool that end per second; left out while unknown.
        DRAIN_RATE = Gauge "drain_rate" ["model", "leg"];
    }
    "Replicas" {
        /// 1 while the router is connected to NATS.
        NATS_CONNECTED = Gauge "nats_connected" [];
        /// 1 while messages of a peer come; one sample for each URL of `replicas.peers` but the
        /// router's own.
        PEER_CONNECTED = Gauge "peer_connected" ["peer"];
        /// Replicas that are alive, this router included.
        REPLICAS = Gauge "replicas" [];
        /// Messages to and from other replicas, and what became of them.
        REPLICA_MESSAGES = Counter "replica_messages_total" ["kind", "direction", "result"];
        /// Fields of messages that this version does not know.
        REPLICA_UNKNOWN_FIELDS = Counter "replica_unknown_fields_total" [];
        /// Requests that other replicas have on a rank, as they report.
        REPLICA_IN_FLIGHT = Gauge "replica_in_flight" ["worker", "dp_rank"];
        /// KV tokens that other replicas have on a rank, as they report.
        REPLICA_KV_TOKENS = Gauge "replica_kv_tokens" ["worker", "dp_rank"];
        /// Requests that this replica may have on a rank with a limit.
        REPLICA_PLACES_ALLOWED = Gauge "replica_places_allowed" ["worker", "dp_rank"];
        /// 1 for ranks whose places this replica gives out.
        REPLICA_STEWARDED = Gauge "replica_stewarded" ["worker", "dp_rank"];
    }
    "Traces" {
        /// Spans that the collector took.
        TRACE_SPANS = Counter "trace_spans_total" [];
        /// Spans lost: too many waited, or the collector refused them or did not answer.
        TRACE_SPANS_DROPPED = Counter "trace_spans_dropped_total" ["reason"];
    }
    "The process" {
        /// The version that runs.
        BUILD_INFO = Gauge "build_info" ["version"];
        /// Large requests that the thread beside a shard reads, renders or matches.
        OFFLOADED = Gauge "offloaded" ["shard"];
        /// 1 while a shard, or the thread beside it, makes no progress.
        SHARD_STALLED = Gauge "shard_stalled" ["shard"];
        /// CPU time of all threads.
        CPU_SECONDS = Counter "cpu_seconds_total" [];
        /// CPU time of shards, of the threads beside them and of the control thread.
        THREAD_CPU_SECONDS = Counter "thread_cpu_seconds_total" ["thread"];
        /// Memory that the process holds.
        RESIDENT_BYTES = Gauge "resident_bytes" [];
        /// Lines of the log that standard error did not take.
        LOG_DROPPED = Counter "log_dropped_total" [];
        /// Not 0: a bug, please report.
        BROKEN_INVARIANTS = Counter "broken_invariants_total" [];
    }
}
