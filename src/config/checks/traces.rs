//! Checks the keys of traces, the log and request records.

use super::check::Check;
use crate::sections::schema::{Config, LogConfig};
use crate::sections::traces::TracesConfig;
use crate::values::header_file::read_header_file;
use crate::values::log_targets::{own_crates, unknown_target};
use crate::values::record_format::RecordFormat;
use crate::values::url::{WorkerUrlError, shown_url};
use forebay_base::FileFault;
use std::net::IpAddr;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

impl Check<'_> {
    pub(crate) fn traces(&mut self, config: &Config) {
        let TracesConfig { endpoint, ca, headers_file, .. } = &config.traces;
        if let Some(path) = ca {
            self.authorities("traces.ca", "traces.ca", path);
        }
        let read = headers_file.as_deref().map(read_header_file);
        if let Some(Err(FileFault { what, help })) = read {
            self.error("traces.headers_file", format!("`traces.headers_file` {what}"), help);
        }
        let (Some(endpoint), Some(server)) = (endpoint, config.traces.server()) else { return };
        if matches!(&server, Ok(url) if url.port == GRPC_PORT) {
            let what = "`traces.endpoint` has port 4317, where collectors take OTLP over gRPC";
            self.warning("traces.endpoint", what, "write port 4318: traces go by OTLP over HTTP");
        }
        let form = "write http://HOST:PORT or https://HOST/PATH of a collector";
        let (fault, help) = match server {
            Ok(url) if !url.is_tls && headers_file.is_some() && !is_here(&url.host) => {
                let what = "`traces.headers_file` goes over the network in clear text";
                return self.warning("traces.endpoint", what, "write https://");
            }
            Ok(_) => return,
            Err(WorkerUrlError::Path) => ("a query or fragment is not supported".to_owned(), form),
            Err(error) => {
                let fault = error.to_string().split(':').next().unwrap_or_default().to_owned();
                (fault, error.help(form))
            }
        };
        let shown = shown_url(endpoint);
        self.error("traces.endpoint", format!("`traces.endpoint` {shown:?}: {fault}"), help);
    }

    pub(crate) fn log(&mut self, log: &LogConfig) {
        let fault = match unknown_level(&log.level) {
            Some(word) => Some(format!("{word:?} is no level, and would turn the log off")),
            None => EnvFilter::try_new(&log.level).err().map(|fault| format!("{fault}")),
        };
        if let Some(fault) = fault {
            let help = "write error, warn, info, debug or trace; a filter names parts of the \
                        program with a level each and has no blanks, as in \
                        `info,forebay_control=debug`";
            self.error("log.level", format!("`log.level`: {fault}"), help);
        } else if !log.level.split(',').any(is_level) {
            let what = "`log.level` has no level for the other parts of the program, which log \
                        nothing";
            self.warning("log.level", what, "write for example `info,` before it");
        }
        if let Some(target) = unknown_target(&log.level) {
            let what = format!("`log.level`: no line of the log is of {target:?}");
            let help = format!("parts of the program begin with {}", own_crates());
            self.warning("log.level", what, help);
        }
        let Some(format) = &log.format else { return };
        match RecordFormat::parse(format) {
            Err(fault) => self.error("log.format", format!("`log.format`: {fault}"), ""),
            Ok(format) if !format.has_fields() => {
                let what = "`log.format` has no field: the records of all requests are equal";
                let help = "write names in braces, as in \"{client} {method} {path} {status}\"; \
                            the page Deploy lists the names";
                self.warning("log.format", what, help);
            }
            Ok(_) => {}
        }
    }
}

/// Port where collectors of OpenTelemetry take OTLP over gRPC; 4318 is that of HTTP.
const GRPC_PORT: u16 = 4_317;

/// First word of a filter that is no level and gives no level. The library would take such a word,
/// or a level with a blank before it, for a part of the program, and log nothing else.
fn unknown_level(filter: &str) -> Option<&str> {
    let mut words = filter.split(',');
    words.find(|word| {
        let gives_level = word.contains(['=', '[', ']', '{', '}', '"']);
        let is_empty = word.is_empty() && filter.contains(|byte| byte != ',');
        // Fields of spans may have blanks.
        let is_named = !word.contains(['[', '"']);
        !is_level(word) && !gives_level && !is_empty
            || is_named && word.contains(char::is_whitespace)
    })
}

