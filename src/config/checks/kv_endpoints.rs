//! Checks the endpoints of KV events and of replays.

use super::check::Check;
use crate::sections::worker::WorkerConfig;
use crate::values::engine_address::EngineHost;
use crate::values::host::{HostFault, check_bracketed_host};
use crate::values::url::WorkerUrl;
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

impl Check<'_> {
    /// Endpoints that are no ZMQ endpoints, that are HTTP ports of workers, that publish for
    /// several workers, or that should both publish and replay.
    pub(crate) fn kv_endpoints(&mut self, workers: &[WorkerConfig]) {
        let urls = workers.iter().filter_map(|worker| WorkerUrl::parse(&worker.url).ok());
        let urls: Vec<WorkerUrl> = urls.collect();
        let of_worker = |worker: &WorkerConfig| -> Vec<PublisherAddress> {
            worker.kv_events.iter().map(|endpoint| PublisherAddress::of(endpoint, worker)).collect()
        };
        let sockets: HashSet<PublisherAddress> = workers.iter().flat_map(of_worker).collect();
        let mut publishers = HashMap::new();
        for (position, worker) in workers.iter().enumerate() {
            for (key, endpoints) in [("kv_events", &worker.kv_events), ("replay", &worker.replay)] {
                let key_path = format!("worker.{position}.{key}");
                for endpoint in endpoints {
                    if let Err((what, help)) = check_endpoint(endpoint) {
                        self.error(&key_path, what, help);
                    } else if let Some(url) = http_port(endpoint, worker, &urls) {
                        let what = format!("{endpoint} is the HTTP port of {url}");
                        let option = if key == "replay" { "replay_endpoint" } else { "endpoint" };
                        let help = format!(
                            "write `{option}` of the engine's --kv-events-config; or correct \
                             `url`, if this is no port of the engine's HTTP server"
                        );
                        self.error(&key_path, what, help);
                    } else if key == "replay"
                        && sockets.contains(&PublisherAddress::of(endpoint, worker))
                    {
                        let what = format!(
                            "{endpoint} is an endpoint of `kv_events`, and no socket is both"
                        );
                        let help = "write `replay_endpoint` of the engine's --kv-events-config";
                        self.error(&key_path, what, help);
                    }
                }
            }
            self.endpoints_of_ranks(position, worker);
            let mut endpoints = worker.kv_events.iter();
            let of_other = endpoints.find(|&endpoint| {
                let publisher = (PublisherAddress::of(endpoint, worker), &worker.kv_topic);
                *publishers.entry(publisher).or_insert(position) != position
            });
            if let Some(endpoint) = of_other {
                let what = format!("{endpoint} publishes the KV events of another worker too");
                let help = "write the endpoint of each worker's engine, or a `kv_topic` of its own";
                self.warning(&format!("worker.{position}.kv_events"), what, help);
            }
        }
    }
}

impl Check<'_> {
    /// A list of several endpoints has an endpoint for each rank. Without `ranks`, the list of
    /// `kv_events` is the count.
    fn endpoints_of_ranks(&mut self, position: usize, worker: &WorkerConfig) {
        let configured = worker.ranks.and_then(|ranks| usize::try_from(ranks).ok());
        let of_events = Some(worker.kv_events.len()).filter(|&count| count > 1);
        let Some(ranks) = configured.or(of_events) else { return };
        for (key, endpoints) in [("kv_events", &worker.kv_events), ("replay", &worker.replay)] {
            let count = endpoints.len();
            if count > 1 && count != ranks {
                let of_ranks = match configured {
                    Some(_) => format!("`ranks` is {ranks}"),
                    None => format!("`kv_events` lists {ranks}"),
                };
                let what = format!("`{key}` lists {count} endpoints, and {of_ranks}");
                let help = "list an endpoint for each rank, or a single endpoint for all, which \
                            counts ports up";
                self.warning(&format!("worker.{position}.{key}"), what, help);
            }
        }
    }
}

/// Socket of an endpoint, however its host is spelled.
#[derive(Debug, PartialEq, Eq, Hash)]
enum PublisherAddress {
    Tcp(EngineHost, u16),
    /// A path, or a socket that the router binds.
    Other(String),
}

impl PublisherAddress {
    fn of(endpoint: &str, worker: &WorkerConfig) -> Self {
        let Some((host, port)) = tcp_address(endpoint, worker) else {
            return Self::Other(endpoint.to_owned());
        };
        let host = match EngineHost::of(&host) {
            EngineHost::Localhost => EngineHost::Address(Ipv4Addr::LOCALHOST.into()),
            host => host,
        };
        Self::Tcp(host, port)
    }
}

