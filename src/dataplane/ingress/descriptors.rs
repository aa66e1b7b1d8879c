//! The limit of open files, which also bounds connections: raised to its maximum, and compared with
//! the configuration.

use forebay_base::limits::{ADMIN_CONNECTIONS_MAX, CLIENT_PORT_CALLS_MAX};
use forebay_config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Descriptors of a shard beside connections: ring, bell, listener.
const OF_SHARD: usize = 8;
/// Descriptors of the control plane per worker: probes, events, replays, load reports.
const OF_WORKER: usize = 8;
/// All other descriptors: log, snapshot, models, NATS or peers.
const OTHERS: usize = 64;

/// Raises the limit of this process, and warns if the configuration may need more. Called before
/// the shards start.
pub fn raise_limit(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            debug!(%error, "the limit of open files cannot be raised");
        }
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if let Some(DescriptorShortage { limit, needed }) = DescriptorShortage::of(config, limit) {
        warn!(
            limit,
            needed,
            help = DescriptorShortage::HELP,
            "the limit of open files is below what the configuration may need"
        );
    }
}

/// A limit of open files below the need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShortage {
    pub limit: u64,
    pub needed: u64,
}

impl DescriptorShortage {
    /// Advice for the operator.
    pub const HELP: &str = "raise it (`ulimit -Hn`, LimitNOFILE=), or lower \
                            `limits.connections_max` and `limits.in_flight_max`; each counts once \
                            per shard";

    /// `None` if the limit is enough for the configuration. Its cores must be resolved.
    #[must_use]
    pub fn of(config: &Config, limit: u64) -> Option<Self> {
        let needed = descriptors_needed(config);
        (limit < needed).then_some(Self { limit, needed })
    }
}

/// A descriptor for each client, and another for the worker of each request in flight.
#[must_use]
fn descriptors_needed(config: &Config) -> u64 {
    let limits = &config.limits;
    let of_shard = limits.connections_max.saturating_add(limits.in_flight_max);
    let of_shards = of_shard.saturating_add(OF_SHARD).saturating_mul(config.cores.len());
    let of_workers = config.workers.len().saturating_mul(OF_WORKER);
    let of_admin = ADMIN_CONNECTIONS_MAX + 2 * CLIENT_PORT_CALLS_MAX;
    let all = [of_shards, of_workers, of_admin, OTHERS];
    u64::try_from(all.into_iter().fold(0, usize::saturating_add)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_grows_with_shards_and_the_limit_is_raised() {
        let mut config = Config { cores: vec![0], ..Config::default() };
        let one = descriptors_needed(&config);
        assert!((24_576..25_000).contains(&one), "{one}");
        config.cores.push(1);
        assert!(descriptors_needed(&config) >= one + 24_576);
        raise_limit(&config);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
