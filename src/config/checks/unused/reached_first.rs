//! Limits that a lower limit always reaches first, so that nothing reads them. A pair of limits
//! stands here only where no request can reach the higher limit.
//!
//! No pair: a rank's limit, such as `rank_concurrency_max`, counts what other routers send to the
//! engine, so it may be above all limits of this router. A router may also have fewer places than
//! its workers. A tenant's limit may be above `limits.router_in_flight_max`, which tenants below
//! their share may pass.

use super::unused_key::UnusedKeys;
use crate::sections::flow::QueueMode;
use crate::sections::schema::Config;

/// Keys of limits, with the lower limit in the reason.
pub(crate) const REACHED_FIRST: &[UnusedKeys] = &[
    UnusedKeys {
        keys: &["limits.in_flight_max"],
        why: |config, _| {
            let most = config.limits.connections_max;
            let why = || {
                format!(
                    "`limits.connections_max` is {most}, and a connection has 1 request at a time"
                )
            };
            (config.limits.in_flight_max > most).then(why)
        },
        help: "write no more than `limits.connections_max`, or raise that key",
    },
    UnusedKeys {
        keys: &["limits.router_in_flight_max"],
        why: |config, _| {
            let limits = &config.limits;
            let (key, of_shard) = match limits.in_flight_max < limits.connections_max {
                true if knows_tenants(config) => return None,
                true => ("limits.in_flight_max", limits.in_flight_max),
                false => ("limits.connections_max", limits.connections_max),
            };
            beyond_shards(config, key, of_shard, config.flow.router_in_flight_max)
        },
        help: "write at most what all cores have together, or remove the key",
    },
    UnusedKeys {
        keys: &["limits.connections_per_address_max"],
        why: |config, _| {
            let limits = &config.limits;
            let of_address = limits.connections_per_address_max;
            beyond_shards(config, "limits.connections_max", limits.connections_max, of_address)
        },
        help: "write at most what all cores have together, or 0 for no limit",
    },
    UnusedKeys {
        keys: &["queue.depth_max"],
        why: |config, _| {
            let most = config.flow.router_in_flight_max;
            let queue = &config.flow.queue;
            let is_off = most == 0 || queue.mode == QueueMode::Off || knows_tenants(config);
            let why = || {
                format!("`limits.router_in_flight_max` is {most}, and counts requests that wait")
            };
            (!is_off && queue.depth_max > most).then(why)
        },
        help: "write less than `limits.router_in_flight_max`, or raise that key",
    },
];

/// The reason, if all shards together have less. The count of shards is known with `cores` alone.
fn beyond_shards(config: &Config, key: &str, of_shard: usize, limit: u32) -> Option<String> {
    let cores = config.cores.len();
    let all = cores.saturating_mul(of_shard);
    let why =
        || format!("`cores` lists {cores}, each with a `{key}` of {of_shard}: {all} together");
    (cores > 0 && u64::from(limit) > u64::try_from(all).unwrap_or(u64::MAX)).then(why)
}

/// May requests be of several tenants? A tenant below its share may pass limits of requests.
pub(crate) fn knows_tenants(config: &Config) -> bool {
    let has_header = !config.flow.queue.tenant_header.is_empty();
    config.api_keys.is_some() || config.jwt.jwks.is_some() || has_header
}
