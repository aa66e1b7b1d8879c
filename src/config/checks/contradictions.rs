//! Checks values that contradict each other: each is right alone, and together they have another
//! effect than intended.

use super::check::{Check, check};
use super::flow::is_tenant_name;
use super::kv_endpoints::tcp_address;
use super::unused::reached_first::knows_tenants;
use super::unused::unused_key::UnusedKeys;
use super::unused::unused_keys::{is_whole, unused_keys};
use crate::keys::finding::{Finding, Origins};
use crate::keys::table::KeyTable;
use crate::sections::flow::QueueMode;
use crate::sections::schema::{AdapterConfig, Config, ModelConfig};
use crate::sections::worker::WorkerConfig;
use crate::values::admin_address::AdminAddress;
use crate::values::engine::EngineKind;
use crate::values::engine_address::{EngineAddress, EngineHost, EngineLikeness};
use crate::values::url::{WorkerUrl, shown_url};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Advice for a worker that is the router.
const LOOP_HELP: &str = "write the address of the engine, or move one of the two ports";

/// Advice for an engine with two workers.
const TWIN_HELP: &str = "remove either of them: requests use a single worker of an engine";

/// All findings on the configuration of a router.
#[must_use]
pub(crate) fn check_router(config: &Config, origins: &Origins) -> Vec<Finding> {
    let findings = check(config, origins);
    let mut check = Check { origins, findings };
    check.loops(config, &config.workers);
    check.named_loops(config);
    check.engines_by_two_names(&[], &config.workers);
    check.engines_found_twice(config);
    check.unused_keys(config);
    check.bodies_too_large_to_wait(config);
    check.tenants_without_identity(config);
    check.models_that_stand_for_themselves(&config.models);
    check.models_that_stand_for_names(&config.models);
    check.models_that_no_worker_serves(config);
    check.adapters_that_no_worker_loads(config);
    check.findings
}

/// Findings on workers of a file: addresses and names that `router` has already.
#[must_use]
pub(crate) fn check_against_router(
    router: &Config,
    workers: &[WorkerConfig],
    origins: &Origins,
) -> Vec<Finding> {
    let mut check = Check { origins, findings: Vec::new() };
    check.loops(router, workers);
    check.taken_names(router, workers);
    check.engines_by_two_names(&router.workers, workers);
    check.unused_worker_keys(router, workers);
    check.findings
}

/// Are all workers in the configuration, each with the names of its models?
pub(crate) fn lists_all_models(config: &Config) -> bool {
    let lists = |worker: &WorkerConfig| {
        !worker.models.is_empty() && worker.models.iter().all(|model| model != "*")
    };
    is_whole(config) && config.workers.iter().all(lists)
}

/// Name of a worker in the fleet.
fn name_of(worker: &WorkerConfig) -> Option<String> {
    let url = || WorkerUrl::parse(&worker.url).ok().map(|url| url.authority);
    worker.name.clone().or_else(url)
}

