//! Sources of workers: a file that is read again and again, and host names. A source that cannot be
//! read, or lists nothing, removes no worker. Joins and removals are decided here without I/O; the
//! tasks below only read.

use super::super::file_faults;
use super::super::fleet::PlaceError;
use super::source_faults;
use forebay_admin::{SourceFault, WorkerSource};
use forebay_base::limits::SRV_TTL_MAX;
use forebay_config::{Config, DiscoveryConfig, WorkerConfig, WorkerUrl, read_worker_file};
use forebay_discovery::{NamedWorkers, workers_of_name};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

/// Readings under way; the sources wait for a place.
const READINGS_MAX: usize = 4;

/// A source as it was read just now: its workers, or why it cannot be read.
#[derive(Debug)]
pub(crate) struct SourceReading {
    /// File or URL, as configured.
    pub(super) source: String,
    pub(super) workers: Result<Vec<WorkerConfig>, SourceFault>,
}

/// Current list of a source.
#[derive(Debug)]
pub(super) struct WorkerList {
    /// File or URL, as configured.
    pub(super) source: String,
    pub(super) workers: Vec<WorkerConfig>,
}

/// All sources, and the workers of each.
#[derive(Debug, Default)]
pub(super) struct WorkerLists {
    /// Workers of each source.
    brought: BTreeMap<String, Vec<WorkerConfig>>,
    /// Sources without a reading since the start.
    awaited: Vec<String>,
    /// Configured sources without any reading.
    unread: BTreeSet<String>,
    reading: JoinSet<()>,
    /// The configured sources with their faults.
    configured: Vec<WorkerSource>,
    readings: Option<mpsc::Sender<SourceReading>>,
    /// URLs of the configuration that wait for a leaving worker's name or address.
    held_back: Vec<String>,
}

/// Work after a new list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SourceNews {
    /// Workers that the source has gained.
    pub(super) joined: Vec<WorkerConfig>,
    /// Workers that stay, with other settings.
    pub(super) changed: Vec<WorkerConfig>,
    /// URLs of workers that no source lists any more, or lists under another name.
    pub(super) left: Vec<String>,
}

impl WorkerLists {
    /// Reads the configured sources. Readings come out of the receiver.
    pub(super) fn start(config: &Config) -> (Self, mpsc::Receiver<SourceReading>) {
        let (readings, receiver) = mpsc::channel(READINGS_MAX);
        let mut sources = Self { readings: Some(readings), ..Self::default() };
        sources.look(config);
        sources.awaited = names(&config.discovery).collect();
        (sources, receiver)
    }

    /// Reads the sources of a new configuration from now on. Returns the URLs of workers that
    /// leave, because the configuration lacks their sources.
    pub(super) fn look(&mut self, config: &Config) -> Vec<String> {
        self.reading = JoinSet::new();
        let discovery = &config.discovery;
        // A fault that goes on over a reload is no new fault.
        let before = std::mem::take(&mut self.configured);
        let source = |name: String| {
            let known = before.iter().find(|source| source.name == name);
            known.cloned().unwrap_or(WorkerSource { name, error: None, refused: None })
        };
        self.configured = names(discovery).map(source).collect();
        let is_removed =
            |source: &&WorkerSource| !self.configured.iter().any(|kept| kept.name == source.name);
        for WorkerSource { name, .. } in
            before.iter().filter(is_removed).filter(|source| source.fault().is_some())
        {
            info!(source = name, "the fault ends: no source of workers any more");
        }
        let is_new = |name: &String| !before.iter().any(|source| source.name == *name);
        self.unread.retain(|name| names(discovery).any(|kept| kept == *name));
        self.unread.extend(names(discovery).filter(is_new));
        self.awaited.clear();
        let Some(readings) = self.readings.clone() else { return Vec::new() };
        let every = discovery.interval;
        if let Some(path) = &discovery.file {
            let file = WorkersFile { path: path.clone(), router: Arc::new(config.clone()) };
            self.reading.spawn_local(follow_file(file, every, readings.clone()));
        }
        for url in resolved_names(discovery) {
            let Ok(name) = WorkerUrl::parse(url) else { continue };
            let source = NamedSource { url: url.clone(), name, every, readings: readings.clone() };
            self.reading.spawn_local(follow_name(source, discovery.name_server_address()));
        }
        let is_kept = |source: &String| names(discovery).any(|name| name == *source);
        let gone: Vec<String> =
            self.brought.keys().filter(|source| !is_kept(source)).cloned().collect();
        let nothing = |source| WorkerList { source, workers: Vec::new() };
        gone.into_iter().flat_map(|source| self.news(&nothing(source), |_| false).left).collect()
    }

