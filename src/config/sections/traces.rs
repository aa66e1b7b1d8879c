//! The keys about traces of requests.

use crate::keys::table::table;
use crate::values::url::{WorkerUrl, WorkerUrlError};
use std::path::PathBuf;
use std::time::Duration;

table! {
    /// Traces of requests for a collector of OpenTelemetry.
    pub struct TracesConfig in "traces." {
        /// Collector of OTLP over HTTP, as `http://127.0.0.1:4318` or `https://host/otlp`.
        /// `/v1/traces` is added to a path that does not end with it.
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
    /// URL that spans are sent to. OpenTelemetry has two forms: a base URL to which the path of
    /// the signal is added (`OTEL_EXPORTER_OTLP_ENDPOINT`), and the whole URL of the signal
    /// (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`).
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let given = self.endpoint.as_ref()?;
        let base = given.trim_end_matches('/');
        let is_whole = base.ends_with(SIGNAL_PATH);
        Some(if is_whole { base.to_owned() } else { format!("{base}{SIGNAL_PATH}") })
    }

    /// The server of the endpoint; `None` without an endpoint.
    ///
    /// # Errors
    /// The endpoint is no URL of a server with a path.
    pub fn server(&self) -> Option<Result<WorkerUrl, WorkerUrlError>> {
        let endpoint = self.endpoint.as_ref()?;
        let behind_scheme = endpoint.find("://").map_or(0, |at| at + 3);
        let slash = endpoint.get(behind_scheme..).and_then(|rest| rest.find('/'));
        let end = slash.map_or(endpoint.len(), |at| behind_scheme + at);
        let (server, path) = endpoint.split_at(end);
        if path.contains(['?', '#']) || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Some(Err(WorkerUrlError::Path));
        }
        Some(WorkerUrl::parse(server))
    }
}

/// Path of traces behind the base URL of a collector.
const SIGNAL_PATH: &str = "/v1/traces";

#[cfg(test)]
mod tests {
    use super::*;

    fn config(endpoint: &str) -> TracesConfig {
        TracesConfig { endpoint: Some(endpoint.to_owned()), ..TracesConfig::default() }
    }

    #[test]
    fn the_path_of_the_signal_is_added_to_a_base_and_kept_of_a_whole_url() {
        for (endpoint, url) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp", "https://c/otlp/v1/traces"),
            ("https://c/api/otel/", "https://c/api/otel/v1/traces"),
            ("https://c/v1/traces", "https://c/v1/traces"),
            ("https://c/otlp/v1/traces/", "https://c/otlp/v1/traces"),
        ] {
            assert_eq!(config(endpoint).url().as_deref(), Some(url));
            let server = config(endpoint).server().unwrap().unwrap();
            assert_eq!(server.host, "c", "{endpoint}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for endpoint in ["http://c/a?b", "http://c/a#b", "http://c/a b", "http://c?x/y", "c/otlp"] {
            assert!(config(endpoint).server().unwrap().is_err(), "{endpoint}");
        }
        assert!(TracesConfig::default().server().is_none());
    }
}
