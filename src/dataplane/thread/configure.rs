//! Applies a new configuration to a shard. Requests under way keep the timeouts that they started
//! with.

use super::slice::OwnSlice;
use crate::resolve::preflight::cors;
use crate::state::shard::Shard;
use forebay_config::{Config, LimitsConfig};
use forebay_identity::TrustedNets;
use forebay_index::ExpiringLimits;
use forebay_router::request::StageRules;
use std::rc::Rc;
use std::sync::Arc;

/// Applies `config`, which the control plane has validated.
pub(crate) fn configure(shard: &Shard, slice: &mut OwnSlice, config: &Arc<Config>) {
    if !shard.env.set_config(config) {
        return;
    }
    let LimitsConfig { in_flight_max, buffered_bytes_max, .. } = config.limits;
    shard.intake.in_flight.set_limits(in_flight_max, buffered_bytes_max);
    shard.intake.cors.replace(Rc::new(cors(&config.cors)));
    if let Some(trusted) = trusted(config) {
        shard.intake.trusted.replace(Rc::new(trusted));
    }
    shard.io.upstreams.borrow_mut().set_idle_max(config.timeouts.upstream_idle);
    let mut stages = shard.routing.stages.borrow_mut();
    stages.rules = StageRules::of(config);
    stages.loads.reports.set_age_max(config.load.age_max);
    stages.sends.retry.set_share(config.retry.budget_percent);
    slice.set_limits(expiring(config, shard.links.bells.len()));
}

/// Proxies whose forwarded client addresses are trusted. `None` if an entry is no valid address,
/// which is a configuration error.
pub(crate) fn trusted(config: &Config) -> Option<TrustedNets> {
    TrustedNets::parse(config.client.trusted.iter().map(String::as_str)).ok()
}

/// Limits for chunks of routed prompts. They take up to half of a slice's memory, split about
/// equally between the slice and the expiry times. The memory is reserved under each policy, since
/// a reload may change the policy, and is touched only as it fills.
pub(crate) fn expiring(config: &Config, shard_count: usize) -> ExpiringLimits {
    /// Slice entry with its spare room, plus its entry in [`forebay_index::ExpiringChunks`].
    const CHUNK_BYTES: usize = 128;
    let slice_bytes = config.limits.index_bytes_max / shard_count.max(1);
    ExpiringLimits {
        approximate_ttl: config.approximate.ttl,
        speculative_ttl: config.approximate.speculative_ttl,
        rank_bytes_max: config.approximate.rank_bytes_max,
        chunks_max: slice_bytes / 2 / CHUNK_BYTES,
    }
}
