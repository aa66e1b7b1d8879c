//! Reloads the configuration of a running router: applies reloadable keys, and lists keys that need
//! a restart because threads, sockets or tables were built from them. Each key specifies whether it
//! is reloadable.

use super::keys::finding::Finding;
use super::keys::flags::Flags;
use super::keys::table::{Changes, KeyTable, WorkerChanges};
use super::load::{ConfigText, LoadedConfig, load};
use super::sections::schema::Config;
use super::sections::worker::WorkerConfig;
use forebay_base::limits::CONFIG_BYTES_MAX;
use forebay_base::{FileFault, document_text, read_document};
use std::io;
use std::path::{Path, PathBuf};

/// Sources of a configuration, for a reload.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// File of the flag `--config`.
    pub file: Option<PathBuf>,
    /// Flags applied over the file.
    pub flags: Flags,
}

/// The running configuration and its sources.
#[derive(Clone, Debug)]
pub struct Reloader {
    source: ConfigSource,
    running: Config,
    /// Cores that the process may use, if they are known.
    available_cores: Option<Vec<usize>>,
}

/// Reason for a failed reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadError {
    /// The file cannot be read; contains the error text.
    Unreadable(String),
    /// The configuration has errors. All findings, warnings included.
    Faulty(Vec<Finding>),
}

impl ConfigSource {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// The file cannot be read; contains the error text.
    pub fn load(&self) -> Result<LoadedConfig, String> {
        // Pipes are allowed: `--config /dev/stdin`.
        self.load_by(|path| document_text(&std::fs::read(path)?))
    }

    fn load_by(&self, read: impl Fn(&Path) -> io::Result<String>) -> Result<LoadedConfig, String> {
        let mut loaded = match &self.file {
            None => load(None, &self.flags),
            Some(path) => {
                let name = path.display().to_string();
                match read(path) {
                    Ok(text) => load(Some(ConfigText { name: &name, text: &text }), &self.flags),
                    Err(error) => LoadedConfig::of_encoding(&name, &error).ok_or_else(|| {
                        let form = "write the configuration into it";
                        let FileFault { what, help } = FileFault::of_read(path, &error, form);
                        format!("cannot read {what}. help: {help}")
                    })?,
                }
            }
        };
        loaded.check_secret_modes();
        Ok(loaded)
    }
}

impl Reloader {
    /// `running` is the configuration at start, before cores and ports were resolved.
    #[must_use]
    pub const fn new(source: ConfigSource, running: Config) -> Self {
        Self { source, running, available_cores: None }
    }

    /// Makes reloads warn of cores that are not `available`. Read before the process pins its
    /// threads: a pinned thread has a core alone.
    #[must_use]
    pub fn with_cores(self, available: Vec<usize>) -> Self {
        Self { available_cores: Some(available), ..self }
    }

    /// Reads the sources again and applies reloadable keys; returns warnings too.
    ///
    /// # Errors
    /// [`ReloadError`]; the running configuration is then unchanged.
    pub fn reload(&mut self) -> Result<(Changes, Vec<Finding>), ReloadError> {
        let loaded = self.source.load_by(|path| read_document(path, CONFIG_BYTES_MAX));
        let mut loaded = loaded.map_err(ReloadError::Unreadable)?;
        if let Some(available) = &self.available_cores {
            loaded.check_cores(available);
        }
        let findings = loaded.findings.clone();
        let wanted = loaded.usable().map_err(ReloadError::Faulty)?;
        Ok((self.running.take_over(&wanted), findings))
    }

    /// The running configuration with the process's cores and addresses.
    #[must_use]
    pub fn running_as(&self, start: &Config) -> Config {
        Config {
            listen: start.listen,
            admin: start.admin.clone(),
            cores: start.cores.clone(),
            listeners: start.listeners.clone(),
            ..self.running.clone()
        }
    }