    /// Has a source of the start sent no reading yet?
    pub(super) const fn are_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Is a source unread, or has a source a fault? Then workers may be missing.
    pub(super) fn are_incomplete(&self) -> bool {
        !self.unread.is_empty() || self.configured.iter().any(|source| source.fault().is_some())
    }

    /// The worker joins once the leaving worker is gone.
    pub(super) fn hold_back(&mut self, url: &str) {
        self.held_back.push(url.to_owned());
    }

    /// Workers that were held back, for another try.
    pub(super) fn take_held_back(&mut self) -> Vec<String> {
        std::mem::take(&mut self.held_back)
    }

    /// The first fleet waits for no source any more.
    pub(super) fn stop_waiting(&mut self) {
        self.awaited.clear();
    }

    /// Changes by a list. Joining workers count after [`Self::add_brought`]. No worker leaves
    /// before a listed worker serves: then the next list removes the missing workers. A worker with
    /// another name or other TLS files leaves at once and joins again. So does a worker if the list
    /// gives its name to another URL.
    pub(super) fn news(
        &mut self,
        listed: &WorkerList,
        serves: impl Fn(&WorkerConfig) -> bool,
    ) -> SourceNews {
        let had = self.brought.entry(listed.source.clone()).or_default();
        if *had == listed.workers {
            return SourceNews::default();
        }
        let has =
            |workers: &[WorkerConfig], url: &str| workers.iter().any(|worker| worker.url == url);
        let may_leave = listed.workers.is_empty() || listed.workers.iter().any(serves);
        let now = |old: &WorkerConfig| listed.workers.iter().find(|now| now.url == old.url);
        let loses_name = |old: &WorkerConfig| {
            old.name.is_some() && listed.workers.iter().any(|now| now.name == old.name)
        };
        let is_kept = |old: &WorkerConfig| match now(old) {
            Some(now) => now.name == old.name && now.tls == old.tls,
            None => !may_leave && !loses_name(old),
        };
        let (mut kept, gone): (Vec<_>, Vec<_>) = std::mem::take(had).into_iter().partition(is_kept);
        let mut changed = Vec::new();
        for old in &mut kept {
            if let Some(now) = now(old).filter(|now| *now != old) {
                now.clone_into(old);
                changed.push(now.clone());
            }
        }
        *had = kept;
        let joined =
            listed.workers.iter().filter(|worker| !has(had, &worker.url)).cloned().collect();
        let left = gone.into_iter().map(|worker| worker.url);
        let left = left.filter(|url| !self.lists(url)).collect();
        self.brought.retain(|_, workers| !workers.is_empty());
        SourceNews { joined, changed, left }
    }

    /// The worker of a source is in the fleet, by this source or another.
    pub(super) fn add_brought(&mut self, source: &str, worker: WorkerConfig) {
        self.brought.entry(source.to_owned()).or_default().push(worker);
    }

    /// The workers of a reading. A fault is logged once, until another fault replaces it, and so is
    /// its end. `None`: a fault, or the reading of a source that a reload has removed.
    pub(super) fn list(&mut self, reading: SourceReading) -> Option<WorkerList> {
        let SourceReading { source, workers } = reading;
        let is_known = self.brought.contains_key(&source);
        let configured = self.configured.iter_mut().find(|known| known.name == source)?;
        // The first fleet waits for no second reading of a source that fails.
        self.awaited.retain(|awaited| *awaited != source);
        self.unread.remove(&source);
        match workers {
            Ok(workers) => {
                if configured.error.take().is_some() {
                    info!(source, "read again: workers are those of the source");
                }
                Some(WorkerList { source, workers })
            }
            Err(error) => {
                if configured.error.as_ref() != Some(&error) {
                    let known =
                        if is_known { "those that are known stay" } else { "none is known" };
                    let error = &error.full;
                    warn!(source, error, "nothing learnt of workers: {known}");
                }
                configured.error = Some(error);
                None
            }
        }
    }

