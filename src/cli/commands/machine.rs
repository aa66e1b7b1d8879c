//! Machine checks of `forebay doctor`: facts in, findings out. Only [`MachineFacts::gather`]
//! accesses the system.

use super::router_ports::RouterPorts;
use crate::ingress::{DescriptorShortage, try_bind};
use crate::port_holder;
use forebay_base::limits::SHARDS_MAX;
use forebay_config::{AdminAddress, Config, CpuShortage};
use forebay_discovery::MissingFeature;
use forebay_net::Driver;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;

/// NUMA nodes of the kernel.
const NODES: &str = "/sys/devices/system/node";
/// Restriction of io_uring. 0: none, 1: privileged processes only, 2: disabled.
const URING_SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Facts about the machine and this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct MachineFacts {
    /// Cores that the process may use.
    pub(crate) cores: Vec<usize>,
    /// Cores of each NUMA node.
    pub(crate) nodes: BTreeMap<usize, Vec<usize>>,
    /// Hard limit of open files: the router raises its soft limit at the start.
    pub(crate) files_max: u64,
    /// The process may use io_uring.
    pub(crate) has_uring: bool,
    /// The kernel's restriction of io_uring, if the kernel has such a switch.
    pub(crate) uring_switch: Option<u8>,
    /// Configured addresses that cannot be bound.
    pub(crate) refused: Vec<RefusedAddress>,
    /// No process listens on the configured `admin`.
    pub(crate) is_admin_free: bool,
}

/// A configured address that cannot be bound.
#[derive(Clone, Debug)]
pub(crate) struct RefusedAddress {
    pub(crate) key: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) kind: ErrorKind,
    /// The process that listens there, as far as this user can see it.
    pub(crate) holder: Option<String>,
}

impl MachineFacts {
    pub(crate) fn gather(config: &Config) -> Self {
        let switch = std::fs::read_to_string(URING_SWITCH).ok();
        let is_shared = config.listen_shared;
        let mut listeners = vec![("listen", config.listen, is_shared)];
        let further = config.listeners.iter();
        listeners.extend(further.map(|other| ("listener.address", other.address, is_shared)));
        listeners.extend(config.admin.port_address().map(|admin| ("admin", admin, false)));
        let refused = listeners.into_iter().filter_map(|(key, address, is_shared)| {
            let kind = try_bind(address, is_shared).err()?.kind();
            let holder =
                if kind == ErrorKind::AddrInUse { port_holder::process(address) } else { None };
            Some(RefusedAddress { key, address, kind, holder })
        });
        let refused: Vec<_> = refused.collect();
        Self {
            is_admin_free: is_free(&config.admin, &refused),
            cores: available_cores(),
            nodes: nodes(),
            files_max: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            has_uring: Driver::is_uring_allowed(),
            uring_switch: switch.and_then(|text| text.trim().parse().ok()),
            refused,
        }
    }

    /// Conditions that keep the router from running well here. `running`: ports of a router that
    /// already listens at `listen`.
    pub(crate) fn findings(&self, config: &Config, running: &RouterPorts) -> Vec<MissingFeature> {
        let mut found = Vec::new();
        let mut resolved = config.clone();
        resolved.resolve_cores(&self.cores);
        self.check_cores(&resolved, &mut found);
        if let Some(DescriptorShortage { limit, needed }) =
            DescriptorShortage::of(&resolved, self.files_max)
        {
            let what = format!("{limit} open files are allowed, and {needed} may be needed");
            found.push(lack(what, DescriptorShortage::HELP));
        }
        if !self.has_uring {
            let help = match self.uring_switch {
                Some(1 | 2) => "sysctl kernel.io_uring_disabled=0",
                _ => "use Linux 6.1 or later, and permit io_uring in the seccomp profile",
            };
            found.push(lack("io_uring is not available: epoll costs more CPU per request", help));
        }
        // A router of this configuration has its `admin` too.
        let is_other_router = self.is_admin_free;
        for RefusedAddress { key, address, kind, holder } in &self.refused {
            let (what, help) = match kind {
                ErrorKind::AddrInUse if running.may_own(*address) && !is_other_router => continue,
                ErrorKind::AddrInUse if running.may_own(*address) => {
                    let help = "end that router, or change the key; if that router is to have this \
                                configuration, restart it, since `admin` has changed";
                    ("is in use by a router with another `admin`", help)
                }
                ErrorKind::AddrInUse => ("is in use", "end the other process, or change the key"),
                ErrorKind::AddrNotAvailable => ("is no address of this machine", "change the key"),
                ErrorKind::PermissionDenied => {
                    ("is not allowed", "give CAP_NET_BIND_SERVICE, or use a port from 1024 on")
                }
                _ => ("cannot be opened", "change the key"),
            };
            let holder = holder.as_ref().map_or_else(String::new, |holder| format!(": {holder}"));
            found.push(lack(format!("`{key}` {address} {what}{holder}"), help));
        }
        found
    }

