//! Checks a well-formed configuration: values out of range and conflicts between values. Checks the
//! whole configuration and reports everything; never stops at the first fault.

use crate::keys::finding::{Finding, Origins};
use crate::keys::table::KeyTable;
use crate::sections::schema::Config;
use crate::sections::worker::WorkerConfig;
use crate::values::engine::LoadSource;
use crate::values::quantity::format_duration;
use crate::values::url::{WorkerUrl, WorkerUrlError, shown_url};
use forebay_base::limits::{SHARDS_MAX, WORKERS_MAX};
use forebay_base::{FileFault, open_file};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Engines' HTTP servers close idle connections after this long (uvicorn's default, vLLM 0.33 and
/// SGLang 0.5).
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Engines send nothing for longer than this while they compute a long prompt or wait for room.
const ENGINE_DEADLINE_SENSIBLE: Duration = Duration::from_secs(1);

/// Hosts and hypervisors hold a healthy thread for shorter than this.
const STALL_SENSIBLE: Duration = Duration::from_secs(1);

/// A round trip between continents takes longer than this.
const NETWORK_DEADLINE_SENSIBLE: Duration = Duration::from_millis(100);

/// A prefill, and the events after it, do not take longer.
const SPECULATIVE_TTL_SENSIBLE: Duration = Duration::from_secs(60);

/// All findings on a parsed configuration.
#[must_use]
pub(crate) fn check(config: &Config, origins: &Origins) -> Vec<Finding> {
    let mut check = Check { origins, findings: Vec::new() };
    check.ranges(config);
    check.admin(config);
    check.token("image_key_file", config.image_key_file.as_deref());
    check.client(&config.client);
    check.client_addresses(config);
    check.keys(config);
    check.cors(&config.cors);
    check.session(config);
    check.models(&config.models);
    check.adapters(&config.adapters);
    check.tls(config);
    check.upstream_tls(config);
    check.cores(config);
    check.worker_defaults(&config.worker_defaults);
    check.workers(config);
    check.roles(config);
    check.kv_pools(config);
    check.snapshot(config);
    check.workers_state(config);
    check.limits(config);
    check.flow(&config.flow);
    check.disaggregation(&config.flow.disaggregation);
    check.replicas(config);
    check.traces(config);
    check.secret_files(config);
    check.log(&config.log);
    check.times(config);
    check.deadlines(config);
    check.findings
}

/// The finding of a configuration without any worker.
pub(crate) const NO_WORKER: &str = "no worker is configured";

/// Files with a vocabulary; Mistral's own repositories may have only the second.
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "tekken.json"];

pub(crate) struct Check<'a> {
    pub(crate) origins: &'a Origins,
    pub(crate) findings: Vec<Finding>,
}

