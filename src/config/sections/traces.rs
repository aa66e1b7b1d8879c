//! The keys about traces of requests.

use crate::keys::table::table;
use std::path::PathBuf;
use std::time::Duration;

table! {
    /// Traces of requests for a collector of OpenTelemetry.
    pub struct TracesConfig in "traces." {
        /// Collector of OTLP over HTTP, as `http://127.0.0.1:4318` or `https://…`. `/v1/traces` is
        /// added.
        endpoint: Option<String> = None, { absent: "no traces" };
        /// PEM file with the authorities that sign the certificate of an `https://` collector.
        ca: Option<PathBuf> = None, { absent: "those of the system" };
        /// File with header fields for the collector, a line each: `authorization: Bearer …`.
        headers_file: Option<PathBuf> = None, { absent: "none" };
        /// Requests of a million that are sampled, where the client has not decided.
        sample_per_million: u32 = 10_000, { range: 0..=1_000_000 };
        /// Requests of a second and shard that clients may have sampled by `traceparent`.
        asked_per_second_max: u32 = 10;
        /// `service.name` of the spans.
        service: String = "forebay".to_owned();
        /// Longest time for one export.
        timeout: Duration = Duration::from_secs(5), { range: 1..=60_000 };
    }
}

impl TracesConfig {
    /// URL that spans are sent to.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let base = self.endpoint.as_ref()?.trim_end_matches('/');
        Some(format!("{base}/v1/traces"))
    }
}