    /// Checks the resolved cores of a configuration.
    fn check_cores(&self, wanted: &Config, found: &mut Vec<MissingFeature>) {
        for core in wanted.missing_cores(&self.cores) {
            let CpuShortage { what, help } = CpuShortage::of(core, &self.cores);
            found.push(lack(what, help));
        }
        if wanted.cores.len() >= self.cores.len() && self.cores.len() > 1 {
            let what = "`cores` takes all cores: the control plane shares one with a shard";
            found.push(lack(what, "leave one core out"));
        }
        let node_of = |core: &usize| {
            self.nodes.iter().find(|(_, cores)| cores.contains(core)).map(|(node, _)| *node)
        };
        let mut nodes: Vec<usize> = wanted.cores.iter().filter_map(node_of).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > 1 {
            let what = format!("`cores` lie on several NUMA nodes: {nodes:?}");
            let help = "choose cores of the network card's node, or start a router for each node \
                        with `listen_shared`";
            found.push(lack(what, help));
        }
    }
}

/// Does not wait where the queue of connections is full, as behind a stopped process.
fn try_connect(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)
}

/// Does no process listen on the address of the admin API? With port 0 the address is not known.
fn is_free(admin: &AdminAddress, refused: &[RefusedAddress]) -> bool {
    match admin {
        AdminAddress::Tcp(address) => {
            let is_taken = |other: &RefusedAddress| {
                other.address == *address && other.kind == ErrorKind::AddrInUse
            };
            address.port() != 0 && !refused.iter().any(is_taken)
        }
        AdminAddress::Unix(path) => try_connect(path).is_err_and(|error| {
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        }),
    }
}

fn lack(what: impl Into<String>, help: impl Into<String>) -> MissingFeature {
    MissingFeature { what: what.into(), help: help.into() }
}

/// Cores that this process may use; empty if the system does not list them.
pub(crate) fn available_cores() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

/// NUMA nodes with their cores; empty if the kernel does not list them.
fn nodes() -> BTreeMap<usize, Vec<usize>> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir(NODES).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let list = std::fs::read_to_string(entry.path().join("cpulist"));
        if let (Some(number), Ok(list)) = (number, list) {
            nodes.insert(number, cores_of(list.trim()));
        }
    }
    nodes
}