    /// Workers of a list that could not join are a fault of the source until all have joined. Each
    /// refusal is logged once.
    pub(super) fn take_refused(&mut self, source: &str, refused: &[(String, PlaceError)]) {
        let fault = source_faults::of_refused(refused);
        let known = self.configured.iter_mut().find(|known| known.name == source);
        let Some(known) = known.filter(|known| known.refused != fault) else { return };
        match &fault {
            Some(SourceFault { full: fault, .. }) => {
                warn!(source, fault, "workers not added: tried again with each list");
            }
            None => info!(source, "all workers of the source are added"),
        }
        known.refused = fault;
    }

    /// The configured sources with their faults.
    pub(super) fn configured(&self) -> &[WorkerSource] {
        &self.configured
    }

    /// The workers of all sources.
    pub(super) fn brought(&self) -> impl Iterator<Item = &WorkerConfig> {
        self.brought.values().flatten()
    }

    /// Does some source list a worker?
    pub(super) fn lists(&self, url: &str) -> bool {
        self.brought.values().flatten().any(|worker| worker.url == url)
    }
}

/// Names of the sources, each once.
fn names(config: &DiscoveryConfig) -> impl Iterator<Item = String> + '_ {
    let file = config.file.iter().map(|path| path.display().to_string());
    file.chain(resolved_names(config).cloned())
}

/// Names of `discovery.dns`. A name that is configured twice is a single source.
fn resolved_names(config: &DiscoveryConfig) -> impl Iterator<Item = &String> {
    let mut seen = BTreeSet::new();
    config.dns.iter().filter(move |name| seen.insert(*name))
}

/// A file of workers, and the configuration of their router.
#[derive(Clone)]
struct WorkersFile {
    path: PathBuf,
    router: Arc<Config>,
}

async fn follow_file(file: WorkersFile, every: Duration, readings: mpsc::Sender<SourceReading>) {
    let source = file.path.display().to_string();
    let mut last = None;
    loop {
        let file = file.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        let workers = read.unwrap_or_else(|_| Err(source_faults::of_thread()));
        // A partly written file may parse too: content that was read twice is whole.
        let is_whole = match &workers {
            Ok(workers) => last.replace(workers.clone()).is_none_or(|last| last == *workers),
            Err(_) => true,
        };
        if is_whole {
            let _ = readings.send(SourceReading { source: source.clone(), workers }).await;
        }
        sleep(every).await;
    }
}

impl WorkersFile {
    fn read(&self) -> Result<Vec<WorkerConfig>, SourceFault> {
        let usable = read_worker_file(&self.path, &self.router).usable();
        usable
            .map(|config| config.workers)
            .map_err(|found| file_faults::of_file(&self.path, &found))
    }
}

/// A name that is resolved periodically.
struct NamedSource {
    url: String,
    name: WorkerUrl,
    every: Duration,
    readings: mpsc::Sender<SourceReading>,
}