/// A level for all parts of the program.
fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;
    use crate::{ConfigText, Finding, Flags, load};

    #[test]
    fn a_level_is_a_level_or_a_filter_of_parts() {
        for level in [
            "info",
            "WARN",
            "off",
            "3",
            "info,",
            "info,forebay_control=debug",
            "warn,[request{id=1}]=trace",
            "info,[request{id=\"a b\"}]=trace",
        ] {
            let found = findings(&format!("[log]\nlevel = {level:?}"));
            assert!(found.is_empty(), "{level}: {found:?}");
        }
        for level in ["inof", "", ",", "forebay", "info,debgu", "forebay_control=debug, info"] {
            let found = findings(&format!("[log]\nlevel = {level:?}"));
            assert!(found.iter().any(|one| one.contains("is no level")), "{level}: {found:?}");
        }
    }

    /// M1: also beside a level for all parts.
    #[test]
    fn a_part_that_does_not_exist_is_a_warning() {
        for level in ["info,forebay::nosuch=debug", "forbay=debug", "warn,forebay_contrl=trace"] {
            let text = format!("[log]\nlevel = {level:?}\n[[worker]]\nurl = \"http://a:1\"\n");
            let read = ConfigText { name: "f", text: &text };
            let found = load(Some(read), &Flags::default()).findings;
            let is_named = |one: &Finding| one.what.contains("no line of the log is of");
            assert!(found.iter().any(is_named), "{level}: {found:?}");
        }
    }

    #[test]
    fn a_filter_that_silences_the_rest_is_a_warning() {
        for level in ["forebay_control=debug", "forbay=debug", "[request]=trace"] {
            let text = format!("[log]\nlevel = {level:?}\n[[worker]]\nurl = \"http://a:1\"\n");
            let read = ConfigText { name: "f", text: &text };
            let found = load(Some(read), &Flags::default()).findings;
            assert!(found.iter().any(|one| one.what.contains("log nothing")), "{level}: {found:?}");
        }
    }

    #[test]
    fn what_the_library_refuses_is_refused_before_the_start() {
        for level in [
            "info,forebay_control=debgu",
            "info,[a{x=1,y=2}]=trace",
            "info,[request",
            "warn, forebay_control=debug",
        ] {
            let found = findings(&format!("[log]\nlevel = {level:?}"));
            assert!(found.iter().any(|one| one.contains("`log.level`")), "{level}: {found:?}");
        }
    }

    #[test]
    fn the_collector_is_a_host_and_its_files_are_read() {
        let good = "[traces]\nendpoint = \"http://127.0.0.1:4318\"\nsample_per_million = 1_000_000";
        assert!(findings(good).is_empty());
        for (endpoint, says) in [
            ("c:4318", "does not start with http"),
            ("http://c:4318/v1/traces?key=1", "a query or fragment is not supported"),
            ("http://c:99999/otlp", "port"),
        ] {
            let found = findings(&format!("[traces]\nendpoint = \"{endpoint}\""));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
        for path in ["/otlp", "/v1/traces"] {
            assert!(findings(&good.replace(":4318", &format!(":4318{path}"))).is_empty(), "{path}");
        }
        let found = findings(&good.replace(":4318", ":4317"));
        let start = "forebay.toml:2:12: warning: `traces.endpoint` has port 4317";
        assert!(found.len() == 1 && found[0].starts_with(start), "{found:?}");
        let tls = good.replace("http:", "https:");
        assert!(findings(&tls).is_empty());
        let lost = findings(&format!("{tls}\nheaders_file = \"/none\"\nca = \"/none\""));
        assert!(lost.len() == 2 && lost.iter().all(|found| found.contains("/none")), "{lost:?}");
        let fields = "../../tests/data/trace_fields";
        let open = format!("[traces]\nendpoint = \"http://c:4318\"\nheaders_file = {fields:?}");
        let open = format!("{open}\n[[worker]]\nurl = \"http://a:1\"\n");
        let loaded = load(Some(ConfigText { name: "f", text: &open }), &Flags::default());
        let open: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
        assert!(open.len() == 1 && open[0].contains("clear text"), "{open:?}");
    }

    #[test]
    fn a_format_with_an_unknown_field_is_an_error() {
        let text = "[log]\nrequests = true\nformat = \"{client} {modle}\"";
        let found = findings(text);
        assert!(found.len() == 1 && found[0].contains("did you mean {model}?"), "{found:?}");
        assert!(findings(&text.replace("modle", "model")).is_empty());
    }
}
