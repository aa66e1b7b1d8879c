//! The command line laid over the file: flags win, and their faults become findings like any other.

use super::file::parse_policy;
use super::finding::{Finding, Origin, Origins};
use super::quantity::parse_duration;
use super::reader::{parse_address, parse_word};
use super::schema::Config;
use super::worker::{WorkerConfig, WorkerRole};
use std::path::PathBuf;

/// The flags of `serve` that set a key, as written. Absent ones leave the file's value.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--listen`.
    pub listen: Option<String>,
    /// `--admin`.
    pub admin: Option<String>,
    /// `--listen-shared`.
    pub listen_shared: bool,
    /// `--admin-token-file`.
    pub admin_token_file: Option<PathBuf>,
    /// `--cores`, split at commas.
    pub cores: Vec<usize>,
    /// `--worker`, repeated. With `--prefill` and `--decode` it replaces the file's workers; one that the file knows keeps
    /// its settings.
    pub workers: Vec<String>,
    /// `--prefill`, repeated: a worker with that role, after those of `--worker`.
    pub prefill: Vec<String>,
    /// `--decode`, repeated: a worker with that role, after those of `--prefill`.
    pub decode: Vec<String>,
    /// `--engine`.
    pub engine: Option<String>,
    /// `--health on|off`.
    pub health: Option<String>,
    /// `--model-dir`.
    pub model_dir: Option<PathBuf>,
    /// `--kv-events`, repeated: one per worker, in order; `-` skips a worker.
    pub kv_events: Vec<String>,
    /// `--policy`.
    pub policy: Option<String>,
    /// `--rank-concurrency-max`.
    pub rank_concurrency_max: Option<u32>,
    /// `--queue-mode`.
    pub queue_mode: Option<String>,
    /// `--queue-depth-max`.
    pub queue_depth_max: Option<u32>,
    /// `--queue-wait-max`.
    pub queue_wait_max: Option<String>,
    /// `--rejection-window`.
    pub rejection_window: Option<String>,
    /// `--nats`.
    pub nats: Option<String>,
    /// `--log-json`.
    pub log_json: bool,
    /// `--log-requests`.
    pub log_requests: bool,
    /// `--log-level`.
    pub log_level: Option<String>,
}

/// What a merge works on.
pub(super) struct Merge<'a> {
    pub(super) config: &'a mut Config,
    pub(super) origins: &'a mut Origins,
    pub(super) findings: &'a mut Vec<Finding>,
}

impl Merge<'_> {
    /// Lays the flags over the configuration.
    pub(super) fn apply(&mut self, flags: &Flags) {
        self.set(flags.listen.as_deref(), "listen", "--listen", |config, text| {
            parse_address(text).map(|address| config.listen = address)
        });
        self.set(flags.admin.as_deref(), "admin", "--admin", |config, text| {
            parse_address(text).map(|address| config.admin = address)
        });
        self.set(flags.engine.as_deref(), "engine", "--engine", |config, text| {
            parse_word(text).map(|engine| config.engine = engine)
        });
        self.set(flags.policy.as_deref(), "policy", "--policy", |config, text| {
            parse_policy(text).map(|policy| config.policy = policy)
        });
        self.apply_flow(flags);
        self.set(flags.health.as_deref(), "health.enabled", "--health", |config, text| {
            config.health.enabled = match text {
                "on" => true,
                "off" => false,
                _ => return Err(format!("{text:?} is not on or off")),
            };
            Ok(())
        });
        self.apply_plain(flags);
        self.apply_workers(flags);
    }

    fn apply_flow(&mut self, flags: &Flags) {
        self.set(flags.queue_mode.as_deref(), "queue.mode", "--queue-mode", |config, text| {
            parse_word(text).map(|mode| config.flow.queue.mode = mode)
        });
        let wait = flags.queue_wait_max.as_deref();
        self.set(wait, "queue.wait_max", "--queue-wait-max", |config, text| {
            parse_duration(text).map(|wait| config.flow.queue.wait_max = Some(wait))
        });
        let window = flags.rejection_window.as_deref();
        self.set(window, "rejection_window", "--rejection-window", |config, text| {
            parse_duration(text).map(|window| config.flow.rejection_window = window)
        });
        self.set(flags.nats.as_deref(), "nats.url", "--nats", |config, text| {
            config.nats.url = Some(text.to_owned());
            Ok(())
        });
        if let Some(max) = flags.rank_concurrency_max {
            self.config.flow.rank_concurrency_max = Some(max);
            let origin = Origin::Flag("--rank-concurrency-max".to_owned());
            self.origins.set("rank_concurrency_max".to_owned(), origin);
        }
        if let Some(max) = flags.queue_depth_max {
            self.config.flow.queue.depth_max = max;
            let origin = Origin::Flag("--queue-depth-max".to_owned());
            self.origins.set("queue.depth_max".to_owned(), origin);
        }
    }

    fn apply_plain(&mut self, flags: &Flags) {
        if !flags.cores.is_empty() {
            self.config.cores.clone_from(&flags.cores);
            self.origins.set("cores".to_owned(), Origin::Flag("--cores".to_owned()));
        }
        if let Some(dir) = &flags.model_dir {
            self.config.model_dir = Some(dir.clone());
            self.origins.set("model_dir".to_owned(), Origin::Flag("--model-dir".to_owned()));
        }
        if let Some(level) = &flags.log_level {
            self.config.log.level.clone_from(level);
            self.origins.set("log.level".to_owned(), Origin::Flag("--log-level".to_owned()));
        }
        if let Some(file) = &flags.admin_token_file {
            self.config.admin_token_file = Some(file.clone());
            let origin = Origin::Flag("--admin-token-file".to_owned());
            self.origins.set("admin_token_file".to_owned(), origin);
        }
        self.config.listen_shared |= flags.listen_shared;
        self.config.log.json |= flags.log_json;
        self.config.log.requests |= flags.log_requests;
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

    fn set(
        &mut self,
        value: Option<&str>,
        path: &str,
        flag: &str,
        set: impl Fn(&mut Config, &str) -> Result<(), String>,
    ) {
        let Some(value) = value else { return };
        let origin = Origin::Flag(format!("{flag} {value}"));
        self.origins.set(path.to_owned(), origin.clone());
        if let Err(what) = set(self.config, value) {
            self.findings.push(Finding::error(origin, what, ""));
        }
    }
}
