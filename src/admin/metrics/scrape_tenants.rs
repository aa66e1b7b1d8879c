//! Metrics of tenants' usage.

use super::catalogue;
use super::metrics_text::{MetricsText, OTHER_MODELS};
use crate::sources::{ScrapeSources, total};
use forebay_base::limits::MODELS_MAX;
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_board::TenantCell;
use forebay_board::account::{Metric, TenantResult};
use forebay_fleet::tenant::{Quota, TokenUsage};

/// Requests of the tenant at this place of the list, by result.
pub(crate) fn ended(sources: &ScrapeSources<'_>, place: usize, result: TenantResult) -> u64 {
    let tenant = TenantIndex::try_from_index(place);
    let read = |tenant| total(sources.shards.counters, |shard| shard.ended_count(tenant, result));
    tenant.map_or(0, read)
}

/// Tokens by tenant and model. Pairs without tokens are omitted.
pub(crate) fn tenants(sources: &ScrapeSources<'_>, text: &mut MetricsText) {
    let fleet = sources.fleet.fleet;
    let mut family = text.open(&catalogue::TENANT_TOKENS);
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
    let mut family = text.open(&catalogue::TENANT_REQUESTS);
    for (number, tenant) in fleet.tenants.all().iter().enumerate() {
        for result in TenantResult::ALL {
            let count = ended(sources, number, result);
            if count > 0 {
                family.sample(&[("tenant", &tenant.name), ("result", result.name())], count);
            }
        }
    }
    let now = sources.fleet.now;
    type Read = fn(&TenantCell, Quota, NanosSinceStart) -> Option<u64>;
    let gauges: [(&'static Metric, Read); 3] = [
        (&catalogue::TENANT_REQUESTS_LEFT, |cell, quota, now| {
            Some(cell.requests(quota.requests?, now).remaining)
        }),
        (&catalogue::TENANT_TOKENS_LEFT, |cell, quota, now| {
            Some(cell.tokens(quota.tokens?, now).remaining)
        }),
        (&catalogue::TENANT_IN_FLIGHT, |cell, quota, _| {
            (quota.in_flight_max > 0).then(|| u64::from(cell.in_flight().get()))
        }),
    ];
    for (metric, read) in gauges {
        let mut family = text.open(metric);
        for (number, tenant) in fleet.tenants.all().iter().enumerate() {
            let cell = sources.fleet.board.tenants().of(tenant.billed);
            let cell = cell.filter(|_| tenant.billed.index() == number);
            if let Some(value) = cell.and_then(|cell| read(cell, tenant.quota, now)) {
                family.sample(&[("tenant", &tenant.name)], value);
            }
        }
    }
}
