//! Checks the keys that the router sends to workers, and the defaults of workers.

use super::check::Check;
use crate::sections::worker::WorkerConfig;
use crate::sections::worker_defaults::WorkerDefaultsConfig;
use crate::values::token::read_worker_key;
use forebay_base::FileFault;
use std::path::Path;

impl Check<'_> {
    pub(crate) fn worker_defaults(&mut self, defaults: &WorkerDefaultsConfig) {
        let path = "worker_defaults";
        self.worker_key(path, defaults.api_key.as_deref(), defaults.api_key_file.as_deref());
        self.health_path(path, defaults.health_path.as_deref());
        if let Some(dir) = &defaults.model_dir {
            self.model_dir(&format!("{path}.model_dir"), dir);
        }
    }

    pub(crate) fn key_of_worker(&mut self, path: &str, worker: &WorkerConfig) {
        self.worker_key(path, worker.api_key.as_deref(), worker.api_key_file.as_deref());
    }

    fn worker_key(&mut self, path: &str, key: Option<&str>, file: Option<&Path>) {
        if key.is_some_and(|key| key.is_empty() || !key.bytes().all(is_visible)) {
            let what =
                "`api_key` goes into a header field and has to be visible ASCII without spaces";
            self.error(&format!("{path}.api_key"), what, "");
        }
        let Some(file) = file else { return };
        let file_path = format!("{path}.api_key_file");
        if key.is_some() {
            let what = "`api_key` and `api_key_file` exclude each other";
            self.error(&file_path, what, "keep the file");
        }
        if let Err(FileFault { what, help }) = read_worker_key(file) {
            self.error(&file_path, format!("`api_key_file` {what}"), help);
        }
    }

    pub(crate) fn health_path(&mut self, path: &str, health: Option<&str>) {
        let is_path = |path: &str| path.starts_with('/') && path.bytes().all(is_visible);
        if let Some(health) = health.filter(|health| !is_path(health)) {
            let what = format!("`health_path` {health:?} is no path");
            self.error(&format!("{path}.health_path"), what, "write it as /health/liveliness");
        }
    }
}

/// True for a character of a header field's value.
fn is_visible(byte: u8) -> bool {
    (0x21..0x7f).contains(&byte)
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    #[test]
    fn each_mistake_is_named_where_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        let good = folder.path().join("good");
        let bad = folder.path().join("bad");
        std::fs::write(&good, "k\n").unwrap();
        std::fs::write(&bad, "two words\n").unwrap();
        let found = |text: &str| findings(text);
        assert_eq!(found(&format!("[worker_defaults]\napi_key_file = {good:?}")), [""; 0]);
        let worker = "[[worker]]\nurl = \"http://b:1\"";
        for (text, says) in [
            (
                "[worker_defaults]\napi_key_file = \"/none\"".to_owned(),
                "2:16: error: `api_key_file`",
            ),
            (format!("[worker_defaults]\napi_key_file = {bad:?}"), "one line of visible ASCII"),
            (
                format!("[worker_defaults]\napi_key = \"k\"\napi_key_file = {good:?}"),
                "exclude each other",
            ),
            (format!("{worker}\napi_key_file = \"/none\""), "3:16: error: `api_key_file` /none"),
            ("[worker_defaults]\nhealth_path = \"x\"".to_owned(), "2:15: error: `health_path`"),
            ("[worker_defaults]\nmodel_dir = \"/none\"".to_owned(), "2:13: error: `model_dir`"),
            ("[worker_defaults]\nurl = \"x\"".to_owned(), "key of a single worker"),
            ("[worker_defaults]\ntls_ca = \"x\"".to_owned(), "`upstream_tls.ca`"),
            (
                "[worker_defaults]\nrank_concurrency_max = 1".to_owned(),
                "`worker_defaults.concurrency_max`",
            ),
            ("[[worker_defaults]]\nengine = \"vllm\"".to_owned(), "not a section"),
        ] {
            let found = found(&text);
            assert!(found.len() == 1 && found[0].contains(says), "{text}: {found:?}");
        }
    }
}
