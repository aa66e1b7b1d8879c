//! Ports on which a running router listens, for `forebay doctor`: a port in use is no fault if the
//! running router uses it. Reads `/proc`, and only the files of a process of the same user or of
//! any process as root.

use forebay_handover::HandoverAddress;
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

/// TCP sockets of the network namespace, by address family.
const SOCKET_LISTS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// State of a listening socket in these lists.
const LISTENING: &str = "0A";

/// Ports of the router that runs with the same `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouterPorts {
    /// No router runs there.
    NoRouter,
    /// A router runs, as another user: its sockets are not visible.
    Unknown,
    /// Ports of the router's listening sockets.
    Known(BTreeSet<u16>),
}

impl RouterPorts {
    /// Ports of the router that listens at this address.
    pub(crate) fn of(listen: SocketAddr) -> Self {
        let Ok(place) = HandoverAddress::of(listen) else { return Self::NoRouter };
        if !place.is_taken() {
            return Self::NoRouter;
        }
        let process = place.running().ok().flatten();
        let ports = process.and_then(|process| ports_of(process.as_raw_pid()));
        // Without the port itself the lists are of another network namespace.
        match ports {
            Some(ports) if ports.contains(&listen.port()) => Self::Known(ports),
            _ => Self::Unknown,
        }
    }

    /// True if the router may be what uses this address.
    pub(crate) fn may_own(&self, address: SocketAddr) -> bool {
        match self {
            Self::NoRouter => false,
            Self::Unknown => true,
            Self::Known(ports) => ports.contains(&address.port()),
        }
    }
}

/// Ports of the process's listening sockets. `None` without permission to see its sockets.
fn ports_of(process: i32) -> Option<BTreeSet<u16>> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let links = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inodes = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    });
    let inodes: BTreeSet<u64> = inodes.collect();
    let lists = SOCKET_LISTS.iter().filter_map(|list| fs::read_to_string(list).ok());
    let sockets: Vec<(u16, u64)> =
        lists.flat_map(|list| list.lines().filter_map(listening).collect::<Vec<_>>()).collect();
    let own = sockets.into_iter().filter(|(_, inode)| inodes.contains(inode));
    Some(own.map(|(port, _)| port).collect())
}

/// Port and inode of a listening socket.
fn listening(line: &str) -> Option<(u16, u64)> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let local = columns.next()?;
    if columns.nth(1)? != LISTENING {
        return None;
    }
    // Behind the state: queues, timer, retransmissions, user, time-out, inode.
    let inode = columns.nth(5)?;
    let (_, port) = local.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  \
                    1000        0 1404931 1 0000000000000000 100 0 0 10 0";
        assert_eq!(listening(line), Some((8_080, 1_404_931)));
        let line = "   1: 00000000000000000000000001000000:2382 \
                    00000000000000000000000000000000:0000 0A 00000000:00000000 \
                    00:00000000 00000000     0        0 77 1 0 100 0 0 10 0";
        assert_eq!(listening(line), Some((9_090, 77)));
        assert_eq!(listening(&line.replace(" 0A ", " 01 ")), None, "a connection");
        for other in ["", "sl local_address rem_address st tx_queue", "0: x y 0A", "0: :z y 0A 1 2"]
        {
            assert_eq!(listening(other), None, "{other}");
        }
    }

    #[test]
    fn the_ports_of_a_process_are_those_of_its_listeners() {
        let listeners: Vec<_> = ["127.0.0.1:0", "[::1]:0"]
            .iter()
            .filter_map(|address| TcpListener::bind(address).ok())
            .collect();
        let own = ports_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        for listener in &listeners {
            assert!(own.contains(&listener.local_addr().unwrap().port()), "{own:?}");
        }
        let client = TcpStream::connect(listeners[0].local_addr().unwrap()).unwrap();
        let process = i32::try_from(std::process::id()).unwrap();
        assert!(!ports_of(process).unwrap().contains(&client.local_addr().unwrap().port()));
    }
}
