//! How much the fleet is given and what happens to the rest: limits, queues, the rejection window. All of it but the
//! queue's mode may change while the router runs; shards see it as part of the fleet.

use super::disaggregation::DisaggregationConfig;
use super::schema::Word;
use std::time::Duration;

/// Classes of a queue; 0 is served first.
pub const QUEUE_CLASSES: u8 = 4;

/// Limits, queues, window and tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// `rejection_window`: how long all are refused once nothing has room and the queue is full; 0 never.
    pub rejection_window: Duration,
    /// `rank_concurrency_max`: most requests in flight on one rank; 0 means no limit. Absent: what
    /// the engine declares. An engine that declares nothing has no limit of requests, only that of
    /// its KV tokens.
    pub rank_concurrency_max: Option<u32>,
    /// `[queue]`.
    pub queue: QueueConfig,
    /// `[rejection]`.
    pub rejection: RejectionConfig,
    /// `[disaggregation]`.
    pub disaggregation: DisaggregationConfig,
    /// `[[tenant]]`: clients that share the queue by weight, or may use better classes.
    pub tenants: Vec<TenantConfig>,
    /// `limits.router_in_flight_max`: requests in flight in all shards together; 0 means no limit.
    pub router_in_flight_max: u32,
    /// `limits.kv_demand_percent`: KV tokens that all requests of a pool may want, in per cent of what its ranks hold; 0
    /// means no limit.
    pub kv_demand_percent: u32,
}

/// Where requests wait while no rank has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueMode {
    /// `pool`: one queue for all ranks that share models; the rank is chosen when the request leaves it.
    #[default]
    Pool,
    /// `endpoint`: one queue per rank, chosen when the request comes; who waits too long chooses again.
    Endpoint,
    /// `off`: nowhere.
    Off,
}

/// The queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// `queue.mode`.
    pub mode: QueueMode,
    /// `queue.depth_max`: requests that one queue holds.
    pub depth_max: u32,
    /// `queue.bytes_max`: bodies of the requests that one queue holds.
    pub bytes_max: usize,
    /// `queue.wait_max`: a request waits at most so long. Absent: the client's own time-out, else
    /// `timeouts.first_byte`.
    pub wait_max: Option<Duration>,
    /// `queue.stale_after`: mode `endpoint`: who has waited so long looks for another rank.
    pub stale_after: Duration,
    /// `queue.hops_max`: mode `endpoint`: how often it may.
    pub hops_max: u32,
    /// `queue.promote_after`: each such wait raises a request by one class; 0 never.
    pub promote_after: Duration,
    /// `queue.overtaken_max`: mode `pool`: so often a request lets others of its class go first, to ranks that hold most of
    /// their prompts and little of its own; 0: strictly first come, first served.
    pub overtaken_max: u32,
    /// `queue.class_default`: class of requests that name none; 0 is served first.
    pub class_default: u8,
    /// `queue.tenant_header`: field whose value tells tenants apart; empty: the API key does.
    pub tenant_header: String,
    /// `queue.kv_use_percent`: share of a rank's KV cache that requests in flight may fill; 0 means no limit.
    pub kv_use_percent: u32,
    /// `queue.prefill_tokens_max`: a rank with so many prompt tokens yet to compute gets no further request; 0 means no
    /// limit.
    pub prefill_tokens_max: u32,
    /// `queue.sse_comments`: tell streaming clients where they stand, as comments of the event stream.
    pub sse_comments: bool,
}

/// The rejection window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectionConfig {
    /// `rejection.share_percent`: share of the requests that are refused while the window is open.
    pub share_percent: u32,
    /// `rejection.low_water_percent`: the window closes early once the queue is filled to no more than this.
    pub low_water_percent: u32,
}

/// One `[[tenant]]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantConfig {
    /// `name`: for people.
    pub name: String,
    /// `key`: value of `queue.tenant_header`, or the API key (without `Bearer`); `*` stands for all that have no table of
    /// their own. Never printed.
    pub key: String,
    /// `class_best`: best class that its requests may have; a better one asked for becomes this.
    pub class_best: u8,
    /// `weight`: its share of a class beside other tenants, at least 1.
    pub weight: u32,
}

/// `[nats]`: where replicas meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsConfig {
    /// `nats.url` or `nats = "…"`: `nats://host:port`; several are separated by commas. Absent: this router is alone.
    pub url: Option<String>,
    /// `nats.prefix`: first word of all subjects. Routers with the same prefix are replicas of each other.
    pub prefix: String,
    /// `nats.name`: this replica's name among them; made up when absent.
    pub name: Option<String>,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            rejection_window: Duration::from_secs(1),
            rank_concurrency_max: None,
            queue: QueueConfig::default(),
            rejection: RejectionConfig { share_percent: 100, low_water_percent: 50 },
            disaggregation: DisaggregationConfig::default(),
            tenants: Vec::new(),
            router_in_flight_max: 0,
            // A batch of prompts that waits for hours in an engine's own queue is no fault:
            // `queue.depth_max` bounds it.
            kv_demand_percent: 0,
        }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            mode: QueueMode::Pool,
            depth_max: 1_024,
            bytes_max: 256 << 20,
            wait_max: None,
            stale_after: Duration::from_secs(2),
            hops_max: 3,
            promote_after: Duration::from_secs(2),
            overtaken_max: 16,
            class_default: 1,
            tenant_header: String::new(),
            kv_use_percent: 95,
            prefill_tokens_max: 0,
            sse_comments: false,
        }
    }
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self { url: None, prefix: "forebay".to_owned(), name: None }
    }
}

impl Word for QueueMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("pool", Self::Pool), ("endpoint", Self::Endpoint), ("off", Self::Off)];
}
