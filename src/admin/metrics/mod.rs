//! The metrics, and the text of a scrape.

pub(crate) mod catalogue;
pub(crate) mod metrics_text;
pub(crate) mod render;
pub(crate) mod samples;
pub(crate) mod scrape;
pub(crate) mod scrape_choices;
mod scrape_flow;
mod scrape_kv;
mod scrape_load;
mod scrape_process;
mod scrape_replicas;
pub(crate) mod scrape_tenants;
