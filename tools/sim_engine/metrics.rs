//! `/metrics` in Prometheus text, with vLLM's names and labels.

use super::batching::rank_stats::RankStats;
use super::config::EngineConfig;
use super::state::EngineState;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::fmt::Write;
use std::time::Duration;

/// Answers with the metrics of all ranks.
pub(super) async fn metrics(State(state): State<EngineState>) -> Response {
    let config = &state.config;
    let ranks = state.ranks.stats();
    let mut page =
        Page { out: String::with_capacity(4_096), model: config.model_name(), ranks: &ranks };
    page.series("gauge", "vllm:num_requests_running", "Requests in the batch.", |r| {
        r.requests.running as f64
    });
    page.series("gauge", "vllm:num_requests_waiting", "Requests that wait.", |r| {
        r.requests.waiting as f64
    });
    page.series(
        "gauge",
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        |r| r.used_blocks as f64 / r.capacity_blocks.max(1) as f64,
    );
    page.series(
        "counter",
        "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in tokens.",
        |r| r.tokens.queried as f64,
    );
    page.series("counter", "vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", |r| {
        r.tokens.hit as f64
    });
    page.series("counter", "vllm:prompt_tokens_total", "Prompt tokens.", |r| {
        r.tokens.prompt as f64
    });
    page.series("counter", "vllm:generation_tokens_total", "Generated tokens.", |r| {
        r.tokens.generated as f64
    });
    request_times(&mut page);
    own_series(&mut page);
    page.open_requests(&state);
    page.failed_requests(&state);
    page.finished();
    page.cache_config(config);
    ([(header::CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")], page.out).into_response()
}

/// Sums and counts of vLLM's histograms, without their buckets.
fn request_times(page: &mut Page<'_>) {
    let name = "vllm:request_queue_time_seconds";
    page.sums(name, "Time of a request before its prefill.", |r| {
        (r.times.queued_ns, r.times.prefills)
    });
    let name = "vllm:request_prefill_time_seconds";
    page.sums(name, "Time of a request in its prefill.", |r| {
        (r.times.prefill_ns, r.times.prefills)
    });
    let name = "vllm:inter_token_latency_seconds";
    page.sums(name, "Time between two tokens of a request.", |r| {
        (r.times.between_tokens_ns, r.times.later_tokens)
    });
}

/// Metrics that no real engine has.
fn own_series(page: &mut Page<'_>) {
    page.series(
        "gauge",
        "forebay_engine_in_flight_peak",
        "Most requests that ran or waited at one time.",
        |r| r.requests.in_flight_peak as f64,
    );
    page.series("counter", "forebay_engine_received_total", "Requests that came.", |r| {
        r.requests.received as f64
    });
    page.series(
        "counter",
        "forebay_engine_refused_total",
        "Requests that were refused because too many waited.",
        |r| r.requests.refused as f64,
    );
    page.series("counter", "forebay_engine_aborted_total", "Requests whose client left.", |r| {
        r.requests.aborted as f64
    });
    page.series(
        "gauge",
        "forebay_engine_in_flight",
        "Requests that run or wait in the rank.",
        |r| (r.requests.running + r.requests.waiting) as f64,
    );
    page.series(
        "gauge",
        "forebay_engine_kv_held",
        "Finished prefills whose KV is held for a decode.",
        |r| r.requests.held as f64,
    );
    page.series(
        "counter",
        "vllm:external_prefix_cache_hits_total",
        "Prompt tokens whose KV another engine computed.",
        |r| r.tokens.external as f64,
    );
}

struct Page<'a> {
    out: String,
    model: &'a str,
    ranks: &'a [RankStats],
}

impl Page<'_> {
    fn head(&mut self, kind: &str, name: &str, help: &str) {
        let _infallible = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn series(&mut self, kind: &str, name: &str, help: &str, value: impl Fn(&RankStats) -> f64) {
        self.head(kind, name, help);
        for (engine, rank) in self.ranks.iter().enumerate() {
            let labels = format!(r#"engine="{engine}",model_name="{}""#, escaped(self.model));
            let _infallible = writeln!(self.out, "{name}{{{labels}}} {:?}", value(rank));
        }
    }

    fn sums(&mut self, name: &str, help: &str, value: impl Fn(&RankStats) -> (u64, u64)) {
        self.head("histogram", name, help);
        for (engine, rank) in self.ranks.iter().enumerate() {
            let labels = format!(r#"engine="{engine}",model_name="{}""#, escaped(self.model));
            let (sum_ns, count) = value(rank);
            let seconds = Duration::from_nanos(sum_ns).as_secs_f64();
            let _infallible = writeln!(
                self.out,
                "{name}_sum{{{labels}}} {seconds:?}\n{name}_count{{{labels}}} {count}"
            );
        }
    }

    fn single(&mut self, kind: &str, name: &str, help: &str, value: f64) {
        self.head(kind, name, help);
        let _infallible = writeln!(self.out, "{name} {value:?}");
    }

    fn open_requests(&mut self, state: &EngineState) {
        let offers = state.transfer.offers.counts();
        let counts = state.requests.tally.counts();
        let help = "Requests being served, also while they wait for their other half.";
        self.single("gauge", "forebay_engine_open", help, counts.open as f64);
        let help = "Rooms or transfers that are open and not done.";
        let waiting = (offers.open + offers.ready) as f64;
        self.single("gauge", "forebay_engine_rooms_waiting", help, waiting);
        let help = "Decodes that ask for what no prefill has offered yet.";
        self.single("gauge", "forebay_engine_questions_early", help, offers.early as f64);
        let help = "Rooms that were used while they were in use.";
        let conflicts = offers.duplicates as f64;
        self.single("counter", "forebay_engine_room_conflicts_total", help, conflicts);
    }

    fn failed_requests(&mut self, state: &EngineState) {
        let counts = state.requests.tally.counts();
        let help = "Requests aborted by id or because their client had left.";
        self.single("counter", "forebay_engine_ended_early_total", help, counts.aborted as f64);
        let help = "Requests that failed.";
        self.single("counter", "forebay_engine_failed_total", help, counts.failed as f64);
        let help = "Prefills whose KV nobody took in time.";
        self.single("counter", "forebay_engine_kv_expired_total", help, counts.expired as f64);
        let help = "Requests that met a fault.";
        let met = state.faults.current().met as f64;
        self.single("counter", "forebay_engine_faults_total", help, met);
    }

    fn finished(&mut self) {
        let name = "vllm:request_success_total";
        self.head("counter", name, "Count of successfully processed requests.");
        for (engine, rank) in self.ranks.iter().enumerate() {
            let model = escaped(self.model);
            let _infallible = writeln!(
                self.out,
                r#"{name}{{engine="{engine}",finished_reason="length",model_name="{model}"}} {:?}"#,
                rank.requests.finished as f64
            );
        }
    }

    fn cache_config(&mut self, config: &EngineConfig) {
        let EngineConfig { block_size, kv_blocks, .. } = config;
        let caching = if config.prefix_caching { "True" } else { "False" };
        let name = "vllm:cache_config_info";
        self.head("gauge", name, "Information of the LLMEngine CacheConfig");
        for engine in 0..self.ranks.len() {
            let _infallible = writeln!(
                self.out,
                r#"{name}{{block_size="{block_size}",enable_prefix_caching="{caching}",engine="{engine}",num_gpu_blocks="{kv_blocks}"}} 1.0"#
            );
        }
    }
}

/// A label value with the escapes of the text format.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n")
}
