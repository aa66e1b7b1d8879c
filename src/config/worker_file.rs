//! A file of workers, which holds `[[worker]]` tables and nothing else.

use super::finding::Finding;
use super::flags::Flags;
use super::load::{ConfigText, load};
use super::reader::read_file;
use super::schema::Config;
use super::worker::WorkerConfig;

/// The workers of a file that holds nothing else.
///
/// # Errors
/// What is wrong with the text, the first fault first.
pub fn workers_of(name: &str, text: &str) -> Result<Vec<WorkerConfig>, String> {
    let read = read_file(name, text).config;
    if (Config { workers: Vec::new(), ..read }) != Config::default() {
        return Err(format!("{name}: only [[worker]] tables may stand there"));
    }
    let loaded = load(Some(ConfigText { name, text }), &Flags::default());
    let first = |findings: Vec<Finding>| {
        findings.first().map_or_else(String::new, |finding| format!("{finding}"))
    };
    loaded.usable().map(|config| config.workers).map_err(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_workers_holds_workers_and_nothing_else() {
        let text = "# a rack\n[[worker]]\nurl = \"http://a:1\"\nname = \"x\"\n";
        let workers = workers_of("w.toml", text).unwrap();
        assert_eq!((&*workers[0].url, workers[0].name.as_deref()), ("http://a:1", Some("x")));
        for (text, fault) in [
            ("", "no worker is configured"),
            ("policy = \"random\"\n[[worker]]\nurl = \"http://a:1\"\n", "only [[worker]] tables"),
            ("[[worker]]\nurl = \"ftp://a:1\"\n", "w.toml:2:7"),
            ("[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1\"\n", "twice"),
            ("[[worker]]\nurl = \"https://a:1\"\ntls_ca = \"/no/such\"\n", "/no/such"),
            ("[[work", "w.toml:1"),
        ] {
            let said = workers_of("w.toml", text).unwrap_err();
            assert!(said.contains(fault), "{said}");
        }
    }
}