impl Check<'_> {
    /// Workers at an address of the router itself. Other loops show only at run time.
    fn loops(&mut self, router: &Config, workers: &[WorkerConfig]) {
        let own = own_addresses(router);
        for (position, worker) in workers.iter().enumerate() {
            if let Some(key) = looping_key(&own, &worker.url) {
                let what = format!("worker {} is `{key}` of this router", worker.url);
                self.error(&format!("worker.{position}.url"), what, LOOP_HELP);
            }
            for (key, endpoints) in [("kv_events", &worker.kv_events), ("replay", &worker.replay)] {
                for endpoint in endpoints {
                    let address = tcp_address(endpoint, worker);
                    let address = address.and_then(|(host, port)| literal(&host, port));
                    if let Some(key_of_own) = address.and_then(|address| own_key(&own, address)) {
                        let what = format!("{endpoint} is `{key_of_own}` of this router");
                        self.error(&format!("worker.{position}.{key}"), what, LOOP_HELP);
                    }
                }
            }
        }
    }

    /// Two workers of the same engine, as far as their URLs show. Requests use a single worker.
    fn engines_by_two_names(&mut self, present: &[WorkerConfig], workers: &[WorkerConfig]) {
        let mut by_port = HashMap::<u16, Vec<(EngineAddress, &str)>>::new();
        for worker in present {
            if let Some(place) = place_of(worker) {
                by_port.entry(place.port).or_default().push((place, &worker.url));
            }
        }
        for (position, worker) in workers.iter().enumerate() {
            let Some(place) = place_of(worker) else { continue };
            let others = by_port.entry(place.port).or_default();
            let is_twin = |(other, url): &&(EngineAddress, &str)| {
                *url != worker.url && is_one_engine(&place, other)
            };
            if let Some((_, twin)) = others.iter().find(is_twin) {
                let what = format!("worker {} is the engine of worker {twin}", worker.url);
                self.warning(&format!("worker.{position}.url"), what, TWIN_HELP);
            }
            others.push((place, &worker.url));
        }
    }

    /// Names and literal addresses of `discovery.dns` that lead to an engine of the file.
    fn engines_found_twice(&mut self, config: &Config) {
        let listed: Vec<_> = config.workers.iter().filter_map(place_of).collect();
        for url in &config.discovery.dns {
            let place = WorkerUrl::parse(url).ok().map(|url| EngineAddress::of(&url, None));
            let is_listed = |place| listed.iter().any(|other| is_one_engine(place, other));
            if place.as_ref().is_some_and(is_listed) {
                let shown = shown_url(url);
                let what = format!("`discovery.dns` {shown:?} finds a worker of this file again");
                self.warning("discovery.dns", what, TWIN_HELP);
            }
        }
    }

    /// Such a worker finds no place; the other workers of its file do.
    fn taken_names(&mut self, router: &Config, workers: &[WorkerConfig]) {
        for (position, worker) in workers.iter().enumerate() {
            let Some(name) = name_of(worker) else { continue };
            let mut others = router.workers.iter();
            let has_name = |other: &&WorkerConfig| {
                other.url != worker.url && name_of(other).as_ref() == Some(&name)
            };
            let Some(other) = others.find(has_name) else { continue };
            let what =
                format!("the name {name:?} is the name of worker {} of the router", other.url);
            let key = if worker.name.is_some() { "name" } else { "url" };
            let help = "names tell workers apart: this worker is not added";
            self.warning(&format!("worker.{position}.{key}"), what, help);
        }
    }

    /// A name of `discovery.dns` may be a literal address.
    fn named_loops(&mut self, router: &Config) {
        let own = own_addresses(router);
        for url in &router.discovery.dns {
            if let Some(key) = looping_key(&own, url) {
                let what = format!("worker {} is `{key}` of this router", shown_url(url));
                self.error("discovery.dns", what, LOOP_HELP);
            }
        }
    }

    /// Keys of the router that nothing reads.
    fn unused_keys(&mut self, config: &Config) {
        let off = keys_that_are_off(config);
        let any = WorkerConfig::default();
        for UnusedKeys { keys, why, help } in unused_keys() {
            for key in keys.iter().filter(|key| !key.starts_with("worker.")) {
                let Some(why) = why(config, &any).filter(|_| !off.contains(key)) else { continue };
                let tenants = 0..config.flow.tenants.len();
                let places: Vec<String> = match key.strip_prefix("tenant.") {
                    Some(name) => tenants.map(|at| format!("tenant.{at}.{name}")).collect(),
                    None => vec![(*key).to_owned()],
                };
                for place in places.iter().filter(|place| self.origins.has(place)) {
                    self.unused_key(place, format!("`{key}` is not used: {why}"), help);
                }
            }
        }
        self.unused_worker_keys(config, &config.workers);
    }

    /// A place that has a finding already is not named again.
    pub(crate) fn unused_key(&mut self, place: &str, what: String, help: &str) {
        if !self.has_finding_at(place) {
            self.warning(place, what, help);
        }
    }

    pub(super) fn has_finding_at(&self, place: &str) -> bool {
        let origin = self.origins.of(place);
        self.findings.iter().any(|finding| finding.origin == origin)
    }

    /// Keys of workers of this router that nothing reads.
    fn unused_worker_keys(&mut self, config: &Config, workers: &[WorkerConfig]) {
        for (position, worker) in workers.iter().enumerate() {
            for UnusedKeys { keys, why, help } in unused_keys() {
                for key in *keys {
                    let Some(name) = key.strip_prefix("worker.") else { continue };
                    let place = format!("worker.{position}.{name}");
                    let why = if self.origins.has(&place) { why(config, worker) } else { None };
                    let why = why.filter(|_| !keys_that_are_off(worker).contains(key));
                    if let Some(why) = why {
                        self.unused_key(&place, format!("`{name}` is not used: {why}"), help);
                    }
                }
            }
        }
    }

    fn bodies_too_large_to_wait(&mut self, config: &Config) {
        let queue = &config.flow.queue;
        if queue.mode != QueueMode::Off && queue.bytes_max < config.limits.body_bytes_max {
            let what = "`queue.bytes_max` is smaller than `limits.body_bytes_max`";
            let help = "a body of the largest size could never wait, and gets 429; raise it";
            self.warning(self.either("queue.bytes_max", "limits.body_bytes_max"), what, help);
        }
    }

    /// The table `*` is for tenants without a table.
    fn tenants_without_identity(&mut self, config: &Config) {
        if knows_tenants(config) {
            return;
        }
        let mut tenants = config.flow.tenants.iter().enumerate();
        let is_named = |name: &str| name != "*" && is_tenant_name(name);
        if let Some((position, tenant)) = tenants.find(|(_, tenant)| is_named(&tenant.name)) {
            let name = &tenant.name;
            let what = format!("no request is of the tenant {name:?}: clients have no identity");
            let help = "set `api_keys` or `jwt.jwks`, or `queue.tenant_header` behind a proxy";
            self.warning(&format!("tenant.{position}.name"), what, help);
        }
    }

    /// Targets that are in no list of the workers, where each worker has a list.
    fn models_that_no_worker_serves(&mut self, config: &Config) {
        if !lists_all_models(config) {
            return;
        }
        let models = config.models.iter().enumerate();
        let models = models.map(|(position, model)| (format!("model.{position}.to"), &model.to));
        let adapters = config.adapters.iter().enumerate();
        let adapters =
            adapters.map(|(position, adapter)| (format!("adapter.{position}.of"), &adapter.of));
        for (key, target) in models.chain(adapters).filter(|(_, target)| !target.is_empty()) {
            let is_named = self.has_finding_at(&key);
            if !is_named && !config.workers.iter().any(|worker| worker.models.contains(target)) {
                let what = format!("no worker has {target:?} in `models`");
                self.warning(&key, what, "write a name that workers serve");
            }
        }
    }

    /// Adapters that no worker loads, and copies without a worker.
    fn adapters_that_no_worker_loads(&mut self, config: &Config) {
        for (position, adapter) in config.adapters.iter().enumerate() {
            let AdapterConfig { name, of, .. } = adapter;
            let table = format!("adapter.{position}");
            if name.is_empty() || of.is_empty() {
                continue;
            }
            if !config.health.enabled {
                let what = format!("the adapter {name:?} is never loaded: `health.enabled` is off");
                let help = "set health.enabled = true: the router asks workers what they have";
                self.warning(&table, what, help);
            } else if name == of {
                let what = format!("`adapter.name` and `adapter.of` are both {name:?}");
                self.warning(&format!("{table}.name"), what, "give the adapter a name of its own");
            } else if config.workers.iter().any(|worker| worker.models.contains(name)) {
                let what = format!("`adapter.name` {name:?} is in `models` of a worker too");
                let help = "the adapter is loaded only while that worker is down: give it a name \
                            of its own";
                self.warning(&format!("{table}.name"), what, help);
            } else if is_whole(config) {
                self.copies(&table, config, adapter);
            }
        }
    }

    /// Workers of the adapter's model that load adapters, where no further worker comes.
    fn copies(&mut self, table: &str, config: &Config, adapter: &AdapterConfig) {
        let AdapterConfig { name, of, copies, .. } = adapter;
        let may_serve = |worker: &&WorkerConfig| {
            let mut models = worker.models.iter();
            worker.models.is_empty() || models.any(|model| model == of || model == "*")
        };
        let serving = || config.workers.iter().filter(may_serve);
        let loads = |worker: &&WorkerConfig| config.engine_of(worker) != EngineKind::Openai;
        let hosts = serving().filter(loads).count();
        if hosts == 0 && serving().next().is_some() {
            let what = format!("no worker can load the adapter {name:?}");
            let help = "vLLM and SGLang load adapters; workers of engine = \"openai\" do not";
            self.warning(table, what, help);
        } else if hosts > 0 && u32::try_from(hosts).is_ok_and(|hosts| hosts < *copies) {
            let what = format!(
                "`adapter.copies` is {copies}, more than the workers that may load it ({hosts})"
            );
            let help = format!("write {hosts} or less, or add workers of {of:?}");
            self.warning(&format!("{table}.copies"), what, help);
        }
    }

    /// A share of the requests may keep the name; a name alone may not.
    fn models_that_stand_for_themselves(&mut self, models: &[ModelConfig]) {
        for (position, model) in models.iter().enumerate() {
            let is_alone = models.iter().filter(|other| other.name == model.name).count() == 1;
            if is_alone && model.name == model.to && !model.name.is_empty() {
                let what = format!("the model {:?} stands for itself", model.name);
                let help = "remove the table, or write in `to` the name that workers serve";
                self.warning(&format!("model.{position}"), what, help);
            }
        }
    }

    /// A name is replaced once, so a name of another table is a model that workers serve, or none.
    /// A table that keeps a share of its own name shows that workers serve it.
    fn models_that_stand_for_names(&mut self, models: &[ModelConfig]) {
        let is_served =
            |name: &str| models.iter().any(|table| table.name == name && table.to == name);
        for (position, model) in
            models.iter().enumerate().filter(|(_, model)| model.name != model.to)
        {
            let next = models.iter().find(|other| other.name == model.to);
            let Some(next) = next.filter(|next| !is_served(&next.name)) else { continue };
            let what = format!(
                "`to` {:?} is a name of another table [[model]], and a name is replaced once",
                model.to
            );
            let is_circle = stands_for_itself(models, &model.name);
            let help = match is_circle {
                true => {
                    "the tables form a circle: write in `to` the name that workers serve".to_owned()
                }
                false => {
                    format!("write in `to` the name that workers serve, such as {:?}", next.to)
                }
            };
            self.warning(&format!("model.{position}.to"), what, help);
        }
    }
}