/// Follows a name. The hosts of SRV records are resolved like the hosts of other workers.
async fn follow_name(source: NamedSource, server: Option<SocketAddr>) {
    let NamedSource { url, name, every, readings } = &source;
    loop {
        let found = workers_of_name(name, server).await;
        let wait = found.as_ref().map_or(*every, |found| found.ttl.min(SRV_TTL_MAX).max(*every));
        let workers = found.map(|NamedWorkers { workers, .. }| workers);
        let workers = workers.map_err(|fault| source_faults::of_name(&fault));
        let _ = readings.send(SourceReading { source: url.clone(), workers }).await;
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(source: &str, urls: &[&str]) -> WorkerList {
        let worker =
            |url: &&str| WorkerConfig { url: (*url).to_owned(), ..WorkerConfig::default() };
        WorkerList { source: source.to_owned(), workers: urls.iter().map(worker).collect() }
    }

    /// Takes a list, as if all joining workers got a place.
    fn take(sources: &mut WorkerLists, source: &str, urls: &[&str]) -> (Vec<String>, Vec<String>) {
        let serves = |worker: &WorkerConfig| worker.url != "new";
        let SourceNews { joined, left, .. } = sources.news(&listed(source, urls), serves);
        let joined_urls = joined.iter().map(|worker| worker.url.clone()).collect();
        joined.into_iter().for_each(|worker| sources.add_brought(source, worker));
        (joined_urls, left)
    }

    /// M1: the end of a fault is known, also where a reload comes between. A source that a reload
    /// has removed brings no worker and no fault.
    #[test]
    fn a_fault_of_a_source_goes_on_over_a_reload_and_ends() {
        let mut lists = WorkerLists::default();
        let reading = |source: &str, workers: Result<Vec<WorkerConfig>, &str>| SourceReading {
            source: source.to_owned(),
            workers: workers.map_err(SourceFault::of),
        };
        let configured = |names: &[&str]| {
            let mut config = Config::default();
            config.discovery.dns = names.iter().map(|name| (*name).to_owned()).collect();
            config
        };
        let fault = |lists: &WorkerLists, name: &str| {
            let source = lists.configured().iter().find(|source| source.name == name);
            source.map(|source| source.error.as_ref().map(|fault| fault.full.clone()))
        };
        lists.look(&configured(&["http://a:1", "http://gone:1"]));
        assert_eq!(fault(&lists, "http://a:1"), Some(None), "not read yet");
        assert!(lists.are_incomplete());
        for name in ["http://a:1", "http://gone:1"] {
            assert!(lists.list(reading(name, Err("unknown host"))).is_none());
        }
        lists.look(&configured(&["http://a:1"]));
        assert_eq!(fault(&lists, "http://a:1"), Some(Some("unknown host".to_owned())));
        assert_eq!(fault(&lists, "http://gone:1"), None);
        assert!(lists.list(reading("http://gone:1", Ok(Vec::new()))).is_none(), "a late reading");
        assert!(lists.list(reading("http://gone:1", Err("late"))).is_none());
        assert!(lists.are_incomplete());
        assert!(lists.list(reading("http://a:1", Ok(Vec::new()))).is_some());
        assert_eq!(fault(&lists, "http://a:1"), Some(None));
        assert!(!lists.are_incomplete());
        lists.look(&configured(&["http://a:1", "http://b:1"]));
        assert!(lists.are_incomplete(), "a reload has added a source");
        lists.look(&configured(&["http://a:1"]));
        assert!(!lists.are_incomplete());
    }

    /// The first fleet waits for a reading of each source, whatever the reading is.
    #[test]
    fn a_source_that_fails_at_once_delays_no_start() {
        for workers in [Ok(Vec::new()), Err(SourceFault::of("unknown host"))] {
            let mut lists = WorkerLists::default();
            let mut config = Config::default();
            config.discovery.dns = ["http://a:1", "http://b:1"].map(str::to_owned).to_vec();
            lists.look(&config);
            lists.awaited = names(&config.discovery).collect();
            for (name, is_awaited) in [("http://gone:1", true), ("http://a:1", true)] {
                let _ =
                    lists.list(SourceReading { source: name.to_owned(), workers: workers.clone() });
                assert_eq!(lists.are_awaited(), is_awaited, "{name}");
            }
            let _ = lists.list(SourceReading { source: "http://b:1".to_owned(), workers });
            assert!(!lists.are_awaited());
        }
    }

    /// M2: two samples of a metric with the same labels are invalid.
    #[test]
    fn a_name_that_is_configured_twice_is_one_source() {
        let mut config = Config::default();
        config.discovery.dns =
            ["http://a:1", "http://b:1", "http://a:1"].map(str::to_owned).to_vec();
        let mut lists = WorkerLists::default();
        lists.look(&config);
        let names = lists.configured().iter().map(|source| &*source.name);
        assert_eq!(names.collect::<Vec<_>>(), ["http://a:1", "http://b:1"]);
    }

    /// M1: a worker without a place is a fault of its source, with an end.
    #[test]
    fn a_worker_without_a_place_is_a_fault_until_it_has_one() {
        let mut lists = WorkerLists::default();
        let mut config = Config::default();
        config.discovery.dns = vec!["http://a:1".to_owned()];
        lists.look(&config);
        lists.unread.clear();
        let fault = |lists: &WorkerLists| lists.configured()[0].fault().cloned();
        lists.take_refused("http://a:1", &[("http://b:1".to_owned(), PlaceError::Name)]);
        let refused = fault(&lists).unwrap();
        assert!(
            refused.full.starts_with("1 of its workers not added: http://b:1: "),
            "{refused:?}"
        );
        assert!(lists.are_incomplete());
        lists.look(&config);
        assert_eq!(fault(&lists), Some(refused), "a reload ends no fault");
        lists.take_refused("http://a:1", &[]);
        assert_eq!(fault(&lists), None);
        assert!(!lists.are_incomplete());
    }

    #[test]
    fn a_faulty_file_is_its_first_error_with_its_line_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.toml");
        let file = WorkersFile { path: path.clone(), router: Arc::default() };
        let missing = file.read().unwrap_err().full;
        assert!(missing.contains("w.toml cannot be read: No such file"), "{missing}");
        assert!(!missing.contains("configuration: "), "{missing}");
        std::fs::write(&path, "[[worker]]\nurll = \"http://a:1\"\nzzz = 1\n").unwrap();
        let unknown = file.read().unwrap_err().full;
        let wanted = format!("{}:2:1: unknown key `worker.urll`. help: ", path.display());
        assert!(unknown.starts_with(&wanted), "{unknown}");
        assert!(unknown.ends_with(" (1 more: `forebay check` has all)"), "{unknown}");
        std::fs::write(&path, "# none\n").unwrap();
        let empty = file.read().unwrap_err().full;
        assert!(empty.contains("w.toml lists no worker. help: "), "{empty}");
        assert!(!empty.contains("--worker"), "{empty}");
    }

    #[test]
    fn what_a_source_gains_joins_and_what_all_have_lost_leaves() {
        let mut sources = WorkerLists::default();
        let strings = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        assert_eq!(take(&mut sources, "f", &["a", "b"]), (strings(&["a", "b"]), vec![]));
        assert_eq!(
            take(&mut sources, "f", &["b", "a"]),
            (vec![], vec![]),
            "the order says nothing"
        );
        assert_eq!(take(&mut sources, "d", &["b", "c"]), (strings(&["b", "c"]), vec![]));
        assert_eq!(take(&mut sources, "f", &["a"]), (vec![], vec![]), "the other still lists it");
        assert_eq!(take(&mut sources, "d", &["c"]), (vec![], strings(&["b"])));
        assert!(sources.lists("a") && sources.lists("c") && !sources.lists("b"));
        // A worker without a place is tried again.
        let SourceNews { joined, .. } = sources.news(&listed("f", &["a", "x"]), |_| true);
        assert_eq!(joined, listed("", &["x"]).workers);
        let SourceNews { joined, .. } = sources.news(&listed("f", &["a", "x"]), |_| true);
        assert_eq!(joined.len(), 1);
    }

    /// No change of a listed worker is silent: settings apply in place; another name, other TLS or
    /// another URL of the name is a removal and an addition.
    #[test]
    fn each_change_of_a_listed_worker_is_applied() {
        let base = WorkerConfig {
            url: "a".to_owned(),
            name: Some("w".to_owned()),
            ..WorkerConfig::default()
        };
        let tls_ca = Some("ca.pem".into());
        let change = |change: &dyn Fn(&mut WorkerConfig)| {
            let mut sources = WorkerLists::default();
            sources.add_brought("f", base.clone());
            let mut now = base.clone();
            change(&mut now);
            let list = WorkerList { source: "f".to_owned(), workers: vec![now.clone()] };
            let SourceNews { joined, changed, left } = sources.news(&list, |_| false);
            assert_eq!(joined.len() + changed.len(), usize::from(now != base), "{now:?}");
            assert_eq!(joined.len(), left.len(), "{now:?}");
            joined.into_iter().for_each(|worker| sources.add_brought("f", worker));
            assert_eq!(sources.news(&list, |_| false), SourceNews::default(), "once");
            left.len()
        };
        assert_eq!(change(&|_| {}), 0);
        assert_eq!(change(&|now| now.concurrency_max = Some(9)), 0);
        assert_eq!(change(&|now| now.models.push("m".to_owned())), 0);
        assert_eq!(change(&|now| now.role = forebay_config::WorkerRole::Prefill), 0);
        assert_eq!(change(&|now| now.name = None), 1);
        assert_eq!(change(&|now| now.name = Some("v".to_owned())), 1);
        assert_eq!(change(&|now| now.url = "b".to_owned()), 1);
        assert_eq!(change(&|now| now.tls.tls_ca.clone_from(&tls_ca)), 1);
    }

    #[test]
    fn no_worker_leaves_before_a_listed_worker_serves() {
        let mut sources = WorkerLists::default();
        let _ = take(&mut sources, "f", &["a", "b"]);
        let strings = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        assert_eq!(take(&mut sources, "f", &["new"]), (strings(&["new"]), vec![]));
        assert_eq!(take(&mut sources, "f", &["new"]), (vec![], vec![]), "nor with the next list");
        let SourceNews { joined, left, .. } = sources.news(&listed("f", &["new"]), |_| true);
        assert_eq!((joined, left), (vec![], strings(&["a", "b"])));
        assert!(sources.lists("new") && !sources.lists("a"));
    }
}
