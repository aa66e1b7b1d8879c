//! What a shard goes by from a new configuration on. Requests under way keep the times that they
//! have begun to wait for.

use super::slice::OwnSlice;
use crate::resolve::preflight::cors;
use crate::state::shard::Shard;
use forebay_config::{Config, LimitsConfig};
use forebay_identity::TrustedNets;
use forebay_index::ExpiringLimits;
use forebay_router::request::StageRules;
use std::rc::Rc;
use std::sync::Arc;

/// Goes by `config`, which the control plane has checked.
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

/// The proxies that speak for their clients; `None` if one has no address, which is an error of the
/// configuration.
pub(crate) fn trusted(config: &Config) -> Option<TrustedNets> {
    TrustedNets::parse(config.client.trusted.iter().map(String::as_str)).ok()
}

/// Chunks of routed prompts may take up to half of a slice's memory: about as much in the slice as
/// for their times. It is reserved under each policy, since a reload may change the policy, and
/// touched as it fills.
pub(crate) fn expiring(config: &Config, shard_count: usize) -> ExpiringLimits {
    /// An entry of the slice with its spare room, and of [`forebay_index::ExpiringChunks`].
    const CHUNK_BYTES: usize = 128;
    let slice_bytes = config.limits.index_bytes_max / shard_count.max(1);
    ExpiringLimits {
        approximate_ttl: config.approximate.ttl,
        speculative_ttl: config.approximate.speculative_ttl,
        rank_bytes_max: config.approximate.rank_bytes_max,
        chunks_max: slice_bytes / 2 / CHUNK_BYTES,
    }
}