/// Do the tables lead from the name back to the name?
fn stands_for_itself(models: &[ModelConfig], name: &str) -> bool {
    let mut at = name;
    for _ in models {
        let Some(next) = models.iter().find(|table| table.name == at) else { return false };
        at = &next.to;
        if at == name {
            return true;
        }
    }
    false
}

/// Keys with the value `false`, 0 or nothing.
fn keys_that_are_off<T: KeyTable + Clone>(values: &T) -> HashSet<&'static str> {
    let mut off = HashSet::new();
    values.each(|key, setting| {
        let is_off = match setting.show(key) {
            _ if setting.number() == Some(0) => true,
            Some(Value::Bool(is_on)) => !is_on,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            _ => false,
        };
        if is_off {
            off.insert(key.path);
        }
    });
    off
}

/// Keys and addresses of the sockets that the router listens on.
pub(super) fn own_addresses(router: &Config) -> Vec<(&'static str, SocketAddr)> {
    let mut own = vec![("listen", router.listen)];
    own.extend(router.listeners.iter().map(|listener| ("listener", listener.address)));
    if let AdminAddress::Tcp(admin) = &router.admin {
        own.push(("admin", *admin));
    }
    own
}

/// Key of the own address that a URL leads to.
pub(super) fn looping_key(own: &[(&'static str, SocketAddr)], url: &str) -> Option<&'static str> {
    let url = WorkerUrl::parse(url).ok()?;
    own_key(own, literal(&url.host, url.port)?)
}

fn own_key(own: &[(&'static str, SocketAddr)], address: SocketAddr) -> Option<&'static str> {
    own.iter().find(|(_, own)| leads_to(address, *own)).map(|(key, _)| *key)
}

/// Address of a host that needs no look-up.
fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    let ip = match EngineHost::of(host) {
        EngineHost::Localhost => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.address()?,
    };
    Some(SocketAddr::new(ip, port))
}

fn place_of(worker: &WorkerConfig) -> Option<EngineAddress> {
    let url = WorkerUrl::parse(&worker.url).ok()?;
    Some(EngineAddress::of(&url, worker.tls.tls_name.as_deref()))
}

/// Are both the same engine without a look-up?
fn is_one_engine(one: &EngineAddress, other: &EngineAddress) -> bool {
    one.likeness(other, [None, None]) == EngineLikeness::One
}

/// True if a connection to `address` reaches a socket that listens on `own`. An address of another
/// host may have the same port.
fn leads_to(address: SocketAddr, own: SocketAddr) -> bool {
    let reaches =
        address.ip() == own.ip() || own.ip().is_unspecified() && address.ip().is_loopback();
    address.port() == own.port() && reaches
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    #[test]
    fn a_worker_that_is_the_router_is_found() {
        let found = |listen: &str, url: &str| {
            let text = format!("listen = \"{listen}\"\n[[worker]]\nurl = \"{url}\"\n");
            let found = findings(&text);
            found.iter().filter(|found| found.contains("of this router")).count()
        };
        for (listen, url, count) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000", 1),
            ("127.0.0.1:8000", "http://localhost:8000", 1),
            ("0.0.0.0:8000", "http://127.0.0.1:8000", 1),
            ("[::]:8000", "http://[::1]:8000", 1),
            ("127.0.0.1:8000", "http://127.0.0.1:9090", 1),
            ("127.0.0.1:8000", "http://127.0.0.1:8001", 0),
            ("0.0.0.0:8000", "http://10.0.0.1:8000", 0),
            ("127.0.0.1:8000", "http://127.0.0.2:8000", 0),
            ("127.0.0.1:8000", "http://gpu1:8000", 0),
        ] {
            assert_eq!(found(listen, url), count, "{listen} {url}");
        }
    }

    /// M1: KV events were awaited for ever from the router's own port.
    #[test]
    fn an_endpoint_of_events_that_is_the_router_is_found() {
        for (key, endpoint, count) in [
            ("kv_events", "tcp://127.0.0.1:8000", 1),
            ("kv_events", "tcp://localhost:9090", 1),
            ("replay", "tcp://*:8000", 1),
            ("kv_events", "tcp://127.0.0.1:5557", 0),
            ("kv_events", "tcp://gpu1:8000", 0),
            ("kv_events", "ipc:///8000", 0),
        ] {
            let found = findings(&format!(
                "listen = \"127.0.0.1:8000\"\n[[worker]]\nurl = \"http://127.0.0.1:7000\"\n\
                 {key} = [\"{endpoint}\"]\n"
            ));
            let found = found.iter().filter(|found| found.contains("of this router"));
            assert_eq!(found.count(), count, "{key} {endpoint}");
        }
    }

    /// M1: the router used one of them, and counted and showed two.
    #[test]
    fn an_engine_by_two_names_has_a_warning() {
        let twins = |urls: &[&str], dns: &str| {
            let worker = |url: &&str| format!("[[worker]]\nurl = \"{url}\"\n");
            let workers: String = urls.iter().map(worker).collect();
            let found = findings(&format!("[discovery]\ndns = [{dns}]\n{workers}"));
            found.into_iter().filter(|found| found.contains("a single worker of an engine")).count()
        };
        let local = ["http://127.0.0.1:8001", "http://localhost:8001"];
        assert_eq!(twins(&local, ""), 1);
        assert_eq!(twins(&["http://[::1]:8001", "http://localhost:8001"], ""), 1);
        assert_eq!(twins(&["http://GPU1:8001", "http://gpu1.:8001"], ""), 1);
        for two in [
            ["http://[::1]:8001", "http://127.0.0.1:8001"],
            ["http://localhost:8001", "http://localhost:8002"],
            ["http://localhost:8001", "https://localhost:8001"],
            ["http://gpu1:8001", "http://gpu2:8001"],
        ] {
            assert_eq!(twins(&two, ""), 0, "{two:?}");
        }
        assert_eq!(twins(&local[..1], "\"http://localhost:8001\""), 1);
        assert_eq!(twins(&local[..1], "\"http://localhost:8002\""), 0);
    }

    #[test]
    fn a_name_that_is_resolved_twice_has_a_warning() {
        let of = |names: &str| findings(&format!("[discovery]\ndns = [{names}]\n"));
        assert!(!of("\"http://a:1\", \"http://b:1\"").concat().contains("twice"));
        let found = of("\"http://a:1\", \"http://b:1\", \"http://a:1\"").concat();
        assert!(found.contains("`discovery.dns` lists \"http://a:1\" twice"), "{found}");
    }

    #[test]
    fn a_literal_address_of_discovery_may_be_the_router() {
        for (url, count) in [("http://localhost:8000", 1), ("http://localhost:8001", 0)] {
            let listen = "listen = \"127.0.0.1:8000\"";
            let found = findings(&format!("{listen}\n[discovery]\ndns = [\"{url}\"]\n"));
            let is_loop = |found: &&String| found.contains("is `listen` of this router");
            assert_eq!(found.iter().filter(is_loop).count(), count, "{url}: {found:?}");
        }
    }

    #[test]
    fn a_tenant_needs_an_identity_and_an_alias_another_name() {
        let tenant = "[[tenant]]\nname = \"gold\"\nrequests_per_minute = 9\n";
        let found = |text: &str, part: &str| {
            findings(text).iter().filter(|found| found.contains(part)).count()
        };
        assert_eq!(found(tenant, "no identity"), 1);
        assert_eq!(found(&tenant.replace("gold", "*"), "no identity"), 0);
        let header = format!("[queue]\ntenant_header = \"x-tenant\"\n{tenant}");
        assert_eq!(found(&header, "no identity"), 0);
        let model = |to: &str| format!("[[model]]\nname = \"m\"\nto = \"{to}\"\n");
        assert_eq!(found(&model("m"), "stands for itself"), 1);
        assert_eq!(found(&(model("m") + &model("n")), "stands for itself"), 0);
    }

    /// Issue 39: requests for such a name got 404, and no check named the table.
    #[test]
    fn names_that_stand_for_names_have_a_warning() {
        let tables = |pairs: &[(&str, &str)]| {
            let table = |(name, to): &(&str, &str)| {
                format!("[[model]]\nname = \"{name}\"\nto = \"{to}\"\n")
            };
            let found = findings(&pairs.iter().map(table).collect::<String>());
            let of_names = |found: &String| found.contains("a name is replaced once");
            found.into_iter().filter(of_names).collect::<Vec<_>>()
        };
        let chain = tables(&[("a", "b"), ("b", "c")]);
        assert!(chain.len() == 1 && chain[0].contains("such as \"c\""), "{chain:?}");
        let circle = tables(&[("a", "b"), ("b", "a")]);
        assert!(circle.len() == 2 && circle[0].contains("form a circle"), "{circle:?}");
        assert_eq!(tables(&[("a", "b"), ("b", "b"), ("b", "c")]), [""; 0], "b is served too");
        assert_eq!(tables(&[("a", "c"), ("b", "c")]), [""; 0]);
    }

    /// Issue 39: requests for such an adapter failed, and no check named the table.
    #[test]
    fn an_adapter_that_no_worker_loads_has_a_warning() {
        let found = |adapter: &str, more: &str| {
            let found = findings(&format!(
                "{more}\n[[adapter]]\nname = \"sql\"\npath = \"/sql\"\nof = \"m\"\n{adapter}\n"
            ));
            found.into_iter().filter(|found| found.contains("adapter")).collect::<Vec<_>>()
        };
        let openai = found("", "engine = \"openai\"");
        assert!(
            openai.len() == 1 && openai[0].contains(":2:1: warning: no worker can"),
            "{openai:?}"
        );
        let copies = found("copies = 2", "");
        let what =
            ":6:10: warning: `adapter.copies` is 2, more than the workers that may load it (1)";
        assert!(copies.len() == 1 && copies[0].contains(what), "{copies:?}");
        let other = "[[worker]]\nurl = \"http://b:1\"\n";
        assert_eq!(found(&format!("copies = 2\n{other}"), ""), [""; 0]);
        let unable = found(&format!("copies = 2\n{other}engine = \"openai\""), "");
        assert!(unable.len() == 1 && unable[0].contains("may load it (1)"), "{unable:?}");
        assert_eq!(found("copies = 9", "discovery.dns = [\"http://c:1\"]"), [""; 0]);
        let unhealthy = found("copies = 9", "health.enabled = false");
        assert!(unhealthy.len() == 1 && unhealthy[0].contains("is never loaded"), "{unhealthy:?}");
    }
}
