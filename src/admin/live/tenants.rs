//! The tenants of a snapshot: requests by result.

use crate::metrics::scrape_tenants::ended;
use crate::sources::ScrapeSources;
use forebay_board::account::TenantResult;
use forebay_config::TenantConfig;
use serde_json::{Map, Value, json};

/// Requests of each tenant by result, since the start, and its limits. Tenants without requests are
/// left out: their counts are 0. `None` in a router without tenants: a reload that adds the first
/// tenant shows the requests of before under `*`, and viewers must not take them for new requests.
pub(super) fn figures(sources: &ScrapeSources<'_>) -> Option<Value> {
    let tenants = &sources.fleet.fleet.tenants;
    if !tenants.are_several() {
        return None;
    }
    let mut figures = Map::new();
    for (place, tenant) in tenants.all().iter().enumerate() {
        let counts = TenantResult::ALL.map(|result| (result, ended(sources, place, result)));
        if counts.iter().any(|(_, count)| *count > 0) {
            let counts = counts.iter().map(|(result, count)| (result.name().to_owned(), *count));
            let mut counts: Map<String, Value> = counts.map(|(name, n)| (name, json!(n))).collect();
            counts.extend(limits(&sources.fleet.fleet.config.flow.tenants, &tenant.name));
            figures.insert(tenant.name.to_string(), Value::Object(counts));
        }
    }
    Some(Value::Object(figures))
}

/// Limits of a tenant's table, or of the table `*`, that are not off.
fn limits(tables: &[TenantConfig], name: &str) -> Vec<(String, Value)> {
    let of = |name: &str| tables.iter().find(|table| table.name == name);
    let Some(table) = of(name).or_else(|| of("*")) else { return Vec::new() };
    let limits = [
        ("requests_per_minute", u64::from(table.requests_per_minute)),
        ("tokens_per_minute", u64::from(table.tokens_per_minute)),
        ("in_flight_max", u64::from(table.in_flight_max)),
    ];
    let set = limits.into_iter().filter(|(_, limit)| *limit > 0);
    set.map(|(name, limit)| (name.to_owned(), json!(limit))).collect()
}
