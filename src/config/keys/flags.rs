//! Applies the command line over the file: flags win, and their faults become findings.

use super::finding::{Finding, Origin, Origins};
use super::table::KeyTable;
use crate::sections::schema::Config;
use crate::sections::worker::{WorkerConfig, WorkerRole};

/// Flags of `serve` that change the configuration, as written.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Flags that set a single key: name without dashes, and value. See [`Flag`](crate::Flag).
    pub keys: Vec<(&'static str, String)>,
    /// `--worker`, repeated. With `--prefill` and `--decode` it replaces the file's workers; a
    /// worker that the file contains keeps its settings.
    pub workers: Vec<String>,
    /// `--prefill`, repeated: a worker with that role, after the workers of `--worker`.
    pub prefill: Vec<String>,
    /// `--decode`, repeated: a worker with that role, after the workers of `--prefill`.
    pub decode: Vec<String>,
    /// `--kv-events`, repeated: an endpoint per worker, in order; `-` skips a worker.
    pub kv_events: Vec<String>,
}

/// Target of a merge.
pub(crate) struct Merge<'a> {
    pub(crate) config: &'a mut Config,
    pub(crate) origins: &'a mut Origins,
    pub(crate) findings: &'a mut Vec<Finding>,
}

impl Merge<'_> {
    /// Applies the flags over the configuration.
    pub(crate) fn apply(&mut self, flags: &Flags) {
        for (name, text) in &flags.keys {
            self.apply_key(name, text);
        }
        self.apply_workers(flags);
    }

    fn apply_key(&mut self, name: &str, text: &str) {
        let Self { config, origins, findings } = self;
        let mut is_known = false;
        config.visit(&mut |key, setting| {
            let Some(flag) = key.flag.filter(|flag| flag.name == name) else { return };
            let written = if flag.value.is_empty() { String::new() } else { format!(" {text}") };
            let origin = Origin::Flag(format!("--{name}{written}"));
            origins.set(key.path.to_owned(), origin.clone());
            if let Err(what) = setting.read_flag(key, text) {
                findings.push(Finding::error(origin, what, ""));
            }
            is_known = true;
        });
        if !is_known {
            let origin = Origin::Flag(format!("--{name}"));
            findings.push(Finding::error(origin, "no key has this flag", "remove it"));
        }
    }

    fn apply_workers(&mut self, flags: &Flags) {
        let of_role = |urls: &'_ [String], flag: &'static str, role: Option<WorkerRole>| {
            urls.iter().map(|url| (url.clone(), flag, role)).collect::<Vec<_>>()
        };
        let mut wanted = of_role(&flags.workers, "--worker", None);
        wanted.extend(of_role(&flags.prefill, "--prefill", Some(WorkerRole::Prefill)));
        wanted.extend(of_role(&flags.decode, "--decode", Some(WorkerRole::Decode)));
        if !wanted.is_empty() {
            let from_file = std::mem::take(&mut self.config.workers);
            for (position, (url, flag, role)) in wanted.into_iter().enumerate() {
                let origin = Origin::Flag(format!("{flag} {url}"));
                let known = from_file.iter().find(|worker| worker.url == url).cloned();
                let mut worker =
                    known.unwrap_or_else(|| WorkerConfig { url, ..WorkerConfig::default() });
                worker.role = role.unwrap_or(worker.role);
                self.config.workers.push(worker);
                self.origins.forget(&format!("worker.{position}"));
                self.origins.set(format!("worker.{position}"), origin);
            }
        }
        for (position, endpoint) in flags.kv_events.iter().enumerate() {
            let origin = Origin::Flag(format!("--kv-events {endpoint}"));
            let Some(worker) = self.config.workers.get_mut(position) else {
                let what = format!("--kv-events {endpoint} has no --worker to belong to");
                let help = "give one --kv-events per --worker, in the same order";
                self.findings.push(Finding::error(origin, what, help));
                continue;
            };
            if endpoint != "-" {
                worker.kv_events = vec![endpoint.clone()];
                self.origins.set(format!("worker.{position}.kv_events"), origin);
            }
        }
    }
}
