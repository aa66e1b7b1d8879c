//! Checks the keys of traces and request records.

use super::check::Check;
use crate::sections::schema::{Config, LogConfig};
use crate::values::record_format::RecordFormat;
use crate::values::url::WorkerUrl;

impl Check<'_> {
    pub(crate) fn traces(&mut self, config: &Config) {
        let Some(endpoint) = &config.traces.endpoint else { return };
        let fault = match WorkerUrl::parse(endpoint) {
            Ok(url) if url.is_tls => "https is not supported".to_owned(),
            Ok(_) => return,
            Err(error) => error.to_string().split(':').next().unwrap_or_default().to_owned(),
        };
        let help = "write http://HOST:PORT of a collector near by; the collector can go on by TLS";
        self.error("traces.endpoint", format!("`traces.endpoint` {endpoint:?}: {fault}"), help);
    }

    pub(crate) fn log(&mut self, log: &LogConfig) {
        let Some(format) = &log.format else { return };
        if let Err(fault) = RecordFormat::parse(format) {
            self.error("log.format", format!("`log.format`: {fault}"), "");
        } else if log.json || !log.requests {
            let what = "`log.format` counts only with `log.requests` and without `log.json`";
            self.warning("log.format", what, "");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    #[test]
    fn the_collector_is_a_host_in_plain_text() {
        let good = "[traces]\nendpoint = \"http://127.0.0.1:4318\"\nsample_per_million = 1_000_000";
        assert!(findings(good).is_empty());
        for (endpoint, says) in [
            ("https://c:4318", "https is not supported"),
            ("c:4318", "does not start with http"),
            ("http://c:4318/v1/traces", "a path is not supported"),
        ] {
            let found = findings(&format!("[traces]\nendpoint = \"{endpoint}\""));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }

    #[test]
    fn a_format_with_an_unknown_field_is_an_error() {
        let text = "[log]\nrequests = true\nformat = \"{client} {modle}\"";
        let found = findings(text);
        assert!(found.len() == 1 && found[0].contains("did you mean {model}?"), "{found:?}");
        assert!(findings(&text.replace("modle", "model")).is_empty());
    }
}
