//! A snapshot of the live stream, as far as the terminal shows it. Missing members are empty: the
//! router may be another version.

use crate::clean::clean;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A snapshot of the stream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub(crate) uptime_ms: u64,
    pub(crate) generation: u64,
    pub(crate) whole: Option<WholePart>,
    #[serde(flatten)]
    pub(crate) condition: Condition,
    #[serde(flatten)]
    pub(crate) counts: SnapshotCounts,
    /// Columns by the names of their metrics, with an entry for each rank.
    pub(crate) ranks: BTreeMap<String, Vec<Value>>,
    pub(crate) pools: Vec<ShownPool>,
    pub(crate) events: Vec<ShownEvent>,
}

/// Why the router serves no requests, and faults with which it serves on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    /// The word of `/readyz`. Empty from a router of an older version.
    pub(crate) state: String,
    pub(crate) reasons: Vec<String>,
    pub(crate) concerns: Vec<String>,
    /// Refusals that an operator ordered.
    pub(crate) orders: Vec<String>,
}

impl Condition {
    /// The router's word, or what its lists mean.
    pub(crate) fn word(&self) -> &str {
        match self.state.as_str() {
            "" if !self.reasons.is_empty() => "not ready",
            "" if !self.concerns.is_empty() => "degraded",
            "" if !self.orders.is_empty() => "refusing",
            "" => "ready",
            word => word,
        }
    }
}

/// Figures of the whole router.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotCounts {
    /// Process of the figures. Empty from a router of an older version.
    pub(crate) router_id: String,
    pub(crate) totals: BTreeMap<String, f64>,
    pub(crate) requests_total: BTreeMap<String, f64>,
    #[serde(flatten)]
    pub(crate) refusals: RefusalCounts,
    pub(crate) stage_seconds: StageSeconds,
    pub(crate) stalled: Vec<bool>,
    /// Requests by result, for each tenant. `None`: a router without tenants.
    pub(crate) tenants: Option<BTreeMap<String, TenantCounts>>,
    /// Snapshots of the last minute with only the figures of the whole router, oldest first. The
    /// first snapshot of a stream has them.
    pub(crate) history: Vec<Snapshot>,
}

/// Refusals of requests by reason.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RefusalCounts {
    pub(crate) rejected_total: BTreeMap<String, f64>,
}

/// Requests of a tenant since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TenantCounts {
    pub(crate) answered: f64,
    pub(crate) refused: f64,
    /// Requests with a wrong key, model or form.
    pub(crate) invalid: f64,
    pub(crate) failed: f64,
    #[serde(flatten)]
    pub(crate) limits: TenantLimits,
}

/// Limits of a tenant; 0: no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TenantLimits {
    pub(crate) requests_per_minute: f64,
    pub(crate) tokens_per_minute: f64,
    pub(crate) in_flight_max: f64,
}

impl TenantLimits {
    /// In words; empty without a limit.
    pub(crate) fn words(self) -> String {
        let Self { requests_per_minute, tokens_per_minute, in_flight_max } = self;
        let limits = [
            (requests_per_minute, "requests/min"),
            (tokens_per_minute, "tokens/min"),
            (in_flight_max, "in flight"),
        ];
        let set = limits.into_iter().filter(|(limit, _)| *limit > 0.0);
        let words: Vec<String> = set.map(|(limit, unit)| format!("{limit} {unit}")).collect();
        if words.is_empty() { String::new() } else { format!(" (limit {})", words.join(", ")) }
    }
}

/// The part that changes only with the fleet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WholePart {
    pub(crate) version: String,
    pub(crate) policy: String,
    pub(crate) workers: Vec<ShownWorker>,
    pub(crate) ranks: Places,
}

/// Why a worker is not used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkerReasons {
    pub(crate) waits_for: Option<String>,
    /// Why the worker is not up.
    pub(crate) error: Option<String>,
    /// What to do about the error.
    pub(crate) help: Option<String>,
    /// A server answers at the worker's address, and is not usable.
    pub(crate) answers: Option<bool>,
}

impl WorkerReasons {
    /// The error with the help, without control characters.
    pub(crate) fn in_words(&self) -> Option<String> {
        let error = clean(self.error.as_deref()?);
        Some(match &self.help {
            Some(help) => format!("{error}; {}", clean(help)),
            None => error,
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownWorker {
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) engine: String,
    pub(crate) state: String,
    pub(crate) draining: bool,
    #[serde(flatten)]
    pub(crate) reasons: WorkerReasons,
    pub(crate) models: Vec<String>,
}

/// Columns of rank properties.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Places {
    pub(crate) worker: Vec<u64>,
    pub(crate) dp_rank: Vec<u64>,
    pub(crate) role: Vec<String>,
    pub(crate) kv_blocks: Vec<Option<f64>>,
    pub(crate) block_size: Vec<Option<f64>>,
    pub(crate) running_max: Vec<Option<f64>>,
    pub(crate) pool: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StageSeconds {
    pub(crate) bounds: Vec<f64>,
    pub(crate) stages: BTreeMap<String, StageCounts>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StageCounts {
    /// Bounds of its own; empty: the bounds of all stages.
    pub(crate) bounds: Vec<f64>,
    pub(crate) below: Vec<f64>,
    pub(crate) count: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownPool {
    pub(crate) pool: u64,
    pub(crate) models: Vec<String>,
    pub(crate) open: bool,
    pub(crate) open_ms: u64,
    pub(crate) queue_depth: f64,
    pub(crate) drain_rate: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownEvent {
    pub(crate) id: u64,
    pub(crate) age_ms: u64,
    pub(crate) text: String,
}

impl Snapshot {
    /// Parses a line of the stream.
    ///
    /// # Errors
    /// The line is no snapshot.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(line);
        read.map_err(|error| format!("this is no snapshot of a Forebay router: {error}"))
    }

    /// A figure of a rank, if the rank has it.
    pub(crate) fn figure(&self, name: &str, place: usize) -> Option<f64> {
        self.ranks.get(name)?.get(place)?.as_f64()
    }

    /// A text figure of a rank.
    pub(crate) fn word(&self, name: &str, place: usize) -> Option<&str> {
        self.ranks.get(name)?.get(place)?.as_str()
    }
}