/// Parses `0-3,8`. Invalid parts are skipped.
fn cores_of(list: &str) -> Vec<usize> {
    // More cores than shards can use are of no interest.
    let cores_max = SHARDS_MAX.saturating_mul(64);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().take(cores_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> MachineFacts {
        MachineFacts {
            cores: vec![0, 1, 2, 3],
            nodes: BTreeMap::from([(0, vec![0, 1]), (1, vec![2, 3])]),
            files_max: 1 << 20,
            has_uring: true,
            uring_switch: Some(0),
            refused: Vec::new(),
            is_admin_free: false,
        }
    }

    fn refused(key: &'static str, address: SocketAddr, kind: ErrorKind) -> RefusedAddress {
        let holder = Some("process 4711 (nginx)".to_owned());
        let holder = holder.filter(|_| kind == ErrorKind::AddrInUse);
        RefusedAddress { key, address, kind, holder }
    }

    fn whats(facts: &MachineFacts, cores: &[usize]) -> Vec<String> {
        let config = Config { cores: cores.to_vec(), ..Config::default() };
        facts.findings(&config, &RouterPorts::NoRouter).into_iter().map(|lack| lack.what).collect()
    }

    #[test]
    fn a_machine_as_it_should_be_has_no_findings() {
        assert_eq!(whats(&well(), &[0, 1]), [""; 0]);
    }

    #[test]
    fn each_planted_fault_is_found() {
        let at = SocketAddr::from(([10, 0, 0, 9], 80));
        let refused = |kind| vec![refused("listen", at, kind)];
        for (facts, cores, says) in [
            (well(), vec![0, 9], "may not use core 9"),
            (well(), vec![1, 2], "several NUMA nodes: [0, 1]"),
            (well(), vec![0, 1, 2, 3], "takes all cores"),
            (MachineFacts { files_max: 1_024, ..well() }, vec![0], "1024 open files"),
            (MachineFacts { has_uring: false, ..well() }, vec![0], "io_uring is not available"),
            (
                MachineFacts { refused: refused(ErrorKind::AddrInUse), ..well() },
                vec![0],
                "`listen` 10.0.0.9:80 is in use: process 4711 (nginx)",
            ),
            (
                MachineFacts { refused: refused(ErrorKind::AddrNotAvailable), ..well() },
                vec![0],
                "is no address of this machine",
            ),
        ] {
            let found = whats(&facts, &cores);
            assert!(found.iter().any(|what| what.contains(says)), "{says}: {found:?}");
        }
        let off = MachineFacts { has_uring: false, uring_switch: Some(2), ..well() };
        let found =
            off.findings(&Config { cores: vec![0], ..Config::default() }, &RouterPorts::NoRouter);
        assert!(found[0].help.contains("io_uring_disabled=0"), "{found:?}");
        let used = MachineFacts { refused: refused(ErrorKind::AddrInUse), ..well() };
        let config = Config { cores: vec![0], ..Config::default() };
        let own = RouterPorts::Known([80].into());
        assert_eq!(used.findings(&config, &own), [], "the router itself");
        assert_eq!(used.findings(&config, &RouterPorts::Unknown), [], "perhaps the router");
        // Issue 39: another router on `listen` was silent.
        let other = MachineFacts { is_admin_free: true, ..used };
        for running in [own, RouterPorts::Unknown] {
            let found = other.findings(&config, &running);
            let says = "`listen` 10.0.0.9:80 is in use by a router with another `admin`: process";
            assert!(found.len() == 1 && found[0].what.starts_with(says), "{found:?}");
        }
    }

    /// The router runs, and a key was changed to the port of another process.
    #[test]
    fn a_port_of_another_process_is_found_beside_a_running_router() {
        let address = |port| SocketAddr::from(([10, 0, 0, 9], port));
        let refused = vec![
            refused("listen", address(80), ErrorKind::AddrInUse),
            refused("admin", address(9_091), ErrorKind::AddrInUse),
        ];
        let facts = MachineFacts { refused, ..well() };
        let config = Config { cores: vec![0], ..Config::default() };
        let found = facts.findings(&config, &RouterPorts::Known([80, 9_090].into()));
        let whats: Vec<&str> = found.iter().map(|found| &*found.what).collect();
        assert_eq!(whats, ["`admin` 10.0.0.9:9091 is in use: process 4711 (nginx)"]);
    }

    #[test]
    fn the_admin_address_is_free_without_a_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let admin = AdminAddress::Unix(path.clone());
        assert!(is_free(&admin, &[]));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!is_free(&admin, &[]));
        drop(listener);
        assert!(is_free(&admin, &[]), "a socket that a killed process has left");
        let address = SocketAddr::from(([127, 0, 0, 1], 9_090));
        let admin = AdminAddress::Tcp(address);
        assert!(is_free(&admin, &[refused("admin", address, ErrorKind::AddrNotAvailable)]));
        assert!(!is_free(&admin, &[refused("admin", address, ErrorKind::AddrInUse)]));
    }

    /// Without `cores`, a router uses the cores that it may use: their descriptors count too.
    #[test]
    fn the_need_of_open_files_is_that_of_the_router_that_would_start() {
        let mut started = Config::default();
        started.resolve_cores(&well().cores);
        let least = DescriptorShortage::of(&started, 0).unwrap().needed;
        for (files_max, is_found) in [(least - 1, true), (least, false)] {
            let found = whats(&MachineFacts { files_max, ..well() }, &[]);
            let is_named = found.iter().any(|what| what.contains("open files"));
            assert_eq!(is_named, is_found, "{files_max}: {found:?}");
        }
    }

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(cores_of("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(cores_of(""), [0; 0]);
        assert_eq!(cores_of("x,1-"), [0; 0]);
    }
}
