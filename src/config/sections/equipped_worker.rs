//! A worker as the router uses it: its own keys, the defaults of workers, the content of its key
//! file.

use super::schema::Config;
use super::worker::WorkerConfig;
use crate::values::engine::EngineKind;
use crate::values::token::read_worker_key;
use forebay_base::FileFault;

/// A worker with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EquippedWorker {
    /// With the content of the key file as `api_key`.
    pub config: WorkerConfig,
    /// Fault of the key file. The worker then has no key.
    pub key_fault: Option<FileFault>,
}

impl Config {
    /// Engine family of a worker: by its own key, by the defaults of workers, or of all workers.
    #[must_use]
    pub fn engine_of(&self, worker: &WorkerConfig) -> EngineKind {
        worker.engine.or(self.worker_defaults.engine).unwrap_or(self.engine)
    }

    /// The worker with the defaults. Reads the key file.
    #[must_use]
    pub fn with_defaults(&self, worker: &WorkerConfig) -> EquippedWorker {
        let mut worker = worker.clone();
        let usual = &self.worker_defaults;
        if worker.api_key.is_none() && worker.api_key_file.is_none() {
            worker.api_key.clone_from(&usual.api_key);
            worker.api_key_file.clone_from(&usual.api_key_file);
        }
        worker.engine = worker.engine.or(usual.engine);
        worker.concurrency_max = worker.concurrency_max.or(usual.concurrency_max);
        worker.model_dir = worker.model_dir.or_else(|| usual.model_dir.clone());
        worker.health_path = worker.health_path.or_else(|| usual.health_path.clone());
        let read = worker.api_key_file.as_deref().map(read_worker_key).transpose();
        if let Ok(Some(key)) = &read {
            worker.api_key = Some(key.clone());
        }
        EquippedWorker { config: worker, key_fault: read.err() }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, EngineKind, WorkerConfig};

    #[test]
    fn a_worker_keeps_its_own_keys_and_gets_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "of-all\n").unwrap();
        let text = format!(
            "[worker_defaults]\napi_key_file = {key:?}\nengine = \"vllm\"\nconcurrency_max = 8\n\
             [[worker]]\nurl = \"http://a:1\"\n\
             [[worker]]\nurl = \"http://b:1\"\napi_key = \"own\"\nconcurrency_max = 2\n"
        );
        let config = Config::from_toml(&text).unwrap();
        let [a, b] = [0, 1].map(|place| config.with_defaults(&config.workers[place]));
        assert_eq!((a.key_fault, b.key_fault), (None, None));
        let [a, b] = [a.config, b.config];
        assert_eq!((a.api_key.as_deref(), a.concurrency_max), (Some("of-all"), Some(8)));
        assert_eq!((b.api_key.as_deref(), b.concurrency_max), (Some("own"), Some(2)));
        let found = WorkerConfig { url: "http://c:1".to_owned(), ..WorkerConfig::default() };
        let found = config.with_defaults(&found).config;
        assert_eq!(found.api_key.as_deref(), Some("of-all"));
        assert_eq!(found.engine, Some(EngineKind::Vllm));
        std::fs::remove_file(&key).unwrap();
        let lost = config.with_defaults(&config.workers[0]);
        assert!(lost.config.api_key.is_none() && lost.key_fault.unwrap().what.contains("key"));
    }
}
