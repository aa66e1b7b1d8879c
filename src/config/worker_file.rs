//! A file of workers, which contains `[[worker]]` tables and nothing else.

use super::checks::check::check;
use super::keys::finding::{Finding, Severity};
use super::load::respell;
use super::reader::read_file;
use super::sections::schema::Config;
use super::sections::tls::UpstreamTlsConfig;
use super::sections::worker::WorkerConfig;

/// The workers in such a file, checked with the router's TLS files.
///
/// # Errors
/// The first fault of the text.
pub fn workers_of(
    name: &str,
    text: &str,
    upstream_tls: &UpstreamTlsConfig,
) -> Result<Vec<WorkerConfig>, String> {
    let mut read = read_file(name, text);
    respell(&mut read.config);
    let workers = std::mem::take(&mut read.config.workers);
    if read.config != Config::default() {
        return Err(format!("{name}: only [[worker]] tables may stand there"));
    }
    let upstream_tls = upstream_tls.clone();
    let config = Config { workers, upstream_tls, ..Config::default() };
    read.findings.extend(check(&config, &read.origins));
    read.findings.sort_by_key(Finding::position);
    let is_error = |finding: &&Finding| finding.severity == Severity::Error;
    match read.findings.iter().find(is_error) {
        Some(finding) => Err(finding.to_string()),
        None => Ok(config.workers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Vec<WorkerConfig>, String> {
        workers_of(name, text, &UpstreamTlsConfig::default())
    }

    #[test]
    fn a_file_of_workers_holds_workers_and_nothing_else() {
        let text = "# a rack\n[[worker]]\nurl = \"http://a:1\"\nname = \"x\"\n";
        let workers = read("w.toml", text).unwrap();
        assert_eq!((&*workers[0].url, workers[0].name.as_deref()), ("http://a:1", Some("x")));
        for (text, fault) in [
            ("", "no worker is configured"),
            ("policy = \"random\"\n[[worker]]\nurl = \"http://a:1\"\n", "only [[worker]] tables"),
            ("[[worker]]\nurl = \"ftp://a:1\"\n", "w.toml:2:7"),
            ("[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1\"\n", "twice"),
            ("[[worker]]\nurl = \"https://a:1\"\ntls_ca = \"/no/such\"\n", "/no/such"),
            ("[[work", "w.toml:1"),
        ] {
            let said = read("w.toml", text).unwrap_err();
            assert!(said.contains(fault), "{said}");
        }
    }

    #[test]
    fn authorities_are_those_of_the_router_and_urls_are_spelled_one_way() {
        let text = "[[worker]]\nurl = \"https://a:1/\"\n";
        let of = |ca: &str| UpstreamTlsConfig { ca: Some(ca.into()), ..Default::default() };
        let said = workers_of("w.toml", text, &of("/no/such")).unwrap_err();
        assert!(said.contains("/no/such"), "{said}");
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tls/router.pem");
        assert_eq!(workers_of("w.toml", text, &of(ca)).unwrap()[0].url, "https://a:1");
        let twice = "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1/\"\n";
        assert!(read("w.toml", twice).unwrap_err().contains("twice"));
    }
}