    /// The file that reloads read; `None`: flags alone.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.source.file.as_deref()
    }

    /// Records that a new worker could not join: the next reload tries again.
    pub fn did_not_join(&mut self, url: &str) {
        self.running.workers.retain(|worker| worker.url != url);
    }

    #[must_use]
    pub const fn running(&self) -> &Config {
        &self.running
    }
}

impl Config {
    /// Applies reloadable keys and returns the differences. Workers are identified by their URL.
    pub fn take_over(&mut self, wanted: &Self) -> Changes {
        let mut changes = Changes::default();
        let mut wanted = wanted.clone();
        if self.speaks_tls() != wanted.speaks_tls() {
            // The sockets are bound, and fixed as TLS or plain text.
            changes.restart.push("tls.cert".to_owned());
            wanted.tls.clone_from(&self.tls);
        }
        self.take_from(&wanted, &mut changes);
        if self.certificates != wanted.certificates {
            self.certificates.clone_from(&wanted.certificates);
            changes.applied.push("certificate".to_owned());
        }
        if self.listeners != wanted.listeners {
            changes.restart.push("listener".to_owned());
        }
        if self.flow.tenants != wanted.flow.tenants {
            self.flow.tenants.clone_from(&wanted.flow.tenants);
            changes.applied.push("tenant".to_owned());
        }
        if self.models != wanted.models {
            self.models.clone_from(&wanted.models);
            changes.applied.push("model".to_owned());
        }
        if self.adapters != wanted.adapters {
            self.adapters.clone_from(&wanted.adapters);
            changes.applied.push("adapter".to_owned());
        }
        self.take_workers(&wanted, &mut changes);
        for (position, worker) in self.workers.iter_mut().enumerate() {
            let Some(same) = wanted.workers.iter().find(|other| other.url == worker.url) else {
                continue;
            };
            let mut of_worker = Changes::default();
            worker.take_from(same, &mut of_worker);
            let placed = |path: String| path.replacen("worker.", &format!("worker.{position}."), 1);
            changes.applied.extend(of_worker.applied.into_iter().map(placed));
            changes.restart.extend(of_worker.restart.into_iter().map(placed));
        }
        changes.applied.sort_unstable();
        changes.restart.sort_unstable();
        changes
    }