impl Check<'_> {
    pub(crate) fn error(&mut self, path: &str, what: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::error(self.origins.of(path), what, help));
    }

    pub(crate) fn warning(&mut self, path: &str, what: impl Into<String>, help: impl Into<String>) {
        self.findings.push(Finding::warning(self.origins.of(path), what, help));
    }

    /// The key of a pair that was written; the other may be a default, which has no line.
    pub(crate) fn either<'k>(&self, key: &'k str, other: &'k str) -> &'k str {
        if self.origins.has(key) || !self.origins.has(other) { key } else { other }
    }

    /// Checks each value against the range of its key.
    fn ranges(&mut self, config: &Config) {
        self.ranges_of(config, None);
        for (position, worker) in config.workers.iter().enumerate() {
            self.ranges_of(worker, Some(position));
        }
        for (position, tenant) in config.flow.tenants.iter().enumerate() {
            self.ranges_of(tenant, Some(position));
        }
        for (position, model) in config.models.iter().enumerate() {
            self.ranges_of(model, Some(position));
        }
        for (position, adapter) in config.adapters.iter().enumerate() {
            self.ranges_of(adapter, Some(position));
        }
    }

    fn ranges_of<T: KeyTable + Clone>(&mut self, values: &T, position: Option<usize>) {
        values.each(|key, setting| {
            let Some(number) = setting.number().filter(|number| !key.range.contains(number)) else {
                return;
            };
            let path = match (position, key.path.split_once('.')) {
                (Some(position), Some((list, name))) => format!("{list}.{position}.{name}"),
                _ => key.path.to_owned(),
            };
            let kind = setting.kind(key);
            let shown = key.path;
            let is = kind.format(number);
            let range = kind.format_range(key);
            self.error(&path, format!("`{shown}` is {is}, should be {range}"), "");
        });
    }

    fn cores(&mut self, config: &Config) {
        let count = config.cores.len();
        if count > SHARDS_MAX {
            let what = format!(
                "`cores` lists {count} cores, more than the {SHARDS_MAX} shards of one process"
            );
            self.error("cores", what, "start a second process for the rest");
        }
        let mut seen = config.cores.clone();
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|pair| pair.first() == pair.last()) {
            let core = twice.first().copied().unwrap_or_default();
            self.error("cores", format!("`cores` lists core {core} twice"), "one shard per core");
        }
    }

    fn workers(&mut self, config: &Config) {
        let mut names = HashSet::new();
        for url in &config.discovery.dns {
            if !names.insert(url) {
                let what = format!("`discovery.dns` lists {:?} twice", shown_url(url));
                self.warning("discovery.dns", what, "remove one of the two: the name is read once");
            }
            let form = "write http://NAME:PORT, or http://_SERVICE._tcp.NAME for SRV records";
            let (fault, help) = match WorkerUrl::parse(url) {
                Ok(url) if url.host.starts_with('_') && url.authority != url.host => {
                    ("SRV records name the port: leave it out".to_owned(), form)
                }
                Ok(_) => continue,
                Err(error) => (error.to_string(), error.help(form)),
            };
            self.error(
                "discovery.dns",
                format!("`discovery.dns` {:?}: {fault}", shown_url(url)),
                help,
            );
        }
        let servers = &config.discovery;
        if let (Some(server), None) = (&servers.name_server, servers.name_server_address()) {
            let what = format!("`discovery.name_server` {server:?} is no address with a port");
            self.error("discovery.name_server", what, "write it as 10.0.0.10:53");
        }
        let others = config.workers_state.is_some() || config.discovery.is_on();
        if config.workers.is_empty() && !others {
            let help = "give --worker http://host:port, or a [[worker]] table with a url";
            let origin = self.origins.start_of_file();
            self.findings.push(Finding::error(origin, NO_WORKER, help));
        }
        if config.workers.len() > WORKERS_MAX {
            let what = format!("{} workers, more than {WORKERS_MAX}", config.workers.len());
            self.error("worker", what, "split the fleet over several routers");
        }
        if let Some(dir) = &config.model_dir {
            self.model_dir("model_dir", dir);
        }
        self.kv_endpoints(&config.workers);
        let mut urls = HashSet::new();
        let mut names = HashSet::new();
        for (position, worker) in config.workers.iter().enumerate() {
            self.worker(&format!("worker.{position}"), worker);
            if !urls.insert(&worker.url) && !worker.url.is_empty() {
                let what = format!("worker {} is listed twice", worker.url);
                self.error(&format!("worker.{position}.url"), what, "remove one of the two");
            }
            if let Some(name) = worker.name.as_ref().filter(|name| !names.insert(*name)) {
                let what = format!("the name {name:?} is used twice");
                self.error(&format!("worker.{position}.name"), what, "names tell workers apart");
            }
        }
    }

    fn worker(&mut self, path: &str, worker: &WorkerConfig) {
        let url_path = format!("{path}.url");
        if worker.url.is_empty() {
            let place = self.either(&url_path, path);
            self.error(place, "a worker has no `url`", "add url = \"http://host:port\"");
        } else if let Err(error) = WorkerUrl::parse(&worker.url) {
            let what = format!("`url` {:?}: {error}", shown_url(&worker.url));
            let help = match error {
                WorkerUrlError::Several => "repeat --worker, or the [[worker]] table, for each URL",
                WorkerUrlError::Brackets => "write it as http://[::1]:8000",
                error => error.help("write it as http://host:port"),
            };
            self.error(&url_path, what, help);
        }
        if let Some(dir) = &worker.model_dir {
            self.model_dir(&format!("{path}.model_dir"), dir);
        }
        if let Ok(url) = WorkerUrl::parse(&worker.url) {
            self.worker_address(&url_path, &url);
        }
        let printable = |text: &str| text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if worker.name.as_deref().is_some_and(|name| name.is_empty() || !printable(name)) {
            let what = "`name` goes into a header field and has to be visible ASCII without spaces";
            self.error(&format!("{path}.name"), what, "");
        }
        self.health_path(path, worker.health_path.as_deref());
        self.key_of_worker(path, worker);
    }

    /// Addresses that are right as text and seldom meant.
    fn worker_address(&mut self, path: &str, url: &WorkerUrl) {
        let is_unspecified = |ip: IpAddr| ip.is_unspecified();
        if url.host.trim_matches(['[', ']']).parse().is_ok_and(is_unspecified) {
            let what = format!("`url` {} is where a server listens, and no host", url.text());
            self.warning(path, what, "write the name or the address of the engine's host");
        }
        let scheme = match (url.is_tls, url.port) {
            (false, 443) => "http:// and port 443, where servers speak TLS",
            (true, 80) => "https:// and port 80, where servers speak plain HTTP",
            _ => return,
        };
        let what = format!("`url` {} has {scheme}", url.text());
        self.warning(path, what, "correct the scheme or the port");
    }

    pub(crate) fn model_dir(&mut self, path: &str, dir: &Path) {
        const FORM: &str = "download tokenizer.json and tokenizer_config.json of the model into it";
        match dir.metadata() {
            Ok(found) if found.is_dir() => self.tokenizer(path, dir),
            Ok(_) => {
                let what = format!("`model_dir` {} is not a directory", dir.display());
                self.error(path, what, "name the folder of the file");
            }
            Err(error) => {
                let FileFault { what, help } = FileFault::of_read(dir, &error, FORM);
                self.error(path, format!("`model_dir` {what}"), help);
            }
        }
    }

    fn tokenizer(&mut self, path: &str, dir: &Path) {
        let mut refusal = None;
        for file in TOKENIZERS.map(|name| dir.join(name)) {
            match open_file(&file) {
                Ok(_) => return,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => refusal = Some(FileFault::of_read(&file, &error, "")),
            }
        }
        let nowhere = || {
            let help = "without it prompts are not matched against KV caches";
            FileFault::new(format!("{} holds no tokenizer.json", dir.display()), help)
        };
        let FileFault { what, help } = refusal.unwrap_or_else(nowhere);
        self.warning(path, format!("`model_dir` {what}"), help);
    }

    fn limits(&mut self, config: &Config) {
        let limits = &config.limits;
        if limits.buffered_bytes_max < limits.body_bytes_max {
            let what = "`limits.buffered_bytes_max` is smaller than `limits.body_bytes_max`";
            let help = "a body of the largest size could never be taken; raise it";
            let key = self.either("limits.buffered_bytes_max", "limits.body_bytes_max");
            self.error(key, what, help);
        }
    }

    /// A request goes to no further worker after `timeouts.first_byte`. If it waits as long for
    /// the first connection, a lost packet is the end of the request.
    fn deadlines_of_attempts(&mut self, config: &Config) {
        let times = &config.timeouts;
        let [first_byte, connect] = [times.first_byte, times.connect].map(format_duration);
        let is_shorter = times.first_byte <= times.connect;
        let mut keys = ["timeouts.first_byte", "timeouts.connect"].into_iter();
        let Some(key) = keys.find(|key| self.origins.has(key)).filter(|_| is_shorter) else {
            return;
        };
        let what = format!(
            "`timeouts.first_byte` is {first_byte}, and a connection may take as long: \
             `timeouts.connect` is {connect}"
        );
        let help = "a request that waits in vain for a connection is not sent to another worker: \
                    raise `timeouts.first_byte`, or lower `timeouts.connect`";
        if !self.has_finding_at(key) {
            self.warning(key, what, help);
        }
    }

    /// Deadlines that requests and checks miss whatever the engine does.
    fn deadlines(&mut self, config: &Config) {
        self.deadlines_of_each(config);
        self.deadlines_of_attempts(config);
    }

    fn deadlines_of_each(&mut self, config: &Config) {
        let times = &config.timeouts;
        let prefill = config.flow.disaggregation.prefill_timeout.unwrap_or(times.first_byte);
        let health = &config.health;
        let stall = if health.enabled { health.stall_timeout } else { Duration::ZERO };
        let of_engines = [
            ("health.stall_timeout", stall),
            ("timeouts.first_byte", times.first_byte),
            ("timeouts.stream_idle", times.stream_idle),
            ("disaggregation.prefill_timeout", prefill),
        ];
        let of_networks = [
            ("timeouts.handshake", times.handshake),
            ("timeouts.head", times.head),
            ("timeouts.body", times.body),
            ("timeouts.connect", times.connect),
            ("timeouts.write", times.write),
            ("health.timeout", health.timeout),
        ];
        let of_engines = of_engines.map(|(key, time)| (key, time, ENGINE_DEADLINE_SENSIBLE));
        let of_networks = of_networks.map(|(key, time)| (key, time, NETWORK_DEADLINE_SENSIBLE));
        for (key, time, sensible) in of_engines.into_iter().chain(of_networks) {
            if !time.is_zero() && time < sensible && self.origins.has(key) {
                let what = format!(
                    "`{key}` is {}, less than {}",
                    format_duration(time),
                    format_duration(sensible)
                );
                let help = match sensible {
                    _ if key == "health.stall_timeout" => {
                        "an engine that computes a long prompt shows no progress for longer: \
                         ranks that are well would be ejected"
                    }
                    ENGINE_DEADLINE_SENSIBLE => {
                        "an engine that computes a long prompt, or has no room, sends nothing for \
                         longer: most requests would fail"
                    }
                    _ => "a round trip may take longer, and each that does would fail",
                };
                self.warning(key, what, help);
            }
        }
    }

    fn times(&mut self, config: &Config) {
        let times = &config.timeouts;
        if !times.stall_abort.is_zero() && times.stall_abort < STALL_SENSIBLE {
            let what = "`timeouts.stall_abort` is less than a second";
            let help = "a host that swaps or moves the machine holds a shard for as long, and the \
                process would abort with all streams; write 10s or more";
            self.warning("timeouts.stall_abort", what, help);
        }
        if times.drain.is_zero() {
            let what = "`timeouts.drain` is 0, which is no wait at all";
            let help = "a stop, an upgrade and the drain of a worker would cut all requests in \
                flight: write the time of the longest answer";
            self.warning("timeouts.drain", what, help);
        }
        if config.kv.disk_credit_percent > config.kv.host_credit_percent {
            let what = "`kv.disk_credit_percent` is more than `kv.host_credit_percent`";
            let help =
                "a block that only a disk holds would be worth more than one that the host holds";
            let key = self.either("kv.disk_credit_percent", "kv.host_credit_percent");
            self.warning(key, what, help);
        }
        if config.kv.pool_credit_percent > config.kv.host_credit_percent {
            let what = "`kv.pool_credit_percent` is more than `kv.host_credit_percent`";
            let help = "a block that all ranks can load would be worth more than one that the \
                rank's own host holds";
            let key = self.either("kv.pool_credit_percent", "kv.host_credit_percent");
            self.warning(key, what, help);
        }
        let load = &config.load;
        if load.age_max < load.interval && load.source != LoadSource::Off {
            let what = "`load.age_max` is less than `load.interval`";
            let help = "reports would count nothing most of the time";
            self.warning(self.either("load.age_max", "load.interval"), what, help);
        }
        if config.health.slow_factor == 1 {
            let what = "`health.slow_factor` is 1, and half of a pool is slower than its median";
            self.error("health.slow_factor", what, "write 3 or more; 0 turns this off");
        }
        let approximate = &config.approximate;
        if approximate.speculative_ttl > SPECULATIVE_TTL_SENSIBLE {
            let what = "`approximate.speculative_ttl` is more than a minute";
            let help = "it only bridges the time until the engine's event; \
                events of prompts that failed never come";
            self.warning("approximate.speculative_ttl", what, help);
        }
        if times.upstream_idle >= ENGINE_KEEP_ALIVE {
            let what = "`timeouts.upstream_idle` is 5s or more, and engines \
                close idle connections after 5s";
            let help =
                "stay below the engines' keep-alive time, or requests meet closed connections";
            self.warning("timeouts.upstream_idle", what, help);
        }
    }
}

/// Fault of a folder in which the router makes a file.
pub(crate) fn folder_fault(folder: &Path) -> Option<FileFault> {
    const FORM: &str = "create it: the router makes the file alone";
    match folder.metadata() {
        Ok(found) if found.is_dir() => None,
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Some(FileFault::of_read(folder, &error, FORM))
        }
        _ => Some(FileFault::new(format!("{} is not a directory", folder.display()), FORM)),
    }
}

/// True if two listening sockets want the same port.
pub(crate) fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_port = one.port() == other.port() && one.port() != 0;
    let ip = one.ip();
    let other = other.ip();
    same_port && (ip == other || ip.is_unspecified() || other.is_unspecified())
}
