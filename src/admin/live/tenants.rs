//! The tenants of a snapshot: requests by result.

use crate::metrics::scrape_tenants::ended;
use crate::sources::ScrapeSources;
use forebay_board::account::TenantResult;
use serde_json::{Map, Value, json};

/// Requests of each tenant by result, since the start. Tenants without requests are left out: their
/// counts are 0. Empty in a router without tenants.
pub(super) fn figures(sources: &ScrapeSources<'_>) -> Value {
    let tenants = &sources.fleet.fleet.tenants;
    let mut figures = Map::new();
    for (place, tenant) in tenants.all().iter().enumerate().filter(|_| tenants.are_several()) {
        let counts = TenantResult::ALL.map(|result| (result, ended(sources, place, result)));
        if counts.iter().any(|(_, count)| *count > 0) {
            let counts = counts.iter().map(|(result, count)| (result.name().to_owned(), *count));
            let counts: Map<String, Value> = counts.map(|(name, n)| (name, json!(n))).collect();
            figures.insert(tenant.name.to_string(), Value::Object(counts));
        }
    }
    Value::Object(figures)
}
