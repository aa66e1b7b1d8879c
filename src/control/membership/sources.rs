//! Sources of workers: a file that is read again and again, and host names. A source that cannot be
//! read, or lists nothing, removes no worker. Joins and removals are decided here without I/O; the
//! tasks below only read.

use super::super::fleet::PlaceError;
use forebay_base::limits::SRV_TTL_MAX;
use forebay_config::{
    Config, DiscoveryConfig, Finding, Severity, WorkerConfig, WorkerUrl, read_worker_file,
};
use forebay_discovery::{NamedWorkers, workers_of_name};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

/// Lists under way; the sources wait for a place.
const LISTS_MAX: usize = 4;
/// Errors of a file in a line of the log; `forebay check` has all.
const ERRORS_LOGGED_MAX: usize = 3;

/// Current list of a source.
#[derive(Debug)]
pub(crate) struct WorkerList {
    /// File or URL, as configured.
    pub(super) source: String,
    pub(super) workers: Vec<WorkerConfig>,
}

/// All sources, and the workers of each.
#[derive(Debug, Default)]
pub(super) struct WorkerLists {
    /// Workers of each source.
    brought: BTreeMap<String, Vec<WorkerConfig>>,
    /// Sources without a list since the start.
    awaited: Vec<String>,
    reading: JoinSet<()>,
    /// Sources that cannot be read now.
    faulty: FaultySources,
    listed: Option<mpsc::Sender<WorkerList>>,
    /// URLs of the configuration that wait for a leaving worker's name or address.
    held_back: Vec<String>,
    /// Last logged refusal of each source's workers.
    refused: BTreeMap<String, Complaint>,
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
    /// Reads the configured sources. Lists come out of the receiver.
    pub(super) fn start(config: &Config) -> (Self, mpsc::Receiver<WorkerList>) {
        let (listed, receiver) = mpsc::channel(LISTS_MAX);
        let mut sources = Self { listed: Some(listed), ..Self::default() };
        sources.look(config);
        sources.awaited = names(&config.discovery).collect();
        (sources, receiver)
    }

    /// Reads the sources of a new configuration from now on. Returns the URLs of workers that
    /// leave, because the configuration lacks their sources.
    pub(super) fn look(&mut self, config: &Config) -> Vec<String> {
        self.reading = JoinSet::new();
        let is_configured = |source: &String| names(&config.discovery).any(|name| name == *source);
        self.faulty.borrow_mut().retain(is_configured);
        self.awaited.clear();
        let Some(listed) = self.listed.clone() else { return Vec::new() };
        let discovery = &config.discovery;
        let every = discovery.interval;
        if let Some(path) = &discovery.file {
            let file = WorkersFile { path: path.clone(), router: Arc::new(config.clone()) };
            let complaint = Complaint::of(&self.faulty);
            self.reading.spawn_local(follow_file(file, every, listed.clone(), complaint));
        }
        for url in &discovery.dns {
            let Ok(name) = WorkerUrl::parse(url) else { continue };
            let source = NamedSource { url: url.clone(), name, every, listed: listed.clone() };
            let complaint = Complaint::of(&self.faulty);
            let server = discovery.name_server_address();
            self.reading.spawn_local(follow_name(source, server, complaint));
        }
        let is_kept = |source: &String| names(discovery).any(|name| name == *source);
        let gone: Vec<String> =
            self.brought.keys().filter(|source| !is_kept(source)).cloned().collect();
        let nothing = |source| WorkerList { source, workers: Vec::new() };
        gone.into_iter().flat_map(|source| self.news(&nothing(source), |_| false).left).collect()
    }

