//! Metrics of tenants' usage.

use super::metrics_text::{Family, OTHER_MODELS};
use crate::sources::{FleetView, ScrapeSources, total};
use forebay_base::limits::MODELS_MAX;
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_board::TenantCell;
use forebay_board::account::TenantResult;
use forebay_fleet::tenant::{Quota, TokenUsage};

/// Requests of the tenant at this place of the list, by result.
pub(crate) fn ended(sources: &ScrapeSources<'_>, place: usize, result: TenantResult) -> u64 {
    let tenant = TenantIndex::try_from_index(place);
    let read = |tenant| total(sources.shards.counters, |shard| shard.ended_count(tenant, result));
    tenant.map_or(0, read)
}

/// Tokens by tenant and model. Pairs without tokens are omitted.
pub(crate) fn tokens(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let fleet = sources.fleet.fleet;
    for (number, tenant) in fleet.tenants.all().iter().enumerate() {
        let Some(number) = TenantIndex::try_from_index(number) else { continue };
        let name = &*tenant.name;
        for model_index in 0..=fleet.models.len().min(MODELS_MAX) {
            let mut sum = TokenUsage::default();
            for shard in sources.shards.counters {
                let TokenUsage { prompt, cached, output } =
                    shard.tokens_used_count(number, model_index);
                sum.prompt += prompt;
                sum.cached += cached;
                sum.output += output;
            }
            if sum == TokenUsage::default() {
                continue;
            }
            let model = fleet.models.get(model_index).filter(|_| model_index < MODELS_MAX);
            let model = model.map_or(OTHER_MODELS, |model| &*model.name);
            for (kind, tokens) in
                [("prompt", sum.prompt), ("cached", sum.cached), ("output", sum.output)]
            {
                family.sample(&[("tenant", name), ("model", model), ("kind", kind)], tokens);
            }
        }
    }
}

/// Ended requests by tenant and result.
pub(crate) fn requests(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (number, tenant) in sources.fleet.fleet.tenants.all().iter().enumerate() {
        for result in TenantResult::ALL {
            let count = ended(sources, number, result);
            if count > 0 {
                family.sample(&[("tenant", &tenant.name), ("result", result.name())], count);
            }
        }
    }
}

/// A figure of each tenant with limits of its own.
pub(crate) fn limits(
    sources: &ScrapeSources<'_>,
    family: &mut Family<'_>,
    read: fn(&TenantCell, Quota, NanosSinceStart) -> Option<u64>,
) {
    let FleetView { fleet, board, now, .. } = sources.fleet;
    for (number, tenant) in fleet.tenants.all().iter().enumerate() {
        let cell = board.tenants().of(tenant.billed);
        let cell = cell.filter(|_| tenant.billed.index() == number);
        if let Some(value) = cell.and_then(|cell| read(cell, tenant.quota, now)) {
            family.sample(&[("tenant", &tenant.name)], value);
        }
    }
}
