//! A file of workers, which contains `[[worker]]` tables and nothing else.

use super::checks::check::check;
use super::checks::contradictions::check_against_router;
use super::keys::finding::{Finding, Origin, Severity};
use super::load::{LoadedConfig, respell};
use super::reader::read_file;
use super::sections::schema::Config;
use super::sections::worker::WorkerConfig;
use super::sections::worker_defaults::WorkerDefaultsConfig;
use forebay_base::limits::WORKERS_FILE_BYTES_MAX;
use forebay_base::{FileFault, read_document};
use std::path::Path;

impl LoadedConfig {
    /// Reads and checks the file of `discovery.file`, if configured: adds its findings, and returns
    /// its workers. A finding on the whole file stands at the key.
    pub fn read_workers(&mut self) -> Vec<WorkerConfig> {
        let Some(path) = &self.config.discovery.file else { return Vec::new() };
        let read = read_worker_file(path, &self.config);
        let key = self.origins.of("discovery.file");
        let placed = read.findings.into_iter().map(|finding| match finding.origin {
            Origin::Whole => Finding { origin: key.clone(), ..finding },
            _ => finding,
        });
        self.findings.extend(placed);
        read.config.workers
    }
}

/// Reads and checks a file of workers of `router`. The returned configuration has the workers and
/// nothing else. A file that cannot be read is a finding.
#[must_use]
pub fn read_worker_file(path: &Path, router: &Config) -> LoadedConfig {
    let name = path.display().to_string();
    match read_document(path, WORKERS_FILE_BYTES_MAX) {
        Ok(text) => workers_of(&name, &text, router),
        Err(error) => LoadedConfig::of_encoding(&name, &error).unwrap_or_else(|| {
            let what = format!("{name} cannot be read: {error}");
            let form = "write a [[worker]] table for each engine into it";
            let help = FileFault::of_read(path, &error, form).help;
            LoadedConfig::unread(Finding::error(Origin::Whole, what, help))
        }),
    }
}