    /// Has a source of the start sent no list yet?
    pub(super) const fn are_awaited(&self) -> bool {
        !self.awaited.is_empty()
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
        self.awaited.retain(|source| *source != listed.source);
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

    /// Logs workers of a list that could not join: each refusal once.
    pub(super) fn log_refused(&mut self, source: &str, refused: &[(String, PlaceError)]) {
        let Some((url, reason)) = refused.first() else {
            if self.refused.remove(source).is_some() {
                info!(source, "all workers of the source are added");
            }
            return;
        };
        let text = format!("{url}: {reason}");
        let complaint = self.refused.entry(source.to_owned()).or_default();
        if complaint.update(&text) {
            let count = refused.len();
            let first = text;
            warn!(source, count, first, "workers not added: tried again with each list");
        }
    }

    /// Sources that cannot be read now. A file goes by its name without its folder, for a probe
    /// without a token sees the text.
    pub(super) fn unread(&self) -> Option<String> {
        let faulty = self.faulty.borrow();
        let name = |source: &String| match source.contains("://") {
            true => "a name of `discovery.dns`".to_owned(),
            false => {
                let file = Path::new(source).file_name().unwrap_or_default();
                format!("`discovery.file` {}", file.display())
            }
        };
        let names: BTreeSet<String> = faulty.iter().map(name).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("cannot be read: {names}; the log has the reason"))
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

fn names(config: &DiscoveryConfig) -> impl Iterator<Item = String> + '_ {
    let file = config.file.iter().map(|path| path.display().to_string());
    file.chain(config.dns.iter().cloned())
}

/// A file of workers, and the configuration of their router.
#[derive(Clone)]
struct WorkersFile {
    path: PathBuf,
    router: Arc<Config>,
}

async fn follow_file(
    file: WorkersFile,
    every: Duration,
    listed: mpsc::Sender<WorkerList>,
    mut complaint: Complaint,
) {
    let source = file.path.display().to_string();
    let mut last = None;
    loop {
        let file = file.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        match read.unwrap_or_else(|_| Err("it could not be read".to_owned())) {
            Ok(workers) => {
                complaint.end(&source);
                // A partly written file may parse too: content that was read twice is whole.
                if last.replace(workers.clone()).is_none_or(|last| last == workers) {
                    let _ = listed.send(WorkerList { source: source.clone(), workers }).await;
                }
            }
            Err(error) => complaint.log(&source, &error),
        }
        sleep(every).await;
    }
}

impl WorkersFile {
    fn read(&self) -> Result<Vec<WorkerConfig>, String> {
        let usable = read_worker_file(&self.path, &self.router).usable();
        let errors = |findings: Vec<Finding>| {
            let is_error = |finding: &&Finding| finding.severity == Severity::Error;
            let errors = findings.iter().filter(is_error).take(ERRORS_LOGGED_MAX);
            errors.map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        usable.map(|config| config.workers).map_err(errors)
    }
}

/// A name that is resolved periodically.
struct NamedSource {
    url: String,
    name: WorkerUrl,
    every: Duration,
    listed: mpsc::Sender<WorkerList>,
}

impl NamedSource {
    async fn list(&self, workers: Vec<WorkerConfig>) {
        let _ = self.listed.send(WorkerList { source: self.url.clone(), workers }).await;
    }
}

/// Follows a name. The hosts of SRV records are resolved like the hosts of other workers.
async fn follow_name(source: NamedSource, server: Option<SocketAddr>, mut complaint: Complaint) {
    let NamedSource { url, name, every, .. } = &source;
    loop {
        let wait = match workers_of_name(name, server).await {
            Ok(NamedWorkers { workers, ttl }) => {
                complaint.end(url);
                source.list(workers).await;
                ttl.min(SRV_TTL_MAX).max(*every)
            }
            Err(fault) => {
                complaint.log(url, &fault);
                *every
            }
        };
        sleep(wait).await;
    }
}

/// A fault that is logged once, until another fault replaces it.
#[derive(Debug, Default)]
struct Complaint {
    last: String,
    faulty: FaultySources,
}

/// Names of sources that cannot be read now. The tasks that read the sources share it.
type FaultySources = Rc<RefCell<BTreeSet<String>>>;

impl Complaint {
    fn of(faulty: &FaultySources) -> Self {
        Self { last: String::new(), faulty: Rc::clone(faulty) }
    }

    fn update(&mut self, error: &str) -> bool {
        let is_new = self.last != error;
        if is_new {
            error.clone_into(&mut self.last);
        }
        is_new
    }

    /// The source can be read. True after a fault, also of a configuration before.
    fn end(&mut self, source: &str) -> bool {
        self.last.clear();
        let was_faulty = self.faulty.borrow_mut().remove(source);
        if was_faulty {
            info!(source, "read again: workers are those of the source");
        }
        was_faulty
    }

    fn log(&mut self, source: &str, error: &str) {
        self.faulty.borrow_mut().insert(source.to_owned());
        if self.update(error) {
            warn!(source, error, "nothing learnt of workers: those that are known stay");
        }
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

    /// M1: the end of a fault has a line, also where a reload comes between.
    #[test]
    fn a_fault_of_a_source_ends_once() {
        let mut lists = WorkerLists::default();
        let mut config = Config::default();
        config.discovery.dns = vec!["http://a:1".to_owned()];
        let mut complaint = Complaint::of(&lists.faulty);
        assert!(!complaint.end("http://a:1"), "no fault");
        complaint.log("http://a:1", "unknown host");
        complaint.log("http://gone:1", "unknown host");
        assert!(lists.unread().is_some());
        lists.look(&config);
        let mut after = Complaint::of(&lists.faulty);
        assert!(after.end("http://a:1"), "a fault of before the reload");
        assert!(!after.end("http://a:1"));
        assert!(!after.end("http://gone:1"), "no source any more");
        assert_eq!(lists.unread(), None);
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