    /// Applies added and removed workers.
    fn take_workers(&mut self, wanted: &Self, changes: &mut Changes) {
        let has = |config: &Self, url: &str| config.workers.iter().any(|worker| worker.url == url);
        let new = wanted.workers.iter().filter(|worker| !has(self, &worker.url));
        let new: Vec<_> = new.cloned().collect();
        let (kept, gone) = std::mem::take(&mut self.workers)
            .into_iter()
            .partition(|worker| has(wanted, &worker.url));
        self.workers = kept;
        self.workers.extend_from_slice(&new);
        let urls = |workers: Vec<WorkerConfig>| workers.into_iter().map(|worker| worker.url);
        changes.workers = WorkerChanges { joined: urls(new).collect(), left: urls(gone).collect() };
        if !changes.workers.joined.is_empty() || !changes.workers.left.is_empty() {
            changes.applied.push("worker".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowConfig;
    use crate::QueueMode;

    fn config(text: &str) -> Config {
        Config::from_toml(text).unwrap()
    }

    const TWO: &str = "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://b:1\"\n";

    /// What a reload from the one file to the other says, which then runs.
    fn reload(before: &str, after: &str) -> (Config, Vec<String>, Vec<String>) {
        let mut running = config(&format!("{before}\n{TWO}"));
        let wanted = config(&format!("{after}\n{TWO}"));
        let Changes { applied, restart, .. } = running.take_over(&wanted);
        let again = running.take_over(&wanted);
        assert_eq!((again.applied.len(), &again.restart), (0, &restart), "taken over once");
        (running, applied, restart)
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let (_, applied, restart) = reload("listen = \"0.0.0.0:1\"", "listen = \"0.0.0.0:1\"");
        assert_eq!((applied.len(), restart.len()), (0, 0));
    }

    #[test]
    fn limits_queues_and_windows_change_at_once() {
        let after = "rank_concurrency_max = 9\nrejection_window = \"3s\"\n\
            [limits]\nrouter_in_flight_max = 5\nkv_demand_percent = 150\n\
            [queue]\ndepth_max = 7\nsse_comments = true\n[rejection]\nshare_percent = 50\n\
            [[tenant]]\nname = \"t\"\n";
        let (running, applied, restart) = reload("", after);
        assert_eq!(
            applied,
            [
                "limits.kv_demand_percent",
                "limits.router_in_flight_max",
                "queue.depth_max",
                "queue.sse_comments",
                "rank_concurrency_max",
                "rejection.share_percent",
                "rejection_window",
                "tenant"
            ]
        );
        assert_eq!(restart.len(), 0);
        assert_eq!(running.flow, config(&format!("{after}\n{TWO}")).flow);
        let (running, applied, _) = reload(after, "");
        assert_eq!((running.flow, applied.len()), (FlowConfig::default(), 8), "and back");
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let after = "listen = \"0.0.0.0:1\"\npolicy = \"random\"\ncores = [0]\n[queue]\nmode = \"off\"\nhops_max = 1\n\
            [limits]\nin_flight_max = 5\n[nats]\nurl = \"nats://a:secret@b:1\"\n";
        let (running, applied, restart) = reload("", after);
        assert_eq!(applied, ["limits.in_flight_max", "policy", "queue.hops_max"]);
        assert_eq!(restart, ["cores", "listen", "nats.url", "queue.mode"]);
        assert_eq!(running.flow.queue.mode, QueueMode::Pool);
        assert_eq!((running.limits.in_flight_max, running.flow.queue.hops_max), (5, 1));
    }

    #[test]
    fn secrets_count_although_they_are_never_shown() {
        let nats = |password: &str| format!("[nats]\nurl = \"nats://a:{password}@b:1\"\n");
        assert_eq!(reload(&nats("x"), &nats("y")).2, ["nats.url"]);
    }

    #[test]
    fn tenants_and_the_file_of_keys_change_at_once() {
        let tenant = |weight: u32| format!("[[tenant]]\nname = \"t\"\nweight = {weight}\n");
        let (running, applied, restart) = reload(&tenant(1), &tenant(2));
        assert_eq!((&applied[..], restart.len()), (&["tenant".to_owned()][..], 0));
        assert_eq!(running.flow.tenants[0].weight, 2);
        let file = "api_keys = \"../../tests/data/api_keys/two.toml\"";
        let (running, applied, restart) = reload("", file);
        assert_eq!((&applied[..], restart.len()), (&["api_keys".to_owned()][..], 0));
        assert!(running.api_keys.is_some());
    }

    #[test]
    fn workers_are_known_by_their_url() {
        let worker =
            |name: &str, key: &str| format!("[[worker]]\nurl = \"http://{name}:1\"\n{key}");
        let mut running = config(&format!("{}{}", worker("a", ""), worker("b", "")));
        let wanted = config(&format!(
            "{}{}",
            worker("b", "concurrency_max = 3\n"),
            worker("a", "api_key = \"k\"\n")
        ));
        let Changes { applied, restart, .. } = running.take_over(&wanted);
        assert_eq!(applied, ["worker.0.api_key", "worker.1.concurrency_max"]);
        assert_eq!(restart, [""; 0], "the order says nothing");
        let limits: Vec<_> = running.workers.iter().map(|w| w.concurrency_max).collect();
        assert_eq!((limits, &*running.workers[0].url), (vec![None, Some(3)], "http://a:1"));
    }

    #[test]
    fn workers_come_and_go() {
        let worker = |url: &str| format!("[[worker]]\nurl = \"{url}\"\n");
        let file = |urls: [&str; 2]| config(&urls.map(worker).concat());
        let mut running = file(["http://a:1", "http://b:1"]);
        let changes = running.take_over(&file(["http://b:1", "http://c:1"]));
        assert_eq!((&changes.applied[..], changes.restart.len()), (&["worker".to_owned()][..], 0));
        assert_eq!(changes.workers.joined, ["http://c:1"]);
        assert_eq!(changes.workers.left, ["http://a:1"]);
        let urls: Vec<&str> = running.workers.iter().map(|worker| &*worker.url).collect();
        assert_eq!(urls, ["http://b:1", "http://c:1"]);
        let changes = running.take_over(&file(["http://b:1", "https://d:1"]));
        assert!(changes.restart.is_empty());
        assert_eq!(changes.workers.joined, ["https://d:1"]);
        assert_eq!(changes.workers.left, ["http://c:1"]);
    }

    #[test]
    fn a_file_is_read_again_with_the_flags_over_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.toml");
        let flags = Flags { keys: vec![("queue-depth-max", "3".to_owned())], ..Flags::default() };
        let source = ConfigSource { file: Some(file.clone()), flags };
        assert!(source.load().unwrap_err().contains("cannot read"));
        let write = |text: &str| std::fs::write(&file, format!("{TWO}{text}")).unwrap();
        write("[queue]\nmode = \"endpoint\"\ndepth_max = 8\nhops_max = 8\n");
        let config = source.load().unwrap().usable().unwrap();
        assert_eq!((config.flow.queue.depth_max, config.flow.queue.hops_max), (3, 8));
        let mut reloader = Reloader::new(source, config);
        write(
            "[queue]\nmode = \"endpoint\"\ndepth_max = 9\nhops_max = 9\n\
             [rejection]\nshare_percent = 0\n",
        );
        let Err(ReloadError::Faulty(findings)) = reloader.reload() else { panic!("taken over") };
        assert!(findings[0].to_string().contains("share_percent"));
        assert_eq!(reloader.running().flow.queue.hops_max, 8, "nothing of it");
        std::fs::write(
            &file,
            format!("rejection_window = \"5m\"\n{TWO}[queue]\nmode = \"endpoint\"\nhops_max = 9\n"),
        )
        .unwrap();
        let (changes, warnings) = reloader.reload().unwrap();
        assert_eq!(changes.applied, ["queue.hops_max", "rejection_window"]);
        assert_eq!((warnings.len(), reloader.running().flow.queue.hops_max), (1, 9));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(reloader.reload(), Err(ReloadError::Unreadable(_))));
    }

    /// Each core that is not available has a warning at its key, and no other core has any.
    #[test]
    fn a_reload_warns_of_cores_that_the_process_may_not_use() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.toml");
        let source = ConfigSource { file: Some(file.clone()), flags: Flags::default() };
        std::fs::write(&file, TWO).unwrap();
        let config = source.load().unwrap().usable().unwrap();
        let mut reloader = Reloader::new(source, config).with_cores(vec![0, 1]);
        for (cores, missing) in [
            ("", &[][..]),
            ("cores = [0, 1]\n", &[]),
            ("cores = [0, 9]\n", &[9]),
            ("cores = [7, 8]\n", &[7, 8]),
        ] {
            std::fs::write(&file, format!("{cores}{TWO}")).unwrap();
            let (changes, warnings) = reloader.reload().unwrap();
            assert_eq!(changes.restart.is_empty(), cores.is_empty(), "{cores}");
            let words = warnings.iter().map(Finding::to_string).collect::<Vec<_>>();
            assert_eq!(words.len(), missing.len(), "{words:?}");
            for (word, core) in words.iter().zip(missing) {
                let place = format!("{}:1:", file.display());
                assert!(word.starts_with(&place) && word.contains("warning"), "{word}");
                assert!(word.contains(&format!("may not use core {core}")), "{word}");
            }
        }
    }
}