/// Host and port that the router connects to. `*` is the worker's own host.
pub(crate) fn tcp_address(endpoint: &str, worker: &WorkerConfig) -> Option<(String, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = match host {
        "*" | "0.0.0.0" | "::" => WorkerUrl::parse(&worker.url).ok()?.host,
        host => host.to_owned(),
    };
    Some((host, port))
}

/// The `url` with the host and the port of the endpoint.
fn http_port(endpoint: &str, worker: &WorkerConfig, urls: &[WorkerUrl]) -> Option<String> {
    let (host, port) = tcp_address(endpoint, worker)?;
    let host = EngineHost::of(&host);
    let is_it = |url: &&WorkerUrl| url.port == port && host.is_same(&EngineHost::of(&url.host));
    urls.iter().find(is_it).map(WorkerUrl::text)
}

/// The fault of an endpoint, and its help.
fn check_endpoint(endpoint: &str) -> Result<(), (String, &'static str)> {
    const FORM: &str = "write it as tcp://host:port or ipc:///path";
    let fault = || (format!("{endpoint:?} is not a ZMQ endpoint"), FORM);
    let address = endpoint.strip_prefix("bind:").unwrap_or(endpoint);
    if let Some(path) = address.strip_prefix("ipc://") {
        return if path.is_empty() { Err(fault()) } else { Ok(()) };
    }
    let rest = address.strip_prefix("tcp://").ok_or_else(fault)?;
    let (host, port) = rest.rsplit_once(':').ok_or_else(fault)?;
    if port.parse::<u16>().is_err() {
        return Err(fault());
    }
    // A link-local address has the interface behind it.
    let is_any = host == "*";
    let host = match host.split_once('%') {
        Some((address, _)) if host.starts_with('[') => format!("{address}]"),
        _ => host.to_owned(),
    };
    let of_host = |fault: HostFault| (format!("{endpoint:?}: {fault}"), fault.help(FORM));
    if is_any { Ok(()) } else { check_bracketed_host(&host).map_err(of_host) }
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    /// M1: whichever worker has the HTTP port, no events come from there.
    #[test]
    fn an_http_port_is_no_endpoint() {
        let found = |key: &str, endpoint: &str| {
            let text = format!(
                "[[worker]]\nurl = \"http://gpu1:8000\"\n{key} = [\"{endpoint}\"]\n\
                 [[worker]]\nurl = \"https://[::1]:8443/\"\n"
            );
            let found = findings(&text);
            found.into_iter().filter(|one| one.contains("is the HTTP port of")).count()
        };
        let local = ["tcp://[::1]:8443", "tcp://localhost:8443"];
        let own = ["tcp://gpu1:8000", "tcp://*:8000", "tcp://0.0.0.0:8000", "tcp://[::]:8000"];
        for wrong in own.into_iter().chain(local) {
            assert_eq!((found("kv_events", wrong), found("replay", wrong)), (1, 1), "{wrong}");
        }
        for right in ["tcp://gpu1:5557", "tcp://gpu2:8000", "bind:tcp://*:8000", "ipc:///gpu1:8000"]
        {
            assert_eq!(found("kv_events", right), 0, "{right}");
        }
    }

    /// Issue 39: `kv_events` and `replay` have the rule of `url`.
    #[test]
    fn a_host_of_an_endpoint_is_a_host() {
        let found = |endpoint: &str| {
            findings(&format!(
                "[[worker]]\nurl = \"http://gpu1:8000\"\nkv_events = [{endpoint:?}]\n"
            ))
        };
        for wrong in ["tcp://10.0.0.256:5557", "bind:tcp://10.0.0:5557", "tcp://g pu:1", "tcp://:1"]
        {
            let found = found(wrong);
            let start = "forebay.toml:3:13: error: ";
            assert!(found.len() == 1 && found[0].starts_with(start), "{wrong}: {found:?}");
            assert!(found[0].contains(&format!("{wrong:?}")), "{found:?}");
        }
        for right in
            ["tcp://*:1", "bind:tcp://[::]:1", "tcp://[fe80::1%eth0]:1", "tcp://10.0.0.1:1"]
        {
            assert_eq!(found(right), [""; 0], "{right}");
        }
    }

    /// Issue 39: the router left the second endpoint of a worker with `ranks = 1` out, silently.
    #[test]
    fn a_list_of_endpoints_has_an_endpoint_for_each_rank() {
        let list = |count: u32| {
            let each: Vec<String> =
                (0..count).map(|at| format!("\"tcp://a:{}\"", 5_557 + at)).collect();
            each.join(", ")
        };
        for (ranks, events, replays, says) in [
            (
                Some(1),
                2,
                0,
                &["4:13: warning: `kv_events` lists 2 endpoints, and `ranks` is 1"][..],
            ),
            (Some(3), 2, 0, &["4:13: warning: `kv_events` lists 2 endpoints, and `ranks` is 3"]),
            (None, 2, 3, &["4:10: warning: `replay` lists 3 endpoints, and `kv_events` lists 2"]),
            (Some(2), 2, 2, &[]),
            (Some(2), 1, 1, &[]),
            (None, 2, 1, &[]),
            (None, 1, 3, &[]),
        ] {
            let ranks = ranks.map_or(String::new(), |ranks| format!("ranks = {ranks}"));
            let replay = if replays > 0 {
                format!("replay = [{}]", list(replays).replace("555", "565"))
            } else {
                String::new()
            };
            let text = format!(
                "[[worker]]\nurl = \"http://gpu1:8000\"\n{ranks}\nkv_events = [{}]\n{replay}\n",
                list(events)
            );
            let text = if says.first().is_some_and(|says| says.contains("replay")) {
                text.replace("\n\nkv_events", "\nkv_events")
            } else {
                text
            };
            let found = findings(&text);
            assert_eq!(found.len(), says.len(), "{text}\n{found:?}");
            for (found, says) in found.iter().zip(says) {
                assert!(found.starts_with(&format!("forebay.toml:{says}")), "{text}\n{found}");
            }
        }
    }

    /// Issue 39: a wildcard is another host for each worker, and a relay sends several ranks of a
    /// worker. Spellings of a host are not compared as text.
    #[test]
    fn an_endpoint_of_two_workers_is_found_in_any_spelling() {
        let found = |urls: [&str; 2], endpoints: [&str; 2]| {
            let worker = |(url, endpoint)| {
                format!("[[worker]]\nurl = \"http://{url}\"\nkv_events = [{endpoint}]\n")
            };
            let text: String = urls.into_iter().zip(endpoints).map(worker).collect();
            let found = findings(&text);
            found.into_iter().filter(|one| one.contains("of another worker too")).count()
        };
        let hosts = ["gpu1:8000", "gpu2:8000"];
        let ports = ["gpu1:8000", "gpu1:8001"];
        let any = "\"tcp://*:5557\"";
        assert_eq!(found(hosts, [any, any]), 0);
        assert_eq!(found(ports, [any, any]), 1);
        assert_eq!(found(hosts, [any, "\"tcp://GPU1:5557\""]), 1);
        assert_eq!(found(hosts, ["\"tcp://localhost:1\"", "\"tcp://127.0.0.1:1\""]), 1);
        assert_eq!(found(hosts, ["\"ipc:///a\"", "\"ipc:///a\""]), 1);
        assert_eq!(found(hosts, ["\"ipc:///a\"", "\"ipc:///b\""]), 0);
        let relay = "\"tcp://relay:1\", \"tcp://relay:1\"";
        assert_eq!(found(hosts, [relay, any]), 0);
        assert_eq!(found(hosts, [relay, "\"tcp://relay:1\""]), 1);
    }

    /// M1: a socket that publishes repeats no batches, so no missed batch came back.
    #[test]
    fn an_endpoint_of_events_is_no_endpoint_of_replays() {
        let found = |replay: &str| {
            let text = format!(
                "[[worker]]\nurl = \"http://gpu1:8000\"\nkv_events = [\"tcp://*:5557\"]\n\
                 [[worker]]\nurl = \"http://localhost:8000\"\nkv_events = [\"ipc:///e\", \
                 \"tcp://127.0.0.1:5559\"]\nreplay = [\"{replay}\"]\n"
            );
            let found = findings(&text);
            found.into_iter().filter(|one| one.contains("no socket is both")).count()
        };
        for wrong in ["tcp://gpu1:5557", "ipc:///e", "tcp://*:5559", "tcp://localhost:5559"] {
            assert_eq!(found(wrong), 1, "{wrong}");
        }
        for right in ["tcp://gpu1:5558", "ipc:///r", "tcp://*:5557", "tcp://gpu2:5557"] {
            assert_eq!(found(right), 0, "{right}");
        }
    }
}
