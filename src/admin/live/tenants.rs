//! The tenants of a snapshot: requests by result, the most active tenants first.

use crate::metrics::scrape_tenants::{ended, label};
use crate::sources::ScrapeSources;
use forebay_base::limits::LIVE_TENANTS_MAX;
use forebay_board::account::TenantResult;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// Requests of each tenant by result, since the start. Empty in a router without tenants.
pub(super) fn figures(sources: &ScrapeSources<'_>) -> Value {
    let tenants = &sources.fleet.fleet.tenants;
    if !tenants.are_several() {
        return json!({});
    }
    let mut rows: Vec<(&str, u64, Value)> = Vec::new();
    for (number, tenant) in tenants.all().iter().enumerate() {
        let counts = TenantResult::ALL.map(|result| (result, ended(sources, number, result)));
        let sum = counts.iter().map(|(_, count)| count).sum::<u64>();
        if sum > 0 {
            let counts = counts.iter().map(|(result, count)| (result.name().to_owned(), *count));
            let counts: Map<String, Value> = counts.map(|(name, n)| (name, json!(n))).collect();
            rows.push((label(tenant), sum, Value::Object(counts)));
        }
    }
    rows.sort_by_key(|(_, sum, _)| Reverse(*sum));
    rows.truncate(LIVE_TENANTS_MAX);
    rows.into_iter().map(|(name, _, counts)| (name.to_owned(), counts)).collect()
}
