//! The table of keys, back pressure: limits, queues, the rejection window, pairs, tenants. All of
//! `FlowConfig` but the queue's mode may change while the router runs; shards receive it with the
//! fleet.

use crate::keys::key::{Form, flag};
use crate::keys::table::{table, words};
use forebay_base::limits::QUEUE_CLASSES;
use std::time::Duration;

/// Last priority class of a queue.
const CLASS_LAST: u64 = QUEUE_CLASSES as u64 - 1;

table! {
    /// How much the fleet is given at once.
    pub struct FlowConfig in "" {
        /// Most requests in flight on one rank. 0 means no limit.
        rank_concurrency_max: Option<u32> = None, {
            absent: "what the engine declares, else learned from its load reports",
            flag: flag("Back pressure", "rank-concurrency-max", "N"),
        };
        /// Time that all requests are refused once a queue is full. 0 means never.
        rejection_window: Duration = Duration::from_secs(1),
            { flag: flag("Back pressure", "rejection-window", "DURATION") };
        /// Requests in flight in all shards together. 0 means no limit.
        router_in_flight_max: u32 = 0, { path: "limits.router_in_flight_max" };
        // No default: batch prompts that wait for hours in an engine's own queue are legitimate.
        // `queue.depth_max` bounds them.
        /// KV tokens that all requests of a pool may want, in percent of what its ranks hold.
        /// 0 means no limit.
        kv_demand_percent: u32 = 0,
            { path: "limits.kv_demand_percent", range: 0..=100_000 };
    }
    sections {
        /// `[queue]`.
        queue: QueueConfig,
        /// `[rejection]`.
        rejection: RejectionConfig,
        /// `[disaggregation]`.
        disaggregation: DisaggregationConfig,
    }
    lists {
        /// `[[tenant]]`: tenants that share the queue by weight.
        tenants: TenantConfig,
    }
}

table! {
    /// Where requests wait while no rank has room.
    pub struct QueueConfig in "queue." {
        /// Where requests wait.
        mode: QueueMode = QueueMode::Pool,
            { reloadable: false, flag: flag("Back pressure", "queue-mode", "MODE") };
        /// Requests that one queue holds. Tenants below their share may pass it.
        depth_max: u32 = 1_024, {
            range: 1..=1 << 16,
            flag: flag("Back pressure", "queue-depth-max", "N"),
        };
        /// Bodies of the requests that one queue holds.
        bytes_max: usize = 256 << 20,
            { form: Form::Size, range: 1 << 16..=1 << 40 };
        /// Longest wait in a queue, counted from the last byte of the request. The client's own
        /// time-out shortens it.
        wait_max: Duration = Duration::from_secs(10),
            { flag: flag("Back pressure", "queue-wait-max", "DURATION") };
        /// Mode `endpoint`: a request that has waited this long chooses its rank again.
        stale_after: Duration = Duration::from_secs(2);
        /// Mode `endpoint`: how often a request may choose again.
        hops_max: u32 = 3, { range: 0..=100 };
        /// Each wait of this length raises a request by one class. 0 means never.
        promote_after: Duration = Duration::from_secs(2);
        /// The oldest request of a tenant waits for shorter ones until they were given this many
        /// times its tokens. 0 means order of arrival.
        overtaken_max: u32 = 64, { range: 0..=1_000 };
        /// Class of requests that name none. Class 0 is served first.
        class_default: u8 = 1, { range: 0..=CLASS_LAST };
        /// Header field that names the tenant, where `api_keys` is absent. Only for routers behind
        /// a proxy that sets it.
        tenant_header: String = String::new();
        /// Share of a rank's KV cache that requests in flight may fill. 0 means no limit.
        kv_use_percent: u32 = 95, { range: 0..=1_000 };
        /// A rank with this many prompt tokens yet to compute gets no further request.
        /// 0 means no limit.
        prefill_tokens_max: Option<u32> = None,
            { absent: "what the rank computes in 250 ms, at least 2,048" };
        /// Tell vLLM workers in which order to serve what waits inside of them. They have to run
        /// with `--scheduling-policy priority`.
        engine_priority: bool = false;
        /// Tell streaming clients their place in the queue, as comments of the event stream.
        sse_comments: bool = false;
    }
}

words! {
    /// Where requests wait while no rank has room.
    pub enum QueueMode {
        /// One queue for all ranks that share models. The rank is chosen when a request leaves it.
        Pool = "pool",
        /// One queue per rank, chosen when a request comes.
        Endpoint = "endpoint",
        /// No queue.
        Off = "off",
    }
}

table! {
    /// The rejection window: what is refused after a queue was full.
    #[derive(Copy)]
    pub struct RejectionConfig in "rejection." {
        /// Share of the requests that are refused while the window is open.
        share_percent: u32 = 100, { range: 1..=100 };
        /// The window closes early once the queue is no fuller than this.
        low_water_percent: u32 = 50, { range: 0..=99 };
    }
}

table! {
    /// Prefill and decode on different workers: when a request is split, and what each side is
    /// given.
    pub struct DisaggregationConfig in "disaggregation." {
        /// What happens to a request while no prefill worker is usable.
        fallback: Fallback = Fallback::DecodeOnly;
        /// Prompts with fewer tokens to compute than this go whole to a worker that can do both.
        /// 0 splits all prompts.
        uncached_tokens_min: u32 = 0;
        /// For a prefill leg, from its departure to the end of its answer.
        prefill_timeout: Option<Duration> = None,
            { absent: "`timeouts.first_byte`", range: 1..=u64::MAX };
        /// `rank_concurrency_max` of ranks that prefill for others.
        prefill_concurrency_max: Option<u32> = None,
            { absent: "`rank_concurrency_max`" };
        /// `rank_concurrency_max` of ranks that decode.
        decode_concurrency_max: Option<u32> = None,
            { absent: "`rank_concurrency_max`" };
        /// `queue.prefill_tokens_max` of ranks that prefill for others.
        prefill_tokens_max: Option<u32> = None,
            { absent: "`queue.prefill_tokens_max`" };
        /// `queue.kv_use_percent` of ranks that prefill for others.
        prefill_kv_use_percent: Option<u32> = None,
            { absent: "`queue.kv_use_percent`", range: 0..=1_000 };
        /// `queue.kv_use_percent` of ranks that decode.
        decode_kv_use_percent: Option<u32> = None,
            { absent: "`queue.kv_use_percent`", range: 0..=1_000 };
    }
}

words! {
    /// What becomes of a request that wants a prefill worker while none can be used.
    pub enum Fallback {
        /// A worker that also computes prompts takes the request whole. Without any it is refused.
        DecodeOnly = "decode_only",
        /// As `decode_only`. Also uses a vLLM `push` worker in two phases while its engine id is
        /// unknown.
        TwoPhase = "two_phase",
        /// The request is refused.
        Reject = "reject",
    }
}

table! {
    /// One table per tenant: what its requests may have together. `api_keys` says who is one.
    pub struct TenantConfig in "tenant." {
        /// As keys and `queue.tenant_header` name it. `*` stands for those without a table: for
        /// each with its weight, for all together with its limits.
        name: String = String::new(), { absent: "required" };
        /// Share of a class beside other tenants.
        weight: u32 = 1, { range: 1..=1_000 };
        /// Requests per minute. 0 means no limit.
        requests_per_minute: u32 = 0, { range: 0..=10_000_000 };
        /// Tokens of prompts and answers per minute. 0 means no limit.
        tokens_per_minute: u32 = 0, { range: 0..=2_000_000_000 };
        /// Requests in flight in all shards. 0 means no limit.
        in_flight_max: u32 = 0;
    }
}