fn workers_of(name: &str, text: &str, router: &Config) -> LoadedConfig {
    let mut read = read_file(name, text);
    if read.is_unread {
        for finding in &mut read.findings {
            finding.what = format!("`discovery.file`: {}", finding.what);
        }
    }
    respell(&mut read.config);
    let workers = std::mem::take(&mut read.config.workers);
    if read.config != Config::default() {
        let origin = read.origins.first_outside("worker");
        let what = "only [[worker]] tables may stand in a file of workers";
        let help = "move this key to the configuration of the router";
        read.findings.push(Finding::error(origin, what, help));
    }
    let upstream_tls = router.upstream_tls.clone();
    let usual = router.worker_defaults.engine;
    let worker_defaults = WorkerDefaultsConfig { engine: usual, ..Default::default() };
    let engine = router.engine;
    let config = Config { workers, upstream_tls, worker_defaults, engine, ..Config::default() };
    // A key with a mistake in its name is the cause; a missing URL, or no worker, its consequence.
    let has_mistakes = read.findings.iter().any(|finding| finding.severity == Severity::Error);
    if config.workers.is_empty() {
        let help = "write a [[worker]] table with a `url` for each engine; workers in use stay";
        let none = Finding::error(Origin::Whole, format!("{name} lists no worker"), help);
        read.findings.extend((!has_mistakes).then_some(none));
    } else {
        let mut found = check(&config, &read.origins);
        found.extend(check_against_router(router, &config.workers, &read.origins));
        let is_consequence = |finding: &Finding| has_mistakes && finding.what.contains("no `url`");
        read.findings.extend(found.into_iter().filter(|finding| !is_consequence(finding)));
    }
    read.findings.sort_by_key(Finding::position);
    LoadedConfig {
        config,
        findings: read.findings,
        is_unread: read.is_unread,
        origins: read.origins,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdminAddress;
    use crate::keys::flags::Flags;
    use crate::load::{ConfigText, load};
    use crate::sections::tls::UpstreamTlsConfig;

    fn read(text: &str, router: &Config) -> Result<Vec<WorkerConfig>, String> {
        let usable = workers_of("w.toml", text, router).usable();
        let lines =
            |findings: Vec<Finding>| findings.iter().map(|one| format!("{one}\n")).collect();
        usable.map(|config| config.workers).map_err(lines)
    }

    #[test]
    fn the_first_foreign_key_of_the_file_is_named() {
        let text =
            "policy = \"random\"\n[[worker]]\nurl = \"http://h:1\"\n[log]\nlevel = \"warn\"\n";
        let refused = read(text, &Config::default()).unwrap_err();
        assert!(refused.starts_with("w.toml:1:"), "{refused}");
    }

    #[test]
    fn a_file_of_workers_holds_workers_and_nothing_else() {
        let text = "# a rack\n[[worker]]\nurl = \"http://a:1\"\nname = \"x\"\n";
        let workers = read(text, &Config::default()).unwrap();
        assert_eq!((&*workers[0].url, workers[0].name.as_deref()), ("http://a:1", Some("x")));
        for (text, fault) in [
            ("", "w.toml lists no worker"),
            ("policy = \"random\"\n[[worker]]\nurl = \"http://a:1\"\n", "w.toml:1:10: error: only"),
            ("[[worker]]\nurll = \"http://a:1\"\n", "unknown key `worker.urll`"),
            ("[[worker]]\nurl = \"ftp://a:1\"\n", "w.toml:2:7"),
            ("[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1\"\n", "twice"),
            ("[[worker]]\nurl = \"https://a:1\"\ntls_ca = \"/no/such\"\n", "/no/such"),
            ("[[work", "w.toml:1"),
            ("- url: http://a:1", "`discovery.file`: the file looks like YAML, and has to be"),
            ("{\"workers\": []}", "`discovery.file`: the file looks like JSON, and has to be"),
        ] {
            let said = read(text, &Config::default()).unwrap_err();
            assert!(said.contains(fault), "{said}");
        }
    }

    #[test]
    fn all_mistakes_of_a_file_are_found_at_once() {
        let text = "[[worker]]\nurl = \"http//a:1\"\nconcurency_max = 1\nrole = \"prefil\"\n\
                    [[worker]]\nurl = \"http://b:1\"\n[[worker]]\nurl = \"http://b:1\"\n";
        let found = read(text, &Config::default()).unwrap_err();
        for fault in ["w.toml:2:7", "`worker.concurency_max`", "prefil", "twice"] {
            assert!(found.contains(fault), "{fault}: {found}");
        }
        assert!(!found.contains("no `url`"), "{found}");
    }

    #[test]
    fn authorities_are_those_of_the_router_and_urls_are_spelled_one_way() {
        let text = "[[worker]]\nurl = \"https://a:1/\"\n";
        let of = |ca: &str| {
            let upstream_tls = UpstreamTlsConfig { ca: Some(ca.into()), ..Default::default() };
            Config { upstream_tls, ..Config::default() }
        };
        let said = read(text, &of("/no/such")).unwrap_err();
        assert!(said.contains("/no/such"), "{said}");
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tls/router.pem");
        assert_eq!(read(text, &of(ca)).unwrap()[0].url, "https://a:1");
        let twice = "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1/\"\n";
        assert!(read(twice, &Config::default()).unwrap_err().contains("twice"));
    }

    /// M1: `configuration: error:` had no file and no line.
    /// Issue 39: neither the line nor what to do was named.
    #[test]
    fn a_file_in_another_encoding_has_its_line_and_help() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for (bytes, place, what) in [
            (&b"[[worker]]\nurl = \"http://a:1\" # \xe4"[..], "2:22: error: ", "0xe4"),
            (b"\xff\xfe[\0", "1:1: error: ", "the file is UTF-16"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let of_workers = read_worker_file(&path, &Config::default()).findings;
            let source = crate::ConfigSource { file: Some(path.clone()), flags: Flags::default() };
            for found in [of_workers, source.load().unwrap().findings] {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                let start = format!("{}:{place}", path.display());
                assert!(found.len() == 1 && found[0].starts_with(&start), "{found:?}");
                assert!(found[0].contains(what) && found[0].contains("help: save"), "{found:?}");
            }
        }
    }

    #[test]
    fn a_fault_of_the_whole_file_stands_at_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.toml");
        let found = || {
            let text = format!("policy = \"kv\"\n[discovery]\nfile = {path:?}\n");
            let text = ConfigText { name: "f.toml", text: &text };
            let mut loaded = load(Some(text), &Flags::default());
            let workers = loaded.read_workers().len();
            (workers, loaded.findings.iter().map(ToString::to_string).collect::<String>())
        };
        assert!(found().1.starts_with("f.toml:3:8: error: "), "{found:?}", found = found());
        std::fs::write(&path, "# none\n").unwrap();
        assert!(found().1.contains("f.toml:3:8: error: "), "{found:?}", found = found());
        std::fs::write(&path, "[[worker]]\nurl = 1\n").unwrap();
        assert!(found().1.contains("w.toml:2:7: error: "), "{found:?}", found = found());
        std::fs::write(&path, "[[worker]]\nurl = \"http://a:1\"\n").unwrap();
        assert_eq!(found(), (1, String::new()));
    }

    /// M1: the worker finds no place, and the check has the reason before.
    #[test]
    fn a_name_of_a_worker_of_the_router_is_found_by_its_line() {
        let worker = |url: &str, name: Option<&str>| WorkerConfig {
            url: url.to_owned(),
            name: name.map(str::to_owned),
            ..WorkerConfig::default()
        };
        let workers = vec![worker("http://a:1", Some("x")), worker("http://b:1", None)];
        let router = Config { workers, ..Config::default() };
        let of = |url: &str, name: &str| {
            let text = format!("[[worker]]\nurl = \"{url}\"\nname = \"{name}\"\n");
            let found = workers_of("w.toml", &text, &router).findings;
            found.iter().map(ToString::to_string).collect::<String>()
        };
        for name in ["x", "b:1"] {
            let found = of("http://c:1", name);
            assert!(found.starts_with("w.toml:3:8: warning: the name "), "{found}");
        }
        assert_eq!(of("http://c:1", "y"), "");
        assert_eq!(of("http://a:1", "x"), "", "the same worker");
    }

    #[test]
    fn a_worker_that_is_the_router_is_found_by_its_line() {
        let admin = AdminAddress::Tcp("127.0.0.1:7001".parse().unwrap());
        let listen = "0.0.0.0:7000".parse().unwrap();
        let router = Config { listen, admin, ..Config::default() };
        let of = |port: u16| {
            let engine = "[[worker]]\nurl = \"http://a:1\"\n";
            read(&format!("{engine}[[worker]]\nurl = \"http://localhost:{port}\"\n"), &router)
        };
        for (port, key) in [(7_000, "listen"), (7_001, "admin")] {
            let found = of(port).unwrap_err();
            assert!(found.starts_with("w.toml:4:7: error: "), "{found}");
            assert!(found.contains(&format!("is `{key}` of this router. help: ")), "{found}");
        }
        assert_eq!(of(8_000).unwrap().len(), 2, "the default port is not the router's");
    }
}
