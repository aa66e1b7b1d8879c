//! The process that listens on a TCP port, as `/proc` shows it: the name that an operator needs
//! when a port is in use.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// Tables of TCP sockets of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// State of a listening socket in these tables.
const LISTENS: &str = "0A";
/// Most bytes of a process name.
const NAME_BYTES_MAX: usize = 64;

/// A process that listens on an address, or on all addresses of its port, for example `process 4711
/// (nginx)`. `None` if no process listens, or only root can see the process.
pub(crate) fn process(address: SocketAddr) -> Option<String> {
    let tables = TABLES.map(|table| fs::read_to_string(table).unwrap_or_default());
    let inodes: Vec<u64> = tables.iter().flat_map(|table| listeners(table, address)).collect();
    if inodes.is_empty() {
        return None;
    }
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = numbers.find(|process| holds(*process, &links))?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
    let name: String = name.trim().chars().filter(is_plain).take(NAME_BYTES_MAX).collect();
    Some(if name.is_empty() {
        format!("process {process}")
    } else {
        format!("process {process} ({name})")
    })
}

/// Inodes of the listening sockets that keep another socket from listening on `address`.
fn listeners(table: &str, address: SocketAddr) -> Vec<u64> {
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let (ip, port) = local.rsplit_once(':')?;
        let is_port = u16::from_str_radix(port, 16) == Ok(address.port());
        let ip = listed_ip(ip)?;
        let is_same = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
        let state = fields.nth(1)?;
        (is_port && is_same && state == LISTENS).then(|| fields.nth(5)?.parse().ok())?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// An address of the tables: words of the address as it lies in memory, each in hexadecimal.
fn listed_ip(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let words: Vec<[u8; 4]> = words.collect::<Option<_>>()?;
    if let [word] = *words {
        return Some(Ipv4Addr::from(word).into());
    }
    let bytes: [u8; 16] = words.concat().try_into().ok()?;
    Some(Ipv6Addr::from(bytes).to_canonical())
}

/// The process has a descriptor with any of these `links`.
fn holds(process: u32, links: &[String]) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_ours = |path: &Path| path.to_str().is_some_and(|path| links.iter().any(|l| l == path));
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| is_ours(&target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_process_that_listens_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = process(address).unwrap();
        assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
        drop(listener);
        assert_eq!(process(address), None, "the port is free");
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let line = |local: &str, state: &str, inode: u32| {
            format!("  0: {local} 00000000:0000 {state} 0:0 00:0 00 0 0 {inode} 1 0\n")
        };
        let table = [
            "  sl  local_address rem_address   st tx_queue tr retrnsmt   uid  timeout inode\n",
            &line("0100007F:1F90", "0A", 41),
            &line("0100007F:1F90", "01", 42),
            &line("00000000000000000000000000000000:1F90", "0A", 43),
            &line("0100007F:1F91", "0A", 44),
            "    4: broken\n",
        ];
        let table = &table.concat();
        let of = |address: &str| listeners(table, address.parse().unwrap());
        assert_eq!(of("127.0.0.1:8080"), [41, 43]);
        assert_eq!(of("127.0.0.2:8080"), [43], "the port of another address is no obstacle");
        assert_eq!(of("0.0.0.0:8080"), [41, 43]);
        assert_eq!(of("[::1]:8080"), [43]);
    }
}
